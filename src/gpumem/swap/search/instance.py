"""What a search works on: the gaps that it looks at, what can be made again, and the ways in which ops can run."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.load import at_places
from gpumem.swap.facts.operators import Menu, recorded
from gpumem.swap.facts.recompute import barred, recomputable
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.swap.plan import Plan, Recompute, Swap, Variant
from gpumem.swap.plan.gaps import Spans, Windows, around, gaps, windows
from gpumem.swap.search._evaluate import FAR, SwapProblem
from gpumem.swap.search._operator_choices import Choices, Ways, choices_of, fastest
from gpumem.swap.search._recompute_state import Replays
from gpumem.trace import F64, I64, Bool, Trace

SHARED = 8  # how many times the best plan's reruns those of one gap may take, if others share them; not tuned
SMALLEST = 2e-4  # of the peak load: smaller gaps are not looked at


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A trace, a machine and a limit to search plans for; `p`, `r`, `w` are what a search does not change of them."""

    trace: Trace
    goal: int
    choices: Choices
    recorded: dict[int, Variant]
    p: SwapProblem
    r: Replays
    w: Windows
    tails: I64  # B: until when dead tails could be held, -1 where there is none

    @classmethod
    def of(
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
        as_is = recorded(trace, machine, [ways[0].op for ways in choices])
        p, r, w = problem(
            trace, machine, goal, placed=placed, recompute=recompute, plan=plan, choices=choices, least=least
        )
        could = np.full(len(r.made.size), -1)
        if tails is not None:
            could[: len(tails)] = np.where(r.made.lives[: len(tails)], tails, -1)
        return cls(trace, goal, choices, as_is, p, r, w, could)


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
) -> tuple[SwapProblem, Replays, Windows]:
    """Return what a search for limits from `goal` on does not change."""
    trace = fastest(trace, choices)
    line, n = simulate(trace, machine), trace.n
    begin = np.maximum.accumulate(line.start)
    end, turn = np.maximum(line.end, begin), max(line.makespan, 1)  # costs are parts of a turn: one of no time is 1 ns
    w = windows(trace, machine)
    named = {(d.buffer, d.after) for d in (() if plan is None else plan.decisions) if isinstance(d, Swap | Recompute)}
    rows = w.rows(n)
    large = w.size >= SMALLEST * trace.peak_live_bytes
    large[[rows[gap] for gap in named if gap in rows]] = True
    w = w.where(large)
    useful = _useful(w, begin, end, turn, trace, goal)
    place = w.rows(n)
    useful[[place[gap] for gap in named if gap in place]] = True
    most = _longest(trace, machine, w, least)
    most[[k for gap, k in place.items() if gap in named]] = FAR  # or the plan could not be said here
    lasts, worth = _again(trace, machine, w, most) if recompute else (np.zeros(len(w), np.int64), np.zeros(len(w)))
    some = useful | (lasts > 0)
    w, lasts, worth = w.where(some), lasts[some], worth[some]
    _, first, value, count = np.unique(w.value, return_index=True, return_inverse=True, return_counts=True)
    hosted = at_places(trace, host=True)
    p = SwapProblem(
        begin,
        end,
        w.after % n,
        w.after // n,
        w.before % n,
        w.before // n,
        w.size,
        w.out_ns,
        w.in_ns,
        value,
        first,
        first + count,
        turn,
        machine.duplex,
        w.constant,
        hosted,
        machine.pinned if w.size[first].sum() + hosted.max() > machine.pinned else -1,
        placed,
    )
    made = MadeAgain.of(trace, machine.durations(trace), _within(w, n), barred(trace, machine))
    return p, Replays.of(made, Ways.of(trace, choices), w, lasts, worth, goal), w


def _useful(w: Windows, begin: I64, end: I64, turn: int, trace: Trace, goal: int) -> Bool:
    """Which gaps are worth a look: those in which the copy back has time; all, where these do not get to the goal.

    A gap that is shorter makes an op wait each time. With all of them in it annealing has twice the gaps to draw from:
    VGG16 at 40 %, an effort of 0.05: 8.1 % instead of 7.1.
    """
    opens = end[w.after % len(begin)] + w.after // len(begin) * turn
    closes = begin[w.before % len(begin)] + w.before // len(begin) * turn
    long: Bool = closes - opens > w.in_ns
    absent = around(w.after[long] + 1, w.before[long], w.size[long], trace.n)
    return long if (trace.live_bytes() - absent).max() <= goal else np.ones(len(w), np.bool_)


def _within(w: Windows, n: int) -> Spans:
    """The gaps, as the iteration counts."""
    turn = w.after // n * n
    return Spans(w.buffer, w.after - turn, w.before - turn)


def _longest(trace: Trace, machine: Machine, w: Windows, least: int) -> I64:
    """The ns that each gap's reruns may take alone, or the walk along long chains would take most of the time.

    A stream computes for the time of its ops at least, and of what runs again beside: with longer reruns a plan takes
    longer than `least`. What others have made and stays is not counted in, so some times as much is allowed. None of
    that holds where the ops share several streams.
    """
    mine = ~trace.ops.copies
    one = len(np.unique(trace.ops.stream[mine])) == 1 and least < FAR
    most = SHARED * max(least - int(machine.durations(trace)[mine].sum()), 0) if one else FAR
    return np.full(len(w), most)


def _again(trace: Trace, machine: Machine, w: Windows, most: I64) -> tuple[I64, F64]:
    """The last place at which each gap's value can be made again, 0 where it cannot, and the bytes for a ns of that."""
    g, n = gaps(trace), trace.n
    place = g.rows(n)
    rows = np.array([place[b, a] for b, a in zip(w.buffer.tolist(), (w.after % n).tolist())], np.int64)
    found = recomputable(trace, machine, g.where(rows), most=most)
    fine = (found.ops.sums(barred(trace, machine)) == 0) & (found.until > w.after % n + 1)
    return np.where(fine, found.until, 0), w.size / np.maximum(found.cost_ns, 1)
