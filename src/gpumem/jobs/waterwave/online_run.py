"""Allocator, barrier and executor in one run, with real bytes: memory is allocated when an op is enqueued.

::

    thread of stream 0   [ allocate, submit, free ] of each op of A's group --.
                                                                               +-- leaf, root, both streams in order,
    thread of stream 1   [ allocate, submit, free ] of each op of B's group --'    sync_and_coalesce(), the next slot

What is in brackets is done under one lock, so that a chunk that is free is one whose last op has been submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Protocol

import numpy as np

from gpumem.base.arguments import strict
from gpumem.execute.backend import Backend, Call, Token, Work
from gpumem.execute.layout import Block, Layout
from gpumem.execute.program import call_of
from gpumem.execute.views import Launch
from gpumem.jobs.waterwave.co_run import State, one_for_each, refuse_halves, shared_state
from gpumem.jobs.waterwave.co_schedule import CoSchedule
from gpumem.jobs.waterwave.slot_log import SlotLog
from gpumem.jobs.waterwave.threads import PipelineExecutor
from gpumem.trace import SYNC, Csr
from gpumem.trace.placement import NOWHERE, Placement


class Online(Protocol):
    """An allocator as `gpumem.pool` has them, which serves ops as they are enqueued."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        ...

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take back what `allocate` returned, last used on `stream`."""
        ...


@strict
def run_online(  # noqa: PLR0913  public: a keyword for each choice of a run
    schedule: CoSchedule,
    memory: Placement | Online,
    backend: Backend,
    launches: Sequence[Launch] | None = None,
    iterations: int = 1,
    *,
    state: Sequence[State] | None = None,
    capacity: int | None = None,
    enter: Callable[[int], object] | None = None,
    timeout: float | None = None,
) -> SlotLog:
    """Run several jobs on a backend by `PipelineExecutor`, with addresses that are given as ops are enqueued.

    Parameters
    ----------
    schedule : CoSchedule
        Says what runs in which slot, and which buffers each op starts and ends. In a slot the order is that of threads.
    memory : Placement or allocator
        Where buffers are: an allocator such as `pool.MultiStream`, new or at rest, which serves each op; or a placement
        that holds in any order within a slot, such as `two_ends` makes.
    backend : Backend
        An `Emulator` with `races=False`, since its detector knows addresses that stay; a `Cuda` without graphs.
    launches, state
        As for `run_together`.
    iterations : int
        So many of each turn.
    capacity : int, optional
        Bytes of the device that `memory` may give; needed for an allocator, a placement has its height.
    enter : callable, optional
        As for `PipelineExecutor`: the first call in each thread, for CUDA.
    timeout : float, optional
        Seconds for which a stream waits for another one at most.

    Returns
    -------
    SlotLog
        What was enqueued when, for `gpumem.check.waterwave`.

    Raises
    ------
    MemoryError
        The allocator's, with job, node group and stream in notes.
    ValueError
        As `run_together`; an allocator without a capacity, or one that gives bytes beyond it.

    Notes
    -----
    Before each slot all streams wait for one another, and the allocator's `sync_and_coalesce` is called if it has one.
    One with `synchronize` is given a function that puts the streams in order, for when it reuses bytes across them
    within a slot. An op is bound to its memory anew only where that has moved.

    Examples
    --------
    >>> from gpumem import Machine
    >>> from gpumem.execute import Emulator
    >>> from gpumem.execute.models import mlp
    >>> from gpumem.jobs.waterwave import partition, pipeline, run_online, co_schedule
    >>> from gpumem.kernels import reference
    >>> from gpumem.pool import MultiStream
    >>> models = [mlp(4, 8, [6] * depth, 3) for depth in (2, 3)]
    >>> parts = [partition(model.trace, Machine.named("v100"), 200) for model in models]
    >>> both = co_schedule(pipeline(parts), Machine.named("v100"))
    >>> states, launches = [model.state() for model in models], [model.launch(reference) for model in models]
    >>> pool = MultiStream(capacity=2**16, allow_growth=False)
    >>> run_online(both, pool, Emulator(7, races=False), launches, 5, state=states, capacity=2**16)
    SlotLog(50 node groups, 0 ops, 1 pipelines)

    References
    ----------
    Shi et al., Waterwave, sections 4.2 and 4.3.
    """
    if not isinstance(memory, Placement) and not hasattr(memory, "allocate"):
        kind = type(memory).__name__
        raise TypeError(
            f"memory: {memory!r:.60} is a {kind}; it must be a Placement, as gpumem.best_fit makes, or an allocator"
        )
    one_for_each(schedule, launches=launches, state=state)
    if isinstance(memory, Placement):
        memory.check_fits(schedule.trace)
        refuse_halves(schedule)
    elif capacity is None:
        raise ValueError("capacity: None, but an allocator does not tell how many bytes of the device it may give")
    enqueuer = _Enqueuer(schedule, memory, backend, launches, capacity)
    values = {} if state is None else shared_state(schedule, state)
    log = SlotLog()
    executor = PipelineExecutor(
        lambda jobs: schedule.pipeline, enqueuer.group, wait=enqueuer.next_slot, enter=enter, timeout=timeout, log=log
    )
    for job in range(len(schedule.ops)):
        executor.join(str(job), iterations * len(schedule.pipeline.turns_of(job)))
    enqueuer.begin(values, iterations)
    executor.run()
    enqueuer.end(values)
    return log


class _Enqueuer:
    """Enqueues ops: where buffers are, the last op of each stream, the slot that runs."""

    def __init__(
        self,
        schedule: CoSchedule,
        memory: Placement | Online,
        backend: Backend,
        launches: Sequence[Launch] | None,
        capacity: int | None,
    ) -> None:
        self.schedule, self.trace, self.backend = schedule, schedule.trace, backend
        self.capacity = memory.height if capacity is None and isinstance(memory, Placement) else int(capacity or 0)
        self.memory = _Fixed(memory) if isinstance(memory, Placement) else _Allocated(memory, self._in_order)
        self.launch = None if launches is None else schedule.launch(launches)
        self.lock = Lock()
        self.groups = _ops_of_groups(schedule)
        buffers, count = self.trace.buffers, self.trace.n
        asked = np.flatnonzero(~buffers.host & (buffers.size > 0) & ~self.trace.eternal)
        self.starts = Csr.grouped(buffers.start[asked], asked, count).tolist()
        self.ends = Csr.grouped((buffers.end[asked] - 1) % count, asked, count).tolist()
        self.written = set(self.trace.ops.writes.idx.tolist())  # a backend needs the ends of these alone
        self.rows = list(zip(self.trace.ops.reads.tolist(), self.trace.ops.writes.tolist()))
        self.records = list(self.trace.ops)
        self.calls: dict[int, tuple[tuple[Block, ...], Call | None]] = {}  # of each op: where it was bound, and to what
        self.generators: dict[int, Any] = {}
        self.begun = [0] * len(schedule.ops)  # iterations of each job
        self.tokens: list[Token | None] = [None] * len(self.trace.ops.streams)
        self.slot, self.ordered, self.arrivals, self.changed = 0, 0, [0, 0], False

    def begin(self, values: State, iterations: int) -> None:
        """Open the backend, and allocate what jobs hold before their first iteration."""
        buffers = self.trace.buffers
        offsets = np.where(buffers.host, NOWHERE, np.cumsum(buffers.size) - buffers.size)
        layout = Layout.of(self.trace, Placement(offsets, int(buffers.size.sum())))
        self.blocks = list(layout.blocks)  # those of the host stay
        self.backend.open(replace(layout, device=self.capacity))
        if getattr(self.backend, "races", None) is not None:
            raise ValueError("backend: it looks for races at addresses that do not change; races=False would do")
        syncs = self.trace.ops.role == SYNC
        columns = zip(self.records, self.trace.ops.stream.tolist(), self.trace.ops.role.tolist(), syncs.tolist())
        self.works = [
            Work(op.id, op.name, stream, role, None, sync, self._dying(op.id)) for op, stream, role, sync in columns
        ]
        self.backend.begin(self.works, iterations + int(self.schedule.lag.max(initial=0)))
        for buffer in self._held():
            self._allocate(buffer, 0)
            of = self.blocks[buffer].of
            data = values[of] if of in values else np.zeros(0, np.uint8)
            self.backend.put(self.blocks[buffer], np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def end(self, values: State) -> None:
        """Wait for all enqueued ops, and read what jobs hold behind their last iteration."""
        for token in self.tokens:
            if token is not None:
                self.backend.wait(token)
        for buffer in self._held():
            if (value := values.get(self.blocks[buffer].of)) is not None:
                bytes_read = self.backend.get(self.blocks[buffer])[: value.nbytes]
                np.ascontiguousarray(value).reshape(-1).view(np.uint8)[...] = bytes_read

    def _held(self) -> list[int]:
        """What is alive between two iterations of its job: of several turns the last one has started it."""
        pipeline, is_held = self.schedule.pipeline, self.trace.eternal.copy()
        for job, part in enumerate(pipeline.parts):
            last = np.flatnonzero(self.schedule.buffer_turn == pipeline.turns_of(job)[-1])
            is_held[last] |= part.trace.crossing[self.schedule.buffer[last]]
        buffers = self.trace.buffers
        return np.flatnonzero(is_held & ~buffers.host & (buffers.size > 0)).tolist()

    def group(self, job: str, group: int, stream: int) -> None:
        """Enqueue a node group, op by op."""
        job_index = int(job)
        self.begun[job_index] += group == 0
        turns = self.schedule.pipeline.turns_of(job_index)
        for op in self.groups[turns[(self.begun[job_index] - 1) % len(turns)], group]:
            with self.lock:
                for buffer in self.starts[op]:
                    self._allocate(buffer, stream)
                self._submit(op)
                for buffer in self.ends[op]:
                    self.memory.free(buffer, self.blocks[buffer].offset, stream)

    def _allocate(self, buffer: int, stream: int) -> None:
        block = self.blocks[buffer]
        offset = self.memory.allocate(buffer, block.size, stream)
        if offset + block.size > self.capacity:
            raise ValueError(f"memory: bytes {offset}..{offset + block.size}, the capacity is {self.capacity}")
        self.blocks[buffer] = replace(block, offset=offset)

    def _submit(self, op: int) -> None:
        """Submit an op, bound to where its buffers are now."""
        reads, writes = (tuple(self.blocks[buffer] for buffer in touched) for touched in self.rows[op])
        bound_to, call = self.calls.get(op, (None, None))
        if bound_to != (*reads, *writes):
            call = call_of(
                self.records[op],
                self.trace,
                self.backend,
                self.launch,
                reads=reads,
                writes=writes,
                generators=self.generators,
                first=0,
            )
            self.calls[op] = (*reads, *writes), call
        work = replace(self.works[op], call=call, ends=self._dying(op))
        self.tokens[work.stream] = self.backend.submit(work, reads, writes, ())
        self.changed = True

    def _dying(self, op: int) -> tuple[Block, ...]:
        return tuple(self.blocks[buffer] for buffer in self.ends[op] if buffer in self.written)

    def next_slot(self, stream: int) -> None:
        """Put the streams in order, once for both, before the slot that begins."""
        with self.lock:
            self.arrivals[stream] += 1
            if self.arrivals[stream] == self.ordered:
                return  # the other thread has done it, and may run ahead: its first ops need no wait
            self.ordered += 1
            self._in_order()
            self.memory.sync_and_coalesce()
            self.slot = (self.slot + 1) % self.schedule.pipeline.period
            if self.slot == 0:
                self.backend.part(list)  # a round has been enqueued: events of older ones may be reused

    def _in_order(self) -> None:
        """Let all streams wait for one another, unless nothing was submitted since they did."""
        if not self.changed:
            return
        syncs = np.flatnonzero((self.schedule.turn < 0) & (self.schedule.slot == self.slot)).tolist()
        signals, waits = syncs[: len(syncs) // 2], syncs[len(syncs) // 2 :]
        signalled = {self.works[sync].stream: self.backend.submit(self.works[sync], (), (), ()) for sync in signals}
        for sync in waits:
            stream = self.works[sync].stream
            others = [token for other, token in signalled.items() if other != stream]
            self.tokens[stream] = self.backend.submit(self.works[sync], (), (), others)
        self.changed = False


class _Allocated:
    """An allocator that serves each buffer."""

    def __init__(self, allocator: Any, in_order: Callable[[], None]) -> None:
        self.allocator = allocator
        if hasattr(allocator, "synchronize"):
            allocator.synchronize = in_order
        self.sync_and_coalesce = getattr(allocator, "sync_and_coalesce", lambda: None)

    def allocate(self, buffer: int, size: int, stream: int) -> int:
        return int(self.allocator.allocate(size, stream=stream))

    def free(self, buffer: int, offset: int, stream: int) -> None:
        self.allocator.free(offset, stream=stream)


class _Fixed:
    """A placement: each buffer is where it says."""

    def __init__(self, placement: Placement) -> None:
        self.offset = placement.offset.tolist()

    def sync_and_coalesce(self) -> None:
        """Nothing is kept apart."""

    def allocate(self, buffer: int, size: int, stream: int) -> int:
        return int(self.offset[buffer])

    def free(self, buffer: int, offset: int, stream: int) -> None:
        pass


def _ops_of_groups(schedule: CoSchedule) -> dict[tuple[int, int], list[int]]:
    """The ops of each node group of each turn, in the order in which they run."""
    ops: dict[tuple[int, int], list[int]] = {}
    for index, turn in enumerate(schedule.pipeline.turns):
        part = schedule.pipeline.parts[turn.job]
        place = np.argsort(part.order)
        for op in np.flatnonzero(schedule.turn == index).tolist():
            group = int(np.searchsorted(part.cuts, place[schedule.op[op]], side="right")) - 1
            ops.setdefault((index, group), []).append(op)
    return ops
