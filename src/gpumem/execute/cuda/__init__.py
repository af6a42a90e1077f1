"""CUDA as a backend, on `cuda.core` alone: slabs, streams, events, pinned copies, graphs."""

try:
    from cuda.core import Device  # noqa: F401
except ImportError as error:
    raise ImportError(f"CUDA needs the package cuda-core: pip install 'gpumem[cu13]' ({error})") from error

from gpumem.execute.cuda.backend import Cuda
from gpumem.execute.cuda.memory import CudaMemory, DeviceArray, for_numba
from gpumem.execute.cuda.probe import devices, driver

__all__ = ["Cuda", "CudaMemory", "DeviceArray", "devices", "driver", "for_numba"]
