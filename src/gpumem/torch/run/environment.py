"""What a run loop needs of a PyTorch step: a book, whose ops the recorder of captures writes down, and a follower."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.hints import Hints
from gpumem.runtime.residency.iteration_recorder import Alike, Book
from gpumem.torch.capture.captured import cut
from gpumem.torch.capture.op_recorder import OpRecorder
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.recompute import RecomputingFollower
from gpumem.torch.step.step_context import StepContext
from gpumem.torch.step.storages import Cell
from gpumem.torch.step.timing import Timed, stopwatch
from gpumem.trace import Trace

MIN_LENGTH = 1  # events of what repeats: what repeats within a step keeps what it makes, and so is none


class StepRecorder(Book[Cell]):
    """A recording of the ops of a step since some moment.

    Parameters
    ----------
    memory : Memory
        Whose storages are numbered.
    step_context : StepContext
    timed : Timed, optional
        Runs the ops, and says how long they took.
    repeats : bool
        Whether to look for what repeats, until a boundary is told.
    observed : callable
        Calls what may fail, and must not fail the step.
    """

    def __init__(
        self, memory: Memory, step_context: StepContext, timed: Timed | None, repeats: bool, observed: Callable[..., Any]
    ) -> None:
        self.ops = OpRecorder(memory, memory.device, step_context, timed, as_bare=False)
        super().__init__(self.ops.recorder, repeats, MIN_LENGTH)
        self._memory, self._buried = memory, lambda cell: observed(self.ops.buried, cell)
        memory.buried = self._buried

    def begin(self) -> None:
        """An iteration may begin here."""
        self.ops.begin()

    def end(self) -> None:
        """An iteration may end here."""
        self.ops.end()

    def close(self) -> None:
        """Nothing is recorded any more; another book may be told of deaths by now."""
        if self._memory.buried is self._buried:
            self._memory.buried = None

    def trace(self, found: Alike) -> Trace:
        """Return the last of two iterations; WorkloadError where they are none."""
        return cut(self.ops, found.bounds, "step").trace


class StepEnvironment:
    """A PyTorch step, as its run loop sees it.

    Parameters
    ----------
    memory : Memory
    step_context : StepContext
    settled, lasts : callable
        As `Environment` has them.
    repeats : bool
        Whether an iteration that nobody tells of is looked for in what repeats.
    """

    observed: Callable[..., Any]  # the loop's

    def __init__(
        self,
        memory: Memory,
        step_context: StepContext,
        settled: Callable[[Trace], Planning | str | None],
        lasts: Callable[[int], None],
        repeats: bool,
    ) -> None:
        self.memory, self.step_context, self.settled, self.lasts, self.repeats = memory, step_context, settled, lasts, repeats
        self._timed = stopwatch(memory.device)

    def now(self) -> int:
        """The time, in ns."""
        return perf_counter_ns()

    def book(self) -> StepRecorder:
        """Return a book that has seen no op."""
        return StepRecorder(self.memory, self.step_context, self._timed, self.repeats, self.observed)

    def follower(self, hints: Hints) -> RecomputingFollower:
        """Return who carries hints out."""
        return RecomputingFollower(self.memory, hints)

    def told(self, kind: str, why: str) -> None:
        """Nothing is logged."""
