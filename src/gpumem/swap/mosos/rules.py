"""What a schedule of MO-SOS may do, and what is known of one that was found."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base.display import Facts, Shown
from gpumem.base.units import percent
from gpumem.swap.mosos.problem import Schedule
from gpumem.trace import I64


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rules(Shown):
    """What a schedule may do; left as it is, all that MO-SOS may.

    Parameters
    ----------
    copies : bool
        Whether outputs may be offloaded and prefetched; without, it is Checkmate.
    reruns : bool
        Whether nodes may run again, those marked so.
    since : int
        The first stage in which nodes may run again.
    by : int64[n], optional
        The implementation of each node that every run of it takes: no choice, as in Checkmate and STR. The times of
        copies stay those of the fastest ones.
    one_each : bool
        Whether all runs of a node take the same implementation, whichever it is.
    plain : bool
        Whether the schedule has to be one that a `Plan` can say: between two recorded uses an output leaves and comes
        back once at most.
    duplex : bool
        Whether a copy out and a copy in may be in flight together.
    fetches : int, optional
        How often an output may be prefetched, m of the paper's (8); as often as one likes where left out.
    """

    copies: bool = True
    reruns: bool = True
    since: int = 0
    by: I64 | None = None
    one_each: bool = False
    plain: bool = False
    duplex: bool = True
    fetches: int | None = None


ALL = Rules()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proved(Shown):
    """What was found, and what was proved.

    `schedule`: the best one found, None without any; `value`: its objective, infinite without any; `bound`: what no
    schedule is below; `status`: `optimal` within the gap that was asked for, `infeasible` (none within the limit is
    below `best`), `late`, or `start`: late, and the
    schedule that was given stayed the best one.
    """

    schedule: Schedule | None
    value: float
    bound: float
    status: str

    @property
    def gap(self) -> float:
        """How far the value may be from the best possible, as a fraction of the value; infinite without any."""
        if self.schedule is None or self.bound == -float("inf"):
            return float("inf")
        return max(self.value - self.bound, 0.0) / max(self.value, 1.0)

    def _facts(self) -> Facts:
        return {"": self.status, "value": f"{self.value:.6g}", "bound": f"{self.bound:.6g}", "gap": percent(self.gap)}
