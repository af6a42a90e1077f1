"""What the main job gives back: a plan with all that follows from it, reported, checked, saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem import check
from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.display import Shown, frame, table
from gpumem.check.verdict import BUDGET, FLOW, ORACLES, PLACEMENT, TIMELINE, UNCHECKED, Checked, Oracle, ask
from gpumem.io import chrome, read, staged, write, write_text
from gpumem.pipeline.report import DecisionCounts, Run, human, human_ns, percent, plot, unswapped, versus
from gpumem.simulator.machine import Machine
from gpumem.simulator.realised import DRAWS, Realised, realised
from gpumem.simulator.simulate import baseline
from gpumem.simulator.timeline import Timeline
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.swap.plan import Plan
from gpumem.trace import COPY_IN, COPY_OUT, Trace
from gpumem.trace.placement import Placement

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Planned(Shown):
    """A plan with all that follows from it, as `plan` returns it.

    Parameters
    ----------
    plan : Plan
    machine : Machine
    before, after : Run
        Trace, placement and timeline, without the plan and with it. Timelines are by the clock that judges: the
        byte-counting simulation where a load limit was asked for, else the address-aware simulation.
    placed : Timeline
        Of `after`, by the address-aware simulation whatever the limit.
    pool, load : int, optional
        Bytes that were asked for.
    load_limit : int
        Bytes that the live bytes were brought down to: `load`, or less where only that could be placed in the pool.
    planner, score : str
        Names; no score where the planner has none.
    checked : Checked
        Which oracles found nothing wrong, and which were not asked.
    realised : Realised, optional
        Overheads where durations are not as planned with, see `under`.
    """

    plan: Plan
    machine: Machine
    before: Run
    after: Run
    placed: Timeline
    pool: int | None
    load: int | None
    load_limit: int
    planner: str
    score: str = ""
    checked: Checked = UNCHECKED
    realised: Realised | None = None

    @property
    def trace(self) -> Trace:
        """The rewritten trace."""
        return self.after.trace

    @property
    def placement(self) -> Placement:
        """Where the buffers of the rewritten trace lie."""
        return self.after.placement

    @property
    def overhead(self) -> float:
        """How much longer an iteration takes, as a fraction, by the clock that judges."""
        return self.after.timeline.overhead(self.before.timeline)

    @property
    def placed_overhead(self) -> float:
        """The same by the address-aware simulation, whatever the limit: `placed` against the placed unswapped trace."""
        base = baseline(self.before.trace, self.machine, self.trace, self.before.placement)
        return self.placed.overhead(base)

    @property
    def clock(self) -> str:
        """Which simulation judges: `address-aware` for a pool, `byte-counting` for the papers' load limit."""
        return "address-aware" if self.load is None else "byte-counting"

    @property
    def counts(self) -> DecisionCounts:
        """How much the plan decides."""
        return DecisionCounts.of(self.plan, self.before, self.after)

    @property
    def by(self) -> str:
        """The score, or the planner that has none."""
        return self.score or self.planner

    def __repr__(self) -> str:
        counts, goal = self.counts, "pool" if self.load is None else "load"
        goal = f"{goal} of {human((self.pool if self.load is None else self.load) or 0)}"
        what = f"{counts.swaps} swaps" + (f", {counts.recomputed} recomputations" if counts.recomputed else "")
        cost = f"footprint {human(self.placement.height)}, overhead {percent(self.overhead)}"
        where = f"{self.before.trace.name:.40}, {goal} on {self.machine.name:.30}"
        return f"Planned({where}: {what} by {self.by:.30}, {cost})"

    def _repr_html_(self) -> str:
        runs, out = (self.before, self.after), [human(run.copied(COPY_OUT)) for run in (self.before, self.after)]
        rows = [
            ["peak live bytes", *(human(run.trace.peak_live_bytes) for run in runs)],
            ["footprint", *(human(run.placement.height) for run in runs)],
            ["iteration", *(human_ns(run.timeline.makespan) for run in runs)],
            ["copied out", *out],
            *(
                [["recomputed", *(human_ns(run.recomputed_ops()[1]) for run in runs)]]
                if self.after.recomputed_ops()[0]
                else []
            ),
            ["overhead", "", percent(self.overhead)],
        ]
        return table(repr(self), rows, ["", "before", "after"])

    def to_pandas(self) -> DataFrame:
        """Return a table with the rows `before` and `after`; needs `gpumem[pandas]`.

        Columns say their units: live bytes, footprints and copies in bytes, times and stalls (by cause) in ns.
        """
        runs = {"before": self.before, "after": self.after}
        columns: dict[str, list[Any]] = {
            "ops": [run.trace.n for run in runs.values()],
            "buffers": [len(run.trace.buffers) for run in runs.values()],
            "peak_live_bytes": [run.trace.peak_live_bytes for run in runs.values()],
            "footprint_bytes": [run.placement.height for run in runs.values()],
            "ratio": [run.placement.ratio(run.trace) for run in runs.values()],
            "copied_out_bytes": [run.copied(COPY_OUT) for run in runs.values()],
            "copied_in_bytes": [run.copied(COPY_IN) for run in runs.values()],
            "recomputed_ops": [run.recomputed_ops()[0] for run in runs.values()],
            "recompute_ns": [run.recomputed_ops()[1] for run in runs.values()],
            "makespan_ns": [run.timeline.makespan for run in runs.values()],
        }
        for cause in self.after.timeline.stalls:
            columns[f"stall_{cause}_ns"] = [run.timeline.stalls.get(cause, 0) for run in runs.values()]
        both = frame(columns)
        both.index = [*runs]
        return both

    def row(self) -> dict[str, object]:
        """Return all figures for programs: bytes, nanoseconds, `overhead` as a fraction.

        `swaps` and `recomputed` count gaps; `recomputed_ops` the ops, `recompute_ns` their time in an
        iteration; `held` and `tails` the `Hold` decisions, which keep values for recomputations, or drop dead tails.
        `limit` is the size of the pool, if one was asked for, `score` empty where the planner has none.
        """
        before, after = self.before, self.after
        return {
            "trace": before.trace.name,
            "machine": self.machine.name,
            "planner": self.planner,
            "score": self.score,
            "ops": before.trace.n,
            "buffers": len(before.trace.buffers),
            "limit": self.pool,
            "load_limit": self.load_limit,
            "clock": self.clock,
            **asdict(self.counts),
            "peak_live_bytes": before.trace.peak_live_bytes,
            "peak_live_bytes_after": after.trace.peak_live_bytes,
            "footprint": before.placement.height,
            "footprint_after": after.placement.height,
            "ratio": before.placement.ratio(before.trace),
            "ratio_after": after.placement.ratio(after.trace),
            "bytes_out": after.copied(COPY_OUT),
            "bytes_in": after.copied(COPY_IN),
            "makespan_before_ns": before.timeline.makespan,
            "makespan_ns": after.timeline.makespan,
            "placed_makespan_ns": self.placed.makespan,
            "overhead": self.overhead if isfinite(self.overhead) else None,
            "stalls": dict(after.timeline.stalls),
            **(self.realised.row() if self.realised else {}),
        }

    def summary(self) -> Iterator[str]:
        """Yield lines of a table on what the plan does and copies."""
        out, into = (human(self.after.copied(role)) for role in (COPY_OUT, COPY_IN))
        return self.counts.lines(self.by, f": {out} out, {into} in an iteration")

    def table(self) -> str:
        """Return the figures as a table; below it whether swapping is needed, where that is not plain."""
        before, after = self.before, self.after
        trace, load_limit = before.trace, None if self.load is None else self.load_limit
        goals = [("pool", self.pool), ("load limit", load_limit)]
        goal = ", ".join(f"{what} of {human(limit)}" for what, limit in goals if limit is not None)
        stalls = ", ".join(f"{human_ns(ns)} for {what}" for what, ns in after.timeline.stalls.items())
        ratios = f"{before.placement.ratio(trace):>14.4f}{after.placement.ratio(after.trace):>14.4f}"
        lines = [
            f"{trace.name}: {trace.n} ops, {len(trace.buffers)} buffers, on {self.machine.name}, {goal}",
            "",
            f"{'':26}{'before':>14}{'after':>14}{'change':>10}",
            versus("peak live bytes", trace.peak_live_bytes, after.trace.peak_live_bytes, human),
            versus("footprint", before.placement.height, after.placement.height, human),
            f"{'fragmentation ratio':26}{ratios}",
            versus(f"iteration ({self.clock})", before.timeline.makespan, after.timeline.makespan, human_ns),
            "",
            *self.summary(),
            f"{'overhead as planned':26}{percent(self.overhead)}",
            *([f"{'as it turns out':26}{self.realised}"] if self.realised else []),
            f"{'stalls':26}{stalls}",
        ]
        warning = unswapped(trace.peak_live_bytes, before.placement.height, self.pool, load_limit)
        return "\n".join([*lines, *(["", warning] if warning else [])])

    @strict
    def under(self, uncertainty: Uncertainty, *, draws: int = DRAWS) -> Planned:
        """Return the same with what the plan costs where durations are off their estimates, by the clock that judges.

        >>> import gpumem
        >>> from gpumem.simulator import Uncertainty
        >>> planned = gpumem.plan(gpumem.bundled("vgg16"), "gtx1080ti", load="50%", planner="autoswap")
        >>> print(planned.under(Uncertainty(spread=0.3)).realised)  # as planned 7.75 %
        median 9.36%, 95th percentile 15.11% of 100 draws
        """
        placed = self.load is None
        placements = (self.before.placement, self.placement) if placed else None
        spread = realised(
            self.before.trace,
            self.trace,
            self.machine,
            uncertainty,
            placements=placements,
            capacity=self.load,
            draws=draws,
        )
        return replace(self, realised=spread)

    @strict
    @work.budgeted
    def verified(self, seconds: float | None = None) -> Planned:
        """Hold the result against the naive oracles.

        Parameters
        ----------
        seconds : float, optional
            Oracles that would take longer than what is left of that are not asked.

        Raises
        ------
        RuntimeError
            An oracle objects.

        Notes
        -----
        About half a millisecond an op; `checked` says what was left out for lack of time. With a load limit both
        timelines are held against theirs.
        """
        before, after, trace, duplex = self.before.trace, self.after, self.trace, self.machine.duplex
        ns, host_costs = self.machine.durations(trace), self.machine.host_costs(trace)
        size = max(trace.n, len(trace.buffers))

        def timelines() -> None:
            hold = partial(check.timeline, trace, duration=ns, duplex=duplex, host_costs=host_costs)
            hold(line=self.placed, placement=after.placement)
            if self.load is not None:
                hold(line=after.timeline, capacity=self.load)

        asked: list[Callable[[], None]] = [
            lambda: check.placement(trace, after.placement),
            lambda: check.data_flow(before, trace),
            lambda: check.budget(trace, self.load_limit, host=self.machine.pinned),
            timelines,
        ]
        lines = [self.placed] if self.load is None else [self.placed, after.timeline]
        turns = sum(line.first + line.cycle + 1 for line in lines)
        needs = PLACEMENT * size, FLOW * (before.n + trace.n), BUDGET * size, TIMELINE * turns * trace.n
        return replace(self, checked=ask([Oracle(*row) for row in zip(ORACLES, needs, asked)]))

    @strict
    def save(self, directory: str | Path, *, source: str = "") -> None:
        """Write what `gpumem plan --out` writes: all of it, or nothing.

        Parameters
        ----------
        directory : path
            Made where it is not there; other files in it stay.
        source : str
            The file that the trace was read from, for the `meta` of the one that is written.

        Raises
        ------
        ValueError
            The directory cannot be written to.
        """
        with staged(directory, "directory") as folder:
            self.write(folder, source)

    def write(self, folder: Path, source: str = "") -> None:
        """Write plan, rewritten trace, timeline and, where matplotlib is there, pictures into a folder."""
        after, machine = self.after, self.machine
        write_text(folder / "plan.json", self.plan.to_json())
        write(
            folder / "trace.json.gz",
            after.trace,
            after.placement,
            source=source,
            machine=machine,
            capacity=self.pool,
            makespan_ns=self.placed.makespan,
        )
        chrome.write(folder / "timeline.json", after.trace, after.timeline)
        if plot.available():
            plot.pictures(folder, self.before, after, self.load_limit if self.pool is None else self.pool)


def given(plan: Planned | tuple[Trace, Plan] | str | Path) -> tuple[Trace, Plan]:
    """What somebody has planned before, and for what; from the folder that `gpumem fit --out` wrote, too.

    Raises
    ------
    ValueError
        There is no such folder, or no plan in it.
    """
    if isinstance(plan, Planned):
        return plan.before.trace, plan.plan
    if isinstance(plan, tuple) and len(plan) == 2:
        return plan
    if not isinstance(plan, str | Path):
        raise TypeError(f"plan: {plan!r:.60} is none: a Planned, a pair (trace, plan), or the folder of one")
    trace, written = Path(plan) / "captured.json.gz", Path(plan) / "plan.json"
    for file in (trace, written):
        if not file.is_file():
            raise ValueError(
                f"plan: {file} is not there; `gpumem fit ... --out {plan}` writes it where a plan is needed"
            )
    return read(trace), Plan.from_json(written.read_text())
