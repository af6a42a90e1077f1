"""A memory-limited run of a PyTorch step: what it watches while it is entered, and how it leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from threading import RLock
from typing import Any, TypeVar
from unittest.mock import patch

from gpumem.base.arguments import strict
from gpumem.base.units import amount, exact, human
from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.limited_memory import UNLIMITED, LimitError
from gpumem.runtime.residency.report import ManagedReport
from gpumem.runtime.residency.run_loop import RunLoop
from gpumem.swap.plan import Plan
from gpumem.torch.internals import register_optimizer_step_post_hook, torch
from gpumem.torch.run.engines import Engine, Pointers
from gpumem.torch.run.environment import StepEnvironment
from gpumem.torch.run.foreign_threads import refuse_foreign_threads
from gpumem.torch.run.forks import Forks
from gpumem.torch.run.limit_mode import LimitMode
from gpumem.torch.run.memory import Memory, restore, to_host
from gpumem.torch.run.nested_ops import without_modes
from gpumem.torch.run.recompute import recompute_cell
from gpumem.torch.run.storage_access import ByteAccess, StorageAccess
from gpumem.torch.step.foreach_chunks import lists_named
from gpumem.torch.step.refusals import alone, refusing, uncompiled
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.storages import Cell
from gpumem.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])
DEVICE, HOST = "device", "host"  # where tensors are left
# The parts of the limit that a call on lists of tensors is split into, where no chunk is given: not tuned.
PIECES = 8


class Managed:
    """A memory-limited run: a context manager, or a decorator of a step. `managed` makes one.

    It may be entered several times, one after the other, and goes on with the plan it has.

    It joins five parts: `memory` (which storages are on the device), `mode` (sees each op, the dispatch step),
    `storage_access` (sees what no op is), `loop` (records iterations, plans, follows) and `steps`, the loop's
    environment. On entry the process is prepared, on exit it is restored whatever failed.
    """

    def __init__(  # noqa: PLR0913  as `managed`, which makes it
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
        self.limit, self.iteration_end, self.on_exit, self.chunk = limit, boundary, on_exit, chunk
        self.planning = planning
        self.memory = Memory(device, engine, pointers)
        self.memory.recover = partial(recompute_cell, self.memory)
        self.step_context = StepContext()
        self.memory.module = lambda: self.step_context.here()[2]
        self.step_context.on_model = lambda tensors: self.memory.meet(tensors)
        self.steps = StepEnvironment(
            self.memory, self.step_context, self._on_iteration, self._lasts, repeats=boundary is None
        )
        self.loop: RunLoop[Cell] = RunLoop(self.steps, wait=wait, eager=False)
        self.steps.observed = self.loop.observed
        self.mode = LimitMode(self.memory, self.loop, chunk)
        self.forks = Forks(self._forked)
        self.storage_access = StorageAccess(self._before_access, self._after_resize, self._name_of, self._all_on_device)
        self._environment: ExitStack | None = None  # what is to be undone on exit, while the run is entered
        self._is_decorator = False
        # Refuses what is no amount; of a percentage the peak is not known yet, and any number does for that.
        in_bytes = amount(limit, 2**40, "limit")
        if not (isinstance(limit, str) and "%" in limit):
            self._set_limit(in_bytes)

    def __repr__(self) -> str:
        limit = self.limit if self.memory.limit == UNLIMITED else human(self.memory.limit)
        rows = self.loop.ledger.rows
        return f"Managed(limit {limit} on {self.memory.device}, iterations {rows[-1].number + 1 if rows else 0})"

    # entering and leaving

    def __enter__(self) -> Managed:
        with ExitStack() as environment:
            environment.enter_context(alone(LimitMode.alone))
            environment.callback(self._restore)
            # Left last to first: the mode goes before what watches accesses past it, and both before `_restore`.
            unseen = self.storage_access, refuse_foreign_threads(self._manages), without_modes(self.memory), self.forks
            for context in (refusing(), self.step_context.followed(), *unseen):
                environment.enter_context(context)
            environment.enter_context(register_optimizer_step_post_hook(self._after_optimizer))
            self.loop.start()
            environment.enter_context(self.mode)
            environment.enter_context(uncompiled())
            self._environment = environment.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        environment, noted = self._environment, self.loop.noted
        assert environment is not None
        try:
            environment.__exit__(*error)
        finally:
            self._environment = None  # not before: foreign threads may not touch what is not restored yet
        new = self.loop.noted - noted
        for note in [*self.loop.notes][-new:] if new and error[0] is None else ():
            warnings.warn(note, stacklevel=2)

    def _restore(self) -> None:
        """Put all tensors where `on_exit` says, whatever failed in the run, and raise nothing.

        An error of ours would take the place of the program's own.
        """
        if self.mode.off:  # in a process that was forked from the run: `_forked` has restored all
            return
        move = to_host if self.on_exit == HOST and not self._is_decorator else restore
        with self.mode.lock:
            for finish in (self.loop.pause, partial(move, self.memory), self.memory.engine.rest):
                try:
                    for note in finish() or ():
                        self.loop.note(note)
                except Exception as error:
                    self.loop.note(f"on leaving: {type(error).__name__}: {error}")

    def _manages(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may be evicted at any time; asked by threads, which may outlive the run."""
        return self._environment is not None and not self.mode.off and self.memory.known(tensor) is not None

    def _forked(self) -> None:
        """End the run in a process that was forked from it, as a loader's worker."""
        self.mode.unmanaged()
        self.mode.lock = RLock()  # the old one may be held by a thread that was not forked with us
        if self.memory.device == "cpu":  # CUDA cannot be used in a process that was forked from one that uses it
            restore(self.memory)

    def __call__(self, step: F) -> F:
        """Let each call of a function be one iteration of the run; all tensors are restored when it returns."""

        @wraps(step)
        def called(*args: Any, **kwargs: Any) -> Any:
            with patch.object(self, "_is_decorator", True), patch.object(self.steps, "repeats", False), self:
                result = step(*args, **kwargs)
                self.mode.leave()
            return result

        return called  # type: ignore[return-value]

    def boundary(self) -> None:
        """An iteration ends here; for runs with `boundary="told"`."""
        with self.mode.lock:
            self.loop.boundary()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self.mode.lock:
            if self.iteration_end is optimizer:
                self.loop.boundary()
            elif self.iteration_end is None and not self._is_decorator:
                self.loop.boundary(sure=False)

    # what the run loop asks, and tells

    def _set_limit(self, limit: int) -> None:
        self.memory.limit = limit
        if self.chunk is None:
            self.mode.chunk = max(limit // PIECES, 1)

    def _on_iteration(self, trace: Trace) -> Planning | str | None:
        """Say what to do about a recorded iteration: plan, record it anew (the reason), or nothing, as it fits."""
        if self.memory.limit == UNLIMITED:
            self._set_limit(amount(self.limit, trace.peak_live_bytes, "limit"))
            if self.chunk is None and trace.peak_live_bytes > self.memory.limit and lists_named(trace.ops.name):
                return "its optimizer's calls are split, now that the limit is known"
        if trace.peak_live_bytes <= self.memory.limit:
            return None
        return self.planning(trace, self.memory.limit)

    @strict
    def follow(self, trace: Trace, plan: Plan) -> None:
        """Begin with a plan instead of a recording."""
        if self.memory.limit == UNLIMITED:
            self._set_limit(amount(self.limit, trace.peak_live_bytes, "limit"))
        self.mode.chunk = self.chunk  # calls are split as in the recording, or its plan would not match
        self.loop.follow(trace, plan)

    def _lasts(self, size: int) -> None:
        """Refuse to go on where what lasts could not be restored to the device at the end."""
        if self.on_exit == DEVICE and size > self.memory.limit:
            raise LimitError(
                f"{human(size)} last from one iteration to the next, the limit is {human(self.memory.limit)}, and on "
                f"leaving they are to be on the device; the least limit for that is {exact(size)}, or leave them on "
                'the host: managed(..., on_exit="host")'
            )

    # untracked storage access

    def _before_access(self, storages: Sequence[torch.UntypedStorage], how: ByteAccess) -> None:
        """Bring storages whose bytes are about to be touched past PyTorch's dispatcher, all of them at once."""
        if self.mode.off:
            return
        with self.mode.lock:
            by_key = self.memory.by_key
            cells = [cell for storage in storages if (cell := by_key.get(storage._cdata)) is not None]
            if not cells:
                return
            self.memory.engine.follow()
            if how is not ByteAccess.READS:
                # Before they are brought: recomputing their dependents may evict them.
                self.memory.recompute_dependents(cells)
            on_demand = self.mode.on_demand if how is ByteAccess.KEEPS else None
            with nullcontext() if on_demand is None else on_demand.pinning(cells):
                self.memory.ensure_resident(cells, 0, "a read of bytes")
                for cell in cells if how is ByteAccess.KEEPS else ():
                    self.memory.pin(cell, "whoever has its address")
            if how is not ByteAccess.READS:
                self.memory.wrote(cells)

    @contextmanager
    def _all_on_device(self) -> Iterator[None]:
        """Bring all storages, for whoever reads some that it does not name; the limit does not count meanwhile."""
        memory = self.memory
        with self.mode.lock:
            before, memory.limit = memory.limit, UNLIMITED
            try:
                for cell in () if self.mode.off else [*memory.by_key.values()]:
                    memory.ensure_resident([cell], 0, "a file")
                yield
            finally:
                memory.limit = before
                with suppress(LimitError):
                    memory.evict_for(0)

    def _name_of(self, storage: torch.UntypedStorage) -> int | None:
        """A number that identifies a storage where its address may change; None where it does not."""
        cell = None if self.mode.off else self.memory.by_key.get(storage._cdata)
        return None if cell is None or cell.pinned else cell.key

    def _after_resize(self, storage: torch.UntypedStorage) -> None:
        """Update the size of a storage that may have been resized past the dispatcher."""
        if self.mode.off:
            return
        with self.mode.lock:
            cell = self.memory.by_key.get(storage._cdata)
            if cell is not None:
                self.memory.measured(cell)

    def report(self) -> ManagedReport:
        """Return the report of the run so far, a row for each iteration."""
        return self.loop.report(open_row=False)
