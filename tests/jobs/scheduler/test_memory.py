"""A job's memory: parts are held and freed in turn, within its budget."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.jobs.scheduler.memory import JobMemory


class Counted(JobMemory):
    """Memory that notes what it says."""

    def __init__(self, budget: int, size: Sequence[int]) -> None:
        self.said: list[str] = []
        super().__init__(budget, size, lambda kind, part: self.said.append(f"{kind} {part}"))


def test_memory_goes_by_turns() -> None:
    """Part 2 would fit at once, but part 1 asked before; no bytes ask nobody."""
    memory = Counted(10, [6, 6, 4, 0])
    memory.start([0])
    big, small, nothing = memory.request([1], 5), memory.request([2], 6), memory.request([3], 7)
    assert (big.at, small.at, nothing.at, memory.used) == (-1, -1, 7, 6)
    assert memory.short([big]) == (2, set()) and memory.short([small]) == (6, set())
    memory.end(0, 9)
    assert (big.at, small.at, memory.used, memory.peak) == (9, 9, 10, 10)
    assert memory.said == ["hold 0", "hold 3", "free 0", "hold 1", "hold 2"]


def test_a_part_is_made_anew_when_its_last_self_is_gone() -> None:
    """The bytes are reserved, and others served, but the part itself comes later."""
    memory = Counted(20, [6, 4])
    memory.start([0])
    memory.held[0].copies = 1
    memory.end(0, 1)
    again, other = memory.request([0], 2), memory.request([1], 3)
    assert (again.at, other.at, memory.used) == (-1, 3, 16)
    assert memory.short([again]) == (0, {0}) and memory.short([other]) == (0, set())
    memory.copied(0, 8)
    assert (again.at, memory.used) == (8, 10)
    assert memory.said == ["hold 0", "hold 1", "free 0", "hold 0"]
