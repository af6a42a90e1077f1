"""What a search works on: the gaps that it looks at, what can be recomputed, and the variants that ops can run."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.load import at_places
from gpumem.swap.facts.operators import Menu, recorded
from gpumem.swap.facts.recompute import barred, recomputable
from gpumem.swap.facts.recompute_cost import RecomputableGaps
from gpumem.swap.plan import Plan, Recompute, Swap, Variant
from gpumem.swap.plan.gaps import Spans, Windows, around, gaps, windows
from gpumem.swap.search._evaluate import FAR, SwapProblem
from gpumem.swap.search._operator_choices import Choices, Variants, choices_of, fastest
from gpumem.swap.search._recompute_state import RecomputeProblem
from gpumem.trace import F64, I64, Bool, Trace

SHARED = 8  # how many times the best plan's spare time a gap's replay may take, if others share it; not tuned
SMALLEST = 2e-4  # of the peak live bytes: smaller gaps are left out; not tuned


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A trace, a machine and a limit to search plans for, with all that a search does not change of them."""

    trace: Trace
    goal: int
    choices: Choices
    recorded: dict[int, Variant]
    problem: SwapProblem
    recompute: RecomputeProblem
    windows: Windows
    tails: I64  # B: until when dead tails could be held, -1 where there is none

    @classmethod
    def of(  # noqa: PLR0913  what a search is asked for, by keyword
        cls,
        trace: Trace,
        machine: Machine,
        goal: int,
        *,
        placed: bool = False,
        recompute: bool = False,
        plan: Plan | None = None,
        algorithms: Menu = MappingProxyType({}),
        least: int = FAR,
        tails: I64 | None = None,
    ) -> Instance:
        """Take all gaps but the smallest.

        Parameters as in `search`; `plan` is the one that a state will begin with, `least` the ns of an iteration by the
        best plan that is known. `tails`, int64[B]: until when what is dead could be held, -1 where it could not.
        """
        choices = choices_of(trace, machine, algorithms, plan) if recompute else ()
        as_recorded = recorded(trace, machine, [variants[0].op for variants in choices])
        swap_problem, recompute_problem, candidates = problem(
            trace, machine, goal, placed=placed, recompute=recompute, plan=plan, choices=choices, least=least
        )
        columns = recompute_problem.columns
        held_until = np.full(len(columns.size), -1)
        if tails is not None:
            held_until[: len(tails)] = np.where(columns.lives[: len(tails)], tails, -1)
        return cls(
            trace,
            goal,
            choices,
            as_recorded,
            problem=swap_problem,
            recompute=recompute_problem,
            windows=candidates,
            tails=held_until,
        )


def problem(
    trace: Trace,
    machine: Machine,
    goal: int,
    *,
    placed: bool = False,
    recompute: bool = False,
    plan: Plan | None = None,
    choices: Choices = (),
    least: int = FAR,
) -> tuple[SwapProblem, RecomputeProblem, Windows]:
    """Return what a search for limits from `goal` on does not change."""
    trace = fastest(trace, choices)
    line, ops = simulate(trace, machine), trace.n
    begin = np.maximum.accumulate(line.start)
    # Costs are parts of a period: one of no time counts as 1 ns.
    end, period = np.maximum(line.end, begin), max(line.makespan, 1)
    # Whatever its size and its time, a gap of the plan to start from is in: or no state would stand for the plan.
    decisions = () if plan is None else plan.decisions
    planned = {(d.buffer, d.after) for d in decisions if isinstance(d, Swap | Recompute)}
    candidates = windows(trace, machine)
    large = candidates.size >= SMALLEST * trace.peak_live_bytes
    candidates = candidates.where(large | _in_plan(candidates, planned, ops))
    turns = candidates.before // ops - candidates.after // ops
    lasts = begin[candidates.before % ops] - end[candidates.after % ops] + turns * period
    useful = _useful(candidates, lasts, trace, goal) | _in_plan(candidates, planned, ops)
    last_place, worth = np.zeros(len(candidates), np.int64), np.zeros(len(candidates))
    if recompute:
        most = np.where(_in_plan(candidates, planned, ops), FAR, _longest(trace, machine, least))
        last_place, worth = _recomputable(trace, machine, candidates, most)
    either = useful | (last_place > 0)
    candidates, last_place, worth = candidates.where(either), last_place[either], worth[either]
    _, first, value, count = np.unique(candidates.value, return_index=True, return_inverse=True, return_counts=True)
    hosted = at_places(trace, host=True)
    swap_problem = SwapProblem(
        begin=begin,
        end=end,
        after=candidates.after % ops,
        after_iteration=candidates.after // ops,
        before=candidates.before % ops,
        before_iteration=candidates.before // ops,
        size=candidates.size,
        out_ns=candidates.out_ns,
        in_ns=candidates.in_ns,
        value=value,
        first=first,
        last=first + count,
        period=period,
        duplex=machine.duplex,
        constant=candidates.constant,
        hosted=hosted,
        pinned=machine.pinned if candidates.size[first].sum() + hosted.max() > machine.pinned else -1,
        placed=placed,
    )
    columns = RecomputableGaps.of(trace, machine.durations(trace), _within(candidates, ops), barred(trace, machine))
    recompute_problem = RecomputeProblem.of(
        columns, Variants.of(trace, choices), candidates, last_place=last_place, worth=worth, goal=goal
    )
    return swap_problem, recompute_problem, candidates


