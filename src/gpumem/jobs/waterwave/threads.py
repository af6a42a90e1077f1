"""Node groups under real threads: one host thread a stream, counter barriers between slots, jobs that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter_ns
from typing import NamedTuple

from gpumem.base.arguments import at_least
from gpumem.base.names import choice
from gpumem.jobs.waterwave.barrier import CounterBarrier
from gpumem.jobs.waterwave.pipeline import Pipeline, Turn
from gpumem.jobs.waterwave.slot_log import GroupRun, PipelineStart, SlotLog

Plan = Callable[[tuple[str, ...]], Pipeline]
Call = Callable[[str, int, int], object]
Hook = Callable[[int], object]


@dataclass(slots=True)
class _Member:
    """A job that is in: how many iterations it may still begin (None: no end), whether it leaves after this one."""

    left: int | None
    leaves: bool = False

    @property
    def done(self) -> bool:
        return self.leaves or self.left == 0


class PipelineExecutor:
    """Runs the node groups of jobs that come and go, slot by slot, with one host thread for each stream.

    Parameters
    ----------
    plan : callable
        `plan(jobs) -> Pipeline` for the jobs that are in, a tuple of names in the order in which they joined; part `j`
        is that of `jobs[j]`. It is called whenever jobs have come or gone.
    call : callable
        `call(job, group, stream)` enqueues node group `group` of a job on a stream, in that stream's thread.
    signal, wait : callable, optional
        `signal(stream)` is called in a stream's thread when it has enqueued its group of a slot, and
        `wait(stream)` before its next slot, when all streams have signalled: for the events that order the streams on
        the device, and for an allocator that depends on it (the paper's SyncAndCoalesce).
    enter : callable, optional
        `enter(stream)` is the first call in each new thread, for CUDA `cuda.core.Device().set_current()`.
    timeout : float, optional
        Seconds for which a stream waits for another one at most; by default as long as it takes.
    log : SlotLog, optional
        Is filled with what is enqueued when, for `gpumem.check.waterwave`. Iterations of a job that comes back are
        counted on.

    Notes
    -----
    Jobs join and leave at any time, from any thread, also from within `call`. A round that has begun is run: then the
    pipeline is drained, and a new one made of the jobs that are in. A job that leaves first ends the iteration that it
    is in and begins no other. Each pipeline runs one round at least, so that no job waits for ever while others come
    and go.

    Examples
    --------
    >>> from gpumem import Machine, bundled
    >>> from gpumem.jobs.waterwave import partition, pipeline
    >>> part = partition(bundled("vgg16"), Machine.named("v100"), 200 * 2**20)
    >>> ran = []
    >>> executor = PipelineExecutor(
    ...     plan=lambda jobs: pipeline([part] * len(jobs)), call=lambda job, group, stream: ran.append((job, group))
    ... )
    >>> executor.join("a", iterations=2)
    >>> executor.join("b", iterations=1)
    >>> executor.run()
    >>> [group for job, group in ran if job == "a"], [group for job, group in ran if job == "b"]
    ([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3])

    References
    ----------
    Shi et al., Waterwave, section 4.3.
    """

    def __init__(
        self,
        plan: Plan,
        call: Call,
        *,
        signal: Hook | None = None,
        wait: Hook | None = None,
        enter: Hook | None = None,
        timeout: float | None = None,
        log: SlotLog | None = None,
    ) -> None:
        self.plan, self.call, self.timeout = plan, call, timeout
        self.log = log
        self.signal, self.wait, self.enter = (hook or (lambda stream: None) for hook in (signal, wait, enter))
        self._members: dict[str, _Member] = {}
        self._begun = Counter[str]()  # iterations of each job
        self.slots = 0  # of all pipelines so far
        self.changed = self._running = False  # whether jobs have joined or left since the pipeline was made
        self._lock = Lock()

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that are in, those included that are about to leave."""
        with self._lock:
            return tuple(self._members)

    def join(self, job: str, iterations: int | None = None) -> None:
        """Add a job when the round that is running has ended, for so many iterations or until it leaves.

        Raises
        ------
        ValueError
            It is in already, or has not quite left yet; a number of iterations below 1.
        """
        at_least(1, iterations=iterations)
        with self._lock:
            if job in self._members:
                raise ValueError(f"job {job!r} is in already" + ", it is leaving" * self._members[job].done)
            self._members[job] = _Member(iterations)
            self.changed = True

    def leave(self, job: str) -> None:
        """Remove a job when it has ended the iteration that it is in.

        Raises
        ------
        ValueError
            It is not in.
        """
        with self._lock:
            choice(job, self._members, "job").leaves = True
            self.changed = True

    def run(self) -> None:
        """Run until no job is in.

        Raises
        ------
        RuntimeError
            It runs already.
        TimeoutError
            A stream has waited too long for another one.
        Exception
            Whatever a callable has raised, with its job, node group and stream in a note. The other threads have
            ended, or are given `timeout` seconds to. Jobs stay in; running again begins new iterations of them.
        """
        with self._alone():
            while jobs := self._drop_finished():
                _Rounds(self, jobs, self.plan(jobs)).run()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            if self._running:
                raise RuntimeError("the executor is running already")
            self._running = True
        try:
            yield
        finally:
            self._running = False

    def _drop_finished(self) -> tuple[str, ...]:
        """Drop the jobs that are done; return those that are in."""
        with self._lock:
            self.changed = False
            self._members = {job: member for job, member in self._members.items() if not member.done}
            return tuple(self._members)

    def begins(self, job: str) -> int | None:
        """Count and return the iteration that a job begins now; None where it begins none."""
        with self._lock:
            member = self._members[job]
            if member.done:
                return None
            if member.left is not None:
                member.left -= 1
                self.changed |= member.left == 0
            self._begun[job] += 1
            return self._begun[job] - 1


class _Cell(NamedTuple):
    """A node group in a slot of a stream: of which turn of the pipeline, and which of its groups."""

    turn_index: int
    turn: Turn
    group: int


class _Rounds:
    """The rounds of one pipeline: a thread for each stream, all of which walk slot by slot."""

    def __init__(self, executor: PipelineExecutor, jobs: tuple[str, ...], pipeline: Pipeline) -> None:
        if len(pipeline.parts) != len(jobs):
            raise ValueError(
                f"plan: it returned a pipeline of {len(pipeline.parts)} jobs for {len(jobs)}: {jobs!r:.60}"
            )
        self.executor, self.jobs, self.first = executor, jobs, executor.slots
        if executor.log is not None:
            executor.log.pipelines.append(PipelineStart(self.first, jobs, pipeline))
        self.cells: list[list[_Cell | None]] = [[None] * pipeline.period for _ in pipeline.rows()]
        for index, turn in enumerate(pipeline.turns):
            for group, (slot, stream) in enumerate(zip(turn.slot, turn.stream)):
                self.cells[stream][slot % pipeline.period] = _Cell(index, turn, group)
        streams = len(self.cells)
        self.barriers = [CounterBarrier(streams, streams) for _ in range(pipeline.period)]  # before each slot
        self.active: list[int | None] = [None] * len(pipeline.turns)  # the iteration that a turn is in the middle of
        self.begun: list[bool] = []  # of each round, whether turns begin in it
        self.lock = Lock()

    def run(self) -> None:
        """Run rounds until jobs have come or gone, and what has begun has ended."""
        ends = SimpleQueue[BaseException | None]()
        streams = range(len(self.cells))
        threads = [
            Thread(target=self._thread, args=(stream, ends), name=f"stream {stream}", daemon=True) for stream in streams
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in threads:
                if (error := ends.get()) is not None:
                    raise error
        except BaseException:  # an interrupt of this thread too
            for barrier in self.barriers:
                barrier.abort()
            for thread in threads:
                thread.join(self.executor.timeout)
            raise
        for thread in threads:
            thread.join()

    def _thread(self, stream: int, ends: SimpleQueue[BaseException | None]) -> None:
        try:
            self.executor.enter(stream)
            self._walk(stream)
        except BaseException as error:
            error.add_note(f"stream {stream}")
            ends.put(error)
        else:
            ends.put(None)

    def _walk(self, stream: int) -> None:
        own_cells, period, limit = self.cells[stream], len(self.barriers), self.executor.timeout
        for round_ in count():
            for slot in range(period):
                if round_ or slot:
                    self.barriers[slot].root(limit)
                    self.executor.wait(stream)
                if slot == 0 and not self._goes_on(round_):
                    return
                if (cell := own_cells[slot]) is not None:
                    self._group(stream, round_, self.first + round_ * period + slot, cell)
                self.executor.signal(stream)
                self.barriers[(slot + 1) % period].leaf(limit)

    def _goes_on(self, round_: int) -> bool:
        """Whether there is a round `round_`; the first stream that comes to it decides."""
        with self.lock:
            if round_ == len(self.begun):
                self.begun.append(round_ == 0 or not self.executor.changed)
                self.last = not self.begun[round_] and all(iteration is None for iteration in self.active)
                self.executor.slots = self.first + round_ * len(self.barriers)
            return not self.last

    def _group(self, stream: int, round_: int, slot: int, cell: _Cell) -> None:
        """Run a node group, if its turn is in the middle of an iteration or begins one."""
        job, group = self.jobs[cell.turn.job], cell.group
        if group == 0:
            self.active[cell.turn_index] = self.executor.begins(job) if self.begun[round_] else None
        if (iteration := self.active[cell.turn_index]) is None:
            return
        start = perf_counter_ns()
        try:
            self.executor.call(job, group, stream)
        except BaseException as error:
            error.add_note(f"job {job!r}, node group {group}")
            raise
        if self.executor.log is not None:
            run = GroupRun(job, iteration, group, stream, slot=slot, start=start, end=perf_counter_ns())
            self.executor.log.groups.append(run)
        if group == len(cell.turn.slot) - 1:
            self.active[cell.turn_index] = None
