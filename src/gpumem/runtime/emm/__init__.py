"""Numba's external memory manager."""
