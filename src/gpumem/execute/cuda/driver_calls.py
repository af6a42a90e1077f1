"""Calls of the driver for memory, and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
    status, *values = result
    if status:
        raise (MemoryError if status.name == "CUDA_ERROR_OUT_OF_MEMORY" else RuntimeError)(f"{what}: {status.name}")
    return values[0] if values else None
