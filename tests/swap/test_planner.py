"""A planner is a record: its options are fields, what it is able to are attributes, and any function becomes one."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass
from functools import partial
from typing import Any

import pytest

import gpumem
from gpumem import Machine, Plan, Trace
from gpumem.base.work import Progress
from gpumem.io import bundled
from gpumem.simulator import simulate
from gpumem.swap import (
    PLANNERS,
    AutoSwap,
    Heuristic,
    OnDemand,
    Planner,
    PlannerRecord,
    Proposal,
    Search,
    autoswap,
    heuristic,
    ilp,
    planner_of,
    planners_of,
    solve_ilp,
)

GTX = Machine.named("gtx1080ti")


def small() -> tuple[Trace, int]:
    trace = bundled("mlp3")
    return trace, trace.peak_live_bytes * 95 // 100


def test_a_record_plans_as_its_function_does() -> None:
    trace, limit = small()
    for record, function, options in (
        (AutoSwap(score="doa", peaks="all"), autoswap, {"score": "doa", "peaks": "all"}),
        (Heuristic(), heuristic, {}),
    ):
        plan = function(trace, GTX, limit, **options)
        assert record(trace, GTX, limit) == type(record)()(trace, GTX, limit, **options) == plan
        proposal = record.propose(trace, GTX, limit)
        assert proposal.plan == plan and proposal.status == "planned" and proposal.lower_bound == 0
        assert proposal.makespan == simulate(plan.apply(trace), GTX, capacity=limit).makespan


def test_the_quickest_of_all_scores_counts() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 6 // 10
    alone = [AutoSwap(score=score, peaks="all").propose(trace, GTX, limit) for score in ("doa", "aoa", "wdoa", "swdoa")]
    every = AutoSwap(score="all", peaks="all").propose(trace, GTX, limit)
    assert every.makespan == min(one.makespan for one in alone) < max(one.makespan for one in alone)
    named = gpumem.plan(trace, "gtx1080ti", load=limit, planner="autoswap", score="all", peaks="all")
    told = gpumem.plan(trace, "gtx1080ti", load=limit, planner=AutoSwap(score="all", peaks="all"))
    assert (told.plan, told.score, told.planner) == (named.plan, named.score, "autoswap")


def test_what_proves_proposes_a_bound() -> None:
    trace, limit = small()
    found = PLANNERS["ilp"].propose(trace, GTX, limit, gap=0.9)
    assert found.status == "optimal" and 0 < found.lower_bound <= found.makespan and 0 <= found.gap <= 0.9
    assert found.plan == solve_ilp(trace, GTX, limit, gap=0.9).plan == ilp(trace, GTX, limit, gap=0.9)
    assert ilp.__name__ == "ilp" and repr(found).startswith("Proposal(mlp3_b128_sgd: iteration")


def test_what_planners_are_able_to() -> None:
    able = {name: (one.proves, one.starts_from, one.finds_lowest) for name, one in PLANNERS.items()}
    programs = {
        "ilp": "swaps",
        "mosos": "plans",
        **dict.fromkeys(("checkmate", "checkmate-auto", "str", "str-auto"), ""),
    }
    for name, found in able.items():
        assert found == (name in programs, programs.get(name, ""), name == "search"), name
    assert [name for name, one in PLANNERS.items() if one.has("placed")] == ["search"]
    assert [name for name, one in PLANNERS.items() if one.has("score")] == ["autoswap"]
    assert all(one.name == name and isinstance(one, Planner) for name, one in PLANNERS.items())
    with pytest.raises(ValueError, match="heuristic: it plans for a limit"):
        PLANNERS["heuristic"].lowest(small()[0], GTX)


def test_options_are_changed_and_refused() -> None:
    record = AutoSwap()
    assert record.with_known({"threshold": 1, "seed": 3}) == AutoSwap(threshold=1) and record.given == {}
    assert AutoSwap(threshold=1).given == {"threshold": 1}
    with pytest.raises(ValueError, match="seed: autoswap has no such option"):
        record.with_(seed=3)
    with pytest.raises(ValueError, match="threshold: -1 is below 0"):
        record.with_(threshold=-1)
    with pytest.raises(TypeError, match="AutoSwap: threshold: '1' is a str; it must be a whole number"):
        AutoSwap(threshold="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="autoswap: threshold: '1' is a str"):
        autoswap(*small()[:1], GTX, 1, threshold="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="segments: 3 of them with rule 'evict'"):
        PLANNERS["checkpoint"].with_(segments=3)
    with pytest.raises(FrozenInstanceError):
        record.threshold = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(Search(effort=0.1))) == Search(effort=0.1)


def test_functions_of_ours_are_their_records() -> None:
    assert planner_of(autoswap) == AutoSwap() == planner_of("autoswap") == planner_of(AutoSwap)
    assert planner_of(partial(autoswap, score="doa")) == AutoSwap(score="doa")
    assert planner_of(partial(AutoSwap(peaks="all"), score="doa")) == AutoSwap(score="doa", peaks="all")
    assert planner_of(ilp) == planner_of(solve_ilp) == PLANNERS["ilp"]
    assert [*planners_of([OnDemand(blocking=False), "tensile", autoswap])] == [
        "on-demand-nonblocking",
        "tensile",
        "autoswap",
    ]


@dataclass(frozen=True)
class Twice(PlannerRecord):
    """One of the user's own, as a record."""

    percent: float = 90.0

    def plan(self, trace: Trace, machine: Machine, limit: int, *, seconds: Any, progress: Progress) -> Proposal:
        plan = heuristic(trace, machine, int(limit * self.percent / 100))
        return Proposal(plan, 1, 1, "optimal")


def test_a_record_of_ones_own() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 8 // 10
    planned = gpumem.plan(trace, "gtx1080ti", load=limit, planner=Twice(percent=95.0))
    assert planned.plan == heuristic(trace, GTX, int(limit * 0.95))
    assert gpumem.plan(trace, "gtx1080ti", load=limit, planner=Twice(), percent=95.0).plan == planned.plan
    assert Twice().propose(trace, GTX, limit).status == "optimal"
    assert isinstance(Twice()(trace, GTX, limit), Plan)
