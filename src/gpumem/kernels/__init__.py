"""Numba CUDA kernels (`device`) and the same functions in NumPy (`reference`); importing this package loads neither.

A caller chooses a module and calls the same names with the same arguments: `library.relu(stream, x, out)`.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.kernels import device as device, reference as reference

face(__name__)
