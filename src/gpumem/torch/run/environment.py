"""The run loop's environment of a PyTorch step: it gives recorders, which are those of captures, and followers."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.hints import Hints
from gpumem.runtime.residency.iteration_recorder import Alike, IterationRecorder
from gpumem.torch.capture.captured import cut
from gpumem.torch.capture.op_recorder import OpRecorder
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.recompute import RecomputingFollower
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.storages import Cell
from gpumem.torch.step.timing import Timed, stopwatch
from gpumem.trace import Trace

# Events of the shortest iteration that is looked for: 1, as any length will do. What repeats within a step, as layers
# do, is not taken for an iteration, since its repetitions leave activations behind.
MIN_LENGTH = 1


class StepRecorder(IterationRecorder[Cell]):
    """Records the ops of a step from some moment on, until two iterations are alike.

    Parameters
    ----------
    memory : Memory
        Its storages are numbered.
    step_context : StepContext
    timed : Timed, optional
        Runs the ops, and says how long they took.
    repeats : bool
        Whether to look for repetitions, until a boundary is reported.
    observed : callable
        Calls a function that may fail without failing the step.
    """

    def __init__(
        self,
        memory: Memory,
        step_context: StepContext,
        timed: Timed | None,
        *,
        repeats: bool,
        observed: Callable[..., Any],
    ) -> None:
        self.ops = OpRecorder(memory, memory.device, step_context, timed, as_bare=False)
        super().__init__(self.ops.recorder, repeats, MIN_LENGTH)
        self._memory, self._on_reaped = memory, lambda cell: observed(self.ops.on_reaped, cell)
        memory.on_reaped = self._on_reaped

    def begin(self) -> None:
        """An iteration may begin here."""
        self.ops.begin()

    def end(self) -> None:
        """An iteration may end here."""
        self.ops.end()

    def close(self) -> None:
        """Stop recording."""
        if self._memory.on_reaped is self._on_reaped:  # else a later recorder has taken the place
            self._memory.on_reaped = None

    def trace(self, alike: Alike) -> Trace:
        """Return the trace of the last of two iterations; WorkloadError where they differ."""
        return cut(self.ops, alike.bounds, "step").trace


class StepEnvironment:
    """A PyTorch step, as its run loop sees it.

    Parameters
    ----------
    memory : Memory
    step_context : StepContext
    on_iteration, lasts : callable
        As `Environment` has them.
    repeats : bool
        Whether iterations are looked for in what repeats, as no boundary was named.
    """

    observed: Callable[..., Any]  # the loop's

    def __init__(
        self,
        memory: Memory,
        step_context: StepContext,
        on_iteration: Callable[[Trace], Planning | str | None],
        lasts: Callable[[int], None],
        *,
        repeats: bool,
    ) -> None:
        self.memory, self.step_context, self.repeats = memory, step_context, repeats
        self.on_iteration, self.lasts = on_iteration, lasts
        self._timed = stopwatch(memory.device)

    def now(self) -> int:
        """The time, in ns."""
        return perf_counter_ns()

    def iterations(self) -> StepRecorder:
        """Return a recorder that has seen no op."""
        return StepRecorder(self.memory, self.step_context, self._timed, repeats=self.repeats, observed=self.observed)

    def follower(self, hints: Hints) -> RecomputingFollower:
        """Return a follower that carries hints out."""
        return RecomputingFollower(self.memory, hints)

    def report(self, kind: str, why: str) -> None:
        """Log nothing."""
