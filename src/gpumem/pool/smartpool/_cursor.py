"""Where in its table a running program is: request by request, and recovered after a deviation.

What a request has to do with the position, where it is not what is due::

    position                 v                            table right
    ... 8  4 ~4 | skipped .. | due | ahead: WINDOW .. |
            ^        ^          ^          ^
            |        |          |          a malloc of that size: skip what lies between
            |        |          a malloc of another size: takes its place, in the fallback's memory
            |        a malloc of that size that was skipped: comes late, the position stays
            a block freed late: the position stays

A position is but a hint. What keeps blocks apart is this: whenever a block in the region is not one that the table
holds at the position, it is overdue, and nothing is put on its bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from gpumem.pool.smartpool._iteration import GRAM, RequestTable
from gpumem.pool.smartpool._region import Held, Region
from gpumem.pool.smartpool._statistics import SmartPoolStatistics

# Not tuned, all three.
WINDOW = 4  # how far ahead a request is looked for, and how many mallocs may come late; a few, as sizes are common
LOST = 8  # unexpected mallocs, with fewer than CALM expected requests between them, and the position is unknown
CALM = 8  # expected requests in a row that end the trouble
NONE = -1  # no buffer of the plan
How = Literal["", "ahead", "found", "size", "extra", "late", "early", "lost"]  # a request comes; as planned: ""
NOTED: tuple[How, ...] = ("size", "extra", "late", "early", "lost")  # what counts as a `Deviation`, of that kind
ODD: tuple[How, ...] = ("size", "extra", "ahead", "late")  # of mallocs: what makes the position doubtful


class Cursor:
    """Follows a program through a `RequestTable`."""

    def __init__(self, table: RequestTable, statistics: SmartPoolStatistics) -> None:
        self.table, self.statistics = table, statistics
        self.position = 0  # the request that is due
        self.region: Region | None = None  # where the plan lies, once it has its bytes
        self.streak = 0  # requests as planned, without one that was not
        self._holder: list[Held | None] = [None] * len(table.size)
        self._skipped: deque[int] = deque(maxlen=WINDOW)  # buffers whose malloc may come late
        self._trouble = 0  # unexpected mallocs, since CALM requests as planned
        self._recent: deque[int] = deque(maxlen=GRAM)  # bytes of the latest requests, while there is trouble
        self._grams: dict[tuple[int, ...], int] = {}
        self._since = len(table.size)  # requests since the position was recovered

    def malloc_as_planned(self, size: int, stream: int) -> Held | None:
        """Serve the malloc that is due; None, and nothing has happened, where anything is not as planned.

        What `seek`, `claim` and `made` come to together where nothing is amiss, at a fraction of the cost. It asks for
        all that they rest on, though a pool that records nothing comes here after two iterations as planned only.
        """
        at, table, region = self.position, self.table, self.region
        buffer = table.requests[at]
        if buffer < 0 or table.size[buffer] != size or self._holder[buffer] is not None:
            return None
        if region is None or self._trouble or region.overdue:
            return None
        held = self._holder[buffer] = region.claim(region.base + table.offset[buffer], size, stream)
        held.buffer = buffer
        self._pass(at)
        return held

    def free_as_planned(self, held: Held) -> bool:
        """Move past the free that is due, if it is the one of this block and nothing is amiss; as `freed` would."""
        at, buffer = self.position, held.buffer
        if buffer == NONE or self.table.requests[at] != ~buffer or self._trouble:
            return False
        self._holder[buffer], held.buffer = None, NONE
        self._pass(at)
        return True

    def seek(self, size: int) -> tuple[int, How]:
        """Move to the request that this malloc is; return its buffer, or -1, and how it deviates, if it does.

        The malloc has not happened yet: `made` says that it has.
        """
        table = self.table
        if self._trouble >= LOST:
            if (position := self._find(size)) is None:
                return NONE, "lost"
            self._go(position)
            return table.requests[position], "found"
        at = self._after_absent(self.position)
        due = table.requests[at]
        if due < 0 or table.size[due] != size:
            for buffer in self._skipped:
                if table.size[buffer] == size and table.holds(buffer, self.position) and not self._lies(buffer):
                    return buffer, "late"
        self.position = at
        for ahead in range(min(WINDOW, table.length)):
            buffer = table.requests[self._after(at, ahead)]
            if buffer >= 0 and table.size[buffer] == size:
                return buffer, "ahead" if self._skip(ahead) else ""
        return (due, "size") if due >= 0 else (NONE, "extra")

    def claim(self, buffer: int, stream: int) -> Held | None:
        """Make a block at the planned address of a buffer; None where other blocks are still there."""
        if buffer == NONE or self.region is None:
            return None
        low, size = self.region.base + self.table.offset[buffer], self.table.size[buffer]
        return self.region.claim(low, size, stream) if self.region.vacant(low, size) else None

    def made(self, held: Held, size: int, buffer: int, how: How) -> None:
        """The malloc that `seek` was asked about has happened."""
        if how in NOTED:
            self.statistics.note(how, self.position, size)
        if buffer != NONE:
            self.adopt(held, buffer)
        if buffer != NONE and how != "late":
            self._advance()
        if how == "size":
            self._skipped.append(buffer)  # if it was one too many, the right one comes late
        self._judge(size, expected=not how, odd=how in ODD)

    def adopt(self, held: Held, buffer: int) -> None:
        """Take a live block to be this buffer."""
        if (old := self._holder[buffer]) is not None:
            old.buffer = NONE
        self._holder[buffer], held.buffer = held, buffer

    def leave(self) -> None:
        """Follow no more: live blocks are no buffers of this plan."""
        for held in self._holder:
            if held is not None:
                held.buffer = NONE

    def taken(self, size: int) -> None:
        """The plan's bytes for the malloc at hand are not vacant."""
        self.statistics.note("taken", self.position, size)
        self.streak = 0

    def freed(self, held: Held, size: int) -> None:
        """A live block is freed."""
        buffer = held.buffer
        how: How = "extra"
        if buffer != NONE:
            self._holder[buffer], held.buffer = None, NONE
        if self._trouble >= LOST:
            at = self._find(-size)
            how = "lost" if at is None else "found"
            if at is not None:
                self._go(at)
                self._skip(1)
                self._skip_absent_frees()
        elif buffer != NONE:
            how = self._freed_as_planned(buffer, self.table.requests[self.position])
        if how in NOTED:
            self.statistics.note(how, self.position, size)
        self._judge(-size, expected=not how, odd=False)

    def _freed_as_planned(self, buffer: int, due: int) -> How:
        """Move past the free of a buffer, unless it comes too late or much too early; return how it deviates."""
        if due == ~buffer:
            self._advance()
            return ""
        if not self.table.holds(buffer, self.position):
            return "late"
        ahead = self.table.due(buffer) - self.position
        if self.position >= self.table.head:
            ahead %= self.table.length
        if ahead >= WINDOW or self.table.requests[self._after(self.position, ahead)] != ~buffer:
            return "early"
        how: How = "ahead" if self._skip(ahead) else ""
        self._advance()
        return how

    def _judge(self, code: int, *, expected: bool, odd: bool) -> None:
        """Account for a request: how long all has been well, or how long not."""
        self.streak = self.streak + 1 if expected else 0
        self._since += 1
        self._trouble += odd
        if self._trouble:
            self._recent.append(code)
            if self.streak >= CALM and self._trouble < LOST:
                self._trouble = 0
                self._recent.clear()

    def _find(self, code: int) -> int | None:
        """Return the position of the request at hand, judged by those before it; None where that is unclear."""
        if self._since < (0 if self.region is None else len(self.region.live) // GRAM):
            return None  # finding it costs as much as there are live blocks
        self._grams = self._grams or self.table.grams()
        return self._grams.get((*self._recent, code)[-GRAM:])

    def _go(self, position: int) -> None:
        """Be there, wherever it was before."""
        self.position, self._trouble, self._since = position, 0, 0
        self._recent.clear()
        if self.region is not None:
            for held in self.region.live.values():
                if held.buffer == NONE or not self.table.holds(held.buffer, position):
                    self.region.late(held)

    def _skip(self, count: int) -> bool:
        """Pass over requests that did not come; return whether any should have."""
        missed = False
        for _ in range(count):
            request = self.table.requests[self.position]
            held = self._holder[~request] if request < 0 else None
            if request >= 0:
                self._skipped.append(request)
            if held is not None and self.region is not None and held.region is self.region:
                self.region.late(held)
            if request >= 0 or held is not None:
                self.statistics.note("skipped", self.position, abs(self.table.bytes_at(self.position)))
                missed = True
            self.position = self._after(self.position, 1)
        return missed

    def _pass(self, at: int) -> None:
        """Go on from a request that came as planned, while nothing is amiss."""
        requests = self.table.requests
        at = self.position = at + 1 if at + 1 < len(requests) else self.table.head
        if requests[at] < 0 and self._holder[~requests[at]] is None:
            self._skip_absent_frees()
        self.streak += 1
        self._since += 1

    def _advance(self) -> None:
        """Go to the next request."""
        self.position = self._after(self.position, 1)
        self._skip_absent_frees()

    def _skip_absent_frees(self) -> None:
        """Pass over frees of what is not there, since it never came or went early; what may come late is waited for."""
        at = self._after_absent(self.position)
        while self.position != at and ~self.table.requests[self.position] not in self._skipped:
            self.position = self._after(self.position, 1)

    def _after_absent(self, position: int) -> int:
        """Return the first position from there on that is no free of what is not there."""
        while (due := self.table.requests[position]) < 0 and self._holder[~due] is None:
            position = self._after(position, 1)
        return position

    def _after(self, position: int, count: int) -> int:
        """Return the position `count` (at most an iteration) later."""
        position += count
        return position if position < len(self.table.requests) else position - self.table.length

    def _lies(self, buffer: int) -> bool:
        """Whether a live block of the region is taken to be this buffer."""
        held = self._holder[buffer]
        return held is not None and held.region is not None and held.region is self.region
