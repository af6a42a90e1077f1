"""What a transparent device did, entry by entry."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpumem.runtime.residency.environment import LiveBlock, LiveEnvironment

LOGGED = 2**18  # entries of a log, the oldest are dropped: some tens of MB at most. Not tuned


class LogEntry(NamedTuple):
    """Something a device did.

    Parameters
    ----------
    kind : str
        `op`: an op was begun. `out`, `in`: a copy was. `fill`, `empty`: a block was given memory, or lost it.
        `found`: an iteration was; `planned`: a plan is followed from the next op on; `deviated`: the op is none that
        the plan has there; `resumed`: the first ops of the iteration came by.
    op : int
        Ops begun before, counted from 0.
    what : str
        Name of the op; why it deviated.
    block : int
        Number of the block, -1 where it is none's.
    size : int
        Its bytes.
    start, end : int
        When it ran or runs, ns by the environment's clock; -1 where that is not known.
    """

    kind: str
    op: int = 0
    what: str = ""
    block: int = -1
    size: int = 0
    start: int = -1
    end: int = -1

    @property
    def event(self) -> tuple[str, int, str, int, int]:
        """All of it but the time."""
        return self[:5]


@dataclass(slots=True)
class Logged:
    """Moves blocks as an environment does, and writes down what it did."""

    environment: LiveEnvironment
    log: deque[LogEntry]
    op: int = 0

    def note(self, kind: str, what: str = "", block: LiveBlock | None = None) -> None:
        """Write down what takes no time."""
        number, size = (-1, 0) if block is None else (block.number, block.size)
        now = self.environment.now()
        self.log.append(LogEntry(kind, self.op, what, number, size, now, now))

    def begun(self, kind: str, what: str = "", block: LiveBlock | None = None) -> None:
        """Write down what the environment has just begun."""
        number, size = (-1, 0) if block is None else (block.number, block.size)
        self.log.append(LogEntry(kind, self.op, what, number, size, *self.environment.span))

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Give a block memory."""
        self.environment.fill(storage, size)
        self.note("fill", "", storage)

    def empty(self, storage: LiveBlock) -> None:
        """Take a block's memory."""
        self.environment.empty(storage)
        self.note("empty", "", storage)

    def out(self, storage: LiveBlock) -> Any:
        """Begin to copy a block to the host."""
        copy = self.environment.out(storage)
        self.begun("out", "", storage)
        return copy

    def back(self, storage: LiveBlock, copy: Any) -> None:
        """Begin to copy it back."""
        self.environment.back(storage, copy)
        self.begun("in", "", storage)

    def wait_for_copy(self, copy: Any) -> None:
        """Let what computes next wait."""
        self.environment.wait_for_copy(copy)

    def drop(self, copy: Any) -> None:
        """Give the host's memory back."""
        self.environment.drop(copy)


def spent(log: Iterable[LogEntry], ops: Sequence[int]) -> list[tuple[int, int]]:
    """Return what iterations of so many ops took by a log from the first op on, and what their ops alone took, in ns.

    The ops alone, one after the other, are the program without a limit: what is more was spent waiting for copies.

    >>> log = [LogEntry(kind, start=start, end=end) for kind, start, end in [("op", 0, 5), ("in", 5, 8), ("op", 8, 9)]]
    >>> spent(log, [1, 1])
    [(5, 5), (4, 1)]
    """
    begun = [(entry.start, entry.end) for entry in log if entry.kind == "op"]
    spans, low, before = [], 0, 0
    for count in ops:
        copies = begun[low : low + count]
        end = copies[-1][1] if copies else before
        spans.append((end - before, sum(end - start for start, end in copies)))
        low, before = low + count, end
    return spans
