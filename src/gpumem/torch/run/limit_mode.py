"""The dispatch mode of a run: before each op its operands are on the device, within the limit; the rest are hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpumem.runtime.residency.follower import LOST
from gpumem.runtime.residency.hints import LEAVE, looks
from gpumem.runtime.residency.iteration_recorder import Book
from gpumem.runtime.residency.limited_memory import UNLIMITED, LimitError
from gpumem.runtime.residency.run_loop import RunLoop
from gpumem.torch.internals import torch
from gpumem.torch.run.environment import StepRecorder
from gpumem.torch.run.inside import Inside, runs_python
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.on_demand import DtrEvictor
from gpumem.torch.run.output_sizes import Predicted
from gpumem.torch.run.recompute import RecomputingFollower
from gpumem.torch.step.op_mode import OpMode
from gpumem.torch.step.ops import IS_ON_DEVICE, Call, Kind, tensors
from gpumem.torch.step.storages import Cell

PACKED = "_pack_padded_sequence.default"  # it makes lengths, which recurrent nets read on the host
JOINED = "it computes on several streams; within a limit each waits for the one before, so they run in turns"


class Within(OpMode):
    """Runs ops within the limit of a memory, and lets a run loop look at each."""

    alone = "a managed run"

    def __init__(self, memory: Memory, loop: RunLoop[Cell], chunk: int | None) -> None:
        super().__init__(memory.device, chunk)
        self.memory, self.loop = memory, loop
        self.there = IS_ON_DEVICE[memory.device]
        self.predicted = Predicted(self.device)
        self.on_demand: DtrEvictor | None = None  # while no plan is followed; without one what is coldest goes

    def other(self, kind: Kind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run what is no op; a view needs the size, which may go with the memory."""
        if not self.memory.pointers.views:
            self.memory.ready(self.memory.of(tensors(args, self.device)), 0, str(func))
        result = func(*args, **kwargs)
        if kind.keeps:  # what a nested tensor knows its sizes by, asked for where C++ cannot throw
            for cell in self.memory.of(tensors((result,), self.device)):
                self.memory.pin(cell, "a nested tensor")
        return result

    def op(self, call: Call) -> Any:
        """Run an op of the device, once what it touches is there."""
        memory, loop = self.memory, self.loop
        # 1. Ops of all streams are in one order; what died since the last one makes room.
        if memory.engine.follow() and JOINED not in loop.notes:
            loop.note(JOINED)
        if memory.dead:
            memory.bury()
        # 2. What it touches, and what it looks like.
        self._operands(call)
        # 3. What a plan has before it.
        i = loop.before(call)
        on_demand = self.on_demand
        keeping = None if on_demand is None else on_demand.before(call, self._follows(i))
        # 4. Its operands come, and there is room for what it makes. What is to be written ends copies and recipes of
        #    it, also if the op fails half-way.
        fresh = self._expected(i, call)
        if call.writes:
            memory.secure(call.writes)
        memory.ready(call.reads, fresh, call.kind.name)
        if call.writes:
            memory.wrote(call.writes)
        # 5. It runs as it was asked for, and is recorded.
        call.result = self._run(call)
        # 6. What it made is on the books.
        self._done(call)
        if on_demand is not None:
            on_demand.after(call, keeping)
        if i == LOST and memory.limit != UNLIMITED:
            self.predicted.learn(sum([cell.size for cell in call.touched[len(call.reads) :]]))
        # 7. What a plan has after it.
        loop.after(call)
        return call.result

    def _follows(self, i: int) -> bool:
        """Whether there is more to the plan that an op belongs to than its ops."""
        follower = self.loop.phase.follower
        return i != LOST and follower is not None and follower.hints.count > 0

    def _operands(self, call: Call) -> None:
        """Tell the cells that an op reads and writes, and its key."""
        memory, kind = self.memory, call.kind
        operands = memory.of(call.operands)
        call.writes = written = memory.of(call.written) if call.written else []
        if kind.overwrites:
            operands = [*dict.fromkeys([*memory.of(call.read), *written])]
        call.reads = operands if kind.reads else []
        phase = self.loop.phase
        if phase.book is not None or phase.course is not None:  # else nobody looks
            call.key = looks(kind.looks, [cell.size for cell in call.reads])

    def _expected(self, i: int, call: Call) -> int:
        """The bytes that an op will make."""
        follower = self.loop.phase.follower
        if i == LOST or follower is None:
            return 0 if self.memory.limit == UNLIMITED else self.predicted(call.func, call.args, call.kwargs)
        assert isinstance(follower, RecomputingFollower)
        return follower.expected(i, call)

    def _run(self, call: Call) -> Any:
        """Run an op as it was asked for, and let a recorder write it down."""
        run, book = call.func, self.loop.phase.book
        if not call.kind.again and runs_python(run):  # none of PyTorch's own
            run = partial(Inside(self.memory, [*call.reads, *call.writes]).run, run)
        try:
            if book is None:
                return run(*call.args, **call.kwargs)
            return self._recorded(call, run, book)
        except BaseException:
            if call.kind.resizes:
                self.memory.resized(call.written)
            raise

    def _recorded(self, call: Call, run: Callable[..., Any], book: Book[Cell]) -> Any:
        assert isinstance(book, StepRecorder)
        observed, timed = self.loop.observed, book.ops.timed
        observed(book.ops.before, call)
        result = call.result = timed(run, call.args, call.kwargs) if timed else run(*call.args, **call.kwargs)
        if self.loop.phase.book is book:  # else it could not be recorded
            observed(book.ops.after, call)
        return result

    def _done(self, call: Call) -> None:
        """Take note of what an op made and wrote; tell the cells that it touched."""
        memory, kind, result = self.memory, call.kind, call.result
        if isinstance(result, torch.Tensor):
            made = memory.made(result) if getattr(result, self.there) else []
        elif isinstance(result, (list, tuple)):
            given = kind.name == PACKED
            made = [cell for x in tensors(result, self.device) for cell in memory.made(x, given)]
        else:
            made = []
        touched = call.reads
        for cell in made:
            if cell not in touched:
                touched = [*touched, cell]
        call.touched = touched
        if kind.resizes:
            memory.resized(call.written)
        if call.keeps:  # sizes, scales, packed weights: read by ops that do not name them
            for cell in [*touched, *call.writes]:
                memory.pin(cell, "a nested or quantized tensor")
        memory.note()
        if memory.held > memory.limit:
            with suppress(LimitError):
                memory.room(0, touched)

    def leave(self) -> None:
        """Run the end of a call: an op that reads all that lasts."""
        with self.lock:
            memory, loop = self.memory, self.loop
            memory.bury()
            end = Ending([*memory.by_key.values()])
            follower, book = loop.phase.follower, loop.phase.book
            planned = follower is not None and follower.expects(end.key)
            if planned:
                loop.before(end)
            memory.ready(end.touched, 0, "what lasts when the step returns")
            if isinstance(book, StepRecorder):
                loop.observed(book.ops.touched, LEAVE, [s for c in end.touched if (s := c.storage) is not None])
            if planned or loop.phase.book is not None:
                loop.after(end)
            loop.boundary()


class Ending:
    """The end of a call, as an op that reads what lasts."""

    key, name = looks(LEAVE, []), LEAVE

    def __init__(self, touched: list[Cell]) -> None:
        self.touched = touched
