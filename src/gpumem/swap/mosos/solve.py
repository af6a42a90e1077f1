"""The best schedule within a limit, and the least limit that has a schedule, by the integer program."""

from __future__ import annotations

from math import inf

from gpumem.deadline import NEVER, Deadline
from gpumem.swap.linear import LATE
from gpumem.swap.mosos.nodes import Nodes, Schedule
from gpumem.swap.mosos.program import MOVED, StageProgram
from gpumem.swap.mosos.rules import Proved, Rules
from gpumem.swap.mosos.schedule import Decisions

TRIES = 3  # programs, each for a little less memory, until rounding errors of the solver do no harm
ALL = Rules()


def solve(
    nodes: Nodes, limit: int, rules: Rules = ALL, *, until: Deadline = NEVER, best: float = inf, gap: float = 0.0
) -> Proved:
    """Return the schedule of least time within `limit` bytes, as far as it is found until the deadline.

    Parameters
    ----------
    nodes : Nodes
    limit : int
        Bytes.
    rules : Rules
        What the schedule may do.
    until : Deadline
    best : float
        ns: a value that a schedule has to be below to be of use.
    gap : float
        How far from the best possible a schedule may be, as a fraction of its value.

    Notes
    -----
    The value is the time of all runs, and 1e-6 ns for each byte that is moved.
    """
    allowed, bound = limit, -inf
    for _ in range(TRIES):
        program = StageProgram(nodes, rules, allowed)
        found = program.rows.solve(until, best=best / program.time_unit, gap=gap)
        bound = max(bound, found.bound * program.time_unit) if allowed == limit else bound
        if found.x is None:
            return Proved(None, inf, bound, found.status if allowed == limit else LATE)
        schedule = Decisions.of(program, found.x).schedule(nodes, program.scope)
        excess = int(schedule.memory.max(initial=0)) - limit
        if excess <= 0:
            return Proved(schedule, value(nodes, schedule), bound, found.status)
        allowed -= excess
    return Proved(None, inf, bound, LATE)


def least(nodes: Nodes, rules: Rules = ALL, *, until: Deadline = NEVER, gap: float = 0.0) -> Proved:
    """Return the schedule of least memory: below its bytes nothing can be planned; `value` and `bound` are bytes."""
    program = StageProgram(nodes, rules, None)
    found = program.rows.solve(until, gap=gap)
    if found.x is None:
        return Proved(None, inf, found.bound * program.unit, found.status)
    schedule = Decisions.of(program, found.x).schedule(nodes, program.scope)
    return Proved(schedule, float(schedule.memory.max(initial=0)), found.bound * program.unit, found.status)


def value(nodes: Nodes, schedule: Schedule) -> float:
    """The objective: the time of all runs in ns, and a little for what is moved."""
    moved = sum(int(nodes.size[j]) for _, j in (*schedule.out, *schedule.back))
    return schedule.time + MOVED * moved
