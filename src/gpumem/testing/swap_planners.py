"""Hold a swap planner, `Trace, Machine, limit -> Plan`, to what it owes.

Needs Hypothesis, which comes with `gpumem[test]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from gpumem import check
from gpumem.base.arguments import at_least, strict
from gpumem.base.errors import CheckError, Infeasible, NotReached
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.facts.limits import floor
from gpumem.swap.plan import Plan
from gpumem.swap.planners import planner_of
from gpumem.testing.allocators.contract import optional
from gpumem.testing.contract_error import ContractError
from gpumem.testing.strategies import traces  # first: says what is missing where Hypothesis is
from gpumem.testing.training_steps import steps
from gpumem.trace import Trace

# isort: split
import hypothesis
from hypothesis import HealthCheck, Phase, strategies as st

SWAP_RULES = {
    "error": "it raises nothing but `Infeasible` and `NotReached`",
    "plan": "it returns a `Plan` that applies to the trace",
    "values": "every op reads what it read without the plan",
    "limit": "the live bytes are at most the limit",
    "pinned": "what the host keeps is at most `machine.pinned`",
    "empty": "the plan is empty where the live bytes fit already",
    "infeasible": "`Infeasible` is raised where some op must hold more than the limit, and says how much",
    "reached": "`NotReached` reports live bytes above the limit",
    "deterministic": "the same call gives the same plan",
}
SPARE = {"deterministic", "empty"}  # rules that a planner may break
PHASES = [Phase.generate, Phase.shrink]
UNTIMED: dict[str, Any] = {"database": None, "deadline": None}
LINKS = st.builds(Link, st.sampled_from([0.0, 1.0, 5.0]), st.sampled_from([0.05, 0.3, 1.0]))
MACHINES = st.builds(
    lambda out, into, pinned, duplex: Machine(
        "drawn", 10_000, out, into, flops=1.0, bandwidth=1.0, pinned=pinned, duplex=duplex
    ),
    *(LINKS, LINKS, st.sampled_from([0, 20, 10_000]), st.booleans()),
)


@strict
def check_swap_planner(
    planner: str | Callable[..., Plan],
    *,
    seed: int = 0,
    examples: int = 100,
    max_ops: int = 10,
    skip: Collection[str] = (),
    **options: Any,
) -> None:
    """Have a swap planner plan for traces, machines and limits that hurt, and hold every plan against the oracles.

    Parameters
    ----------
    planner : str or callable
        As the `planner` of `gpumem.plan`: a name, `module:name`, a record or a function.
    seed : int
        Of what is drawn.
    examples : int
        Cases to try.
    max_ops : int
        Of a random trace, or layers of a training step.
    skip : collection of str
        Rules that the planner may break: `"deterministic"`, `"empty"`.
    **options
        Of the planner.

    Raises
    ------
    ContractError
        The rule of `SWAP_RULES` that was broken, and a small case that breaks it.
    ValueError
        An option that the planner does not have; a rule that cannot be skipped.

    Examples
    --------
    >>> check_swap_planner("heuristic", examples=20)
    >>> try:
    ...     check_swap_planner(lambda trace, machine, limit: Plan.of(trace), examples=50)
    ... except ContractError as error:
    ...     print(error.rule)
    limit
    """
    at_least(1, examples=examples, max_ops=max_ops)
    spared, chosen = optional(skip, sorted(SPARE)), planner_of(planner).with_(**options)
    drawn = st.one_of(traces(max_ops=max_ops), steps(max_layers=max_ops))

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=examples, phases=PHASES, suppress_health_check=[*HealthCheck], **UNTIMED)
    @hypothesis.given(drawn, MACHINES, st.integers(1, 110))
    def held(trace: Trace, machine: Machine, percent: int) -> None:
        _judge(chosen, _Case(trace, machine, max(trace.peak_live_bytes * percent // 100, 1)), spared)

    held()


@dataclass(frozen=True, slots=True)
class _Case:
    """A trace, a machine and a limit that a planner is judged by."""

    trace: Trace
    machine: Machine
    limit: int

    def broken(self, rule: str, reason: str, why: Exception | None = None) -> NoReturn:
        """Raise the error of a broken rule."""
        raise ContractError(rule, " ".join(reason.split()), _as_lines(self.trace, self.machine, self.limit)) from why


def _judge(planner: Callable[..., Plan], case: _Case, spared: Collection[str]) -> None:
    trace, limit = case.trace, case.limit
    plan = _planned(planner, case)
    if plan is None:
        return
    repeated = plan if "deterministic" in spared else _planned(planner, case)
    if repeated is None:
        return
    try:
        swapped = plan.apply(trace)
    except ValueError as error:
        case.broken("plan", str(error), error)
    oracles: dict[str, Callable[[], None]] = {
        "values": lambda: check.data_flow(trace, swapped),
        "limit": lambda: check.budget(swapped, limit),
        "pinned": lambda: check.budget(swapped, limit, host=case.machine.pinned),
    }
    for rule, ask in oracles.items():
        try:
            ask()
        except CheckError as wrong:
            case.broken(rule, str(wrong), wrong)
    if trace.peak_live_bytes <= limit and plan.decisions and "empty" not in spared:
        count = len(plan.decisions)
        case.broken("empty", f"the peak of {trace.peak_live_bytes} live bytes fits, and there are {count} decisions")
    if repeated != plan:
        case.broken("deterministic", f"{plan.decisions} once, {repeated.decisions} the next time")


def _planned(planner: Callable[..., Plan], case: _Case) -> Plan | None:
    """Return the plan, None where the planner says, and rightly, that it has none."""
    try:
        return planner(case.trace, case.machine, case.limit)
    except Infeasible as stop:
        op, needs = floor(case.trace)
        if not needs == stop.needs > case.limit:
            case.broken("infeasible", f"it says that {stop.needs} bytes are needed; op {op} needs most, {needs}", stop)
    except NotReached as stop:
        if stop.reached <= case.limit:
            reason = f"it got down to {stop.reached} bytes, and the limit is {case.limit}"
            case.broken("reached", reason, stop)
    except TypeError as error:
        case.broken("plan" if "what it returned" in str(error) else "error", f"raised {error!r}", error)
    except Exception as error:
        case.broken("error", f"raised {error!r}", error)
    return None


def _as_lines(trace: Trace, machine: Machine, limit: int) -> list[str]:
    """Lines of Python that make the case, as far as planners mostly look at it."""
    table, ops = trace.buffers, trace.ops
    columns = f"{table.size.tolist()}, {table.start.tolist()}, {table.end.tolist()}"
    buffers = f"Buffers.make({columns}, kind={list(table.kind)})"
    made = f"Ops.make({ops.reads.tolist()}, {ops.writes.tolist()}, duration={ops.duration.tolist()})"
    links = f"Link({machine.out.latency_ns}, {machine.out.ns_per_byte}), pinned={machine.pinned}"
    return [f"trace = Trace({buffers}, {made}, {trace.n})", f"limit = {limit}  # on a machine with {links}"]
