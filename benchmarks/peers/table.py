"""Who is compared: our pool planners, and those of other projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planner:
    """A planner that is called in a process of its own.

    Parameters
    ----------
    adapter : str
        `module:function`, a function `(Problem) -> Call`.
    needs : tuple of str
        Distributions that have to be installed; none for ours.
    timed : bool
        Whether it ends when its time is over. Others are called once, with the longest time.
    """

    adapter: str
    needs: tuple[str, ...] = ()
    timed: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is of gpumem."""
        return not self.needs


def _of(module: str, function: str, *needs: str, timed: bool = False) -> Planner:
    return Planner(f"benchmarks.peers.adapters.{module}:{function}", needs, timed)


SEARCH = "search"
PLANNERS: Mapping[str, Planner] = {
    SEARCH: _of("ours", "search", timed=True),
    "greedy": _of("ours", "greedy"),
    "best-fit": _of("ours", "best_fit"),
    "omnimalloc-supermalloc": _of("omnimalloc", "supermalloc", "omnimalloc", timed=True),
    "omnimalloc-telamalloc": _of("omnimalloc", "telamalloc", "omnimalloc", timed=True),
    "omnimalloc-annealing": _of("omnimalloc", "annealing", "omnimalloc", timed=True),
    "omnimalloc-tabu": _of("omnimalloc", "tabu", "omnimalloc", timed=True),
    "omnimalloc-hillclimb": _of("omnimalloc", "hillclimb", "omnimalloc", timed=True),
    "omnimalloc-genetic": _of("omnimalloc", "genetic", "omnimalloc", "deap", timed=True),
    "omnimalloc-omni": _of("omnimalloc", "omni", "omnimalloc"),
    "omnimalloc-greedy": _of("omnimalloc", "greedy", "omnimalloc"),
    "omnimalloc-best-fit": _of("omnimalloc", "best_fit", "omnimalloc"),
    "vela-hillclimb": _of("vela", "hillclimb", "ethos-u-vela", timed=True),
    "vela-greedy": _of("vela", "greedy", "ethos-u-vela"),
    "tinygrad": _of("tinygrad", "planner", "tinygrad"),
    "executorch-greedy": _of("executorch", "greedy", "executorch", "torch"),
    "inductor-pools": _of("inductor", "pools", "torch"),
}