def _in_plan(candidates: Windows, planned: set[tuple[int, int]], ops: int) -> Bool:
    """Which gaps are among those of a plan, by buffer and first access."""
    rows, inside = candidates.rows(ops), np.zeros(len(candidates), np.bool_)
    inside[[rows[key] for key in planned if key in rows]] = True
    return inside


def _useful(candidates: Windows, lasts: I64, trace: Trace, goal: int) -> Bool:
    """Which gaps are worth a look: those that last longer than the copy back; all, where these do not get to the goal.

    `lasts`, int64[m]: ns between the two accesses. A gap that is shorter makes an op wait each time. With all of them
    in it annealing has twice the gaps to draw from: VGG16 at 40 %, an effort of 0.05: 8.1 % instead of 7.1.
    """
    long: Bool = lasts > candidates.in_ns
    off_device = around(candidates.after[long] + 1, candidates.before[long], candidates.size[long], trace.n)
    return long if (trace.live_bytes() - off_device).max() <= goal else np.ones(len(candidates), np.bool_)


def _within(candidates: Windows, ops: int) -> Spans:
    """The gaps, as the iteration counts."""
    before_this = candidates.after // ops * ops
    return Spans(candidates.buffer, candidates.after - before_this, candidates.before - before_this)


def _longest(trace: Trace, machine: Machine, least: int) -> int:
    """The ns that each gap's replay may take alone, or following long chains would take most of the time.

    A stream computes for the time of its ops at least, and of its recomputations beside: with longer ones a plan takes
    longer than `least`. What others have recomputed and stays is not counted in, so some times as much is allowed. None
    of that holds where the ops share several streams.
    """
    computes = ~trace.ops.copies
    # `Judge.makespan` of no plan is beyond `FAR`.
    if least >= FAR or len(np.unique(trace.ops.stream[computes])) != 1:
        return FAR
    return SHARED * max(least - int(machine.durations(trace)[computes].sum()), 0)


def _recomputable(trace: Trace, machine: Machine, candidates: Windows, most: I64) -> tuple[I64, F64]:
    """The last place at which each gap's value can be recomputed, 0 where it cannot, and the bytes for a ns of that."""
    all_gaps, ops = gaps(trace), trace.n
    row_of = all_gaps.rows(ops)
    keys = zip(candidates.buffer.tolist(), (candidates.after % ops).tolist())
    rows = np.array([row_of[key] for key in keys], np.int64)
    replays = recomputable(trace, machine, all_gaps.where(rows), most=most)
    possible = (replays.ops.sums(barred(trace, machine)) == 0) & (replays.until > candidates.after % ops + 1)
    return np.where(possible, replays.until, 0), candidates.size / np.maximum(replays.cost_ns, 1)
