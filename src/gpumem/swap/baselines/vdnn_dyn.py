"""vDNN's dynamic policy: which layers offload, and which algorithms convolutions run, so that it just fits."""

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

NO_LAYERS = ""  # a policy that offloads nothing
LARGE = 2**62  # bytes: no workspace is larger, so that each op runs its fastest algorithm
# The passes of section III-C: which layers offload, and whether algorithms are downgraded to what fits.
PASSES = ((NO_LAYERS, False), ("conv", False), ("all", False), ("conv", True), ("all", True))


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class VDnnDyn(PlannerRecord):
    """The planner `vdnn_dyn` and its options."""

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
        Of an op's position, its variants; the one with the name of the op is what it runs now. Left out, they
        are what `gpumem.simulator.workspaces` offers the ops that have a workspace by its table. Without any, only the
        layers that offload are chosen.
    strict : bool
        As in `vdnn`.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Notes
    -----
    The passes: no layer offloads, then convolutions, then all layers, each op by its fastest algorithm; then
    convolutions and all layers once more, where an op that does not fit is downgraded, to the fastest algorithm that
    does. At last that is the one with the smallest workspace: the paper's memory-optimal fallback. A workspace is
    allocated during its op only, so ops are downgraded one by one. `Infeasible` counts the smallest workspaces.
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
    for layers, is_downgraded in work.each(PASSES):
        swaps = offloads(trace, machine, limit, layers=layers, strict=strict) if layers else []
        headroom = _headroom(lean, swaps, limit) if is_downgraded else np.full(trace.n, LARGE)
        chosen = [fastest_way(variants, int(headroom[op])) for op, variants in menu.items()]
        changed = (variant for variant in chosen if variant.name != trace.ops.name[variant.op])
        plan = Plan.of(trace, [*swaps, *changed])
        if (peak := plan.apply(trace).peak_live_bytes) <= limit:
            return plan
        lowest = min(lowest, peak)
    raise NotReached(lowest, limit, hint=work.hint("vDNN offloads what layers read, and nothing else"))


def _headroom(lean: Trace, swaps: Sequence[Swap], limit: int) -> I64:
    """Return the free bytes below the limit at each op, with the smallest workspaces (`lean`) and these swaps."""
    spans = np.array([(swap.release, swap.prefetch, lean.buffers.size[swap.buffer]) for swap in swaps], np.int64)
    release, prefetch, size = spans.reshape(-1, 3).T
    headroom: I64 = limit - (lean.live_bytes() - around(release, prefetch, size, lean.n))
    return headroom
