"""All that gpumem uses of numba-cuda beside its public interface: what it is for, and how it is watched.

`PRIVATE` has the names, which another version may not have; `missing` says which have gone. Numba's simulator has few
of them, so what is defined here by one has a stand-in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from importlib.metadata import version
from operator import attrgetter
from typing import Any

from numba.cuda import dispatcher
from numba.cuda.cudadrv import devicearray, devices, driver

VERSIONS = "0.30"  # of numba-cuda, in which all of these names are


@dataclass(frozen=True, slots=True)
class NumbaPrivate:
    """A name of numba-cuda that it promises nobody, and why gpumem needs it; `of_limit`: under a memory limit alone."""

    module: Any
    name: str
    why: str
    of_limit: bool = False

    @property
    def full(self) -> str:
        """The name as Numba's documents would have it."""
        return f"{self.module.__name__}.{self.name}"


COPIES = ("cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD", "cuMemsetD8")
PRIVATE = (
    NumbaPrivate(driver, "MemoryPointer", "what `memalloc` returns; ours has no finalizer each"),
    NumbaPrivate(driver, "CudaAPIError", "what programs expect where there is no room"),
    NumbaPrivate(driver, "binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY", "that error's code"),
    NumbaPrivate(driver, "_SizeNotSet", "whether `deallocations` knows how much it may keep back"),
    NumbaPrivate(driver, "driver.cuMemGetInfo", "how much memory there is"),
    NumbaPrivate(driver, "Stream.__init__", "tells of the streams that Numba makes"),
    NumbaPrivate(driver, "_to_core_stream", "tells of each stream that a kernel is launched on"),
    NumbaPrivate(driver, "_stream_handle", "tells of each stream that is copied on"),
    NumbaPrivate(devices, "get_context", "whose streams those are"),
    NumbaPrivate(dispatcher, "launch", "tells of each launch and of the addresses that it has", of_limit=True),
    *(NumbaPrivate(driver, f"driver.{name}", "tells of each copy and set", of_limit=True) for name in COPIES),
    *(NumbaPrivate(driver, f"driver.{name}Async", "as the one without a stream", of_limit=True) for name in COPIES),
    NumbaPrivate(
        driver, "Device._dev", "Numba's device of cuda.core, which gives a launch's arguments memory", of_limit=True
    ),
    NumbaPrivate(driver, "device_ctypes_pointer", "by which Numba itself asks for what it copies at", of_limit=True),
    NumbaPrivate(
        devicearray,
        "DeviceNDArrayBase._strided_memory_view_shim",
        "by which Numba itself asks for an address that it launches with",
        of_limit=True,
    ),
)

MemoryPointer: Any = getattr(driver, "MemoryPointer", object)
HostOnlyManager: Any = getattr(driver, "HostOnlyCUDAMemoryManager", object)
CudaAPIError: Any = driver.CudaAPIError
PUBLIC_ADDRESSES = ("__cuda_array_interface__", "device_ctypes_pointer")  # attributes of arrays that tell an address


def missing(*, limit: bool = True) -> list[str]:
    """Return the names that this version of numba-cuda has not got."""
    return [name.full for name in PRIVATE if (limit or not name.of_limit) and not _is_there(name)]


def required(*, limit: bool = False) -> None:
    """Raise `RuntimeError` where this version of numba-cuda lacks a name, and say which."""
    if absent_names := missing(limit=limit):
        here = f"numba-cuda {version('numba-cuda')} has no {', '.join(absent_names)}"
        raise RuntimeError(f"{here}, which gpumem needs: use numba-cuda {VERSIONS}")


def _is_there(name: NumbaPrivate) -> bool:
    if name.name == "Device._dev":  # an attribute of instances
        code = getattr(driver.Device.__init__, "__code__", None)
        return code is not None and "_dev" in code.co_names
    try:
        attrgetter(name.name)(name.module)
    except AttributeError:
        return False
    return True


def out_of_memory() -> Any:
    """Return the driver's code where there is no room."""
    return driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY


def memory_info() -> tuple[int, int]:
    """Return (free, total) bytes of the current device."""
    free, total = driver.driver.cuMemGetInfo()
    return free, total


