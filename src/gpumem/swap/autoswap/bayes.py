"""AutoSwap's aggregated score: weights of the four scores, found by Bayesian optimization (section IV-C)."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.base.units import human
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap._gaussian import Gaussian
from gpumem.swap.autoswap.planner import PEAKS, PRINTED, TARGETS, best_plan, candidates
from gpumem.swap.autoswap.scores import SCORES, Candidates
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.options import option
from gpumem.swap.plan import Plan
from gpumem.swap.planner import PlannerRecord, Proposal, plans
from gpumem.trace import F64, I64, Trace

# Evaluations at a time, whatever runs them, so that the result does not depend on the executor. Not tuned.
BATCH = 4
# Random weights among which the next ones are chosen. Not tuned.
POOL = 1000
# Half of these differ from the best ones by at most so much in each component, before they are scaled to a length of 1.
# Not tuned.
NEAR = 0.2
TINY = 1e-12  # keeps a direction finite where all weights are 0


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Bayes(PlannerRecord):
    """The planner `bayes` and its options."""

    evaluations: int = option(36)
    seed: int = option(0)
    executor: Executor | None = None
    peaks: str = option("first", PEAKS)
    threshold: int = option(2**20)
    targets: tuple[float, ...] = option(TARGETS)
    as_printed: bool = False
    reports: ClassVar[bool] = True


@plans(Bayes)
def bayes(  # noqa: PLR0913  a planner's options are its interface
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    evaluations: int = 36,
    seed: int = 0,
    executor: Executor | None = None,
    peaks: str = "first",
    threshold: int = 2**20,
    targets: tuple[float, ...] = TARGETS,
    as_printed: bool = False,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Plan:
    """Plan swaps by the weighted sum of the four scores whose plan has the shortest iteration.

    Parameters
    ----------
    trace, machine, limit, peaks, threshold, targets
        As in `autoswap`.
    as_printed : bool
        As in `autoswap`; and the first weights are drawn, too.
    evaluations : int
        Plans that are simulated at most, 4 of them for the four scores.
    seed : int
        Of the weights that are drawn.
    executor : concurrent.futures.Executor, optional
        Runs the evaluations, 4 at a time: a pool of threads or processes, dask's `Client.get_executor()`.
    seconds : float, optional
        The whole time; see `gpumem.swap`.
    progress : callable, optional
        Called after each batch with how many evaluations are done and what the best iteration takes.

    Returns
    -------
    Plan
        The same whatever the executor; never a longer iteration, in the byte-counting simulation, than that of the
        best of the four scores with the same options, unless `as_printed`.

    Raises
    ------
    Infeasible, NotReached
        As in `autoswap`; NotReached only where no weights reach the limit.
    ValueError
        A bad option as in `autoswap`, fewer than 4 evaluations.

    Notes
    -----
    Scores are standardised over the candidates (a constant one becomes 0), weights lie in [-1, 1]. A Gaussian
    process (Matern 5/2) over the direction of the weights, which alone decides the order of the candidates, and
    expected improvement choose the next ones; within a batch, those not evaluated yet are taken to be what the process
    expects. Weights that miss the limit count as the worst plan. Orders already known are not evaluated once more. It
    ends early when an iteration is as short as without swapping, and where no new order is left. The paper starts
    from random weights; starting from the four scores makes its claim true, that it is never worse than they are.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 65 // 100
    >>> bayes(trace, machine, limit).apply(trace).peak_live_bytes <= limit
    True

    References
    ----------
    Zhang et al. 2019, section IV-C.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    if as_printed:
        peaks, targets = PEAKS[0], PRINTED
    eligible = candidates(trace, machine, limit, peaks=peaks, threshold=threshold)
    search = Trials.start(eligible, np.random.default_rng(seed), drawn=as_printed)
    evaluate = partial(_evaluate, trace, machine, limit, eligible, targets=targets, every=as_printed)
    for orders in iter(lambda: search.propose(min(BATCH, evaluations - len(search.results))), []):
        run = map if executor is None else executor.map
        search.results += work.each(run(evaluate, orders))
        if work.over():
            break
        best = search.best
        work.tell(f"{len(search.results)} of {evaluations} evaluations: {_summary(best)}")
        if isinstance(best, Proposal) and best.makespan <= eligible.line.makespan:
            break
    if not search.results:
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    return search.plan(limit)


class Missed(NamedTuple):
    """What an order of the candidates that misses the limit comes to."""

    reached: int
    hint: str


