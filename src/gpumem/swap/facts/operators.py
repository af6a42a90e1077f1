"""Which implementations an op has: each op, and each recomputation, takes the fastest whose workspace fits there."""

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
    """Return the variants of each op that has a workspace of the table, which is called as the algorithm that it runs.

    Notes
    -----
    The first of them is the fastest, whose name is that of the recorded op where that is what it runs.

    >>> from gpumem import bundled
    >>> from gpumem.simulator import workspaces
    >>> ways = menu_of(workspaces.add(bundled("vgg16")), Machine.named("p100"))
    >>> [way.workspace for way in ways[7]]
    [262144, 0]
    """
    table, touched = trace.buffers, trace.accesses().op
    workspaces = [buffer for buffer, kind in enumerate(table.kind) if kind == WORKSPACE and len(touched[buffer]) == 1]
    if not workspaces or table.shape is None:
        return {}
    menu, durations = {}, machine.durations(trace)
    for buffer in workspaces:
        op = int(touched[buffer][0])
        offered = offers(trace, op)
        now = next((float(durations[op]) / offer.time for offer in offered if offer.name == table.name[buffer]), None)
        if now is not None:
            name, own = trace.ops.name[op], table.name[buffer]
            names = [name if offer.name == own else f"{name}.{offer.name}" for offer in offered]
            menu[op] = [
                Variant(op, label, round(now * offer.time), offer.workspace) for label, offer in zip(names, offered)
            ]
    return menu


def fastest_way(variants: Sequence[Variant], room: int) -> Variant:
    """Return the fastest variant with at most `room` bytes more than the smallest; that one where there is no room."""
    most = min(variants, key=_small).workspace + max(room, 0)
    fitting = (variant for variant in variants if variant.workspace <= most)
    return min(fitting, key=lambda variant: (variant.duration, variant.workspace))


def recorded(trace: Trace, machine: Machine, ops: Iterable[int]) -> dict[int, Variant]:
    """Return how these ops run in the trace."""
    own, duration, size = own_workspaces(trace), machine.durations(trace), trace.buffers.size
    held = {op: int(size[own[op]]) if op in own else 0 for op in ops}
    return {op: Variant(op, trace.ops.name[op], int(duration[op]), room) for op, room in held.items()}


@strict
def lean(trace: Trace, machine: Machine, algorithms: Menu | None = None) -> Plan:
    """Return the plan that runs each op by its variant of the smallest workspace, and moves nothing."""
    menu = menu_of(trace, machine) if algorithms is None else algorithms
    return Plan.of(trace, [min(variants, key=_small) for variants in menu.values()])


def smallest(trace: Trace, machine: Machine, menu: Menu) -> Trace:
    """Return the trace where each op runs by its variant of the smallest workspace; itself where none has a choice."""
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
        Of an op's position, the variants of it; left out, those of `gpumem.simulator.workspaces`.

    Notes
    -----
    The live bytes of the rewritten trace are at most `limit` wherever it is so with the smallest workspaces. The
    "-Auto" of Wei et al. 2024. O(n) for n ops of the rewritten trace, beside what it takes to carry out the plan.

    >>> from gpumem import bundled
    >>> from gpumem.simulator import workspaces
    >>> trace, machine = workspaces.add(bundled("vgg16")), Machine.named("p40")
    >>> plan = operators(trace, machine, Plan.of(trace), trace.peak_live_bytes * 95 // 100)
    >>> len(plan.decisions), plan.apply(trace).peak_live_bytes <= trace.peak_live_bytes * 95 // 100
    (2, True)
    """
    menu = menu_of(trace, machine) if algorithms is None else algorithms
    moves = [decision for decision in plan.decisions if not isinstance(decision, Variant)]
    bare = Plan.of(trace, [*moves, *(min(variants, key=_small) for variants in menu.values())], blocking=plan.blocking)
    rewritten = bare.apply(trace)
    own, place, chosen = recorded(trace, machine, menu), _places(rewritten), dict[int, Variant]()
    load, of, role = rewritten.live_bytes().tolist(), rewritten.ops.of.tolist(), rewritten.ops.role.tolist()
    back = {int(source): position for position, source in enumerate(trace.ops.of.tolist())}
    decided: list[Variant] = []
    for index, (source, role_now) in enumerate(zip(of, role)):
        op = back.get(source, -1)
        if op not in menu or role_now not in (COMPUTE, RECOMPUTE):
            continue
        variant = fastest_way(menu[op], limit - load[index])
        if role_now == COMPUTE:
            chosen[op] = variant
            decided += [variant] if variant != own[op] else []
        elif variant != chosen[op]:
            decided.append(Variant(op, variant.name, variant.duration, variant.workspace, at=place[index]))
    return Plan.of(trace, [*moves, *decided], blocking=plan.blocking)


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
