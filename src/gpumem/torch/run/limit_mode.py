"""The dispatch mode of a run: before each op its operands are on the device, within the limit; the rest are hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpumem.runtime.residency.follower import LOST
from gpumem.runtime.residency.hints import LEAVE, looks
from gpumem.runtime.residency.limited_memory import UNLIMITED, LimitError
from gpumem.torch.internals import torch
from gpumem.torch.run.boundaries import Course
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.inside import Inside, runs_python
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.output_sizes import Predicted
from gpumem.torch.run.recompute import Kept, NotKept, keep
from gpumem.torch.step.op_mode import OpMode
from gpumem.torch.step.ops import THERE, Call, kind_of, tensors
from gpumem.torch.step.step_context import Scene
from gpumem.torch.step.timing import stopwatch

PACKED = "_pack_padded_sequence.default"  # it makes lengths, which recurrent nets read on the host
JOINED = "it computes on several streams; within a limit each waits for the one before, so they run in turns"


class Within(OpMode):
    """Runs ops within the limit of a memory, along a course."""

    alone = "a managed run"

    def __init__(self, memory: Memory, course: Course, scene: Scene, chunk: int | None) -> None:
        super().__init__(memory.device, chunk)
        self.memory, self.course, self.scene = memory, course, scene
        self.there = THERE[memory.device]
        self.predicted = Predicted(self.device)
        self.timed = stopwatch(self.device)  # of ops that are recorded

    def other(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run what is no op; a view needs the size, which may go with the memory."""
        if not self.memory.pointers.views:
            self.memory.ready(self.memory.of(tensors(args, self.device)), 0, str(func))
        result = func(*args, **kwargs)
        if kind_of(func).keeps:  # what a nested tensor knows its sizes by, asked for where C++ cannot throw
            for cell in self.memory.of(tensors((result,), self.device)):
                self.memory.fix(cell)
        return result

    def op(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op of the device, once what it touches is there."""
        memory, course, kind = self.memory, self.course, call.kind
        if memory.engine.follow() and JOINED not in course.notes:
            course.notes.append(JOINED)
        if memory.dead:
            memory.bury()
        reads, written = self._operands(call)
        key, follower = looks(kind.looks, [cell.size for cell in reads]), course.follower
        i = LOST if follower is None else follower.before(key, kind.name)
        fresh, kept = self._expected(i, reads, func, args, kwargs, bool(written))
        if written:
            memory.secure(written)
        memory.ready(reads, fresh, kind.name)
        if written:
            memory.wrote(written)  # also if it fails half-way
        result = self._run(call, func, args, kwargs, [*reads, *written])
        touched = self._done(call, reads, written, result)
        if i == LOST:
            self.predicted.learn(sum(cell.size for cell in touched[len(reads) :]))
        elif follower is not None:
            if kept is not None:
                follower.calls[i] = kept(touched, fresh)
            if follower.sums[i] and not written:
                touched = follower.succeeded(touched)
        course.ops += 1
        if course.watch is not None:
            course.seen(key, touched)
        elif follower is not None and follower.after(touched):
            course.ended(course.state())
        return result

    def _operands(self, call: Call) -> tuple[list[Cell], list[Cell]]:
        """The cells that an op reads, and those that it writes."""
        memory, kind = self.memory, call.kind
        operands = memory.of(call.operands)
        written = memory.of(call.written) if call.written else []
        if kind.overwrites:
            return [*dict.fromkeys([*memory.of(call.read), *written])], written
        return operands if kind.reads else [], written

    def _expected(
        self,
        i: int,
        reads: list[Cell],
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        in_place: bool,
    ) -> tuple[int, Callable[[list[Cell], int], Kept] | None]:
        """The bytes that an op will make; and what writes it down, once it has, if the plan may run it again."""
        follower = self.course.follower
        if follower is None or i == LOST:
            return 0 if self.memory.limit == UNLIMITED else self.predicted(func, args, kwargs), None
        if follower.sums[i] and not in_place:  # nothing is kept of it: what runs is not what is planned
            return follower.hints.fresh[i] + reads[0].size, None
        due = follower.hints.at[i]
        return follower.hints.fresh[i], self._kept(func, args, kwargs) if due and due.keep else None

    def _run(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], held: Sequence[Cell]) -> Any:
        """Run an op as it was asked for, and let a recorder write it down."""
        course = self.course
        python = not call.kind.again and runs_python(func)  # none of PyTorch's own
        run = partial(Inside(self.memory, held).run, func) if python else func
        begun = course.begins(call, func, args, kwargs) if course.watch is not None else None
        try:
            result = self.timed(run, args, kwargs) if begun and self.timed else run(*args, **kwargs)
        except BaseException:
            if call.kind.resizes:
                self.memory.resized(call.written)
            raise
        if begun is not None:
            course.ran(begun, args, kwargs, result)
        return result

    def _kept(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[list[Cell], int], Kept] | None:
        """What is to be known of a call to run it again, once it is made; None where it cannot."""
        try:
            return keep(func, args, kwargs, self.memory)
        except NotKept:
            return None

    def _done(self, call: Call, reads: list[Cell], written: list[Cell], result: Any) -> list[Cell]:
        """Take note of what an op made and wrote; return the cells that it touched."""
        memory = self.memory
        if isinstance(result, (list, tuple)):
            given = call.kind.name == PACKED
            made = [cell for x in tensors(result, self.device) for cell in memory.made(x, given)]
        else:
            made = memory.made(result) if isinstance(result, torch.Tensor) and getattr(result, self.there) else []
        touched = reads
        for cell in made:
            if cell not in touched:
                touched = [*touched, cell]
        if call.kind.resizes:
            memory.resized(call.written)
        if call.keeps:  # sizes, scales, packed weights: read by ops that do not name them
            for cell in [*touched, *written]:
                memory.fix(cell)
        memory.note()
        if memory.held > memory.limit:
            with suppress(LimitError):
                memory.room(0, touched)
        return touched

    def leave(self) -> None:
        """Run the end of a call: an op that reads all that lasts."""
        with self.lock:
            memory, course, follower = self.memory, self.course, self.course.follower
            memory.bury()
            cells, key = [*memory.by_key.values()], looks(LEAVE, [])
            if follower is not None and follower.expects(key):
                follower.before(key, LEAVE)
            memory.ready(cells, 0, "what lasts when the step returns")
            if course.watch is not None:
                course.left([s for c in cells if (s := c.storage) is not None])
                course.ops += 1
                course.seen(key, cells)
            elif follower is not None and follower.expects(key):
                course.ops += 1
                if follower.after(cells):
                    course.ended(course.state())
            course.boundary(True)
