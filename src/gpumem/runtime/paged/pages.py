"""Arrays that keep their address while their bytes go and come.

A range of addresses is reserved for each array, once; no other array ever has them, nor a granule of them. `fill` maps
physical memory to a range, `empty` takes it away, and whoever has the address need not know. Granules that were taken
away wait in a free list, so that the next range is filled by mapping alone; all of them together stay within a budget.

Neither call is in the order of a stream, and neither moves bytes: what a range holds after `fill` is what somebody left
there. Before `empty`, whoever calls waits for all work that uses the range, and copies out what is still needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumem.base.units import human
from gpumem.execute.cuda.driver_calls import VirtualMemory


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses of one array.

    Attributes
    ----------
    address, size : int
        The first address, a multiple of the granule; bytes that were asked for.
    taken : int
        Bytes that it takes when it is filled: whole granules.
    """

    address: int
    size: int
    taken: int


@dataclass(frozen=True, slots=True)
class PageStatistics:
    """Granules of some pages, each of `granule` bytes: mapped, in the free list, at most.

    >>> PageStatistics(granule=2**21, mapped=3, free=1, budget=8).bytes_held
    8388608
    """

    granule: int
    mapped: int
    free: int
    budget: int

    @property
    def bytes_held(self) -> int:
        """Bytes of the device that are taken, mapped or not."""
        return (self.mapped + self.free) * self.granule


class Pages:
    """Ranges of addresses on a device, and the physical memory that is behind some of them.

    One thread at a time may call it, and any thread may. A call that fails leaves everything as it was.

    Parameters
    ----------
    device : int
        Its number; it can map memory (`backing.can_map`).
    budget : int
        Bytes of physical memory at most, mapped and free together; whole granules of it count.

    Raises
    ------
    ValueError
        No such device, or a budget below one granule.
    RuntimeError
        The device cannot map memory.

    Attributes
    ----------
    granule, budget : int
        Bytes in which memory is mapped; how many of these there may be.
    """

    def __init__(self, device: int, budget: int) -> None:
        self._memory = VirtualMemory(device)
        self.granule = self._memory.granule
        self.budget = budget // self.granule
        if self.budget < 1:
            raise ValueError(f"a budget of {budget} bytes: memory is mapped in granules of {human(self.granule)}")
        self._ranges: dict[Range, list[Any]] = {}  # with their granules; none while a range is empty
        self._free: list[Any] = []
        self._mapped = 0  # granules

    def whole(self, size: int) -> int:
        """Round bytes up to what a range of them takes."""
        return self._memory.whole(size)

    def reserve(self, size: int) -> Range:
        """Return addresses for `size` bytes, without any bytes; O(1)."""
        if size < 1:
            raise ValueError(f"a range of {size} bytes: an array needs at least 1")
        taken = self.whole(size)
        made = Range(self._memory.reserve(taken), size, taken)
        self._ranges[made] = []
        return made

    def fill(self, range_: Range) -> None:
        """Have bytes behind all addresses of an empty range, with whatever is in them.

        Any granules do, so there is room wherever the ranges that are filled leave as many bytes of the budget. The
        time is one call of the driver a granule, and one more for each that is not in the free list.

        Raises
        ------
        MemoryError
            They are more than the budget leaves, or than the device has.
        """
        if self.filled(range_):
            raise ValueError(f"{range_} has its bytes already")
        granules = range_.taken // self.granule
        reused = self._free[max(len(self._free) - granules, 0) :]
        created = self._create(granules - len(reused))
        try:
            self._memory.map(range_.address, reused + created, self.granule)
        except BaseException:
            self._release(created)
            raise
        del self._free[len(self._free) - len(reused) :]
        self._ranges[range_] = reused + created
        self._mapped += granules

    def empty(self, range_: Range) -> None:
        """Take the bytes of a filled range away, at once; the addresses stay its own."""
        if not self.filled(range_):
            raise ValueError(f"{range_} has no bytes")
        self._memory.unmap(range_.address, range_.taken)
        self._free += self._ranges[range_]
        self._mapped -= len(self._ranges[range_])
        self._ranges[range_] = []

    def release(self, range_: Range) -> None:
        """Give the addresses back, and the bytes if it has any."""
        if self.filled(range_):
            self.empty(range_)
        del self._ranges[range_]
        self._memory.forget(range_.address, range_.taken)

    def filled(self, range_: Range) -> bool:
        """Whether a range has its bytes."""
        if range_ not in self._ranges:
            raise ValueError(f"{range_} was not reserved here, or has been released")
        return bool(self._ranges[range_])

    def trim(self) -> int:
        """Give the free list back to the device; return how many bytes that were."""
        freed, self._free = self._free, []
        self._release(freed)
        return len(freed) * self.granule

    def close(self) -> None:
        """Give everything back; a second time does nothing."""
        for range_ in [*self._ranges]:
            self.release(range_)
        self.trim()

    @property
    def statistics(self) -> PageStatistics:
        """How many granules are where."""
        return PageStatistics(self.granule, self._mapped, len(self._free), self.budget)

    def _create(self, granules: int) -> list[Any]:
        """Take new granules of the device, all or none."""
        now = self.statistics
        if now.mapped + now.free + granules > self.budget:
            raise MemoryError(
                f"{human((granules + now.free) * self.granule)} in granules: {human(now.mapped * self.granule)} of "
                f"{human(self.budget * self.granule)} are mapped"
            )
        created: list[Any] = []
        try:
            for _ in range(granules):
                created.append(self._memory.create(self.granule))
        except BaseException:
            self._release(created)
            raise
        return created

    def _release(self, granules: list[Any]) -> None:
        for granule in granules:
            self._memory.release(granule)
