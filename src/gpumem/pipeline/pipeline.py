"""The main job: from a trace and a limit to a plan, placed, timed next to the unswapped iteration, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gpumem import check as oracles, pool as pools
from gpumem.base import work
from gpumem.base.arguments import expect, strict
from gpumem.base.display import Facts, Shown, clipped
from gpumem.base.errors import NotReached
from gpumem.base.names import choices, function_of, meant, taken
from gpumem.base.units import amount, human, human_ns
from gpumem.check.verdict import blamed, self_check
from gpumem.pipeline.planned import Planned
from gpumem.pipeline.report import Run
from gpumem.pipeline.swap_and_place import FAR, Combined, at_load, cheapest, in_pool, refine_limit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.timeline import Timeline
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.plan import Plan
from gpumem.swap.planner import Planner
from gpumem.swap.planners import planner_of
from gpumem.swap.search.robust import PRICE, off_by
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

# Of swap and pool planners, to find out which load limit fits a pool. Not tuned.
QUICK = {"effort": 0.03}, {"effort": 0.2}
PLACING = {"effort": 1.0}  # of the pool planner: the same each time, where a target alone would take what time there is
# Of swap planners that are asked for several plans around it. Not tuned.
THOROUGH = {"effort": 0.4}
PLANS = 3  # that are refined around the first that fits: not tuned
TOLD = ("seconds", "progress")  # what all planners are told, beside their options
# Shares of the time that is left: to place the unswapped trace; to plan and place, before the result is judged and
# checked; of that for the one plan that a load limit takes; for each call where a pool takes several; for what a
# search begins with.
BEFORE, PLANNING, ONE, EACH, BEGIN = 0.2, 0.65, 0.8, 0.5, 0.4

AnyPlanner = Callable[..., Plan]
Placer = Callable[..., Placement]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Case(Shown):
    """A trace to plan for, its placement and timeline without a plan, and limits of the pool and the live bytes."""

    trace: Trace
    machine: Machine
    place: Callable[[Trace], Placement]
    pool: int | None
    load: int | None
    placement: Placement
    line: Timeline

    def _facts(self) -> Facts:
        limits = {what: human(n) for what, n in (("pool", self.pool), ("load", self.load)) if n is not None}
        cost = {"footprint": human(self.placement.height), "makespan": human_ns(self.line.makespan)}
        return {"": clipped(self.trace.name, 40), "on": clipped(self.machine.name, 30), **limits, **cost}

    @classmethod
    @strict
    def of(
        cls,
        trace: Trace,
        machine: Machine,
        *,
        pool: int | None = None,
        load: int | None = None,
        placer: str | Placer | None = None,
        alignment: int = 256,
    ) -> Case:
        """Place the unswapped trace in a part of the time; options as in `plan`, but limits are bytes."""
        if pool is None and load is None:
            pool = machine.available
        usual = "best-fit" if pool is None else "search"
        fit = function_of(usual if placer is None else placer, pools.PLANNERS, "placer")
        fit = partial(fit, **taken(fit, {"alignment": alignment, **PLACING}))
        place = partial(fit, **taken(fit, {"target": pool}))
        work.tell("placing the unswapped trace")
        placement = _hurried(fit, BEFORE)(trace)
        expect("placer", "what it returned", placement, "Placement")
        line = simulate(trace, machine, None if load is not None else placement)
        return cls(trace, machine, place, pool, load, placement, line)

    def solve(self, planner: AnyPlanner, options: Mapping[str, Any]) -> Combined:
        """Plan and place; a planner that can plan for a placement makes several plans around the first that fits.

        A planner gets those of the options that it has. `seconds` among them are for all of that together.
        """
        with work.within(options.get("seconds")):
            return self._solved(planner, options)

    def _solved(self, planner: AnyPlanner, options: Mapping[str, Any]) -> Combined:
        record, share = planner_of(planner), ONE if self.pool is None else EACH
        given = {**record.given, **options}

        def plan(**more: Any) -> Callable[[Trace, int], Plan]:
            seeded = {"seed": more["seed"] + given.get("seed", 0)} if "seed" in more else {}
            chosen = {**more, **given, **seeded}
            one = record.with_known({name: value for name, value in chosen.items() if name not in TOLD})
            return _hurried(lambda trace, limit: one(trace, self.machine, limit), share)

        place = _hurried(self.place, share)
        if self.pool is None:
            assert self.load is not None
            return at_load(self.trace, self.load, swap=plan(), pool=place)
        swap, pool = QUICK
        quick = _hurried(partial(self.place, **taken(self.place, pool)), share)
        placed_too = record.has("placed")
        fit = partial(in_pool, self.trace, self.pool, pool=quick, load_limit=self.load)
        if robust := given.get("robust"):
            plain = partial(self._solved, record.with_known({"robust": 0.0}), {**options, "robust": 0.0})
            return self._robust(plain, partial(fit, swap=plan(placed=True)), off_by(robust, given.get("seed", 0)))
        first = self._begun(record.with_known(given), fit)
        if first is not None and (self.judge(first).makespan <= self.line.makespan or work.over()):
            return first
        try:
            own = fit(swap=plan(placed=True, **swap) if placed_too else plan())
        except NotReached:
            if first is None:
                raise
        else:
            first = own if first is None else min(first, own, key=lambda combined: self.judge(combined).makespan)
        if not placed_too:
            return first
        return refine_limit(
            self.trace,
            self.pool,
            first,
            swaps=[plan(**{"placed": True, **THOROUGH, "seed": k}) for k in range(PLANS)],
            pool=place,
            judge=self.judge,
            least=self.line.makespan,
        )

    def _robust(self, plain: Callable[[], Combined], robust: Callable[[], Combined], off: Uncertainty) -> Combined:
        """Of two plans in the pool the one that costs less where durations are off; the first is for the estimates."""
        with work.part(share=0.5):
            estimated = plain()
        try:
            combined = robust()
        except NotReached:
            return estimated
        least, makespan = (self.judge(one).makespan for one in (estimated, combined))
        if makespan > least + PRICE * self.line.makespan:
            return estimated

        def cost(one: Combined) -> float:
            drawn = self.planned(one, self.judge(one), "").under(off).realised
            assert drawn is not None
            return drawn.p95

        return min(combined, estimated, key=cost)

    def _begun(self, planner: Planner, fit: Callable[..., Combined]) -> Combined | None:
        """The best that those make of the pool whose plans a search begins with, or nothing.

        One whose plan for a load limit as high as the pool takes longer than the best placed one is not placed: a lower
        limit and a placement only add to that, or so we assume.
        """
        best, shortest, limit = None, FAR, min(n for n in (self.pool, self.load) if n is not None)
        with work.part(share=BEGIN):
            for other in work.each(planner.begins_with):
                call = _hurried(lambda trace, limit, other=other: other(trace, self.machine, limit), EACH)
                with suppress(NotReached):
                    at_most = call(self.trace, limit).apply(self.trace)
                    if simulate(at_most, self.machine, capacity=limit).makespan < shortest:
                        combined = fit(swap=call)
                        if (makespan := self.judge(combined).makespan) < shortest:
                            best, shortest = combined, makespan
                if shortest <= self.line.makespan:
                    break
        return best

    def judge(self, combined: Combined) -> Timeline:
        """Run what was planned by the clock that the limit asks for."""
        with self_check():
            if self.load is not None:
                if combined.trace.peak_live_bytes > self.load:
                    oracles.budget(combined.trace, self.load)
                return simulate(combined.trace, self.machine, capacity=self.load)
            return simulate(combined.trace, self.machine, combined.placement)

    @strict
    def planned(self, combined: Combined, judged: Timeline, planner: str, score: str = "") -> Planned:
        """Put together what was found, not checked yet."""
        placed = judged if self.load is None else simulate(combined.trace, self.machine, combined.placement)
        at = None if self.load is not None else self.placement
        base = baseline(self.trace, self.machine, combined.trace, at, known=self.line)
        before, after = Run(self.trace, self.placement, base), Run(combined.trace, combined.placement, judged)
        limits = self.pool, self.load, combined.load_limit
        return Planned(combined.plan, self.machine, before, after, placed, *limits, planner, score)


def _hurried(call: Callable[..., T], share: float) -> Callable[..., T]:
    """Let each call take a share of the time that is left then."""

    def hurried(*args: Any) -> T:
        with work.part(share=share):
            return call(*args, **(taken(call, {"seconds": work.left()}) if work.hurried() else {}))

    return hurried


@strict
@work.budgeted
def plan(  # noqa: PLR0913  its options are by keyword only
    trace: Trace,
    machine: Machine | str,
    *,
    pool: int | str | None = None,
    load: int | str | None = None,
    planner: str | AnyPlanner = "search",
    score: str | Sequence[str] | None = None,
    placer: str | Placer | None = None,
    alignment: int = 256,
    check: bool = True,
    uncertainty: Uncertainty | None = None,
    seconds: float | None = None,
    progress: work.Progress | None = None,
    **options: Any,
) -> Planned:
    """Plan swaps for a limit, place what is left, time the iteration with and without the plan, and check all of it.

    Parameters
    ----------
    trace : Trace
    machine : Machine or str
        A machine, or the name of a preset.
    pool, load : int or str, optional
        Bytes, or a text such as `"300MiB"` or `"70%"` (of the peak live bytes). `pool` is the size of the pool, and the
        address-aware simulation judges. `load` is the papers' limit, of the live bytes, and the byte-counting
        simulation judges. With both, the pool must fit and the byte-counting simulation judges; with neither,
        the pool is what the machine has available.
    planner : str or callable
        A name in `swap.PLANNERS`, or `module:name` of one of your own; a record such as `swap.Search(effort=0.1)`, or
        any function `planner(trace, machine, limit, *, options) -> Plan`.
    score : str or sequence of str, optional
        Of a planner that has scores, such as `"autoswap"`: those to try, or `"all"`: the cheapest counts. Left out, it
        is all of them for a planner called by name, and a callable's own.
    placer : str or callable, optional
        A name in `pool.PLANNERS`, or `placer(trace) -> Placement`. Left out, it is the search for a pool that has a
        limit, and best-fit otherwise.
    alignment : int
        Of offsets, in bytes, for placers that have a keyword for it.
    check : bool
        Hold the result against the naive oracles.
    uncertainty : Uncertainty, optional
        How far durations may be off: what the plan costs then is in `Planned.realised`.
    seconds : float, optional
        The whole time: for both placements, the plans, the clock, and those oracles that are done by then. The first
        plan that fits counts, and is made better while there is time. What comes out then depends on the machine, not
        on what is compiled already: the clock stands still for that.
    progress : callable, optional
        Told what is being done.
    **options
        Options of the planner (`seed`, `effort`, `peaks`, ...); `threshold` may be a text, like the limits.

    Returns
    -------
    Planned

    Raises
    ------
    ValueError
        What is wrong with an argument.
    TypeError
        An argument of the wrong type, or a planner or placer that returned something else than a plan or placement.
    Infeasible
        No plan of this kind can exist.
    NotReached
        The planner did not get to the limit, or not in time.
    RuntimeError
        The result failed its own check.

    Notes
    -----
    A planner that can plan for a placement (it has an option `placed`) makes several plans around the first that fits
    the pool. For the others the load limit is lowered until the placement fits (`in_pool`).

    Examples
    --------
    >>> import gpumem
    >>> planned = gpumem.plan(gpumem.bundled("vgg16"), "gtx1080ti", load="70%")
    >>> planned
    Planned(vgg16_cifar_b100, load of 323.42 MiB on gtx1080ti: 7 swaps by search, footprint 353.48 MiB, overhead 0.00%)
    >>> planned.trace.peak_live_bytes <= planned.load
    True
    """
    if not len(trace.ops):
        raise ValueError(f"trace: {trace.name!r} is a bare instance, it has no ops to swap between")
    machine = Machine.named(machine) if isinstance(machine, str) else machine
    trace = machine.timed(trace)
    call = planner_of(planner)
    name = planner if isinstance(planner, str) else call.name
    scores = _scores(call, name, not isinstance(planner, str), score)
    options = _options(call, name, options, trace.peak_live_bytes)
    given = {what: limit for what, limit in (("pool", pool), ("load", load)) if limit is not None}
    limits = {what: amount(limit, trace.peak_live_bytes, what) for what, limit in given.items()}
    case = Case.of(trace, machine, **limits, placer=placer, alignment=alignment)

    def solve(score: str) -> Combined:
        with work.part(score or name):
            return case.solve(call, {**options, **({"score": score} if score else {})})

    with blamed(planner=call, placer=placer):
        with work.part(share=PLANNING):
            score, combined, judged = cheapest(scores, solve, case.judge, least=case.line.makespan)
        planned = case.planned(combined, judged, name, score)
        if check:
            work.tell("checking the plan")
            planned = planned.verified()
        if uncertainty is not None:
            work.tell("drawing durations")
            planned = planned.under(uncertainty)
    return planned


def _scores(planner: Planner, name: str, own: bool, score: str | Sequence[str] | None) -> list[str]:
    """The scores to try; an empty one where the planner has none, or its `own` counts."""
    scored = planner.has("score")
    if score is None and planner.given.get("score") == "all":
        score = "all"
    if score is None or (score == "all" and not scored):
        return [*SCORES] if scored and not own else [""]
    if not scored:
        raise ValueError(f"score: no use to {name}")
    return choices(score if isinstance(score, str) else ",".join(map(str, score)), SCORES, "score")


def _options(planner: Planner, name: str, options: dict[str, Any], whole: int) -> dict[str, Any]:
    """The planner's own options, checked; others are refused."""
    for option in options:
        if not planner.has(option):
            limits = "; pool= limits the pool, load= the live bytes" if option == "limit" else ""
            known = {**planner.declared(), **plan.__annotations__}
            raise ValueError(f"{option}: {name} has no such option{limits or meant(option, known)}")
    if "threshold" in options:
        options = {**options, "threshold": amount(options["threshold"], whole, "threshold", least=0)}
    planner.with_(**options)
    return options
