"""The plan for a recorded iteration, made beside the run or while it waits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpumem.io import read
from gpumem.pipeline import Planned, among
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

SEVERAL = ("tensile", "checkpoint", "capuchin", "on-demand-nonblocking")  # the last reaches what can be reached


def given(plan: Planned | tuple[Trace, Plan] | str | Path) -> tuple[Trace, Plan]:
    """What somebody has planned before, and for what; from the folder that `gpumem fit --out` wrote, too.

    Raises
    ------
    ValueError
        There is no such folder, or no plan in it.
    """
    if isinstance(plan, Planned):
        return plan.before.trace, plan.plan
    if isinstance(plan, tuple) and len(plan) == 2:
        return plan
    if not isinstance(plan, str | Path):
        raise TypeError(f"plan: {plan!r:.60} is none: a Planned, a pair (trace, plan), or the folder of one")
    trace, written = Path(plan) / "captured.json.gz", Path(plan) / "plan.json"
    for file in (trace, written):
        if not file.is_file():
            raise ValueError(
                f"plan: {file} is not there; `gpumem fit ... --out {plan}` writes it where a plan is needed"
            )
    return read(trace), Plan.from_json(written.read_text())


@dataclass(slots=True)
class Planning:
    """Plans for a trace within a load limit; the cheapest by the capacity clock counts.

    Where there is none, those for the trace `shorter` count, whose buffers do not live as long.
    """

    trace: Trace
    machine: Machine
    limit: int
    planners: Sequence[str] = SEVERAL
    seconds: float = 30.0
    shorter: Trace | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
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
            found = among(
                self.trace,
                self.machine,
                load=self.limit,
                planners=self.planners,
                seconds=seconds,
                check=False,
                options=self.options,
            )
            if found.planned is not None:
                self.best = found.planned.plan
            if found.planned is not None or found.needs:
                break
        self.notes += [f"planner {tried}" for tried in found.tried]

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
