"""The best schedule within a limit, and the least limit that has a schedule, by the integer program."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from gpumem.swap.linear_programs import INFEASIBLE, LATE, OPTIMAL
from gpumem.swap.mosos.problem import ALL, Nodes, Proved, Rules, Schedule
from gpumem.swap.mosos.program import StageProgram
from gpumem.swap.mosos.schedule import Decisions, value

START = "start"  # the schedule that was given stayed the best one
TRIES = 3  # programs, each for a little less memory, until rounding errors of the solver do no harm


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
    Node 3 reads what node 0 made. At 100 bytes there is no room for that beside nodes 1 and 2, so node 0 runs again in
    stage 3; and node 3 takes the operator that needs no workspace:

    >>> from gpumem.swap.mosos import Implementation, Nodes, least, solve
    >>> quick, slow = Implementation("quick", 10, workspace=30), Implementation("slow", 25)
    >>> nodes = Nodes.make([[quick, slow]] * 4, [[], [0], [1], [0, 2]], size=[40, 30, 30, 10], moves=False)
    >>> found = solve(nodes, 130)
    >>> found.status, found.schedule.time, found.schedule.memory.tolist()
    ('optimal', 40, [70, 100, 130, 110])
    >>> found = solve(nodes, 100)
    >>> found.schedule.stage.tolist(), found.schedule.node.tolist(), found.schedule.time
    ([0, 1, 2, 3, 3], [0, 1, 2, 0, 3], 65)
    >>> found.schedule.by.tolist(), least(nodes).value
    ([0, 0, 0, 0, 1], 80.0)
    """
    known = Proved(start, inf if start is None else value(nodes, start), -inf, START)
    cutoff, allowed, bound = min(best, known.value), limit, -inf
    for _ in range(TRIES):
        program = StageProgram(nodes, rules, allowed)
        found = program.rows.solve(best=cutoff / program.time_unit, gap=gap, nodes=tree, sure=sure)
        bound = max(bound, found.bound * program.time_unit) if allowed == limit else bound
        if found.x is None:
            break
        schedule = Decisions.of(program, found.x).schedule(nodes, program.scope)
        excess = int(schedule.memory.max(initial=0)) - limit
        if excess <= 0:
            return Proved(schedule, value(nodes, schedule), bound, found.status)
        allowed -= excess
    if found.x is None and found.status == INFEASIBLE and allowed == limit:
        return (
            replace(known, bound=bound, status=OPTIMAL)
            if known.value == cutoff < inf
            else Proved(None, inf, bound, INFEASIBLE)
        )
    return replace(known, bound=bound, status=LATE if start is None else START)


def least(nodes: Nodes, rules: Rules = ALL, *, gap: float = 0.0) -> Proved:
    """Return the schedule of least memory: below its bytes nothing can be planned; `value` and `bound` are bytes."""
    program = StageProgram(nodes, rules, None)
    found = program.rows.solve(gap=gap)
    if found.x is None:
        return Proved(None, inf, found.bound * program.unit, found.status)
    schedule = Decisions.of(program, found.x).schedule(nodes, program.scope)
    return Proved(schedule, float(schedule.memory.max(initial=0)), found.bound * program.unit, found.status)
