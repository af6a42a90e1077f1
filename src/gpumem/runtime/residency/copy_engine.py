"""Copies beside a GPU's kernels: every wait of a run under a memory limit is in this file.

The order on a GPU, c the stream that computes, o and i those of copies out and in::

    out      c: record e          o: wait e, copy, record f        c: wait f, before the memory is given back or written
    back     c: allocate, record e   i: wait e, copy, record f     c: wait f, before the first use

Memory is allocated and given back on the stream that computes, never on another, so that its allocator knows it.

Streams that compute are joined: where an op comes on another stream than the one before it, its stream first waits for
that one. So the ops of a run are in one order, whatever streams they run on, and "the stream that computes" is the one
of the last op. What that costs is what such streams could have done side by side.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol


class Mark(Protocol):
    """A point of a stream."""

    def record(self, stream: Any) -> None:
        """Stand behind what a stream was given so far."""

    def synchronize(self) -> None:
        """Let the host wait until the stream has come there."""


class Stream(Protocol):
    """What is given work, which it does in order."""

    def wait_event(self, event: Any) -> None:
        """Let what the stream is given next wait for where the event stands now."""


class Card(Protocol):
    """What copies need of a GPU."""

    def current(self) -> Stream:
        """The stream that ops of this thread go to; the same object as long as it is the same stream."""

    def stream(self) -> Stream:
        """Another stream, for copies."""

    def event(self) -> Mark:
        """A new event, not recorded on any stream yet."""

    def size(self, storage: Any) -> int:
        """The bytes of what is copied."""

    def pinned(self, size: int) -> Any:
        """So many bytes of the host's pinned memory."""

    def copy(self, stream: Any, target: Any, source: Any, size: int) -> None:
        """Begin to copy the first bytes of one to the other, on a stream; one of them is pinned memory."""


class Slab:
    """Pinned memory of `whole` bytes, `size` of them in use; `begun` and `done` stand around what was begun with it."""

    __slots__ = ("begun", "done", "memory", "size", "whole")

    def __init__(self, card: Card, whole: int) -> None:
        self.memory, self.size, self.whole = card.pinned(whole), 0, whole
        self.begun, self.done = card.event(), card.event()


class Beside:
    """The engine of one GPU: copies on two streams of their own, one out and one in.

    Slabs are as large as a power of two, which allocators of pinned memory would take anyway. They stay with the
    engine, so that a program finds them again.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self.d2h, self.h2d = card.stream(), card.stream()
        self.compute, self.joint = card.current(), card.event()
        self.others: set[Stream] = set()  # that computed before
        self.free: dict[int, deque[Slab]] = {}

    def follow(self) -> bool:
        """Let the current stream wait for the last one that computed and take its place; return whether they differ."""
        current = self.card.current()
        if current is self.compute:
            return False
        self.joint.record(self.compute)
        current.wait_event(self.joint)
        self.others.add(self.compute)
        self.compute = current
        return True

    def rest(self) -> None:
        """All streams that computed go on from here, whichever of them comes first.

        Those of an earlier stretch too: what they made may have been away since, and come back.
        """
        self.follow()
        self.joint.record(self.compute)
        for stream in self.others - {self.compute}:
            stream.wait_event(self.joint)

    def out(self, storage: Any) -> Slab:
        """Copy, once what was computed so far is there."""
        slab = self._slab(self.card.size(storage))
        self._copy(self.d2h, slab, slab.memory, storage)
        return slab

    def back(self, storage: Any, copy: Slab) -> None:
        """Copy, once its memory is free of what was there before."""
        self._copy(self.h2d, copy, storage, copy.memory)

    def wait_for_copy(self, copy: Slab) -> None:
        """The next kernels wait, the host does not."""
        self.compute.wait_event(copy.done)

    def drop(self, copy: Slab) -> None:
        """The slab is free at once; whoever gets it waits for the copy that may be under way."""
        self.free.setdefault(copy.whole, deque()).append(copy)

    def _slab(self, size: int) -> Slab:
        whole = 1 << (max(size, 1) - 1).bit_length()
        free = self.free.get(whole)
        if free:
            slab = free.popleft()
            self.d2h.wait_event(slab.done)
        else:
            slab = Slab(self.card, whole)
        slab.size = size
        return slab

    def _copy(self, side: Stream, slab: Slab, target: Any, source: Any) -> None:
        self.follow()  # memory is of the stream that is current
        slab.begun.record(self.compute)
        side.wait_event(slab.begun)
        self.card.copy(side, target, source, slab.size)
        slab.done.record(side)
