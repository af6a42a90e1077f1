"""How long each op will take before anybody has run the job: TENSILE's latency prediction.

While a job runs, `gpumem.jobs` moves the predictions towards what is measured.

`utilisation` is what is commonly reported as a GPU's utilisation, counting other jobs only: the share of the time, in
[0, 1], during which a kernel of theirs runs. In the stated model of the job simulator (while k kernels run, each
progresses at 1 / (1 + slowdown (k - 1))) an op beside one other job takes 1 + slowdown * utilisation times as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from gpumem.base.arguments import at_least, finite, strict
from gpumem.base.display import Shown
from gpumem.execute.latency.network import Features, Network, Training, learn, sizes
from gpumem.execute.latency.samples import Measurement, Sample, by_type, samples
from gpumem.simulator.machine import Machine
from gpumem.trace import COMPUTE, F64, I64, MAX_NS, RECOMPUTE, UNKNOWN, Trace

LEAST = 12  # distinct ops of a type that are worth a network. Not tuned

NETWORK, MEASURED, ROOFLINE, LINK = range(4)
SOURCES = ("network", "measured", "roofline", "link")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictor(Shown):
    """The networks, by type of operator.

    Parameters
    ----------
    networks : dict of str to Network
    features : callable
        What of a sample they look at: `sizes` or `shapes`.
    short : dict of str to int
        The types that had too few measurements: how many distinct ops were measured.
    """

    networks: Mapping[str, Network]
    features: Features
    short: Mapping[str, int]

    def ns(self, ops: Sequence[Sample], utilisation: ArrayLike) -> F64:
        """Return how long ops will take, in ns, not rounded; NaN where there is no network or it cannot be trusted.

        Parameters
        ----------
        ops : sequence of Sample
        utilisation : float or float[n]
            In [0, 1]; one for all, or one each.

        Raises
        ------
        ValueError
            A utilisation outside [0, 1]; shapes that are needed and unknown.
        """
        busy = np.broadcast_to(_checked(utilisation), len(ops))
        places: dict[str, list[int]] = {}
        for index, op in enumerate(ops):
            places.setdefault(op.name, []).append(index)
        result = np.full(len(ops), np.nan)
        for name, chosen in places.items():
            if name in self.networks:
                result[chosen] = self.networks[name].ns([self.features(ops[index]) for index in chosen], busy[chosen])
        return result

    def why(self, name: str) -> str:
        """Say why an op of type `name` was left to the roofline."""
        if name in self.networks:
            return "beyond what was measured"
        return f"only {self.short[name]} were measured" if name in self.short else "none was measured"


@strict
def fit(
    rows: Sequence[Measurement], *, features: Features = sizes, least: int = LEAST, training: Training | None = None
) -> Predictor:
    """Train a network for each type of operator with enough measurements.

    Parameters
    ----------
    rows : sequence of Measurement
    features : callable
        What the networks look at. `sizes` is what a trace knows; `shapes`, the paper's inputs, serves samples whose
        shapes are known, and no trace.
    least : int
        Distinct ops of a type from which on it gets a network.
    training : Training, optional

    Returns
    -------
    Predictor

    Raises
    ------
    ValueError
        `shapes` of a sample that has none; `least` below 1.
    ImportError
        scikit-learn is missing: it is the extra `latency`.

    Notes
    -----
    About 0.8 s for a type with 400 measurements. The same rows and seed give the same bits on one
    machine.
    The paper's inputs are dimensions, parameters and utilisation, its network has three layers; it says no more. Here
    sizes, times and flops are on a log scale, since they span five orders of magnitude, and inputs are standardised.

    Examples
    --------
    >>> from gpumem.execute.latency.synthetic import grid, synthetic
    >>> rows = synthetic(grid(20, seed=0), Machine.named("v100"), seed=0)
    >>> predictor = fit([row for row in rows if row.sample.name == "relu"])
    >>> relu = Sample("relu", (2**24,), (2**24,), moved=2**25)
    >>> bool(predictor.ns([relu], 0)[0] < predictor.ns([relu], 1)[0])
    True

    References
    ----------
    Zhang et al., TENSILE, section 4.3.
    """
    at_least(1, least=least)
    groups = dict(sorted(by_type(rows).items()))
    count = {name: len({row.sample for row in group}) for name, group in groups.items()}
    chosen = training or Training()
    networks = {name: learn(group, features, chosen) for name, group in groups.items() if count[name] >= least}
    return Predictor(networks, features, {name: shapes for name, shapes in count.items() if shapes < least})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimates(Shown):
    """How long each op of a trace will take, and who says so.

    Parameters
    ----------
    trace : Trace
    ns : int64[n]
    source : int64[n]
        Index into `SOURCES`: the type's network; the duration in the trace; the machine's roofline; for copies and
        syncs, its link.
    """

    trace: Trace
    ns: I64
    source: I64

    @property
    def left(self) -> Counter[str]:
        """The types that were left to the roofline, with the number of ops; `Predictor.why` says why."""
        return Counter(self.trace.ops.name[op] for op in np.flatnonzero(self.source == ROOFLINE).tolist())


@strict
def estimates(
    trace: Trace, machine: Machine, predictor: Predictor, utilisation: float, *, slowdown: float = 0.0
) -> Estimates:
    """Estimate how long each op of `trace` will take while other jobs keep the GPU busy.

    Parameters
    ----------
    trace : Trace
    machine : Machine
        Its roofline counts where no network can tell, its link for copies.
    predictor : Predictor
        Trained on `sizes`, which a trace knows.
    utilisation : float
        Share of the time, in [0, 1], during which other jobs' kernels run.
    slowdown : float
        In the stated model; it counts for the roofline and for durations that the trace has. The networks have
        learned their own.

    Returns
    -------
    Estimates

    Raises
    ------
    ValueError
        A utilisation outside [0, 1], a slowdown below 0; networks that look at shapes; 2**53 ns or more.

    Notes
    -----
    O(n). A duration in the trace was measured on a GPU of its own: it stands, slowed down by the stated model.

    Examples
    --------
    >>> import gpumem
    >>> trace, machine, nobody = gpumem.bundled("mlp3"), Machine.named("v100"), fit([])
    >>> bool((estimates(trace, machine, nobody, 0).ns == machine.durations(trace)).all())
    True
    >>> estimated = estimates(trace, machine, nobody, 0.5)
    >>> estimated.left.most_common(2), nobody.why("add_.Tensor")
    ([('add_.Tensor', 12), ('mul_.Tensor', 6)], 'none was measured')

    References
    ----------
    Zhang et al., TENSILE, section 4.3.
    """
    finite(slowdown=slowdown)
    ops = trace.ops
    kernel = (ops.role == COMPUTE) | (ops.role == RECOMPUTE)
    ns = machine.durations(trace) * np.where(kernel, 1 + slowdown * float(_checked(utilisation)), 1.0)
    source = np.where(ops.duration != UNKNOWN, MEASURED, np.where(kernel, ROOFLINE, LINK))
    unmeasured = np.flatnonzero(source == ROOFLINE)
    known = samples(trace)
    predicted = predictor.ns([known[op] for op in unmeasured.tolist()], utilisation)
    answered = unmeasured[~np.isnan(predicted)]
    ns[answered], source[answered] = predicted[~np.isnan(predicted)], NETWORK
    if not float(ns.sum()) < MAX_NS:
        op = int(np.argmax(ns))
        raise ValueError(f"trace {trace.name!r}: its ops take too long to count in ns (op {op} takes {ns[op]:g})")
    return Estimates(trace, np.rint(ns).astype(np.int64), source.astype(np.int64))


class HasTrace(Protocol):
    """A job, as far as its durations go."""

    @property
    def trace(self) -> Trace: ...


@strict
def estimator(machine: Machine, predictor: Predictor, *, slowdown: float = 0.0) -> Callable[[HasTrace, float], I64]:
    """Return `estimates` as a controller wants them: `estimate(job, others)` while so many kernels of others run.

    No network has seen more than one: each further one delays an op by as much as the first, as in the stated model.

    >>> import gpumem
    >>> job, machine = gpumem.jobs.Job("a", gpumem.bundled("mlp3")), Machine.named("v100")
    >>> estimate = estimator(machine, fit([]), slowdown=1)
    >>> bool((estimate(job, 2.0) == 3 * machine.durations(job.trace)).all())
    True
    """

    def estimate(job: HasTrace, others: float) -> I64:
        if others <= 1:
            return estimates(job.trace, machine, predictor, others, slowdown=slowdown).ns
        alone, one = (estimates(job.trace, machine, predictor, level, slowdown=slowdown).ns for level in (0, 1))
        shared: I64 = np.rint(one + (others - 1) * np.maximum(one - alone, 0)).astype(np.int64)
        return shared

    return estimate


def _checked(utilisation: ArrayLike) -> F64:
    busy = np.asarray(utilisation, np.float64)
    if not ((busy >= 0) & (busy <= 1)).all():
        raise ValueError(f"utilisation: {busy} is not in [0, 1]")
    return busy
