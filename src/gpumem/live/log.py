"""What a transparent device did, entry by entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

KINDS = ("op", "out", "in", "empty", "fill", "found", "planned", "deviated", "resumed")


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
        When it ran or runs, ns by the world's clock; -1 where that is not known.
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


def spent(log: Iterable[LogEntry], ops: Sequence[int]) -> list[tuple[int, int]]:
    """Return what iterations of so many ops took by a log from the first op on, and what their ops alone took, in ns.

    The ops alone, one after the other, are the program without a limit: what is more was spent waiting for copies.

    >>> log = [LogEntry(kind, start=start, end=end) for kind, start, end in [("op", 0, 5), ("in", 5, 8), ("op", 8, 9)]]
    >>> spent(log, [1, 1])
    [(5, 5), (4, 1)]
    """
    begun = [(entry.start, entry.end) for entry in log if entry.kind == "op"]
    found, low, before = [], 0, 0
    for count in ops:
        mine = begun[low : low + count]
        end = mine[-1][1] if mine else before
        found.append((end - before, sum(b - a for a, b in mine)))
        low, before = low + count, end
    return found
