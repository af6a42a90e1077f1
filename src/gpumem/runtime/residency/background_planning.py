"""The plan for a recorded iteration, made beside the run or while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gpumem.swap.plan import Plan
from gpumem.trace import Trace

# Asks planners about a trace, for so many seconds or as long as it takes: the plan, or None; whether nothing better
# comes of more time; what is to be said of it.
Ask = Callable[[Trace, float | None], tuple[Plan | None, bool, list[str]]]


@dataclass(slots=True)
class Planning:
    """A plan for a trace within a limit, by whom `ask` asks.

    Where there is none, one for the trace `shorter`, whose buffers do not live as long.
    """

    trace: Trace
    limit: int
    ask: Ask
    seconds: float = 30.0
    shorter: Trace | None = None
    best: Plan | None = None
    notes: list[str] = field(default_factory=list)
    unwanted: bool = False
    _thread: threading.Thread | None = None

    def run(self) -> None:
        """Plan; where the time was too short for any plan, for as long as it takes."""
        try:
            self._plan()
            if self.best is None and self.shorter is not None:
                self.trace = self.shorter
                self._plan()
        except Exception as error:  # a planner's defect is no reason to end a training
            self.notes.append(f"no plan, as planning failed: {type(error).__name__}: {error}")

    def _plan(self) -> None:
        for seconds in (self.seconds, None):
            if self.unwanted:
                return
            self.best, over, told = self.ask(self.trace, seconds)
            if over:
                break
        self.notes += told

    def start(self) -> None:
        """Plan in a thread of its own, so that no frame of a planner's error keeps what the step holds."""
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
        """Nobody wants the plan any more: begin no planner without an end."""
        self.unwanted = True
