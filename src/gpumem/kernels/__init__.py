"""Numba CUDA kernels (`device`) and the same functions in NumPy (`reference`); importing this package loads neither.

A caller chooses a module and calls the same names with the same arguments: `library.relu(stream, x, out)`, or has
them made once, `start = prebound(library.relu, x, out)`, and starts them often.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.kernels import device as device, reference as reference
    from gpumem.kernels.numba_cuda import launch as launch
    from gpumem.kernels.prebound import in_turn as in_turn, prebinding as prebinding, prebound as prebound

lazy_interface(__name__)
