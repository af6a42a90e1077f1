"""The best schedule under a memory limit, and the least limit that has a schedule, by the integer program."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from gpumem.swap.linear_programs import INFEASIBLE, LATE, OPTIMAL
from gpumem.swap.mosos.problem import ALL, Nodes, Proved, Rules, Schedule
from gpumem.swap.mosos.program import StageProgram
from gpumem.swap.mosos.schedule import Decisions, value

START = "start"  # the schedule that was given stayed the best one
# Programs, each for as much less memory as the solution before was above the limit: HiGHS keeps to rows within a
# tolerance, the memory of a schedule is counted in whole bytes. Not tuned.
ATTEMPTS = 3


def solve(
    nodes: Nodes,
    limit: int,
    rules: Rules = ALL,
    *,
    start: Schedule | None = None,
    best: float = inf,
    gap: float = 0.0,
    tree: int | None = None,
    sure: bool = True,
) -> Proved:
    """Return the schedule of least time within `limit` bytes, as far as it is found in time.

    Parameters
    ----------
    nodes : Nodes
    limit : int
        Bytes.
    rules : Rules
        What the schedule may do.
    start : Schedule, optional
        One that is known, as `rounded` finds: it is returned where none better is found; its `rules` are not looked at.
    best : float
        ns: a value that a schedule has to be below to be of use.
    gap : float
        How far from the best possible a schedule may be, as a fraction of its value.
    tree : int, optional
        How many nodes the solver's search tree may have: a measure of work that is the same on every machine.
    sure : bool
        Whether what is proved is of use; see `Rows.solve`.

    Notes
    -----
    The value is the time of all runs, and 1e-6 ns for each byte that is moved. The problem is NP-hard; see
    `StageProgram` for the size of the program. The memory of the solution is computed anew in whole bytes; where it is
    above the limit, within the solver's tolerance, the program is solved again for that much less.

    Examples
    --------
    Node 3 reads what node 0 made. 100 bytes do not hold that beside nodes 1 and 2, so node 0 is recomputed in stage 3;
    and node 3 takes the operator that needs no workspace:

    >>> from gpumem.swap.mosos import Implementation, Nodes, least, solve
    >>> quick, slow = Implementation("quick", 10, workspace=30), Implementation("slow", 25)
    >>> nodes = Nodes.make([[quick, slow]] * 4, [[], [0], [1], [0, 2]], size=[40, 30, 30, 10], offloadable=False)
    >>> proved = solve(nodes, 130)
    >>> proved.status, proved.schedule.time, proved.schedule.memory.tolist()
    ('optimal', 40, [70, 100, 130, 110])
    >>> proved = solve(nodes, 100)
    >>> proved.schedule.stage.tolist(), proved.schedule.node.tolist(), proved.schedule.time
    ([0, 1, 2, 3, 3], [0, 1, 2, 0, 3], 65)
    >>> proved.schedule.by.tolist(), least(nodes).value
    ([0, 0, 0, 0, 1], 80.0)
    """
    known = Proved(start, inf if start is None else value(nodes, start), -inf, START)
    cutoff, allowed, bound = min(best, known.value), limit, -inf
    for _ in range(ATTEMPTS):
        program = StageProgram(nodes, rules, allowed)
        solved = program.rows.solve(best=cutoff / program.time_unit, gap=gap, nodes=tree, sure=sure)
        if allowed == limit:  # what is proved within less memory is no bound for the limit
            bound = max(bound, solved.bound * program.time_unit)
        if solved.x is None:
            break
        schedule = Decisions.of(program, solved.x).schedule(nodes, program.scope)
        excess = int(schedule.memory.max(initial=0)) - limit
        if excess <= 0:
            return Proved(schedule, value(nodes, schedule), bound, solved.status)
        allowed -= excess
    if solved.x is None and solved.status == INFEASIBLE and allowed == limit:
        # Nothing is below the cutoff. Where that was the start's value, the start is the best one.
        if known.value == cutoff < inf:
            return replace(known, bound=bound, status=OPTIMAL)
        return Proved(None, inf, bound, INFEASIBLE)
    if start is None:
        return replace(known, bound=bound, status=LATE)
    return replace(known, bound=bound, status=START)


def least(nodes: Nodes, rules: Rules = ALL, *, gap: float = 0.0) -> Proved:
    """Return the schedule of least memory: below its bytes nothing can be planned; `value` and `bound` are bytes."""
    program = StageProgram(nodes, rules, None)
    solved = program.rows.solve(gap=gap)
    bound = solved.bound * program.unit
    if solved.x is None:
        return Proved(None, inf, bound, solved.status)
    schedule = Decisions.of(program, solved.x).schedule(nodes, program.scope)
    return Proved(schedule, float(schedule.memory.max(initial=0)), bound, solved.status)
