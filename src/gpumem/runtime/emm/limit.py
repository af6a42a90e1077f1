"""Numba's device arrays under a memory limit: launches and copies are watched, and arrays come and go around them.

Experimental: it has never met hardware.

What is watched: the `launch` by which Numba's dispatcher starts kernels, and the calls of Numba's driver object that
copy and set memory. Each tells addresses, so views, slices, records and tuples need no care of their own. What a kernel
is given counts as read and written.

Who learns an address elsewhere may use it unseen, so the array stays on the device for good from then on: where it is
asked for by `__cuda_array_interface__`, which kernels do that have an array as a constant, or by others than Numba by
`device_ctypes_pointer`, and where a launch or a copy is captured into a graph. Not seen, so not to be relied on: an
address out of `gpu_data`'s own attributes, and one that a kernel reads out of memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any

from cuda.bindings import driver as api
from cuda.core import Buffer, MemoryResource

from gpumem.runtime.emm import numba_internals
from gpumem.runtime.paged.arrays import Extent, LimitedArrays
from gpumem.runtime.paged.on_pages import OnPages
from gpumem.runtime.pooled.backing import Backing

_all: list[LimitedArrays] = []  # of contexts that are in use


class ContextLimit:
    """The device arrays of a context that move within its limit, and what Numba does with them.

    Parameters
    ----------
    context
        Numba's.
    limit : int
        Bytes.
    allocate, drop : callable
        By which arrays of any size are had and given back.
    **options
        As `Adaptive` has them.

    Attributes
    ----------
    arrays : LimitedArrays
    least : int
        Bytes of the smallest array that moves: a granule.
    """

    def __init__(
        self,
        context: Any,
        limit: int,
        allocate: Callable[[int], int],
        drop: Callable[[int], None],
        **options: Any,
    ) -> None:
        watch()
        device = numba_internals.ordinal(context)
        environment = OnPages(device, limit)
        self.arrays = LimitedArrays(environment, limit, **options)
        self.least = environment.pages.granule
        temporaries = Temporaries(device, allocate, drop)
        self._unmade = numba_internals.replace_core_device(context, lambda own: DeviceOfNumba(own, temporaries))
        _all.append(self.arrays)

    def charging(self, backing: Backing) -> Charged:
        """Have a pool for small arrays be within the limit."""
        return Charged(backing, self.arrays)

    @property
    def free(self) -> int:
        """Bytes within the limit that nothing holds."""
        return max(self.arrays.limit - self.arrays.device.held, 0)

    def close(self) -> None:
        """Give all arrays back, and watch them no more."""
        self._unmade()
        _all.remove(self.arrays)
        self.arrays.close()


class Charged:
    """The bytes of a pool for small arrays, which are within the limit too, and never move."""

    def __init__(self, inner: Any, arrays: LimitedArrays) -> None:
        self.inner, self.arrays, self.base = inner, arrays, inner.base

    @property
    def size(self) -> int:
        """Bytes there are."""
        return int(self.inner.size)

    def grow(self, top: int) -> None:
        """Make room within the limit, and take it."""
        granule = self.arrays.environment.pages.granule
        more = -(-top // granule) * granule - self.size
        if more <= 0:
            return
        self.arrays.charge(more)
        try:
            self.inner.grow(top)
        except BaseException:
            self.arrays.charge(-more)
            raise

    def close(self) -> None:
        """Give everything back."""
        self.inner.close()


class Temporaries(MemoryResource):  # type: ignore[misc]
    """Memory for what Numba copies to the device for one launch, from where arrays come from."""

    def __init__(self, device: int, allocate: Callable[[int], int], drop: Callable[[int], None]) -> None:
        self._device, self._allocate, self._drop = device, allocate, drop

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        """Return a buffer."""
        return Buffer.from_handle(self._allocate(size), size, mr=self)

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        """Take it back."""
        self._drop(int(ptr))

    device_id = property(lambda self: self._device)
    is_device_accessible = property(lambda self: True)
    is_host_accessible = property(lambda self: False)


class DeviceOfNumba:
    """A device of `cuda.core` as Numba has it, which allocates elsewhere."""

    def __init__(self, device: Any, resource: Temporaries) -> None:
        self._device, self._resource = device, resource

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, size: int, stream: Any = None) -> Any:
        """Return a buffer for what is passed to a kernel from the host."""
        return self._resource.allocate(size, stream=stream)


# What is watched ------------------------------------------------------------------------------------------------------

COPY_IN = "copy in"
# the driver's call: what it is called here, which argument is written, which is read
_COPIES: dict[str, tuple[str, int | None, int | None]] = {
    "cuMemcpyHtoD": (COPY_IN, 0, None),
    "cuMemcpyDtoH": ("copy out", None, 1),
    "cuMemcpyDtoD": ("copy", 0, 1),
    "cuMemsetD8": ("set", 0, None),
}
_SIZE, _STREAM = 2, 3  # where those two stand


def watch() -> None:
    """Have Numba tell of launches, of copies, and of addresses that are asked for.

    `RuntimeError` where Numba has not got what is watched.
    """
    numba_internals.watch_work(_launching, lambda name, original: _copying(original, *_COPIES[name]), _escaped)


def _launching(original: Any) -> Any:
    """Wrap `launch(stream, config, kernel, *arguments)`."""

    @wraps(original)
    def launch(stream: Any, config: Any, kernel: Any, *arguments: Any) -> Any:
        if not _all:
            return original(stream, config, kernel, *arguments)
        lowest = min(arrays.lowest for arrays in _all)
        given = [Extent(x) for x in arguments if type(x) is int and x >= lowest]
        return _run(partial(original, stream, config, kernel, *arguments), _name(kernel), stream, given, given)

    return launch


def _copying(original: Any, name: str, target: int | None, source: int | None) -> Any:
    """Wrap a call of the driver, whose stream is the last argument where it has one."""

    @wraps(original)
    def call(*arguments: Any) -> Any:
        if not _all:
            return original(*arguments)
        size = int(arguments[_SIZE])
        writes = () if target is None else (Extent(int(arguments[target]), size),)
        reads = () if source is None else (Extent(int(arguments[source]), size),)
        stream = arguments[_STREAM] if len(arguments) > _STREAM else 0
        return _run(partial(original, *arguments), name, stream, reads, writes, given=name == COPY_IN)

    return call


def _run(
    call: Callable[[], Any],
    name: str,
    stream: Any,
    reads: Sequence[Extent],
    writes: Sequence[Extent],
    *,
    given: bool = False,
) -> Any:
    """Make a call as an op of those arrays that it touches."""
    for arrays in _all:
        call = partial(arrays.run, name, stream, call, reads, writes, given=given)
    return call()


def _escaped(array: Any) -> None:
    """Keep an array where it is, since somebody is told its address and may use it unseen."""
    if _all:
        address = numba_internals.address_of(array)
        for arrays in _all:
            arrays.pin(address)


def _name(kernel: Any) -> str:
    return _named(int(kernel.handle))


@cache
def _named(handle: int) -> str:
    status, name = api.cuKernelGetName(handle)
    return "kernel" if status else readable(name.decode())


def readable(mangled: str) -> str:
    """Return a function's name, of that by which a kernel of Numba's is known.

    >>> readable("_ZN6cudapy8__main__5scaleB2v1B38cw51cXTLSUwv1sC_2fE5ArrayIfLi1E")
    'scale'
    """
    names, rest = [], mangled.removeprefix("_ZN")
    while rest != mangled and (digits := re.match(r"\d+", rest)):
        end = digits.end() + int(digits[0])
        names.append(rest[digits.end() : end])
        rest = rest[end:]
    return names[-1] if names else mangled
