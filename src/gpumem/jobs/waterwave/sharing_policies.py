"""Policies by which jobs share a GPU, by iterations: each makes a pipeline, and so one trace and one simulation.

`waterwave` runs node groups side by side, `searched` groups of any length, `waterwave_s` halves of iterations,
`temporal` whole iterations in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.errors import NotReached
from gpumem.jobs.waterwave.balanced import balanced
from gpumem.jobs.waterwave.co_schedule import co_schedule
from gpumem.jobs.waterwave.node_groups import Partition, atoms, between, partition
from gpumem.jobs.waterwave.pipeline import Pipeline, pipeline
from gpumem.simulator.machine import Machine
from gpumem.simulator.sharing import share
from gpumem.simulator.simulate import simulate
from gpumem.trace import Trace
from gpumem.trace.kinds import ACT_GRAD, GRADIENT

SharingPolicy = Callable[..., Pipeline]
# Into how many node groups the largest job is cut, about: the split sizes that are tried, and the clock decides. Finer
# ones (`benchmarks waterwave`: 37 sizes from a half to a 128th) take longer to try. Not tuned.
PIECES = (4, 6, 8, 12, 16, 24, 32)


@strict
def waterwave(
    traces: Sequence[Trace],
    machine: Machine,
    limit: int | None = None,
    *,
    split: int | None = None,
    order: str = "recorded",
    turns: Sequence[int] | None = None,
    slowdown: float = 1.0,
    hosts: int = 1,
) -> Pipeline:
    """Share by node groups, of the size at which a round is shortest.

    Parameters
    ----------
    traces : sequence of Trace
        An iteration of each job, unswapped.
    machine : Machine
    limit : int, optional
        Bytes that all jobs together may hold.
    split : int, optional
        Bytes of a node group. By default several sizes are tried, from a quarter of what the largest job takes above
        what it holds at rest to a thirty-second, and the clock decides.
    order : str
        Of a job's ops; see `partition`.
    turns : sequence of int, optional
        See `pipeline`.
    slowdown : float
        How much kernels slow each other down, for that clock; see `gpumem.simulator.sharing.share`.
    hosts : int
        Host threads, for that clock; see `co_schedule`.

    Returns
    -------
    Pipeline
        In `bound()` of which nothing exceeds the limit.

    Raises
    ------
    Infeasible, ValueError
        As `partition` and `pipeline`.

    Examples
    --------
    >>> from gpumem import bundled
    >>> waterwave([bundled("vgg16"), bundled("resnet18")], Machine.named("v100"), 800 * 2**20)
    Pipeline(2 jobs, 2 turns, 8 slots, 6 pairs, at most 799.73 MiB)
    """
    sizes = [split] if split is not None else _sizes(traces)
    pipelines = [
        pipeline([partition(trace, machine, size, order=order) for trace in traces], limit, turns=turns)
        for size in sizes
    ]
    if len(pipelines) == 1:
        return pipelines[0]
    return min(pipelines, key=lambda one: round_ns(one, machine, slowdown=slowdown, hosts=hosts))


@strict
def searched(
    traces: Sequence[Trace],
    machine: Machine,
    limit: int | None = None,
    *,
    order: str = "recorded",
    slowdown: float = 1.0,
    hosts: int = 1,
) -> Pipeline:
    """Share by groups of any length, searched so that pairs take equally long: `balanced` on `atoms`.

    Not the paper's: its section 6 names pairs of equal time and variable split sizes as what is left to do. Beside it
    `waterwave` is asked as well, and of both that counts whose round is shorter by the clock.

    Raises
    ------
    Infeasible, ValueError
        As `balanced`.

    Examples
    --------
    >>> from gpumem import bundled
    >>> traces, machine = [bundled("vgg16")] * 2, Machine.named("v100")
    >>> both = [policy(traces, machine, 700 * 2**20, slowdown=0.5) for policy in (waterwave, searched)]
    >>> [round(round_ns(one, machine, slowdown=0.5) / 1e6, 1) for one in both]
    [83.6, 80.3]
    """
    pipelines = [waterwave(traces, machine, limit, order=order, slowdown=slowdown, hosts=hosts)]
    parts = [atoms(trace, machine, order=order) for trace in traces]
    pipelines.append(balanced(parts, machine, limit, slowdown=min(slowdown, 1.0), sync_ns=4 * machine.host_ns))
    return min(pipelines, key=lambda one: round_ns(one, machine, slowdown=slowdown, hosts=hosts))


@strict
def round_ns(line: Pipeline, machine: Machine, *, slowdown: float = 1.0, hosts: int = 1) -> int:
    """Return what a round of a pipeline takes by the clock, whose kernels slow each other down.

    >>> from gpumem import bundled
    >>> round_ns(temporal([bundled("vgg16")] * 2, Machine.named("v100")), Machine.named("v100"))
    90606234
    """
    trace = co_schedule(line, machine, hosts=hosts).trace
    return simulate(share(trace, machine, slowdown), machine).makespan


def _sizes(traces: Sequence[Trace]) -> list[int]:
    most = max((trace.peak_live_bytes - int(between(trace)[0]) for trace in traces), default=1)
    return sorted({max(most // pieces, 1) for pieces in PIECES}, reverse=True)


@strict
def waterwave_s(traces: Sequence[Trace], machine: Machine, limit: int | None = None) -> Pipeline:
    """Share by halves of an iteration: the paper's coarse baseline, cut at the peak or between the two passes.

    Of both cuts, the one with the lower peak in issue order. The order in which the ops of a pair are enqueued is luck
    in the paper; here it is that of their times.

    Raises
    ------
    NotReached
        Both hold more than the limit.

    Examples
    --------
    >>> from gpumem import bundled
    >>> waterwave_s([bundled("vgg16")] * 2, Machine.named("v100"))
    Pipeline(2 jobs, 2 turns, 2 slots, 2 pairs, at most 920.52 MiB)

    References
    ----------
    Shi et al., Waterwave, section 5.1.3.
    """
    candidates = halves(traces, machine)
    held = [co_schedule(one, machine).trace.peak_live_bytes for one in candidates]
    if limit is not None and min(held) > limit:
        raise NotReached(min(held), limit, hint="node groups get lower (waterwave)")
    return candidates[int(np.argmin(held))]


@strict
def halves(traces: Sequence[Trace], machine: Machine) -> list[Pipeline]:
    """Return the two pipelines of which `waterwave_s` is the better: jobs cut at the peak, and between the two passes.

    >>> from gpumem import bundled
    >>> [line.parts[0].cuts.tolist() for line in halves([bundled("vgg16")] * 2, Machine.named("v100"))]
    [[0, 102, 315], [0, 76, 315]]
    """
    pipelines = []
    for cut in (_peak, _backward):
        parts = [Partition.at(trace, machine, *_halves(cut(trace), trace.n)) for trace in traces]
        pipelines.append(pipeline(parts, overlap=0))
    return pipelines


def _halves(cut: int, count: int) -> tuple[list[int], int]:
    return ([0, cut, count], 1) if 0 < cut < count else ([0, count], 1)


def _peak(trace: Trace) -> int:
    """The op before which most is held."""
    return int(np.argmax(between(trace)))


def _backward(trace: Trace) -> int:
    """The op behind all that were recorded before the first that makes a gradient; at the peak where no kind tells."""
    is_gradient = np.array([kind in (GRADIENT, ACT_GRAD) for kind in trace.buffers.kind], np.bool_) & ~trace.eternal
    if not is_gradient.any():
        return _peak(trace)
    of = trace.ops.of
    return 1 + int(np.flatnonzero(of < of[trace.buffers.start[is_gradient]].min()).max(initial=-1))


@strict
def temporal(
    traces: Sequence[Trace], machine: Machine, limit: int | None = None, *, turns: Sequence[int] | None = None
) -> Pipeline:
    """Share by whole iterations, one after another; what a job holds at rest stays on the device, as in Salus.

    Raises
    ------
    Infeasible
        A job does not fit beside what the others hold at rest.

    Examples
    --------
    >>> from gpumem import bundled
    >>> temporal([bundled("vgg16")] * 2, Machine.named("v100"))
    Pipeline(2 jobs, 2 turns, 2 slots, 0 pairs, at most 576.44 MiB)
    """
    return pipeline([Partition.at(trace, machine, [0, trace.n], 1) for trace in traces], limit, turns=turns, overlap=0)


SHARING_POLICIES: dict[str, SharingPolicy] = {
    "waterwave": waterwave,
    "waterwave-searched": searched,
    "waterwave-s": waterwave_s,
    "temporal": temporal,
}
