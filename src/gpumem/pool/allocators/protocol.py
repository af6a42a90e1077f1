"""Online allocators: one request at a time, without knowing the next one.

What an allocator owes its user (`gpumem.testing.check_allocator` holds it to that):

- `allocate` returns the first of `size >= 1` bytes that no other live block has, a multiple of `alignment`
  where the allocator has that attribute. `stream` is the one that uses the bytes first.
- `free` takes an offset that `allocate` returned and that is still live; `stream` is the one that used the bytes
  last. They may serve requests on that stream at once, on another one only after `synchronize()`.
- An allocator that reuses bytes across streams has an attribute `synchronize`, a function without arguments that
  it calls before it does so. It waits for all streams; whoever executes puts the real one there.
- What streams did with a block comes before the last use that `free` names, for instance since that one writes. Where
  it does not, as with two that read, an allocator may want to know: its method `use(offset, *, stream)`, if it has
  one, is called after `stream` was given its work and before `free`; it counts that stream among the last users, up
  to the next `synchronize()`. Whoever uses an allocator without has to let the last stream wait for the others.
- One with a method `sync_and_coalesce()` lets whoever executes ask for a `synchronize()`, where jobs change turns.
- `MemoryError` where no free range is large enough, `ValueError` for a size below 1 or an offset that is not live.
  Either leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Protocol

import numpy as np

from gpumem.base.arguments import strict
from gpumem.trace import SYNC, Trace
from gpumem.trace.placement import NOWHERE, Placement

# Iterations more than asked for, until one repeats the one before: an allocator that takes turns between two layouts
# never does. Not tuned.
PATIENCE = 16


class Allocator(Protocol):
    """Hands out ranges of one address space; the rules are in the module's docstring."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        ...

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take back what `allocate` returned, last used on `stream`."""
        ...


@dataclass(slots=True)
class Count:
    """A quantity that goes up and down: now, its peak, and all that was ever added.

    >>> bytes_held = Count()
    >>> bytes_held.add(8); bytes_held.add(4); bytes_held.drop(8)
    >>> bytes_held
    Count(current=4, peak=12, total=12)
    """

    current: int = 0
    peak: int = 0
    total: int = 0

    def add(self, amount: int) -> None:
        """Add an amount."""
        self.total += amount
        self.current = current = self.current + amount
        if current > self.peak:  # an allocator comes by here three times a request
            self.peak = current

    def drop(self, amount: int) -> None:
        """Subtract an amount."""
        self.current -= amount


@dataclass(slots=True)
class Statistics:
    """What an allocator counts: blocks, bytes asked for, bytes allocated (rounded), bytes taken from the device.

    `reserved.peak` is the footprint.
    """

    blocks: Count = field(default_factory=Count)
    requested: Count = field(default_factory=Count)
    allocated: Count = field(default_factory=Count)
    reserved: Count = field(default_factory=Count)

    def add_block(self, size: int, requested: int) -> None:
        """Count a block that was allocated."""
        self.blocks.add(1)
        self.requested.add(requested)
        self.allocated.add(size)

    def drop_block(self, size: int, requested: int) -> None:
        """Stop counting a block."""
        self.blocks.current -= 1
        self.requested.current -= requested
        self.allocated.current -= size


class Pool(Allocator, Protocol):
    """An allocator that counts, as those of this package do; `pool.ALLOCATORS` names them."""

    alignment: int
    statistics: Statistics
    synchronize: Callable[[], None]


@strict
def replay(trace: Trace, allocator: Allocator, *, iterations: int = 4) -> Placement:
    """Feed a trace to an online allocator, iteration after iteration, and return where its buffers end up.

    Parameters
    ----------
    trace : Trace
        Host buffers stay out, zero bytes get offset 0 without a request.
    allocator : Allocator
        Used as it is, and left with what is alive across the boundary.
    iterations : int
        How many at least, so that fragmentation becomes steady; up to 16 more until one repeats the one before.

    Returns
    -------
    Placement
        Of the last iteration. `height` is the highest byte in use, an address; the footprint is the allocator's
        `statistics.reserved.peak`. Where all bytes are of one pool the two agree up to rounding, where they are of
        several segments there may be addresses between these that cost nothing.

    Raises
    ------
    ValueError
        No iteration at all, or a buffer that wraps and lies elsewhere in each iteration, so that no placement
        says where it is.
    MemoryError
        The allocator's; it says at which buffer and step.

    Notes
    -----
    The requests are those of `stepwise`: those of its head once, as the iteration before the first would have made
    them. A request is on the stream of the first op that touches the buffer, a free on that of the last; where none
    does, on that of the op at which it starts; 0 without ops. For streams that only read after the last write,
    `use` is called at the op, if the allocator has it. One with `sync_and_coalesce` is asked for it behind ops of role
    `sync`, once where several follow one another. O(iterations * (B + accesses)) requests.

    Examples
    --------
    >>> from gpumem.pool.allocators.cnmem import CnMem
    >>> trace, cnmem = Trace.from_lifetimes([1000, 500, 600], [0, 1, 3], [2, 3, 5]), CnMem()
    >>> replay(trace, cnmem).offset, cnmem.statistics.reserved.peak
    (array([   0, 1024,    0]), 1536)
    """
    if iterations < 1:
        raise ValueError(f"iterations: {iterations}, replay at least one")
    script = _Script(trace, allocator)
    for turn in count(1):
        before = script.at.copy()
        script.iterate()
        repeats = bool((script.at == before).all())
        if turn >= iterations and (repeats or turn >= iterations + PATIENCE):
            break
    moved = np.flatnonzero((trace.buffers.end > trace.n) & (script.at != before))
    if len(moved):
        buffer = int(moved[0])
        places = f"{before[buffer]} and {script.at[buffer]} in turn, after {turn} iterations"
        raise ValueError(
            f"buffer {buffer}: wraps, but lies at {places}: no placement; best_fit and other offline planners make one"
        )
    return Placement.at(trace, script.at, alignment=getattr(allocator, "alignment", 1))


def stepwise(trace: Trace) -> tuple[list[int], int]:
    """Return the requests of a trace, and how many of them are the head, which comes only once.

    A request is written as the buffer that it makes, or as the complement of the buffer that it frees. The head makes
    what is alive all the time, by id, and what wraps, by start. Then, at each step, what ends there is freed and what
    starts there is made, by id. What ends with the iteration is freed at its end, not at the start of the next one: at
    its start the first iteration holds what the head made, and nothing else. Buffers on the host and those of no bytes
    are not asked for.

    >>> stepwise(Trace.from_lifetimes([8, 4, 2, 1], [0, 1, 3, 2], [4, 3, 5, 4], n=4))
    ([0, 2, -3, 1, 3, -2, 2, -4], 2)
    """
    buffers, steps = trace.buffers, trace.n
    requested = np.flatnonzero(~buffers.host & (buffers.size > 0)).tolist()
    start, end = buffers.start.tolist(), buffers.end.tolist()
    head = [buffer for buffer in requested if end[buffer] - start[buffer] == steps]
    passing = [buffer for buffer in requested if end[buffer] - start[buffer] < steps]
    wraps = sorted((buffer for buffer in passing if end[buffer] > steps), key=lambda buffer: start[buffer])
    frees = [((end[buffer] - 1) % steps + 1, 0, buffer) for buffer in passing]
    mallocs = [(start[buffer], 1, buffer) for buffer in passing]
    cycle = [buffer if made else ~buffer for _, made, buffer in sorted(frees + mallocs)]
    return head + wraps + cycle, len(head) + len(wraps)


class _Script:
    """The requests of a trace and where its buffers are: `at[b]` is the latest offset of buffer `b`."""

    def __init__(self, trace: Trace, allocator: Allocator) -> None:
        buffers = trace.buffers
        self._allocator, self._size = allocator, buffers.size.tolist()
        self._n, self._start, self._end = trace.n, buffers.start.tolist(), ((buffers.end - 1) % trace.n + 1).tolist()
        self.at = np.where(buffers.host, NOWHERE, 0)
        self._first, self._last, others = _streams(trace)
        notices = [_barriers(trace)] * hasattr(allocator, "sync_and_coalesce") + [others] * hasattr(allocator, "use")
        self._notices = sorted(chain(*notices))
        requests, head = stepwise(trace)
        self._cycle = requests[head:]
        for buffer in requests[:head]:
            self._request(buffer, "before the first iteration")

    def iterate(self) -> None:
        """Make the requests of one iteration."""
        noticed = 0
        for request in self._cycle:
            noticed = self._notify(noticed, self._start[request] if request >= 0 else self._end[~request])
            if request >= 0:
                self._request(request, f"step {self._start[request]}")
            else:
                self._allocator.free(int(self.at[~request]), stream=self._last[~request])
        self._notify(noticed, self._n)

    def _notify(self, done: int, step: int) -> int:
        """Tell the allocator what streams did before this step, from notice `done` on; return how many are done."""
        allocator: Any = self._allocator
        while done < len(self._notices) and self._notices[done][0] < step:
            _, buffer, stream = self._notices[done]
            if buffer >= 0:
                allocator.use(int(self.at[buffer]), stream=stream)
            else:
                allocator.sync_and_coalesce()
            done += 1
        return done

    def _request(self, buffer: int, when: str) -> None:
        try:
            self.at[buffer] = self._allocator.allocate(self._size[buffer], stream=self._first[buffer])
        except MemoryError as error:
            raise MemoryError(f"buffer {buffer}, {when}: {error}") from error


def _barriers(trace: Trace) -> list[tuple[int, int, int]]:
    """Return (step, -1, -1) for the last of sync ops that follow one another."""
    sync = trace.ops.role == SYNC
    return [(step, -1, -1) for step in np.flatnonzero(sync & ~np.append(sync, False)[1:]).tolist()]


def _streams(trace: Trace) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
    """Return the streams that touch each buffer first and last, and which others still read it, by step.

    The others are (step, buffer, stream): reads that no write follows, of buffers that are freed at some time.
    """
    buffers, steps = trace.buffers, trace.n
    if not len(trace.ops):
        return [0] * len(buffers), [0] * len(buffers), []
    touched, stream = trace.accesses(), trace.ops.stream
    ptr, row = touched.op.ptr, touched.op.rows()
    order = np.lexsort(((touched.op.idx - buffers.start[row]) % steps, row))  # of each buffer from its start on
    op, writes, place = touched.op.idx[order], touched.writes[order], np.arange(len(order))
    any_, first = np.flatnonzero(np.diff(ptr)), stream[buffers.start]
    last = first.copy()
    first[any_], last[any_] = stream[op[ptr[any_]]], stream[op[ptr[any_ + 1] - 1]]
    written = np.full(len(buffers), -1)
    np.maximum.at(written, row[writes], place[writes])
    freed = ~buffers.host & (buffers.size > 0) & (buffers.end - buffers.start < steps)
    others = freed[row] & (place > written[row]) & (stream[op] != last[row])
    reads = zip(op[others].tolist(), row[others].tolist(), stream[op[others]].tolist())
    return first.tolist(), last.tolist(), sorted(reads)
