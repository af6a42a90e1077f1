"""What the ops of a trace may be run by: the algorithms of their workspaces, as variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumem.base.arguments import strict
from gpumem.simulator.machine import Machine
from gpumem.simulator.workspaces import offers
from gpumem.swap.plan.decisions import Variant
from gpumem.trace import Trace
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
