"""What a program proved beside the plan that it found."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base.display import Facts, Shown
from gpumem.base.units import human_ns, percent
from gpumem.swap.plan import Plan

START = "start"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proof(Shown):
    """A plan, how long its iteration takes by the clock, and what no plan of that kind can beat.

    Parameters
    ----------
    plan : Plan
    value, bound : int
        Nanoseconds of an iteration: of the plan, and the least possible as far as it is proved.
    status : str
        `optimal`: the two are equal, or as close as was asked for; `late`: the time was up, or the program has said
        all that it can; `start`: the same, and the plan is the one that was given.
    """

    plan: Plan
    value: int
    bound: int
    status: str

    @property
    def gap(self) -> float:
        """How far the plan may be from the best, as a fraction of its time."""
        return (self.value - self.bound) / self.value if self.value else 0.0

    def _facts(self) -> Facts:
        times = {"iteration": human_ns(self.value), "at least": human_ns(self.bound), "gap": percent(self.gap)}
        return {"": self.plan.trace} | times | {"status": self.status}
