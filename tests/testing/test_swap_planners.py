"""`check_swap_planner` holds ours to their contract, and finds planners that break each of its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from gpumem import Infeasible, Machine, NotReached, Plan, Swap, Trace
from gpumem.swap import PLANNERS, gaps, heuristic
from gpumem.swap.facts.limits import fits
from gpumem.testing import ContractError, check_swap_planner
from gpumem.testing.swap_planners import SWAP_RULES

QUICK = ("autoswap", "on-demand", "on-demand-nonblocking", "heuristic", "vdnn-all", "vdnn-dyn", "capuchin", "tensile")


@pytest.mark.parametrize("name", QUICK)
def test_ours_keep_it(name: str) -> None:
    smallest = {"threshold": 1} if PLANNERS[name].has("threshold") else {}
    check_swap_planner(name, examples=40, seed=3, **smallest)


def everything(trace: Trace) -> Plan:
    rows = gaps(trace)
    return Plan.of(trace, Swap.each(rows, rows.after + 1, rows.before))


def fails(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise IndexError("of a bug")


def rubbish(trace: Trace, machine: Machine, limit: int) -> Plan:
    return 7  # type: ignore[return-value]


def of_another(trace: Trace, machine: Machine, limit: int) -> Plan:
    return Plan((Swap(10**6, 0, 2, 1, 2),), trace.n)


def nothing(trace: Trace, machine: Machine, limit: int) -> Plan:
    return Plan.of(trace)


def forgets_the_host(trace: Trace, machine: Machine, limit: int) -> Plan:
    return heuristic(trace, machine.with_(pinned=2**60), limit)


def always_swaps(trace: Trace, machine: Machine, limit: int) -> Plan:
    return everything(trace) if trace.peak_live_bytes <= limit and not machine.pinned < 10_000 else Plan.of(trace)


def gives_up_by_proof(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise Infeasible(0, limit + 1, limit)


def gets_there_and_says_no(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise NotReached(limit, limit)


TURNS: Iterator[int] = count()


def by_turns(trace: Trace, machine: Machine, limit: int) -> Plan:
    if next(TURNS) % 2 and fits(trace, limit):
        return everything(trace)
    return heuristic(trace, machine, limit)


@pytest.mark.parametrize(
    "planner, rules",
    [
        (fails, {"error"}),
        (rubbish, {"plan"}),
        (of_another, {"plan"}),
        (nothing, {"limit"}),
        (forgets_the_host, {"pinned"}),
        (always_swaps, {"empty", "limit"}),
        (gives_up_by_proof, {"infeasible"}),
        (gets_there_and_says_no, {"reached"}),
        (by_turns, {"deterministic", "empty", "pinned"}),
    ],
)
def test_who_breaks_a_rule_is_found(planner: Callable[..., Plan], rules: set[str]) -> None:
    with pytest.raises(ContractError) as broken:
        check_swap_planner(planner, examples=1000, max_ops=5)
    assert broken.value.rule in rules <= set(SWAP_RULES)
    assert broken.value.log[0].startswith("trace = Trace(Buffers.make(")


def test_rules_may_be_skipped_and_options_are_the_planners() -> None:
    with pytest.raises(ContractError, match=r"^limit: "):
        check_swap_planner(always_swaps, skip=["empty"], max_ops=4)
    with pytest.raises(ValueError, match="smallest: heuristic has no such option"):
        check_swap_planner("heuristic", smallest=1)
    with pytest.raises(ValueError, match="examples: 0 is below 1"):
        check_swap_planner("heuristic", examples=0)
    with pytest.raises(ValueError, match="limit"):
        check_swap_planner("heuristic", skip=["limit"])
