"""The dispatch mode of a run: before each op its operands are on the device, within the limit; the rest are hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpumem.live.follow import LOST
from gpumem.live.hints import LEAVE, looks
from gpumem.live.residency import UNLIMITED, LimitError
from gpumem.torch._torch import torch
from gpumem.torch.dispatch import OpMode
from gpumem.torch.ops import THERE, Call, tensors
from gpumem.torch.run.again import Kept, NotKept, keep
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.iterations import Course
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.predict import Predicted
from gpumem.torch.scene import NONE, Scene, engine_references
from gpumem.torch.timing import Stopwatch, stopwatch
from gpumem.torch.watch import Watch
from gpumem.torch.workload import WorkloadError

aten = torch.ops.aten
JOINED = "it computes on several streams; within a limit each waits for the one before, so they run in turns"


class Runner:
    """Runs ops, in place where that is `name`d; the last result is there though a recorder fails."""

    def __init__(self, timed: Stopwatch | None) -> None:
        self.timed, self.name = timed, ""
        self.last: Any = None

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op; return what it returns."""
        if self.name:
            func = _named(self.name)
        self.last = self.timed(func, args, kwargs) if self.timed else func(*args, **kwargs)
        return self.last

    def read(self) -> list[int]:
        """The nanoseconds of each op since the last time, where they are measured."""
        return self.timed.read() if self.timed else []


class Within(OpMode):
    """Runs ops within the limit of a memory, along a course."""

    alone = "a managed run"

    def __init__(self, memory: Memory, course: Course, scene: Scene, chunk: int | None) -> None:
        super().__init__(memory.device, chunk)
        self.memory, self.course, self.scene = memory, course, scene
        self.there = THERE[memory.device]
        self.predicted = Predicted(self.device)
        self.runner = Runner(stopwatch(self.device))
        self.node = NONE  # the backward node that is evaluated
        engine_references()

    def other(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run what is no op; a view needs the size, which may go with the memory."""
        if not self.memory.pointers.views:
            self.memory.ready(self.memory.of(tensors(args, self.device)), 0, str(func))
        return func(*args, **kwargs)

    def op(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op of the device, once what it touches is there."""
        memory, course, kind = self.memory, self.course, call.kind
        if memory.engine.follow() and JOINED not in course.notes:
            course.notes.append(JOINED)
        if memory.dead:
            memory.bury()
        reads, written, name = self._operands(call, func, args, kwargs)
        key, follower = looks(name or kind.name, [cell.size for cell in reads]), course.follower
        i = LOST if follower is None else follower.before(key, name or kind.name)
        fresh, kept = self._expected(i, name, func, args, kwargs)
        if written:
            memory.secure(written)
        memory.ready(reads, fresh, kind.name)
        if written:
            memory.wrote(written)  # also if it fails half-way
        result = self._run(call, name, func, args, kwargs)
        touched = self._done(call, reads, written, result)
        if i == LOST:
            self.predicted.learn(sum(cell.size for cell in touched[len(reads) :]))
        if kept is not None and follower is not None:
            follower.calls[i] = kept(touched, fresh)
        course.ops += 1
        if course.watch is not None:
            course.seen(key, touched)
        elif follower is not None and follower.after(touched):
            course.ended(course.state())
        return result

    def _operands(
        self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Cell], list[Cell], str]:
        """The cells that an op reads, those that it writes, and what it is called where it is done in place instead."""
        memory, kind = self.memory, call.kind
        operands = memory.of(call.operands)
        written = memory.of(call.written) if call.written else []
        reads = operands if kind.reads else []
        if kind.overwrites:
            reads = [*dict.fromkeys([*memory.of(call.read), *written])]
        self.node = self.scene.node
        if kind.grows and self.node != NONE and operands and operands[0].node is not None:
            name = self.scene.in_place(func, args, kwargs, operands[0].node)
            return reads, operands[:1] if name else written, name
        return reads, written, ""

    def _expected(
        self, i: int, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, Callable[[list[Cell], int], Kept] | None]:
        """The bytes that an op will make; and what writes it down, once it has, if the plan may run it again."""
        follower = self.course.follower
        if follower is not None and i != LOST:
            due = follower.hints.at[i]
            again = _named(name) if name else func
            return follower.hints.fresh[i], self._kept(again, args, kwargs) if due and due.keep else None
        return 0 if name or self.memory.limit == UNLIMITED else self.predicted(func, args, kwargs), None

    def _run(self, call: Call, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            if self.course.watch is not None:
                return self._recorded(self.course.watch, call, name, func, args, kwargs)
            return _named(name)(*args, **kwargs) if name else func(*args, **kwargs)
        except BaseException:
            if call.kind.resizes:
                self._resized(call)
            raise

    def _kept(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[list[Cell], int], Kept] | None:
        """What is to be known of a call to run it again, once it is made; None where it cannot."""
        try:
            return keep(func, args, kwargs, self.memory)
        except NotKept:
            return None

    def _recorded(
        self, watch: Watch, call: Call, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an op as a recorder writes it down; where that fails, without one from then on."""
        runner = self.runner
        runner.name = name
        try:
            result = watch.op(call, func, args, kwargs)
        except WorkloadError as error:
            self.course.unrecordable(str(error))
            result = runner.last
        runner.last = None  # or the engine takes a gradient for somebody else's, too
        return result

    def _done(self, call: Call, reads: list[Cell], written: list[Cell], result: Any) -> list[Cell]:
        """Take note of what an op made and wrote; return the cells that it touched."""
        memory, node = self.memory, self.node
        if isinstance(result, (list, tuple)):
            made = [cell for x in tensors(result, self.device) for cell in memory.made(x)]
        else:
            made = memory.made(result) if isinstance(result, torch.Tensor) and getattr(result, self.there) else []
        touched = reads
        for cell in made:
            cell.node = node
            if cell not in touched:
                touched = [*touched, cell]
        if call.kind.resizes:
            self._resized(call)
        for cell in written:
            cell.node = node
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
                course.watch.touched(LEAVE, [s for c in cells if (s := c.storage) is not None])
                course.ops += 1
                course.seen(key, cells)
            elif follower is not None and follower.expects(key):
                course.ops += 1
                if follower.after(cells):
                    course.ended(course.state())
            course.boundary(True)

    def _resized(self, call: Call) -> None:
        memory = self.memory
        for cell in memory.of(call.written):
            storage = cell.storage
            if storage is not None and storage.nbytes() != cell.size:
                more = storage.nbytes() - cell.size
                memory.held += more
                memory.alive += more
                memory.fixed += more * cell.fixed
                cell.size += more


def _named(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base, None), overload, None)
