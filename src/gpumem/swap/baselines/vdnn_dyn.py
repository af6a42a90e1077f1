"""vDNN's dynamic policy: who offloads, and which algorithms convolutions run, so that it just fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.baselines.vdnn import offloads
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.operators import Menu, fastest_way, menu_of, smallest
from gpumem.swap.facts.options import check_ops
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import around
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import I64, Trace

NOBODY = ""  # a policy that offloads nothing
LARGE = 2**62  # bytes
PASSES = ((NOBODY, False), ("conv", False), ("all", False), ("conv", True), ("all", True))  # who offloads; downgraded?


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class VDnnDyn(PlannerRecord):
    """The planner `vdnn_dyn`, which says what its options are."""

    algorithms: Menu | None = None
    strict: bool = True


@plans(VDnnDyn)
def vdnn_dyn(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    algorithms: Menu | None = None,
    strict: bool = True,
    seconds: float | None = None,
) -> Plan:
    """Plan as vDNN's dynamic policy does: the first of its passes that fits.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    algorithms : mapping, optional
        Of an op's position, the ways to run it; one called as the op is the way that it runs now. Left out, they
        are what `gpumem.simulator.workspaces` offers the ops that have a workspace by its table. Without any, only who
        offloads is chosen.
    strict : bool
        As in `vdnn`.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Notes
    -----
    The passes: nobody offloads, then convolutions, then all layers, each op by its fastest algorithm; then
    convolutions and all layers again, where an op that does not fit is downgraded, to the fastest algorithm that
    does. At last that is the one with the smallest workspace: the paper's memory-optimal fallback. A workspace is
    there during its op only, so ops are downgraded one by one. `Infeasible` counts the smallest workspaces.
    O(n + accesses) and a rewrite, for each pass.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap.baselines.vdnn import vdnn
    >>> trace, machine = bundled("resnet18"), Machine.named("gtx1080ti")
    >>> for percent, layers in ((70, "conv"), (50, "all")):
    ...     limit = trace.peak_live_bytes * percent // 100
    ...     vdnn_dyn(trace, machine, limit) == vdnn(trace, machine, limit, layers=layers)
    True
    True

    References
    ----------
    Rhu, Gimelshein, Clemons, Zulfiqar and Keckler, vDNN, MICRO 2016, section III-C.
    """
    check_ops(algorithms or (), trace)
    menu = menu_of(trace, machine) if algorithms is None else algorithms
    lean = smallest(trace, machine, menu)
    if fits(lean, limit) and trace.peak_live_bytes <= limit:
        return Plan.of(trace)
    lowest = trace.peak_live_bytes
    for layers, downgraded in work.each(PASSES):
        swaps = offloads(trace, machine, limit, layers, strict) if layers else []
        room = _room(lean, swaps, limit) if downgraded else np.full(trace.n, LARGE)
        chosen = [fastest_way(ways, int(room[op])) for op, ways in menu.items()]
        plan = Plan.of(trace, [*swaps, *(way for way in chosen if way.name != trace.ops.name[way.op])])
        if (load := plan.apply(trace).peak_live_bytes) <= limit:
            return plan
        lowest = min(lowest, load)
    raise NotReached(lowest, limit, hint=work.hint("vDNN offloads what layers read, and nothing else"))


def _room(lean: Trace, swaps: Sequence[Swap], limit: int) -> I64:
    """Return the bytes below the limit at each op, with the smallest workspaces and these swaps."""
    rows = np.array([(s.release, s.prefetch, lean.buffers.size[s.buffer]) for s in swaps], np.int64).reshape(-1, 3)
    room: I64 = limit - (lean.live_bytes() - around(rows[:, 0], rows[:, 1], rows[:, 2], lean.n))
    return room
