"""The plan for a recorded iteration, made beside the run or while it waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpumem.deadline import Deadline
from gpumem.errors import Infeasible, NotReached
from gpumem.evaluate import plan
from gpumem.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from gpumem.units import percent

SEVERAL = ("tensile", "checkpoint", "capuchin", "on-demand-nonblocking")  # the last reaches what can be reached


@dataclass(slots=True)
class Planning:
    """Plans for a trace within a load limit; the cheapest by the capacity clock counts."""

    trace: Trace
    machine: Machine
    limit: int
    planners: Sequence[str] = SEVERAL
    seconds: float = 8.0
    best: Plan | None = None
    notes: list[str] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def run(self) -> None:
        """Plan."""
        least = float("inf")
        until = Deadline.within(self.seconds)
        for k, name in enumerate(self.planners):
            if until.over() and self.best is not None:
                break
            share = until.part(1 / (len(self.planners) - k)).seconds
            try:
                found = plan(
                    self.trace,
                    self.machine,
                    load=self.limit,
                    planner=name,
                    placer="best-fit",
                    check=False,
                    seconds=share if self.best is not None else None,
                )
            except (NotReached, Infeasible, ValueError) as stop:
                self.notes.append(f"{name}: {stop}")
                continue
            self.notes.append(f"{name}: overhead {percent(found.overhead)}")
            if found.overhead < least:
                self.best, least = found.plan, found.overhead

    def start(self) -> None:
        """Plan in a thread of its own, so that no frame of a planner's error keeps what the step holds."""
        self._thread = threading.Thread(target=self.run, name="gpumem plans", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._thread is None or not self._thread.is_alive()

    def stop(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()
