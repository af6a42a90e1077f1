"""Run an unmodified PyTorch step within a limit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from unittest.mock import patch

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.names import one_of
from gpumem.base.units import amount, exact, human
from gpumem.pipeline import Planned
from gpumem.pipeline.compare_planners import IN_A_RUN, asking
from gpumem.pipeline.planned import given
from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.limited_memory import UNLIMITED, LimitError
from gpumem.runtime.residency.report import ManagedReport
from gpumem.runtime.residency.run_loop import RunLoop
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.swap.planners import planner_of
from gpumem.torch.internals import register_optimizer_step_post_hook, torch
from gpumem.torch.run.engines import POINTERS, Engine, OnHost, Pointers
from gpumem.torch.run.environment import StepEnvironment
from gpumem.torch.run.foreign_threads import refused
from gpumem.torch.run.forks import Forks
from gpumem.torch.run.inside import without_modes
from gpumem.torch.run.limit_mode import Within
from gpumem.torch.run.memory import Memory, restore, to_host
from gpumem.torch.run.on_cuda import LIKE, Gpu, OnCuda, advice, machine_of
from gpumem.torch.run.on_demand import DtrEvictor
from gpumem.torch.run.recompute import recover
from gpumem.torch.run.storage_access import Outside, ByteAccess
from gpumem.torch.step.foreach_chunks import in_bytes, lists_named
from gpumem.torch.step.refusals import alone, refusing, uncompiled
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.storages import Cell
from gpumem.torch.step.workload import WorkloadError
from gpumem.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])
TOLD, DEVICE, HOST = "told", "device", "host"
LRU, DTR = "lru", "dtr"
SIZELESS = (
    f"PyTorch {torch.__version__}: what is on the host has no size here, so torch.save within the run writes a wrong "
    "file, and limits may be passed; 2.12 is the oldest version that is supported"
)
PIECES = 8  # of the limit: into such parts calls on lists of tensors are split


class Managed:
    """A run within a limit: a context manager, or a decorator of a step. `managed` makes one.

    It may be entered again, one at a time, and goes on with the plan it has.
    """

    def __init__(
        self,
        limit: int | str,
        engine: Engine,
        pointers: type[Pointers],
        device: str,
        *,
        boundary: Any,
        on_exit: str,
        planning: Callable[[Trace, int], Planning],
        wait: bool,
        chunk: int | None,
    ) -> None:
        self.limit, self.until, self.on_exit, self.planning, self.chunk = limit, boundary, on_exit, planning, chunk
        self.memory = Memory(device, engine, pointers)
        self.memory.recover = lambda cell: recover(self.memory, cell)
        self.step_context = StepContext()
        self.memory.module = lambda: self.step_context.here()[2]
        self.step_context.on_model = lambda found: self.memory.meet(found)
        self.steps = StepEnvironment(self.memory, self.step_context, self._settled, self._lasts, boundary is None)
        self.loop: RunLoop[Cell] = RunLoop(self.steps, wait=wait, eager=False)
        self.steps.observed = self.loop.observed
        self.mode = Within(self.memory, self.loop, chunk)
        self.forks = Forks(self._forked)
        self.outside = Outside(self._reach, self._changed, self._name, self._all_there)
        self._world: ExitStack | None = None
        self._called = False  # as a decorator
        given = amount(limit, 2**40, "limit")  # which refuses what is none, be it a part of what nobody knows yet
        if not (isinstance(limit, str) and "%" in limit):
            self._limited(given)

    def __repr__(self) -> str:
        limit = self.limit if self.memory.limit == UNLIMITED else human(self.memory.limit)
        rows = self.loop.ledger.rows
        return f"Managed(limit {limit} on {self.memory.device}, iterations {rows[-1].number + 1 if rows else 0})"

    # in and out

    def __enter__(self) -> Managed:
        with ExitStack() as world:
            world.enter_context(alone(Within.alone))
            world.callback(self._left)
            hidden = refused(self._manages), without_modes(self.memory)
            for context in (refusing(), self.step_context.followed(), self.outside, *hidden, self.forks):
                world.enter_context(context)
            world.enter_context(register_optimizer_step_post_hook(self._stepped))
            self.loop.start()
            world.enter_context(self.mode)
            world.enter_context(uncompiled())
            self._world = world.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        world, noted = self._world, self.loop.noted
        assert world is not None
        try:
            world.__exit__(*error)
        finally:
            self._world = None  # not before: threads may not touch what is not back
        new = self.loop.noted - noted
        for note in [*self.loop.notes][-new:] if new and error[0] is None else ():
            warnings.warn(note, stacklevel=2)

    def _left(self) -> None:
        """Let everything be where it is to be after the run, whatever failed in it, and raise nothing.

        What is raised here would take the place of the program's own error.
        """
        if self.mode.off:  # in a process that was forked from the run: all is back there since
            return
        leave = to_host if self.on_exit == HOST and not self._called else restore
        with self.mode.lock:
            for what in (self.loop.pause, partial(leave, self.memory), self.memory.engine.rest):
                try:
                    for note in what() or ():
                        self.loop.note(note)
                except Exception as error:
                    self.loop.note(f"on leaving: {type(error).__name__}: {error}")

    def _manages(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may be sent away at any time; threads of a run may outlive it."""
        return self._world is not None and not self.mode.off and self.memory.known(tensor) is not None

    def _forked(self) -> None:
        """This process is a copy of the one that has the run, as a loader's worker: it goes on without one."""
        self.mode.unmanaged()
        self.mode.lock = RLock()  # the old one may be another thread's, which is not here
        if self.memory.device == "cpu":  # CUDA is of no use in a process that was forked from one that has it
            restore(self.memory)

    def __call__(self, step: F) -> F:
        """Let each call of a function run within the limit, as one iteration; all is back when it returns."""

        @wraps(step)
        def called(*args: Any, **kwargs: Any) -> Any:
            with patch.object(self, "_called", True), patch.object(self.steps, "repeats", False), self:
                result = step(*args, **kwargs)
                self.mode.leave()
            return result

        return called  # type: ignore[return-value]

    def boundary(self) -> None:
        """An iteration ends here; for runs with `boundary="told"`."""
        with self.mode.lock:
            self.loop.boundary()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self.mode.lock:
            if self.until is optimizer:
                self.loop.boundary()
            elif self.until is None and not self._called:
                self.loop.boundary(sure=False)

    # what becomes known on the way

    def _limited(self, limit: int) -> None:
        self.memory.limit = limit
        if self.chunk is None:
            self.mode.chunk = max(limit // PIECES, 1)

    def _settled(self, trace: Trace) -> Planning | str | None:
        """What to do about an iteration that was recorded: plan, record it anew, or nothing, as it fits."""
        if self.memory.limit == UNLIMITED:
            self._limited(amount(self.limit, trace.peak_load, "limit"))
            if self.chunk is None and trace.peak_load > self.memory.limit and lists_named(trace.ops.name):
                return "its optimizer's calls are split, now that the limit is known"
        if trace.peak_load <= self.memory.limit:
            return None
        return self.planning(trace, self.memory.limit)

    @strict
    def follow(self, trace: Trace, plan: Plan) -> None:
        """Begin with a plan instead of a recording."""
        if self.memory.limit == UNLIMITED:
            self._limited(amount(self.limit, trace.peak_load, "limit"))
        self.mode.chunk = self.chunk  # as it was recorded
        self.loop.follow(trace, plan)

    def _lasts(self, size: int) -> None:
        """Refuse to go on where what lasts could not be brought back at the end."""
        if self.on_exit == DEVICE and size > self.memory.limit:
            raise LimitError(
                f"{human(size)} last from one iteration to the next, the limit is {human(self.memory.limit)}, and on "
                f"leaving they are to be on the device; the least limit for that is {exact(size)}, or leave them on "
                'the host: managed(..., on_exit="host")'
            )

    def _reach(self, storages: Sequence[torch.UntypedStorage], how: ByteAccess) -> None:
        """Somebody is about to touch storages' bytes past PyTorch's dispatcher, all of them at once."""
        if self.mode.off:
            return
        with self.mode.lock:
            by_key = self.memory.by_key
            cells = [cell for storage in storages if (cell := by_key.get(storage._cdata)) is not None]
            if not cells:
                return
            self.memory.engine.follow()
            if how is not ByteAccess.READS:
                self.memory.secure(cells)  # first, as it may send them away
            on_demand = self.mode.on_demand if how is ByteAccess.KEEPS else None
            with nullcontext() if on_demand is None else on_demand.pinning(cells):
                self.memory.ready(cells, 0, "a read of bytes")
                for cell in cells if how is ByteAccess.KEEPS else ():
                    self.memory.pin(cell, "whoever has its address")
            if how is not ByteAccess.READS:
                self.memory.wrote(cells)

    @contextmanager
    def _all_there(self) -> Iterator[None]:
        """Somebody is about to read nobody knows what; the limit does not count meanwhile."""
        memory = self.memory
        with self.mode.lock:
            before, memory.limit = memory.limit, UNLIMITED
            try:
                for cell in () if self.mode.off else [*memory.by_key.values()]:
                    memory.ready([cell], 0, "a file")
                yield
            finally:
                memory.limit = before
                with suppress(LimitError):
                    memory.room(0)

    def _name(self, storage: torch.UntypedStorage) -> int | None:
        """A number that no other storage's address is, where this one's may change."""
        cell = None if self.mode.off else self.memory.by_key.get(storage._cdata)
        return None if cell is None or cell.pinned else cell.key

    def _changed(self, storage: torch.UntypedStorage) -> None:
        """It may have another size by now."""
        if self.mode.off:
            return
        with self.mode.lock:
            cell = self.memory.by_key.get(storage._cdata)
            if cell is not None:
                self.memory.measured(cell)

    def report(self) -> ManagedReport:
        """Return what came of the run so far."""
        return self.loop.report(open_row=False)


@strict
def managed(
    limit: int | str,
    plan: Planned | tuple[Trace, Plan] | str | Path | None = None,
    machine: Machine | str | None = None,
    boundary: torch.optim.Optimizer | str | None = None,
    *,
    on_exit: str = DEVICE,
    on_demand: str = LRU,
    planner: str | Sequence[str] = IN_A_RUN,
    seconds: float = 30.0,
    wait: bool = False,
    chunk: int | str | None = None,
    device: str | None = None,
) -> Managed:
    """Run an unmodified training step within a limit, with the bits that it has without one.

    The first iterations run on demand: before each op whatever it touches is on the device, and what was not used for
    longest makes room. They are recorded; when two are alike, a plan is made beside the run, and followed from the end
    of an iteration on. A plan is made of hints: an op that finds something away brings it back itself, so a step that
    does something else than planned is slower, never wrong. When that goes on, another plan is made.

    Parameters
    ----------
    limit : int or str
        Bytes that tensors may hold on the device at once, or a text such as `"4GiB"`, or `"70%"` (of the peak of the
        iteration that was recorded; until then there is none).
    plan : Planned, (Trace, Plan) or path, optional
        A plan for what `capture` or `fit` recorded of the same step; the run begins with it. A path is that of a folder
        which `gpumem fit --out` wrote.
    machine : Machine or str, optional
        What plans are made for: the link's bandwidth, and how long ops take where that is not measured. Left out, on
        CUDA what the card is called, and its link measured where no preset has that name; on the host an `rtx4090`.
    boundary : Optimizer or str, optional
        Where an iteration ends: at the end of this optimizer's step; `"told"`: where `boundary()` of the run is called.
        Left out, at the end of optimizers' steps, several where they take turns, else where ops repeat.
    on_exit : str
        `"device"`: on leaving everything comes back; where what lasts does not fit, that is refused after the
        second iteration. `"host"`: every tensor that was managed is one of the host from then on, as by `.to("cpu")`.
    on_demand : str
        What makes room while no plan is followed. `"lru"`: what was not used for longest goes to the host. `"dtr"`:
        what takes least time to get back, for its bytes and for how long it was not used. It goes to the host, or is
        dropped and its op runs again, whichever takes less on `machine`.
    planner : str or sequence of str
        Names in `swap.PLANNERS`, or `module:name` of your own; the cheapest plan counts. Left out, two that take no
        time, and `search`.
    seconds : float
        Of planning, at most, once there is a plan. The first one is followed as soon as it is there, those that are
        better from the end of an iteration on, while the search goes on.
    wait : bool
        Let the run wait for its plan.
    chunk : int or str, optional
        As in `capture`: the most bytes of a call on lists of tensors. Left out, an eighth of the limit; with a plan,
        what it was recorded with, so none where that was left out there.
    device : str, optional
        `cuda` or `cpu`; left out, `cuda` where there is one: the device that is current when this is called; tensors on
        another one are refused. On the host, memory of NumPy plays the host's part.

    Returns
    -------
    Managed
        Use it in a `with` statement, or as a decorator of a step: then each call is an iteration, and everything is
        back when it returns. `report()` says what came of it.

    Raises
    ------
    ValueError
        What is wrong with an argument.
    LimitError
        From within the run: an op alone holds more than the limit, or what lasts does.
    WorkloadError
        From within the run: a compiled module, a CUDA graph, a tensor subclass, a module that spreads over devices,
        another thread that touches what is managed, another run inside of this one.

    Notes
    -----
    The limit is for the bytes of tensors. What kernels take for themselves, and what the allocator rounds up or cannot
    use, comes on top.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> def step():
    ...     optimizer.zero_grad()
    ...     net(torch.randn(512, 64)).square().mean().backward()
    ...     optimizer.step()
    >>> with managed("70%", planner="on-demand", wait=True, device="cpu") as run:
    ...     for _ in range(5):
    ...         step()
    >>> [row.state for row in run.report().iterations]
    ['recorded', 'recorded', 'planned', 'planned', 'planned']
    >>> run.report().iterations[-1].peak == run.report().planned_peak <= run.report().limit
    True
    """
    names = [planner] if isinstance(planner, str) else [*planner]
    if not names:
        raise ValueError(f"planner: none is named; several are {', '.join(IN_A_RUN)}")
    for name in names:
        planner_of(name)
    if isinstance(boundary, str):
        one_of("boundary", boundary, (TOLD,))
    elif boundary is not None and not isinstance(boundary, torch.optim.Optimizer):
        raise TypeError(f"boundary: {boundary!r:.60} is no optimizer, nor {TOLD!r}")
    if not isinstance(limit, (int, str)):
        raise TypeError(f"limit: {limit!r:.60} is no number of bytes, nor a text such as '4GiB' or '70%'")
    one_of("on_exit", on_exit, (DEVICE, HOST))
    one_of("on_demand", on_demand, (LRU, DTR))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    one_of("device", device, ("cpu", "cuda"))
    work.check_seconds(seconds)
    engine, chosen = _on(device, machine)
    run = Managed(
        limit,
        engine,
        POINTERS,
        device,
        boundary=boundary,
        on_exit=on_exit,
        planning=lambda trace, load: Planning(trace, load, asking(chosen, load, names), seconds),
        wait=wait,
        chunk=in_bytes(chunk),
    )
    if on_demand == DTR:
        run.mode.on_demand = DtrEvictor(run.memory, chosen)
    for note in advice() if device == "cuda" else ():
        run.loop.note(note)
    if not POINTERS.views:
        warnings.warn(SIZELESS, stacklevel=2)
    if plan is not None:
        run.follow(*given(plan))
    return run


def _on(device: str, machine: Machine | str | None) -> tuple[Engine, Machine]:
    """What moves bytes there, and what plans are made for."""
    chosen = machine if isinstance(machine, Machine) else Machine.named(machine or LIKE)
    if device == "cpu":
        return OnHost(), chosen
    if not torch.cuda.is_available():
        raise WorkloadError("device: 'cuda': PyTorch sees no CUDA device here; 'cpu' has the host play its part")
    gpu = Gpu()
    return OnCuda(gpu), machine_of(gpu) if machine is None else chosen
