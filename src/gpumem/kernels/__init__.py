"""Numba CUDA kernels (`device`) and the same functions in NumPy (`reference`); importing this package loads neither.

A caller chooses a module and calls the same names with the same arguments: `library.relu(stream, x, out)`.
"""
