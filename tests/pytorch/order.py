"""The oracle of what runs on a GPU: what is ordered before what, by vector clocks over a log. It knows no engine.

Two that touch the same bytes, at least one of them writing, must be ordered; to allocate is to write. Memory that was
given back may be had by the next that runs, or allocates, on the stream that it is of: whatever touched it must be
ordered before that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.pytorch.card import SIDES, Allocate, Entry, GiveBack, Record, Span, Touch, Wait

Clock = dict[str, int]


class Unordered(AssertionError):
    """Two that touch the same bytes may run in any order."""


@dataclass
class Range:
    """Bytes, and what touched them since they were written last."""

    span: Span
    pool: str
    touched: list[tuple[str, int, bool, str]] = field(default_factory=list)  # stream, its time, writes?, what


class Checker:
    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = defaultdict(dict)
        self.marks: dict[int, Clock] = {}
        self.live: dict[int, Range] = {}  # by its first address
        self.given: dict[str, list[Range]] = defaultdict(list)  # by stream

    def read(self, log: Sequence[Entry]) -> None:
        for entry in log:
            getattr(self, type(entry).__name__.lower())(entry)

    def record(self, entry: Record) -> None:
        self.marks[entry.mark] = dict(self.clocks[entry.stream])

    def wait(self, entry: Wait) -> None:
        self._join(entry.stream, self.marks[entry.mark])

    def touch(self, entry: Touch) -> None:
        self._tick(entry.stream)
        self._handed_out(entry.stream, entry.what)
        for spans, writes in ((entry.reads, False), (entry.writes, True)):
            for span in dict.fromkeys(spans):
                for mine in self._of(span):
                    self._use(mine, entry.stream, writes, entry.what)

    def allocate(self, entry: Allocate) -> None:
        if entry.stream in SIDES:
            raise Unordered(f"memory is allocated on {entry.stream}")
        for mine in self._of(entry.span, there=False):  # an allocator's of other streams has other addresses
            del self.live[mine.span[0]]
        mine = self.live[entry.span[0]] = Range(entry.span, entry.stream)
        if entry.stream:
            self._tick(entry.stream)
            self._handed_out(entry.stream, "an allocation")
            self._use(mine, entry.stream, True, "an allocation")

    def giveback(self, entry: GiveBack) -> None:
        if entry.stream in SIDES:
            raise Unordered(f"memory is given back on {entry.stream}")
        mine = self.live.pop(entry.span[0])
        assert mine.span == entry.span
        self.given[mine.pool].append(mine)

    def end(self) -> None:
        """Everything is used once more, on whatever stream computed; and what was given back is."""
        everything = [mine.span for mine in self.live.values() if mine.pool]
        for stream in [s for s in self.clocks if s not in (*SIDES, "host")]:
            self.touch(Touch(stream, everything, [], "a use after the run"))
        for pool in [*self.given]:
            self._tick(pool)
            self._handed_out(pool, "an op after the run")

    def _tick(self, stream: str) -> None:
        self._join(stream, self.clocks["host"])
        self.clocks[stream][stream] = self.clocks[stream].get(stream, 0) + 1

    def _join(self, stream: str, other: Clock) -> None:
        mine = self.clocks[stream]
        for name, time in other.items():
            mine[name] = max(mine.get(name, 0), time)

    def _handed_out(self, stream: str, what: str) -> None:
        for mine in self.given.pop(stream, ()):
            self._ordered(mine, stream, True, f"{what}, which may have these bytes,")

    def _of(self, span: Span, there: bool = True) -> list[Range]:
        exact = self.live.get(span[0])
        if exact is not None and exact.span == span:
            return [exact]
        found = [r for r in self.live.values() if r.span[0] < span[1] and span[0] < r.span[1]]
        assert found or not there, f"nobody has {span}"
        return found

    def _use(self, mine: Range, stream: str, writes: bool, what: str) -> None:
        self._ordered(mine, stream, writes, what)
        if writes:
            mine.touched = []
        mine.touched.append((stream, self.clocks[stream][stream], writes, what))

    def _ordered(self, mine: Range, stream: str, writes: bool, what: str) -> None:
        for other, time, wrote, before in mine.touched:
            if (writes or wrote) and self.clocks[stream].get(other, 0) < time:
                raise Unordered(f"{what} on {stream} does not wait for {before} on {other}")


def check_order(log: Sequence[Entry]) -> None:
    """Raise `Unordered` where a log has two that touch the same bytes in any order."""
    checker = Checker()
    checker.read(log)
    checker.end()
