"""Which implementations an op has: each op, and each rerun, takes the fastest whose workspace fits there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpumem.base.arguments import strict
from gpumem.simulator.machine import Machine
from gpumem.simulator.workspaces import offers
from gpumem.swap.plan import Plan
from gpumem.swap.plan.decisions import Variant
from gpumem.swap.plan.variants import own_workspaces
from gpumem.trace import COMPUTE, RECOMPUTE, Trace
from gpumem.trace.kinds import WORKSPACE

Menu = Mapping[int, Sequence[Variant]]


@strict
def menu_of(trace: Trace, machine: Machine) -> Menu:
    """Return the ways to run each op that has a workspace of the table, which is called as the algorithm that it runs.

    Notes
    -----
    The first of them is the fastest, whose name is that of the recorded op where that is what it runs.

    >>> from gpumem import bundled
    >>> from gpumem.simulator import workspaces
    >>> ways = menu_of(workspaces.add(bundled("vgg16")), Machine.named("p100"))
    >>> [way.workspace for way in ways[7]]
    [262144, 0]
    """
    b, touched = trace.buffers, trace.accesses().op
    mine = [j for j, kind in enumerate(b.kind) if kind == WORKSPACE and len(touched[j]) == 1]
    if not mine or b.shape is None:
        return {}
    found, durations = {}, machine.durations(trace)
    for j in mine:
        op = int(touched[j][0])
        offered = offers(trace, op)
        now = next((float(durations[op]) / o.time for o in offered if o.name == b.name[j]), None)
        if now is not None:
            name, own = trace.ops.name[op], b.name[j]
            names = [name if o.name == own else f"{name}.{o.name}" for o in offered]
            found[op] = [Variant(op, n, round(now * o.time), o.workspace) for n, o in zip(names, offered)]
    return found


def fastest_way(ways: Sequence[Variant], room: int) -> Variant:
    """Return the fastest way with at most `room` bytes more than the smallest; that one where there is no room."""
    most = min(ways, key=_small).workspace + max(room, 0)
    return min((way for way in ways if way.workspace <= most), key=lambda way: (way.duration, way.workspace))


def recorded(trace: Trace, machine: Machine, ops: Iterable[int]) -> dict[int, Variant]:
    """Return how these ops run in the trace."""
    own, duration, size = own_workspaces(trace), machine.durations(trace), trace.buffers.size
    held = {op: int(size[own[op]]) if op in own else 0 for op in ops}
    return {op: Variant(op, trace.ops.name[op], int(duration[op]), room) for op, room in held.items()}


@strict
def lean(trace: Trace, machine: Machine, algorithms: Menu | None = None) -> Plan:
    """Return the plan that runs each op by its way of the smallest workspace, and moves nothing."""
    menu = menu_of(trace, machine) if algorithms is None else algorithms
    return Plan.of(trace, [min(ways, key=_small) for ways in menu.values()])


def smallest(trace: Trace, machine: Machine, menu: Menu) -> Trace:
    """Return the trace where each op runs by its way of the smallest workspace; itself where none has a choice."""
    return lean(trace, machine, menu).apply(trace) if menu else trace


@strict
def operators(trace: Trace, machine: Machine, plan: Plan, limit: int, *, algorithms: Menu | None = None) -> Plan:
    """Return `plan` with other operators: the fastest that fit into the memory that it leaves free.

    Parameters
    ----------
    trace, machine, limit
        As for a planner; see `gpumem.swap`.
    plan : Plan
        Its variants count for nothing.
    algorithms : mapping, optional
        Of an op's position, the ways to run it; left out, those of `gpumem.simulator.workspaces`.

    Notes
    -----
    The load of the rewritten trace is at most `limit` wherever it is so with the smallest workspaces. The "-Auto" of
    Wei et al. 2024. O(n) for n ops of the rewritten trace, beside what it takes to carry out the plan.

    >>> from gpumem import bundled
    >>> from gpumem.simulator import workspaces
    >>> trace, machine = workspaces.add(bundled("vgg16")), Machine.named("p40")
    >>> plan = operators(trace, machine, Plan.of(trace), trace.peak_live_bytes * 95 // 100)
    >>> len(plan.decisions), plan.apply(trace).peak_live_bytes <= trace.peak_live_bytes * 95 // 100
    (2, True)
    """
    menu = menu_of(trace, machine) if algorithms is None else algorithms
    moves = [d for d in plan.decisions if not isinstance(d, Variant)]
    bare = Plan.of(trace, [*moves, *(min(ways, key=_small) for ways in menu.values())], blocking=plan.blocking)
    rewritten = bare.apply(trace)
    own, place, chosen = recorded(trace, machine, menu), _places(rewritten), dict[int, Variant]()
    load, of, role = rewritten.live_bytes().tolist(), rewritten.ops.of.tolist(), rewritten.ops.role.tolist()
    back = {int(x): k for k, x in enumerate(trace.ops.of.tolist())}
    found: list[Variant] = []
    for i, (x, what) in enumerate(zip(of, role)):
        op = back.get(x, -1)
        if op not in menu or what not in (COMPUTE, RECOMPUTE):
            continue
        way = fastest_way(menu[op], limit - load[i])
        if what == COMPUTE:
            chosen[op] = way
            found += [way] if way != own[op] else []
        elif way != chosen[op]:
            found.append(Variant(op, way.name, way.duration, way.workspace, at=place[i]))
    return Plan.of(trace, [*moves, *found], blocking=plan.blocking)


def _places(rewritten: Trace) -> list[int]:
    """Of each op of a rewritten trace: before which op of the recorded one it stands."""
    role, after = rewritten.ops.role.tolist(), 0
    place = []
    for what in role:
        place.append(after)
        after += what == COMPUTE
    return place


def _small(way: Variant) -> tuple[int, int]:
    return way.workspace, way.duration