@dataclass(slots=True, eq=False)
class Trials:
    """What was tried: the direction of the weights, the order of the candidates, what came out."""

    eligible: Candidates
    scores: F64  # one row a score, standardised
    rng: np.random.Generator
    weights: list[F64]
    orders: list[I64]
    results: list[Proposal | Missed] = field(default_factory=list)

    @classmethod
    def start(cls, eligible: Candidates, rng: np.random.Generator, *, drawn: bool = False) -> Trials:
        """Begin with the scores, so that ties are broken as `autoswap` breaks them, or with `drawn` weights."""
        raw = np.array([score(eligible) for score in SCORES.values()]).reshape(len(SCORES), len(eligible))
        scores, weights = standardised(raw), np.eye(len(SCORES))
        if drawn:
            weights = rng.uniform(-1, 1, weights.shape)
            weights /= np.sqrt((weights**2).sum(axis=1, keepdims=True))
        orders = [np.argsort(-row, kind="stable") for row in (weights @ scores if drawn else raw)]
        return cls(eligible=eligible, scores=scores, rng=rng, weights=list(weights), orders=orders)

    @property
    def best(self) -> Proposal | Missed:
        """The shortest makespan, or else the lowest peak that was reached."""
        plans = [result for result in self.results if isinstance(result, Proposal)]
        if plans:
            return min(plans, key=lambda plan: plan.makespan)
        return min(result for result in self.results if isinstance(result, Missed))

    def propose(self, count: int) -> list[I64]:
        """Return up to `count` orders to evaluate next; at first those of the four scores."""
        if not self.results:
            return self.orders
        known = {order.tobytes() for order in self.orders}
        value = self.values()
        fresh: list[I64] = []
        for _ in range(count):
            model = Gaussian.fit(np.array(self.weights), value)
            pool = self.pool(value)
            for point in np.argsort(-model.improvement(pool, value.min()), kind="stable").tolist():
                order = np.argsort(-(pool[point] @ self.scores), kind="stable")
                if order.tobytes() not in known:
                    break
            else:
                break
            known.add(order.tobytes())
            fresh.append(order)
            self.weights.append(pool[point])
            value = np.append(value, model.predict(pool[point : point + 1])[0])
        self.orders += fresh
        return fresh

    def values(self) -> F64:
        """Makespans; what missed the limit is as bad as the worst plan."""
        made = [result.makespan if isinstance(result, Proposal) else None for result in self.results]
        worst = max((makespan for makespan in made if makespan is not None), default=1)
        return np.array([worst if makespan is None else makespan for makespan in made], np.float64)

    def pool(self, value: F64) -> F64:
        """Draw weights from [-1, 1]^4, half of them near the best, as directions."""
        drawn = self.rng.uniform(-1, 1, (POOL, len(SCORES)))
        near = self.weights[int(np.argmin(value))]
        drawn[::2] = np.clip(near + NEAR * drawn[::2], -1, 1)
        directions: F64 = drawn / np.maximum(np.sqrt((drawn**2).sum(axis=1, keepdims=True)), TINY)
        return directions

    def plan(self, limit: int) -> Plan:
        """Return the best plan; the first of several."""
        best = self.best
        if isinstance(best, Missed):
            raise NotReached(best.reached, limit, hint=work.hint(best.hint))
        return best.plan


def standardised(scores: F64) -> F64:
    """Return each row less its mean, over its standard deviation; a constant row becomes 0.

    >>> standardised(np.array([[1.0, 3.0], [5.0, 5.0]])).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    if not scores.size:
        return scores
    mean, spread = scores.mean(axis=1, keepdims=True), scores.std(axis=1, keepdims=True)
    same = scores.min(axis=1, keepdims=True) == scores.max(axis=1, keepdims=True)
    result: F64 = np.where(same, 0.0, (scores - mean) / np.where(same, 1.0, spread))
    return result


def _evaluate(
    trace: Trace,
    machine: Machine,
    limit: int,
    eligible: Candidates,
    order: I64,
    *,
    targets: tuple[float, ...],
    every: bool,
) -> Proposal | Missed:
    """Return the plan that takes candidates in `order`, and its time; on any worker."""
    try:
        return best_plan(trace, machine, limit, eligible, order=order, targets=targets, every=every)
    except NotReached as stop:
        return Missed(stop.reached, stop.hint)


def _summary(best: Proposal | Missed) -> str:
    if isinstance(best, Missed):
        return f"the limit is missed, {human(best.reached)}"
    return f"{best.makespan / 1e6:.3f} ms"
