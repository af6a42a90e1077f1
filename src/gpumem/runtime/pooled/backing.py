"""Where a pool's bytes are: they begin at one address for good, and there are more of them as the pool grows.

Read `Backing` first, which is all that a pool asks for. `backing` picks: `Grown` where the device can map memory to
addresses that were reserved before, which takes no more of the device than the pool has needed so far, and else
`Fixed`, which takes all of it at once. `VirtualMemory` has the driver's calls that `Grown` and `pages` are made of.

CUDA is loaded when the first of them is made, not when this module is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol


class Backing(Protocol):
    """Bytes from `base` on. One thread at a time may call it, and any thread may."""

    base: int  # the first address, a multiple of 512

    def grow(self, top: int) -> None:
        """Have the bytes `[0, top)` be there from now on; `MemoryError` leaves everything as it was."""
        ...

    def close(self) -> None:
        """Give everything back. Nothing that is under way may use it any more; a second time does nothing."""
        ...


def backing(device: int, capacity: int) -> Backing:
    """Return bytes on a device for a pool of `capacity` bytes at most.

    Parameters
    ----------
    device : int
        Its number.
    capacity : int
        Bytes, at least 1. Where the device can map memory this may be more than it has: it is what addresses are for.

    Raises
    ------
    ValueError
        No such device, or a capacity below 1.
    MemoryError
        Not so many addresses, or, where the device cannot map memory, not so many bytes.
    ImportError
        CUDA is not installed.

    Examples
    --------
    Each pool is checked against what it was made for:

    >>> backing(0, 0)
    Traceback (most recent call last):
    ValueError: a capacity of 0 bytes: a pool needs at least 1
    """
    _positive(capacity)
    return Grown(device, capacity) if can_map(device) else Fixed(device, capacity)


def can_map(device: int) -> bool:
    """Whether a device can map memory to addresses that were reserved before."""
    api = started(device)
    attribute = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    return bool(done(api.cuDeviceGetAttribute(attribute, device), "what the device can do"))


class VirtualMemory:
    """Addresses of a device, and its bytes, apart from each other: the driver's calls, whose failures are exceptions.

    None of them is in the order of a stream. What is unmapped while work under way still uses it is an illegal address
    there, and hardware does not say whose: wait for that work first. What gives back says nothing of failures: after
    one that stays, the driver says it of every call.

    Attributes
    ----------
    granule : int
        Bytes in which memory is mapped: 2 MiB on most devices.
    """

    def __init__(self, device: int) -> None:
        self.api = api = started(device)
        self._kind = api.CUmemAllocationProp()
        self._kind.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._access = api.CUmemAccessDesc()
        self._access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for location in (self._kind.location, self._access.location):
            location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            location.id = device
        least = api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granule = int(done(api.cuMemGetAllocationGranularity(self._kind, least), "how memory is mapped"))

    def whole(self, size: int) -> int:
        """Round bytes up to whole granules."""
        return -(-size // self.granule) * self.granule

    def reserve(self, size: int) -> int:
        """Return the first of so many addresses, none of which anybody else has; there are no bytes behind them."""
        return int(done(self.api.cuMemAddressReserve(size, 0, 0, 0), f"{size} addresses"))

    def forget(self, address: int, size: int) -> None:
        """Give back what `reserve` returned."""
        self.api.cuMemAddressFree(address, size)

    def create(self, size: int) -> Any:
        """Take bytes, at no address."""
        return done(self.api.cuMemCreate(size, self._kind, 0), f"{size} bytes of device memory")

    def release(self, memory: Any) -> None:
        """Give back what `create` returned; where it is mapped, the bytes go when it is not any more."""
        self.api.cuMemRelease(memory)

    def map(self, address: int, memory: Sequence[Any], size: int) -> None:
        """Put pieces of memory, each of `size` bytes, side by side from an address on; all of them or none."""
        end = address
        try:
            for piece in memory:
                done(self.api.cuMemMap(end, size, 0, piece, 0), f"{size} bytes at {end:#x}")
                end += size
            access = self.api.cuMemSetAccess(address, end - address, [self._access], 1)
            done(access, f"access to {end - address} bytes at {address:#x}")
        except BaseException:
            if end > address:
                self.unmap(address, end - address)
            raise

    def unmap(self, address: int, size: int) -> None:
        """Leave addresses without bytes, at once: whole mappings only."""
        self.api.cuMemUnmap(address, size)


class Grown:
    """Addresses for the whole capacity, and bytes as far as somebody has needed them.

    Each step takes whole granules and maps them behind the last. They are given back by `close` alone: a pool's top
    does not come down while anything lives above it.

    Attributes
    ----------
    base, capacity, size : int
        The first address; bytes there may be; bytes there are.
    """

    def __init__(self, device: int, capacity: int) -> None:
        self.capacity, self.size = _positive(capacity), 0
        self._memory = VirtualMemory(device)
        self.base = self._memory.reserve(self._memory.whole(capacity))

    def grow(self, top: int) -> None:
        """Have the bytes `[0, top)` be there from now on."""
        _within(self, top)
        more = self._memory.whole(top) - self.size
        if more <= 0:
            return
        piece = self._memory.create(more)
        try:
            self._memory.map(self.base + self.size, [piece], more)
        finally:
            self._memory.release(piece)  # the mapping keeps it
        self.size += more

    def close(self) -> None:
        """Give everything back."""
        if not self.base:
            return
        if self.size:
            self._memory.unmap(self.base, self.size)
        self._memory.forget(self.base, self._memory.whole(self.capacity))
        self.base = self.size = 0


class Fixed:
    """One allocation of the whole capacity, for devices that cannot map memory.

    Attributes
    ----------
    base, capacity, size : int
        The first address; bytes there may be, and are.
    """

    def __init__(self, device: int, capacity: int) -> None:
        self.capacity = self.size = _positive(capacity)
        self._api, self._device = started(device), device
        self._context = done(self._api.cuDevicePrimaryCtxRetain(device), f"the context of device {device}")
        try:
            with self._inside():
                self.base = int(done(self._api.cuMemAlloc(capacity), f"{capacity} bytes of device memory"))
        except BaseException:
            self._api.cuDevicePrimaryCtxRelease(device)
            raise

    def grow(self, top: int) -> None:
        """See that the bytes `[0, top)` are there, as all are."""
        _within(self, top)

    def close(self) -> None:
        """Give everything back."""
        if not self.base:
            return
        with self._inside():
            self._api.cuMemFree(self.base)
        self._api.cuDevicePrimaryCtxRelease(self._device)
        self.base = self.size = 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Have the device's context current in this thread, and afterwards what was current before."""
        done(self._api.cuCtxPushCurrent(self._context), "the context of the device")
        try:
            yield
        finally:
            self._api.cuCtxPopCurrent()


def started(device: int) -> Any:
    """Return the driver's calls, once it is running and known to have the device."""
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        raise ImportError(f"CUDA needs the package cuda-bindings: pip install 'gpumem[cu13]' ({error})") from error
    done(api.cuInit(0), "the driver")
    count = done(api.cuDeviceGetCount(), "the devices")
    if not 0 <= device < count:
        raise ValueError(f"device {device}: there are {count}, counted from 0")
    return api


def done(result: tuple[Any, ...], what: str) -> Any:
    """Return what a call of the driver returned; `MemoryError` or `RuntimeError` says what was asked for."""
    status, *found = result
    if status:
        raise (MemoryError if status.name == "CUDA_ERROR_OUT_OF_MEMORY" else RuntimeError)(f"{what}: {status.name}")
    return found[0] if found else None


def _positive(capacity: int) -> int:
    if capacity < 1:
        raise ValueError(f"a capacity of {capacity} bytes: a pool needs at least 1")
    return capacity


def _within(bytes_: Grown | Fixed, top: int) -> None:
    """Refuse what can never be there."""
    if not bytes_.base:
        raise ValueError("this memory has been given back")
    if top > bytes_.capacity:
        raise MemoryError(f"{top} bytes: the pool may have {bytes_.capacity}")
