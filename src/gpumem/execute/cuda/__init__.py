"""CUDA as a backend, on `cuda.core` alone: slabs, streams, events, pinned copies, graphs.

Importing it sets `CUDA_DEVICE_MAX_CONNECTIONS` to 32, the most there are, unless it is set: each job has three streams,
and streams that share one of the usual 8 hardware queues wait for each other. It counts where the driver starts later.
"""

import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

try:
    from cuda.core import Device  # noqa: F401
except ImportError as error:
    raise ImportError(f"CUDA needs the package cuda-core: pip install 'gpumem[cu13]' ({error})") from error

from gpumem.execute.cuda.backend import Cuda
from gpumem.execute.cuda.memory import CudaMemory, DeviceArray, for_numba
from gpumem.execute.cuda.probe import devices, driver

__all__ = ["Cuda", "CudaMemory", "DeviceArray", "devices", "driver", "for_numba"]
