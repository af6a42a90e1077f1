"""What `fit` answers: what a step takes, whether it fits, what it would take to make it fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.units import exact
from gpumem.io import staged, write, write_text
from gpumem.pipeline import Attempt, Planned, Requirement
from gpumem.pipeline.report import by_module, columns, human, human_ns, percent
from gpumem.pipeline.report.by_module import rows_of
from gpumem.simulator.machine import PRESETS, Machine
from gpumem.torch.values.assumed import Assumption
from gpumem.trace import UNKNOWN, Trace
from gpumem.trace.batch import MOST, step_at

WIDTH = 26  # columns of a label in the report
LISTED = 5  # assumptions that a report lists; not tuned


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batches that fit, without a plan and with one; 0 where not even one sample does.

    Beyond 64 they are on a grid: 32 batches between a power of two and the next. `failed` are batches at which the step
    could not be recorded, taken as too large, with the reason.
    """

    unplanned: int
    planned: int
    failed: tuple[str, ...] = ()


SECONDS = 8.0  # of planning by default; not tuned
# Times the seconds of a search that found nothing: what to try next, up to that many; not tuned.
LONGER, LONGEST = 8, 600.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fit(Shown):
    """Whether a training step fits, as `fit` returns it.

    Parameters
    ----------
    trace : Trace
        The captured step, with the workspaces of its convolutions.
    machine : Machine
    batch : int, optional
        What `make` was asked for; None where that was left to it.
    limit : int
        Bytes that tensors may take.
    context : int
        Bytes that the context takes beside them.
    need : Requirement
        What the step takes as it is.
    makespan : int
        Of an iteration without a plan, nanoseconds.
    planned : Planned, optional
        The cheapest plan for the limit, where one is needed and found; checked.
    tried : tuple of Attempt
        What came of each planner.
    least : Planned, optional
        Where no plan is found for the limit: one for about the least limit that would do, not checked.
    needs : int
        Bytes that some op holds whatever is planned, where that is proved to be more than the limit; else 0.
    seconds : float
        Of planning, that were asked for.
    overhead : float, optional
        The most that a plan may cost.
    largest : Largest, optional
        Where it was asked for.
    notes : tuple of str
        What is to be said of the capture.
    sizable : bool
        Whether `make` takes a batch.
    assumptions : tuple of Assumption
        What the step asked of values that are not known without running it, and what it was answered.
    """

    trace: Trace
    machine: Machine
    batch: int | None
    limit: int
    context: int
    need: Requirement
    makespan: int
    planned: Planned | None = None
    tried: tuple[Attempt, ...] = ()
    least: Planned | None = None
    needs: int = 0
    seconds: float = 0.0
    overhead: float | None = None
    largest: Largest | None = None
    notes: tuple[str, ...] = ()
    sizable: bool = True
    assumptions: tuple[Assumption, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the step fits as it is."""
        return self.need.reserved <= self.limit

    @property
    def fits_planned(self) -> bool:
        """Whether it fits as it is or with a plan."""
        return self.fits or self.planned is not None

    def _facts(self) -> Facts:
        plan = {} if self.planned is None else {"with a plan": f"overhead {percent(self.planned.overhead)}"}
        verdict = {"fits": "yes" if self.fits else "no", "needs": human(self.need.reserved), "of": human(self.limit)}
        return {"": f"{self._subject} on {self.machine.name}", **verdict, **plan}

    @property
    def _subject(self) -> str:
        return self.trace.name + ("" if self.batch is None else f" at batch {self.batch}")

    def answer(self) -> str:
        """Return the answer in one line.

        Where nothing does, it says the least limit that would; that no plan can is said only where it is proved.
        """
        needs = f"needs {_apart(self.need.reserved, self.limit)}, {self._has}"
        if self.fits:
            return f"{self._subject} fits: {needs}"
        if self.planned is not None and not self.planned.plan.decisions:
            alone = f"placed ahead of time it does, in {human(self.planned.placement.height)}"
            return f"{self._subject} does not fit: {needs}; {alone}, without a swap"
        if self.planned is not None:
            return f"{self._subject} does not fit: {needs}; with a plan it does, {_cost(self.planned)}"
        cost = "" if self.overhead is None else f" at an overhead of {percent(self.overhead)} at most"
        if self.needs > self.limit:
            missed = f"no plan reaches that: some op holds {_apart(self.needs, self.limit)} whatever is planned"
        else:
            missed = f"no plan was found{cost} in {self.seconds:g} s; try --seconds {self._longer:g}"
        least = "" if self.least is None else f"; the least limit found is {_typed(self.least.pool or 0)}"
        least += "" if self.least is None else f" ({_cost(self.least)})"
        return f"{self._subject} does not fit: {needs}; {missed}{least}"

    @property
    def _longer(self) -> float:
        return self.seconds * LONGER

    @property
    def _has(self) -> str:
        if self.limit == self._headroom:
            return f"{self.machine.name} has {human(self.limit)}"
        return f"the limit is {human(self.limit)}"

    def row(self) -> dict[str, object]:
        """Return all figures: bytes, nanoseconds, `overhead` as a fraction; `plan` is that of `Planned`."""
        planned, least = self.planned, self.least
        return {
            "workload": self.trace.name,
            "machine": self.machine.name,
            "batch": self.batch,
            "ops": self.trace.n,
            "fits": self.fits,
            "limit": self.limit,
            "context": self.context,
            "live": self.need.live,
            "peak_by_kind": dict(self.need.kinds),
            "reserved_for_tensors": self.need.tensors,
            "workspaces": self.need.workspaces,
            "reserved": self.need.reserved,
            "makespan_ns": self.makespan,
            "plan": None if planned is None else planned.row(),
            "modules": [asdict(handled) | {"when": handled.phases} for handled in self.handled],
            "tried": [{"planner": t.planner, "overhead": t.overhead, "why": t.why} for t in self.tried],
            "least_limit": None if least is None else least.pool,
            "least_overhead": None if least is None else least.overhead,
            "largest": None
            if self.largest is None
            else {"unplanned": self.largest.unplanned, "planned": self.largest.planned},
            "assumptions": [asdict(one) for one in self.assumptions],
            "notes": [*self.notes, *(self.largest.failed if self.largest else ())],
        }

    @property
    def handled(self) -> list[Any]:
        """What the plan does, by module (`report.by_module`); nothing without a plan."""
        return [] if self.planned is None else by_module(self.trace, self.planned.plan)

    def report(self) -> str:
        """Return the answer, and below it the figures as tables."""
        parts = [self.answer(), "\n".join(self._assumed()), "\n".join(self._lines()), "\n".join(self._of_the_plan())]
        if handled := self.handled:
            parts.append(columns(rows_of(handled)))
        return "\n\n".join(filter(None, parts))

    def _assumed(self) -> Iterator[str]:
        """The answers that were assumed; the first few, as many of them come of one line of a program."""
        for k, one in enumerate(self.assumptions[:LISTED]):
            yield f"{'' if k else 'assumed':{WIDTH}}{one}"
        if (more := len(self.assumptions) - LISTED) > 0:
            yield f"{'':{WIDTH}}and {more} more: see --json"

    def _lines(self) -> Iterator[str]:
        need, machine = self.need, self.machine
        kinds = ", ".join(f"{kind} {human(size)}" for kind, size in need.kinds[:4])
        source = "as the machine says" if machine.reserved else "assumed"
        yield _line("live at the peak", human(need.live), kinds)
        yield _line("reserved for that", human(need.tensors), "PyTorch's caching allocator, replayed")
        yield _line("workspaces", f"+ {human(need.workspaces)}", "of convolutions, by their fastest algorithms")
        yield _line("limit", human(self.limit), "for all of that")
        yield _line("context", human(self.context), f"beside the limit, {source}")
        known = (self.trace.ops.duration != UNKNOWN).all()
        clock = "of measured ops" if known else f"estimated, by the roofline of {machine.name}"
        yield _line("iteration", human_ns(self.makespan), clock)
        if (largest := self.largest) is not None:
            cost = "at any cost" if self.overhead is None else f"for {percent(self.overhead)} at most"
            yield _line("largest batch", str(largest.unplanned), f"without a plan{_steps(largest.unplanned)}")
            yield _line("largest batch, planned", str(largest.planned), f"{cost}{_steps(largest.planned)}")
            yield from (_line("", "", failed) for failed in largest.failed)

    def _of_the_plan(self) -> Iterator[str]:
        if (planned := self.planned) is not None:
            yield _line("pool of the plan", human(planned.placement.height), "the height of its placement")
            yield from planned.summary()
            times = " becomes ".join(human_ns(run.timeline.makespan) for run in (planned.before, planned.after))
            yield _line("overhead as planned", percent(planned.overhead), f"by the address-aware simulation: {times}")
            yield from [f"{'as it turns out':{WIDTH}}{planned.realised}"] if planned.realised else []
            yield f"{'oracles':{WIDTH}}{planned.checked}"
        elif self.least is not None:
            yield _line("least limit found", _typed(self.least.pool or 0), _cost(self.least))
        for k, tried in enumerate(sorted(self.tried, key=lambda t: inf if t.overhead is None else t.overhead)):
            yield f"{'' if k else 'planners':{WIDTH}}{tried}"

    def next(
        self,
        workload: str | Sequence[str],
        *,
        device: str = "meta",
        chunk: str | None = None,
        assume: str | None = None,
        written: str | None = None,
    ) -> str:
        """Return what to type next: a command, or with a written plan the line of Python that runs it.

        Where nothing was found that may be there, it is the same with more time; where that was long, or it is proved
        that nothing is, a limit that does, a larger machine, or the largest batches.

        Parameters
        ----------
        workload : str or sequence of str
            `FILE.py:make`, or the words `--script FILE.py ARGS`.
        device : str
            Where it was captured.
        chunk : str, optional
            In what pieces.
        assume : str, optional
            What was to be assumed.
        written : str, optional
            The folder that the answer was written to.
        """
        where = [] if device == "meta" else ["--device", device]
        where += [] if chunk is None else ["--chunk", chunk]
        where += [] if assume is None else ["--assume", assume]
        given = [workload] if isinstance(workload, str) else [*workload]
        whole_script = given[:1] == ["--script"]

        def typed(*words: str) -> str:  # what a script is given stands last
            gpumem, command, *rest = words
            return shlex.join([gpumem, command, *rest, *given] if whole_script else [gpumem, command, *given, *rest])

        command = ["gpumem", "fit", *where, "--machine", self.machine.name]
        sized = [] if self.batch is None else ["--batch", str(self.batch)]
        bound = [] if self.overhead is None else ["--overhead", f"{self.overhead * 100:g}%"]
        limit = [] if self.limit == self._headroom else ["--limit", _typed(self.limit)]
        source = [] if self.seconds == SECONDS else ["--seconds", f"{self.seconds:g}"]
        if self.fits and self.sizable and self.largest is None and written is None:
            return typed(*command, *limit, *bound, "--largest")
        if self.planned is not None and written is None:
            return typed(*command, *sized, *limit, *bound, *source, "--out", "planned")
        if self.planned is not None and self.planned.plan.decisions and written is not None:
            keywords = {"plan": written, "chunk": chunk, "device": None if device == "meta" else device}
            how = "".join(f', {name}="{value}"' for name, value in keywords.items() if value is not None)
            return f'with gpumem.torch.managed("{_typed(self.limit)}"{how}): ...'
        if self.fits_planned:
            return typed("gpumem", "capture", *where, *sized, "-o", "trace.json.gz")
        if self.needs <= self.limit and self._longer <= LONGEST:
            return typed(*command, *sized, *limit, *bound, "--seconds", f"{self._longer:g}")
        pool = self.limit if self.least is None else self.least.pool or 0
        if pool <= self._headroom:
            return typed(*command, *sized, "--limit", _typed(pool), *bound, *source)
        if larger := [m for m in PRESETS.values() if m.available - self.context >= pool]:
            command[-1] = min(larger, key=lambda m: m.capacity).name
            return typed(*command, *sized, *bound)
        return typed(*command, *limit, *bound, *(["--largest"] if self.sizable else ["--workspaces", "none"]))

    @property
    def _headroom(self) -> int:
        """What the machine has beside the context."""
        return self.machine.capacity - self.context

    @strict
    def save(self, directory: str | Path, *, source: str = "") -> None:
        """Write what `gpumem fit --out` writes: all of it, or nothing.

        Parameters
        ----------
        directory : path
            Made where it is not there; other files in it stay.
        source : str
            The workload, for the `meta` of the trace that is written.

        Raises
        ------
        ValueError
            The directory cannot be written to.
        """
        with staged(directory, "directory") as folder:
            self.write(folder, source)

    def write(self, folder: Path, source: str = "") -> None:
        """Write the report, the captured trace, and what `Planned.write` writes of the plan into a folder."""
        write_text(folder / "report.txt", self.report() + "\n")
        write(folder / "captured.json.gz", self.trace, machine=self.machine, source=source)
        if self.planned is not None:
            self.planned.write(folder, source)

    def with_(self, **changes: Any) -> Fit:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def _line(what: str, value: str, note: str) -> str:
    return f"{what:{WIDTH}}{value:>12}  {note}".rstrip()


def _steps(batch: int) -> str:
    if batch == MOST:
        return ", the most that is tried"
    step = step_at(batch)
    return f", tried in steps of {step}" if step > 1 else ""


def _cost(planned: Planned) -> str:
    return f"overhead {percent(planned.overhead)} by {planned.planner}"


def _typed(size: int) -> str:
    """Write bytes as they are typed: in halves of a GiB or whole MiB where they are that."""
    if size and size % 2**29 == 0:
        return f"{size / 2**30:g}GiB"
    return f"{size // 2**20}MiB" if size % 2**20 == 0 else str(size)


def _apart(size: int, other: int) -> str:
    return exact(size) if human(size) == human(other) and size != other else human(size)
