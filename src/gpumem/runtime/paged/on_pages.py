"""A GPU as the environment of a transparent device whose blocks keep their addresses, beside a program's own streams.

The ops come on streams of the program, which may be gone a moment later, so nothing is given to one of them but around
its own op. What the copies of `copy_engine` wait for, and what waits for them, is a stream of its own, `order`::

    op on stream p    p: wait for the last op's mark, and for what `order` waits for; the op; record its mark
    copy out, in      order: wait for the last mark, record; the copy's stream waits for that
    wait_for_copy     order: wait for the copy

So ops are in one order, whatever streams they come on. A range that is emptied keeps its granules until others need
them. Then the host waits for the last op that had it and for the last copy, and unmaps it. Where nobody does, it is
filled again as it is, or, once its block is freed, handed to the next one of its size: nobody waits, as the order of
ops is the order of its users.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cuda.bindings import driver as api
from cuda.core import Stream

from gpumem.execute.cuda.card import CudaCard, CudaEvent, CudaStream
from gpumem.runtime.devices.on_streams import OnStreams
from gpumem.runtime.paged.pages import Pages, Range
from gpumem.runtime.residency.copy_engine import Slab
from gpumem.runtime.residency.environment import LiveBlock, LiveCall

MARKS = 512  # of ops that may be under way; of more, every second one is kept. Not tuned


class _PagedCard(CudaCard):
    """Copies as many bytes as were asked for, not the whole granules that a block counts as."""

    ranges: dict[int, Range]

    def size(self, storage: Any) -> int:
        return self.ranges[storage.number].size


class Marks:
    """Events behind the last ops, by the number of the op: all ops are in one order."""

    def __init__(self, card: CudaCard) -> None:
        self._card = card
        self._behind: deque[tuple[int, CudaEvent]] = deque()
        self._spare: list[CudaEvent] = []
        self.ops = 0

    @property
    def last(self) -> CudaEvent | None:
        """What stands behind the last op; None before the first."""
        return self._behind[-1][1] if self._behind else None

    def record(self, stream: CudaStream) -> None:
        """Count an op, and stand behind it."""
        mark = self._spare.pop() if self._spare else self._card.event()
        try:
            mark.record(stream)
        except BaseException:
            stream.of.sync()  # so that nobody needs the mark
            raise
        self.ops += 1
        self._behind.append((self.ops, mark))
        if len(self._behind) > MARKS:
            self._thin()

    def _thin(self) -> None:
        """Give up every other mark but the last: who waits for an op then waits for the next one as well."""
        old = [*self._behind]
        self._behind = deque(old[1::2])
        if self._behind[-1] is not old[-1]:
            self._behind.append(old[-1])
        self._spare += [mark for number, mark in old[: len(old) - 1 : 2]]

    def wait(self, op: int) -> None:
        """Let the host wait until an op is done, by its number; 0 is none."""
        while self._behind and self._behind[0][0] < op:
            self._spare.append(self._behind.popleft()[1])
        if op and self._behind:
            self._behind[0][1].synchronize()


class OnPages(OnStreams):
    """A GPU: `call(stream)` gives the stream that `on` said an op.

    Parameters
    ----------
    device : int
        Its number.
    budget : int
        Bytes of the device at most; whole granules of it count.
    timing : bool
        As in `OnStreams`.

    Attributes
    ----------
    pages : Pages
    ranges : dict of int to Range
        Addresses of blocks, by their number.
    """

    card: _PagedCard

    def __init__(self, device: int, budget: int, *, timing: bool = True) -> None:
        self.pages = Pages(device, budget)
        super().__init__(device, timing=timing)
        self.ranges: dict[int, Range] = {}
        self.card.ranges = self.ranges
        self.marks = Marks(self.card)
        self._stream_of_op: CudaStream | None = None
        self._used: dict[int, int] = {}  # block -> number of the last op that had it
        self._moved: dict[int, Slab] = {}  # block -> the last copy that had it
        self._emptied: dict[int, Range] = {}  # empty ranges that still have their granules, first to go first
        self._nobodys: dict[int, list[int]] = {}  # by size: those of them whose blocks are freed, by number
        self._ordered = 0  # the op that `order` has waited for
        self._ahead = False  # `order` waits for what no op has waited for

    def _card(self, stream: Any) -> _PagedCard:
        return _PagedCard(self.device, stream)

    def on(self, stream: Any) -> None:
        """Say on which stream the next op comes: one of `cuda.core`, or a handle."""
        self._stream_of_op = CudaStream(stream if isinstance(stream, Stream) else Stream.from_handle(int(stream)))

    def captured(self, stream: Any) -> bool:
        """Whether what a stream is given goes into a graph."""
        handle = int(stream.handle if isinstance(stream, Stream) else stream)
        if handle in (0, 1, 2):
            return False
        status, state = api.cuStreamIsCapturing(handle)
        return not status and state != api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Allow what a capture elsewhere in this thread would not: memory, and waits of the host."""
        relaxed = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _, before = api.cuThreadExchangeStreamCaptureMode(relaxed)
        try:
            yield
        finally:
            api.cuThreadExchangeStreamCaptureMode(before)

    # ops, and what copies wait for

    def run(self, call: LiveCall | None, blocks: Sequence[LiveBlock], duration: int, timed: bool) -> Any:
        """Begin an op on its stream, behind all ops before it; return what it is timed by, if it is."""
        stream = self._stream_of_op
        if call is None or stream is None:
            return None
        self._join(stream)
        for block in blocks:
            self._used[block.number] = self.marks.ops + 1
        try:
            timer = self._call(stream, call, (), timed)
        except BaseException:
            with suppress(Exception):  # what the call raised says more
                self.marks.record(stream)
            raise
        self.marks.record(stream)
        return timer

    def _join(self, stream: CudaStream) -> None:
        """Let a stream wait for the last op, and for the copies that were settled."""
        if self._ahead:
            self.follow()
            self.joint.record(self.compute)
            stream.wait_event(self.joint)  # type: ignore[arg-type]
            self._ahead = False
        elif (last := self.marks.last) is not None:
            stream.wait_event(last)

    def follow(self) -> bool:
        """Let `order` wait for the last op."""
        marks = self.marks
        if marks.ops == self._ordered:
            return False
        self._ordered = marks.ops
        if marks.last is not None:
            self.compute.wait_event(marks.last)
        return True

    def wait_for_copy(self, copy: Slab) -> None:
        """The next op waits, the host does not."""
        super().wait_for_copy(copy)
        self._ahead = True

    def out(self, storage: LiveBlock) -> Slab:
        """Copy, once what was computed so far is there."""
        self._moved[storage.number] = slab = super().out(storage)
        return slab

    def back(self, storage: LiveBlock, copy: Slab) -> None:
        """Copy, behind what was computed so far."""
        self._moved[storage.number] = copy
        super().back(storage, copy)

    # memory

    def fill(self, storage: LiveBlock, size: int) -> None:
        """Map granules, unless those from before are there still."""
        range_ = self.ranges[storage.number]
        if self._emptied.pop(storage.number, None) is None:
            self._map(range_)
        storage.memory = range_.address

    def _map(self, range_: Range) -> None:
        while True:
            try:
                return self.pages.fill(range_)
            except MemoryError:
                if not self._emptied:
                    raise
                self._leave()

    def empty(self, storage: LiveBlock) -> None:
        """Let a range go, when its granules are needed."""
        self._emptied[storage.number] = self.ranges[storage.number]
        storage.memory = None

    def _leave(self) -> None:
        """Wait for what is under way in the range that is first to go, and unmap it."""
        number = next(iter(self._emptied))
        self.wait(number)
        range_ = self._emptied.pop(number)
        self.pages.empty(range_)
        if number not in self.ranges:
            self._nobodys[range_.size].remove(number)
            self.pages.release(range_)

    def wait(self, number: int) -> None:
        """Let the host wait for what is under way with a block."""
        self.marks.wait(self._used.pop(number, 0))
        if (slab := self._moved.pop(number, None)) is not None:
            slab.done.synchronize()

    def restrict(self, budget: int) -> None:
        """Take another number of bytes at most, for what is mapped and what waits to be."""
        pages = self.pages
        pages.budget = max(budget // pages.granule, 0)
        while (now := pages.statistics).mapped + now.free > pages.budget:
            if now.free:
                pages.trim()
            elif self._emptied:
                self._leave()
            else:
                raise MemoryError(f"{now.mapped} granules are mapped, and {pages.budget} are left for them")

    def reserve(self, number: int, size: int) -> Range:
        """Return addresses for a block, without bytes: those of one that was freed, or new ones."""
        same = self._nobodys.get(size)
        if same:
            old = same.pop()
            self._emptied[number] = range_ = self._emptied.pop(old)
            self._used[number] = self._used.pop(old, 0)
            if (slab := self._moved.pop(old, None)) is not None:
                self._moved[number] = slab
        else:
            range_ = self.pages.reserve(size)
        self.ranges[number] = range_
        return range_

    def release(self, number: int) -> None:
        """Take back the addresses of a block that was freed."""
        range_ = self.ranges.pop(number)
        if number in self._emptied:
            self._nobodys.setdefault(range_.size, []).append(number)
        else:
            self._used.pop(number, None)
            self._moved.pop(number, None)
            self.pages.release(range_)

    def close(self) -> None:
        """Wait for what is under way, and give everything back."""
        with suppress(Exception):
            self.marks.wait(self.marks.ops)
        self._run_dry()
        self.pages.close()
        super().close()
