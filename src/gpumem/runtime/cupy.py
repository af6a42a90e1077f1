"""CuPy's arrays in memory that an allocator serves, by way of CuPy's own hook.

::

    cupy.cuda.set_allocator(cupy_allocator(PoolMemoryResource()))
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpumem.runtime.pooled.served import Served

if TYPE_CHECKING:
    from gpumem.runtime.cuda_core import PoolMemoryResource


def cupy_allocator(memory: PoolMemoryResource | Served, device: int = 0) -> Callable[[int], Any]:
    """Return what `cupy.cuda.set_allocator` and `cupy.cuda.using_allocator` take.

    Parameters
    ----------
    memory : PoolMemoryResource or Served
        Where arrays lie from then on; it stays open as long as the allocator is there.
    device : int
        The device that it is on; a resource says that itself.

    Returns
    -------
    callable
        Bytes in, a `cupy.cuda.MemoryPointer` out. `MemoryError` where there is no room, `ValueError` where CuPy's
        current device is another one.

    Raises
    ------
    ImportError
        CuPy is not installed.

    Notes
    -----
    A request is for CuPy's current stream. Memory goes back in the order of the stream that it was allocated for, as in
    CuPy's own pool, if that is the current one where its last array goes. If not, all streams that were seen are joined
    first, since a finalizer may run anywhere.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError(f"CuPy is not installed: pip install cupy-cuda13x, or cupy-cuda12x ({error})") from error
    served: Served = getattr(memory, "served", memory)
    device = getattr(memory, "device_id", device)
    made: dict[int, Any] = {}  # address -> stream, which is kept as long as its memory

    def malloc(size: int, number: int, _kept: Any = memory) -> int:  # a resource that nobody has is closed
        if number != device:
            raise ValueError(f"device {number}: this memory is on device {device}; `with cupy.cuda.Device({device})`")
        stream = cupy.cuda.get_current_stream()
        address = served.allocate(size, int(stream.ptr), stream)
        made[address] = stream
        return address

    def free(address: int, number: int) -> None:
        stream, now = made.pop(address), None
        with suppress(Exception):  # a program that ends has no streams any more
            now = int(cupy.cuda.get_current_stream().ptr)
        handle = int(stream.ptr)
        served.free(address, handle if handle == now else None, stream)

    allocator: Callable[[int], Any] = cupy.cuda.PythonFunctionAllocator(malloc, free).malloc
    return allocator
