"""The plan for a recorded iteration, made beside the run or while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gpumem.base import work
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

# Asks planners about a trace, for so many seconds or as long as it takes, and offers each plan that is better than all
# before: whether nothing better comes of more time; what is to be said of it.
Ask = Callable[[Trace, float | None, Callable[[Plan], object]], tuple[bool, list[str]]]


@dataclass(slots=True)
class Planning:
    """A plan for a trace under a memory limit, by whom `ask` asks.

    Where there is none, one for the trace `shorter`, whose buffers do not live as long. The first plan is there soon,
    and others that are better come while it goes on.
    """

    trace: Trace
    limit: int
    ask: Ask
    seconds: float = 30.0
    shorter: Trace | None = None
    best: tuple[Trace, Plan] | None = None
    notes: list[str] = field(default_factory=list)
    unwanted: bool = False
    before: Planning | None = None  # the one whose end it waits for: an abandoned search would take half its time
    _taken: tuple[Trace, Plan] | None = None
    _thread: threading.Thread | None = None

    def run(self) -> None:
        """Plan; where the time was too short for any plan, for as long as it takes."""
        if self.before is not None:
            self.before.stop()
            self.before = None
        try:
            with work.within(stopped=lambda: self.unwanted):
                self._plan(self.trace)
                if self.best is None and self.shorter is not None:
                    self._plan(self.shorter)
        except Exception as error:  # a planner's defect is no reason to end a training
            self.notes.append(f"no plan, as planning failed: {type(error).__name__}: {error}")

    def _plan(self, trace: Trace) -> None:
        notes: list[str] = []
        for seconds in (self.seconds, None):
            if self.unwanted:
                return
            over, notes = self.ask(trace, seconds, lambda plan: self._offer(trace, plan))
            if over:
                break
        self.notes += notes

    def _offer(self, trace: Trace, plan: Plan) -> None:
        self.best = trace, plan

    def news(self) -> tuple[Trace, Plan] | None:
        """Return the best plan so far and its trace, where it is another one than the last time."""
        best, taken = self.best, self._taken
        self._taken = best
        return None if best is taken else best

    def start(self, before: Planning | None = None) -> None:
        """Plan in a thread of its own, so that no frame of a planner's error keeps what the step holds.

        It begins when the one `before`, which nobody wants any more, has ended.
        """
        self.before = None if before is None or before.done else before
        self._thread = threading.Thread(target=self.run, name="gpumem plans", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._thread is None or not self._thread.is_alive()

    def stop(self, seconds: float | None = None) -> None:
        """Wait for the thread, at most so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)

    def give_up(self) -> None:
        """Nobody wants the plan any more: end at the next step."""
        self.unwanted = True
