"""vDNN: offload the feature maps that layers read, prefetch each during the backward pass of a layer behind.

Layers 1..4, `X` a layer's input; the copies overlap with computation, a fetch with that of one layer::

    compute  [fwd 1][fwd 2][fwd 3][fwd 4][bwd 4][bwd 3][bwd 2][bwd 1]
    d2h             [X1 ]  [X2 ]  [X3 ]
    h2d                                  [X3 ]  [X2 ]  [X1 ]
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.options import option
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.facts.recompute import backward_start, kept_over
from gpumem.swap.facts.times import Times, queued
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.trace import I64, Bool, Trace
from gpumem.trace.kinds import ACTIVATION

LAYERS = ("all", "conv")


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class VDnn(PlannerRecord):
    """The planner `vdnn` and its options."""

    layers: str = option("all", LAYERS)
    strict: bool = True

    @property
    def name(self) -> str:
        """Its name in tables: by which layers offload."""
        return f"vdnn-{self.layers}"


@plans(VDnn)
def vdnn(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    layers: str = "all",
    strict: bool = True,
    seconds: float | None = None,
) -> Plan:
    """Plan vDNN's static swaps: every feature map of its kind is offloaded, whatever the limit.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`. Without buffers of kind `activation`
        nothing is offloaded.
    layers : str
        `all`: inputs of all forward layers. `conv`: inputs of forward convolutions (ops with `conv` in the name).
    strict : bool
        Release memory at the layer boundary, as in the paper: the op that needs it next waits for the offload.
        Otherwise hold it until the copy is expected to have ended, as far as the limit allows.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Notes
    -----
    O(n + accesses) and a rewrite. A layer is a forward op that is the last one to read a feature map, or a
    convolution; forward ends where `backward_start` says. A feature map is offloaded once, from its last forward
    reader to its first backward access. The search for the layer to prefetch (findPrefetchLayer, figure 10) goes back
    from the layer whose backward begins, through the next convolution; a map that it missed is fetched on demand.
    Departures: a copy-out is issued when its layer has ended, not when it starts, since a plan copies after an
    access; layers meet at a boundary only where they need the memory (`strict`) or the data, as streams order
    them; classifier layers offload as well; maps that do not fit the pinned budget stay on the device.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("resnet18")
    >>> plan = vdnn(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 3 // 4, layers="conv")
    >>> plan.apply(trace).peak_live_bytes <= trace.peak_live_bytes * 3 // 4
    True

    References
    ----------
    Rhu, Gimelshein, Clemons, Zulfiqar and Keckler, vDNN, MICRO 2016, section III and figure 10.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    if work.over():  # later there is nothing to cut short: the policy makes one plan, without a search
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    plan = Plan.of(trace, offloads(trace, machine, limit, layers=layers, strict=strict))
    if (peak := plan.apply(trace).peak_live_bytes) > limit:
        hint = "all layers offload more" if layers == "conv" else "vDNN offloads what layers read, and nothing else"
        raise NotReached(peak, limit, hint=hint)
    return plan


def offloads(trace: Trace, machine: Machine, limit: int, *, layers: str, strict: bool) -> list[Swap]:
    """Return the swaps of a policy, as `vdnn` says, whether or not they reach the limit."""
    all_maps = feature_maps(trace)
    host = Pinned(trace, all_maps.gaps, machine.pinned)
    chosen = all_maps.offloaded(layers, host)
    maps, prefetch = all_maps.gaps.where(chosen), all_maps.prefetch(chosen)
    if strict:
        release = maps.after + 1
    else:
        release = _release_when_copied(trace, machine, maps, prefetch=prefetch, limit=limit)
    return host.place_copies(Swap.each(maps, release, prefetch))


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMaps:
    """The feature maps of a trace: `gaps` from their last forward to their first backward access, by the former.

    `conv`: a convolution reads it. `convolutions`: forward convolutions, ascending.
    """

    gaps: Gaps
    conv: Bool
    convolutions: I64

    def offloaded(self, layers: str, host: Pinned) -> I64:
        """Return the rows that vDNN offloads: in the order of the layers, as far as the account of the host allows."""
        spans = self.gaps
        wanted = (self.conv | (layers == "all")) & (spans.before > spans.after + 1)  # else the next op reads it
        rows = zip(*(column[wanted].tolist() for column in (np.arange(len(spans)), spans.after, spans.before)))
        chosen = [row for row, after, before in rows if host.take(row, after, before)]
        return np.array(chosen, np.int64)

    def prefetch(self, chosen: I64) -> I64:
        """Return before which op each chosen map is fetched: one layer's at the backward of a layer behind it.

        findPrefetchLayer of figure 10: when the backward of a layer begins, look for the next layer before it that is
        offloaded and not fetched yet, no further than the next convolution.
        """
        layers = np.unique(np.concatenate([self.gaps.after, self.convolutions]))
        conv = np.isin(layers, self.convolutions)
        backward = np.full(len(layers), -1, np.int64)  # when a layer's backward begins, of those that saved a map
        for layer, before in zip(np.searchsorted(layers, self.gaps.after)[::-1], self.gaps.before[::-1]):
            backward[layer] = before if backward[layer] < 0 else min(backward[layer], before)
        own_layer = np.searchsorted(layers, self.gaps.after[chosen])
        waiting = np.unique(own_layer).tolist()  # layers that are offloaded, and not fetched yet
        last_conv = np.maximum.accumulate(np.where(conv, np.arange(len(layers)), -1))  # at or before each layer
        fetched_at = np.full(len(layers), -1, np.int64)
        begins = sorted(np.flatnonzero(backward >= 0).tolist(), key=lambda layer: (int(backward[layer]), -layer))
        for layer in begins:
            place = bisect_left(waiting, layer)
            if layer in waiting[place : place + 1]:  # not prefetched: its own accesses fetch it on demand
                del waiting[place]
            if place and waiting[place - 1] >= last_conv[layer - 1]:
                fetched_at[waiting.pop(place - 1)] = backward[layer]
        access = self.gaps.before[chosen]
        prefetch: I64 = np.where(fetched_at[own_layer] >= 0, np.minimum(fetched_at[own_layer], access), access)
        return prefetch


def feature_maps(trace: Trace) -> FeatureMaps:
    """Find the buffers of kind `activation` that a forward op reads and the backward pass accesses."""
    ops, spans, start = trace.ops, gaps(trace), backward_start(trace)
    conv = np.array(["conv" in name.lower() for name in ops.name], np.bool_) & (np.arange(trace.n) < start)
    touched = trace.accesses()
    forward = touched.reads & ~touched.writes & (touched.op.idx < start)
    buffer = touched.op.rows()
    kept = np.array([kind == ACTIVATION for kind in trace.buffers.kind], np.bool_)[spans.buffer]
    kept &= np.isin(spans.buffer, buffer[forward]) & kept_over(spans, start, trace.n)
    maps = spans.where(kept)
    maps = maps.where(np.argsort(maps.after, kind="stable"))
    by_conv = np.isin(maps.buffer, buffer[forward & conv[touched.op.idx]])
    return FeatureMaps(maps, by_conv, np.flatnonzero(conv))


def _release_when_copied(trace: Trace, machine: Machine, maps: Gaps, *, prefetch: I64, limit: int) -> I64:
    """Release each map at the first op expected to start after its copy has ended, earlier where the limit demands."""
    times, size = Times.of(simulate(trace, machine)), maps.size
    release = maps.after + 1
    live = LiveBytes.of(trace, limit, (release, prefetch, size))
    until = np.minimum(times.begins(queued(times.end[maps.after], machine.out.copy_ns(size))), prefetch)
    for row in range(len(maps)):
        release[row] = live.hold(release[row], until[row], size[row])
    return release