def reported_memory(free: int, total: int) -> Any:
    """Return what `get_memory_info` does."""
    return driver.MemoryInfo(free=free, total=total)


def keep_back(deallocations: Any) -> None:
    """Let Numba keep as much pinned and mapped memory back from being freed as it does by itself."""
    if deallocations.memory_capacity == driver._SizeNotSet:
        deallocations.memory_capacity = memory_info()[1]


def ordinal(context: Any) -> int:
    """Return the number of a context's device, which is the driver's own where somebody else made the context."""
    return int(getattr(context.device, "id", context.device))


def replace_core_device(context: Any, made: Callable[[Any], Any]) -> Callable[[], None]:
    """Have Numba use `made(device)` for a context's device of `cuda.core`; return what undoes that."""
    device, own = context.device, context.device._dev
    device._dev = made(own)
    return partial(setattr, device, "_dev", own)


def current_context() -> Any:
    """Return the context that is current, or make one so."""
    return devices.get_context()


# What is watched ------------------------------------------------------------------------------------------------------


def watch_streams(made: Callable[[Any, bool], None], used: Callable[[Any], None]) -> None:
    """Call `made(stream, external)` for each stream that Numba makes an object of, `used(stream)` before each use."""
    required()

    def around_making(original: Any) -> Any:
        def __init__(stream: Any, handle: Any, finalizer: Any = None, external: bool = False) -> None:
            original(stream, handle, finalizer, external)
            made(stream, external or finalizer is None)

        return __init__

    def around_use(original: Any) -> Any:
        def use(stream: Any) -> Any:
            if stream and hasattr(stream_of := getattr(stream, "stream", stream), "handle"):  # a graph builder has one
                used(stream_of)
            return original(stream)

        return use

    _wrap(driver.Stream, "__init__", around_making)
    for name in ("_to_core_stream", "_stream_handle"):
        _wrap(driver, name, around_use)


def watch_work(
    launching: Callable[[Any], Any], copying: Callable[[str, Any], Any], escaped: Callable[[Any], None]
) -> None:
    """Wrap launches, and copies (`COPIES`, and each with a stream); call `escaped(array)` before its address is told.

    Numba's own questions for addresses are passed over: what it does with them is a launch or a copy.
    """
    required(limit=True)
    _wrap(dispatcher, "launch", launching)
    for name in COPIES:
        for call in (name, f"{name}Async"):
            _wrap(driver.driver, call, partial(copying, name))
    base = devicearray.DeviceNDArrayBase
    if isinstance(base.__dict__["device_ctypes_pointer"], _Watched):
        return
    shim = base._strided_memory_view_shim
    shim.func = _by_numba(shim.func)
    driver.device_ctypes_pointer = _by_numba(driver.device_ctypes_pointer)
    for attribute in PUBLIC_ADDRESSES:
        setattr(base, attribute, _Watched(_unless_by_numba(base.__dict__[attribute].fget, escaped)))


def address_of(array: Any) -> int:
    """Return the address of a device array, which nobody is told of."""
    return int(array.gpu_data.device_ctypes_pointer.value or 0) if array.gpu_data is not None else 0


class _Asking(threading.local):
    by_numba = False


class _Watched(property):
    """An attribute that tells an address, and says so."""


_asking = _Asking()


def _wrap(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Put a function in the place of another one, once."""
    original = getattr(owner, name)
    if not hasattr(original, "watched"):
        replaced: Any = wraps(original)(around(original))
        replaced.watched = True
        setattr(owner, name, replaced)


def _by_numba(original: Any) -> Any:
    """Wrap a function of Numba's by which it asks arrays for addresses that it uses itself."""

    @wraps(original)
    def ask(thing: Any) -> Any:
        before, _asking.by_numba = _asking.by_numba, True
        try:
            return original(thing)
        finally:
            _asking.by_numba = before

    return ask


def _unless_by_numba(original: Any, escaped: Callable[[Any], None]) -> Any:
    """Wrap an attribute's getter: tell of an array whose address somebody else asks for."""

    @wraps(original)
    def get(array: Any) -> Any:
        if not _asking.by_numba:
            escaped(array)
        return original(array)

    return get
