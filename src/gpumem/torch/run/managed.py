"""Run an unmodified PyTorch step within a limit."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any, TypeVar

from gpumem._strict import strict
from gpumem.evaluate import Planned
from gpumem.machine import Machine
from gpumem.names import one_of
from gpumem.swap.plan import Plan
from gpumem.torch._torch import TorchDispatchMode, register_optimizer_step_post_hook, torch
from gpumem.torch.chunks import in_bytes, joined, pieces
from gpumem.torch.ops import Call, call_of, kind_of, tensors
from gpumem.torch.refusals import alone, check_types, refusing
from gpumem.torch.run.again import NotKept, keep
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.engines import SWAPS, Engine, OnHost, Pointers, Resized, Swapped
from gpumem.torch.run.follow import LOST, recover
from gpumem.torch.run.iterations import Course
from gpumem.torch.run.memory import UNLIMITED, LimitError, Memory
from gpumem.torch.run.outside import reading
from gpumem.torch.run.planning import SEVERAL, Planning
from gpumem.torch.run.predict import Predicted
from gpumem.torch.run.report import ManagedReport
from gpumem.torch.scene import NONE, Scene, engine_references
from gpumem.torch.timing import Stopwatch, stopwatch
from gpumem.torch.watch import Watch
from gpumem.torch.workload import WorkloadError
from gpumem.trace import Trace
from gpumem.units import amount

F = TypeVar("F", bound=Callable[..., Any])
TOLD = "told"
LEAVE = "leave"
aten = torch.ops.aten


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


class Managed(TorchDispatchMode):
    """A run within a limit; `managed` makes one."""

    def __init__(
        self,
        limit: int | str,
        given: tuple[Trace, Plan] | None,
        machine: Machine,
        boundary: Any,
        device: str,
        engine: Engine,
        pointers: type[Pointers],
        planners: Sequence[str],
        seconds: float,
        wait: bool,
        chunk: int | None,
    ) -> None:
        super().__init__()
        self.limit, self.given, self.machine, self.until = limit, given, machine, boundary
        self.device, self.planners, self.seconds = device, planners, seconds
        self.chunk = chunk
        self.memory = Memory(device, engine, pointers)
        self.memory.recover = lambda cell: recover(self.memory, cell)
        self.scene = Scene()
        self.predicted = Predicted(device)
        self.course = Course(self.memory, self._recorder, self._planning, wait)
        self._lock = threading.RLock()
        self._world: ExitStack | None = None
        self._calls = False  # as a decorator
        self.runner = Runner(stopwatch(device))
        engine_references()
        if not isinstance(limit, str) or "%" not in limit:
            self.memory.limit = amount(limit, 0, "limit")

    # in and out

    def __enter__(self) -> Managed:
        with ExitStack() as world:
            world.enter_context(alone(Managed))
            world.enter_context(refusing())
            world.enter_context(self.scene.followed())
            hook = register_optimizer_step_post_hook(self._stepped)
            world.callback(hook.remove)
            world.enter_context(reading(self._reach))
            if self.course.follower is None and self.course.watch is None:
                if self.given is None:
                    self.course.record()
                else:
                    self._limited(self.given[0])
                    self.course.follow(*self.given)
            world.enter_context(self._mode())
            self._world = world.pop_all()
        return self

    def _mode(self) -> Any:
        stack = ExitStack()
        super().__enter__()
        stack.callback(lambda: super(Managed, self).__exit__(None, None, None))
        return stack

    def __exit__(self, *error: Any) -> None:
        world, self._world = self._world, None
        assert world is not None
        try:
            world.close()
        finally:
            self.restore()

    def restore(self) -> None:
        """Bring everything back."""
        with self._lock:
            memory = self.memory
            before, memory.limit = memory.limit, UNLIMITED
            if self.course.follower is not None:
                self.course.follower.restart()
            for cell in [*memory.by_key.values()]:
                memory.ready([cell], 0, LEAVE)
            for cell in [*memory.by_key.values()]:
                memory.forget(cell)
            memory.limit = before

    def __call__(self, step: F) -> F:
        """Run each call of a function within the limit; each is an iteration."""

        @wraps(step)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._calls = True
            with self:
                result = step(*args, **kwargs)
                self._leave()
            return result

        return called  # type: ignore[return-value]

    def boundary(self) -> None:
        """An iteration ends here."""
        self.course.boundary(True)

    def report(self) -> ManagedReport:
        """What came of the run so far."""
        course = self.course
        hints = course.hints
        planned = hints is not None and bool(hints.plan.decisions)
        return ManagedReport(
            self.memory.limit,
            self.memory.held,
            None if hints is None else hints.trace,
            hints.plan if planned and hints is not None else None,
            hints.plan.apply(hints.trace).peak_load if planned and hints is not None else 0,
            tuple(course.rows),
            tuple(course.notes),
        )

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.until is None and not self._calls:
            self.course.boundary(bool(self.course.marks))
        elif self.until is optimizer:
            self.course.boundary(True)

    # recording, planning

    def _recorder(self) -> Watch:
        return Watch(self.device, self.scene, self.runner)

    def _limited(self, trace: Trace) -> int:
        if isinstance(self.limit, str):
            self.memory.limit = amount(self.limit, trace.peak_load, "limit")
        return self.memory.limit

    def _planning(self, trace: Trace) -> Planning | None:
        limit = self._limited(trace)
        if trace.peak_load <= limit:
            return None
        return Planning(trace, self.machine, limit, self.planners, self.seconds)

    # ops

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Watch

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if types:
            check_types(func, types)
        if kind_of(func).composite and torch.is_inference_mode_enabled():
            with self:
                return func.decompose(*args, **kwargs)
        with self._lock:
            split = pieces(func, args, kwargs, self.chunk) if self.chunk else None
            if split is None:
                return self._call(func, args, kwargs)
            return joined([self._call(func, *piece) for piece in split])

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = call_of(func, args, kwargs, self.device)
        if call is not None:
            return self._op(call, func, args, kwargs)
        if not self.memory.pointers.views:  # a view needs the size, which goes with the memory
            self.memory.ready(self.memory.of(tensors(args, self.device)), 0, str(func))
        return func(*args, **kwargs)

    def _op(self, call: Call, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        memory, course, kind = self.memory, self.course, call.kind
        if memory.dead:
            memory.bury()
        operands = memory.of(call.operands)
        written = memory.of(call.written) if call.written else []
        reads = operands
        if kind.overwrites:
            reads = [*dict.fromkeys([*memory.of(call.read), *written])]
        elif not kind.reads:
            reads = []
        name = self._in_place(func, args, kwargs, operands) if kind.grows and operands else ""
        follower = course.follower
        key = hash((name or kind.name, *[cell.size for cell in reads]))
        i = LOST if follower is None else follower.before(key, name or kind.name)
        fresh = follower.hints.fresh[i] if follower is not None and i != LOST else self._fresh(name, func, args, kwargs)
        if written:
            memory.secure(written)
        memory.ready(reads, fresh, kind.name)
        kept = None
        if follower is not None and i != LOST and (due := follower.hints.at[i]) is not None and due.keep:
            try:
                kept = keep(func, args, kwargs, memory)
            except NotKept:
                kept = None
        result = self._run(call, name, func, args, kwargs)
        touched = self._done(call, reads, written, result)
        if kept is not None and follower is not None:
            follower.calls[i] = kept(touched, fresh)
        course.ops += 1
        if course.watch is not None:
            course.seen(key, touched)
        elif follower is not None and follower.after(touched):
            course.ended(course.state())
        return result

    def _fresh(self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        if name or self.memory.limit == UNLIMITED:
            return 0
        return self.predicted(func, args, kwargs)

    def _in_place(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: list[Cell]) -> str:
        cell = operands[0]
        name = self.scene.in_place(func, args, kwargs, cell.node) if cell.node not in (None, NONE) else ""
        return name if name and _named(name) is not None else ""

    def _run(self, call: Call, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        watch, runner = self.course.watch, self.runner
        runner.name = name
        if watch is None:
            return _named(name)(*args, **kwargs) if name else func(*args, **kwargs)
        try:
            result = watch.op(call, func, args, kwargs)
        except WorkloadError as error:
            self.course.unrecordable(str(error))
            result = runner.last
        runner.last = None  # or the engine takes a gradient for somebody else's, too
        return result

    def _done(self, call: Call, reads: list[Cell], written: list[Cell], result: Any) -> list[Cell]:
        """Take note of what an op made and wrote; return the cells that it touched."""
        memory = self.memory
        made = memory.of(tensors(result if isinstance(result, (list, tuple)) else (result,), self.device))
        node = self.scene.node if torch._C._current_graph_task_id() >= 0 else NONE
        touched = [*reads]
        for cell in made:
            cell.node = node
            if cell not in reads:
                touched.append(cell)
        if self.runner.name:
            written = made
        if call.kind.resizes:
            self._resized(call)
        if written:
            memory.wrote(written)
            for cell in written:
                cell.node = node
        memory.note()
        if memory.held > memory.limit:
            with suppress(LimitError):
                memory.room(0, touched)
        return touched

    def _resized(self, call: Call) -> None:
        memory = self.memory
        for cell in memory.of(call.written):
            storage = cell.storage
            if storage is not None and storage.nbytes() != cell.size:
                memory.held += storage.nbytes() - cell.size
                cell.size = storage.nbytes()

    def _leave(self) -> None:
        """The end of a call: an op that reads all that lasts."""
        gc.collect()
        with self._lock:
            memory, course, follower = self.memory, self.course, self.course.follower
            memory.bury()
            cells = [*memory.by_key.values()]
            key = hash(LEAVE)
            if follower is not None:
                follower.before(key, LEAVE)
            memory.ready(cells, 0, "all that lasts")
            course.ops += 1
            if course.watch is not None:
                course.watch.touched(LEAVE, [s for c in cells if (s := c.storage) is not None])
                course.seen(key, cells)
            elif follower is not None and follower.after(cells):
                course.ended(course.state())
            course.boundary(True)

    def _reach(self, storage: torch.UntypedStorage, for_good: bool) -> None:
        """Somebody is about to read a storage's bytes."""
        with self._lock:
            cell = self.memory.by_key.get(storage._cdata)
            if cell is not None:
                self.memory.ready([cell], 0, "a read outside of ops")
                cell.fixed = cell.fixed or for_good
                self.memory.wrote([cell] if for_good else [])


def _named(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base, None), overload, None)


@strict
def managed(
    limit: int | str,
    plan: Any = None,
    machine: Machine | str | None = None,
    boundary: Any = None,
    *,
    on_exit: str = "device",
    planner: str | Sequence[str] = SEVERAL,
    seconds: float = 8.0,
    wait: bool = False,
    chunk: int | str | None = None,
    device: str | None = None,
) -> Managed:
    """Run what follows within a limit."""
    given: tuple[Trace, Plan] | None = None
    if isinstance(plan, Planned):
        given = plan.before.trace, plan.plan
    elif plan is not None:
        given = plan
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    one_of("device", device, ("cpu", "cuda"))
    one_of("on_exit", on_exit, ("device", "host"))
    machine = Machine.named(machine or "rtx4090") if not isinstance(machine, Machine) else machine
    return Managed(
        limit,
        given,
        machine,
        boundary,
        device,
        OnHost(),
        Swapped if SWAPS else Resized,
        [planner] if isinstance(planner, str) else [*planner],
        seconds,
        wait,
        in_bytes(chunk),
    )
