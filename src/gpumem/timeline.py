"""What every run returns: when each op ran, what it waited for, how long an iteration takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumem._show import Facts, Shown, frame
from gpumem._strict import strict
from gpumem.columns import I64, position
from gpumem.trace import Trace
from gpumem.units import human_ns

if TYPE_CHECKING:
    from pandas import DataFrame

NONE, DATA, COPY, MEMORY, HOST = range(5)
CAUSES = ("none", "data", "copy", "memory", "host")


@dataclass(frozen=True, slots=True)
class Span:
    """One op of a timeline: `[start, end)` in ns, how long it waited beyond its stream, and for what."""

    op: int
    start: int
    end: int
    wait: int = 0
    cause: str = "none"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timeline(Shown):
    """One iteration in the steady state.

    Parameters
    ----------
    start, end : int64[n]
        Nanoseconds from the first start of this iteration. Ops of neighbouring iterations may overlap.
    wait : int64[n]
        Nanoseconds between the moment the op's engine was free and its start.
    cause : int64[n]
        What it waited for, an index into `CAUSES`: `data` of a computation, a `copy`, `memory` that an earlier op still
        held, or the `host` that handed it over; `none` where it did not wait. A host that a blocking copy held counts
        as that copy.
    makespan : int
        Nanoseconds an iteration takes: the mean over the repeating regime, rounded.
    first : int
        Iterations before the regime; `start` and `end` show the first one inside it.
    cycle : int
        Iterations after which the regime repeats exactly; 0 where none was found within the iterations
        simulated (then `makespan` is the mean over their second half).
    stalls : dict[str, int]
        Nanoseconds that computing ops wait in one iteration, by cause, the mean over the regime; `host` only with the
        host on.
    issued : int64[n], optional
        When each op was handed over, in nanoseconds as `start`; below 0 where the host leads. None with the host off.
    """

    start: I64
    end: I64
    wait: I64
    cause: I64
    makespan: int
    first: int
    cycle: int
    stalls: dict[str, int]
    issued: I64 | None = None

    def _facts(self) -> Facts:
        stalls = ", ".join(f"{human_ns(ns)} for {cause}" for cause, ns in self.stalls.items() if ns)
        regime = f"after {self.first} iterations, every {self.cycle}" if self.cycle else "not found"
        return {"ops": len(self), "makespan": human_ns(self.makespan), "stalls": stalls or "none", "repeats": regime}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row an op; needs `gpumem[pandas]`.

        `start_ns`, `end_ns`, `wait_ns`, and `cause`: what it waited for, one of `CAUSES`.
        """
        cause = [CAUSES[k] for k in self.cause.tolist()]
        return frame({"start_ns": self.start, "end_ns": self.end, "wait_ns": self.wait, "cause": cause}, index="op")

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, i: int) -> Span:
        i = position(i, len(self), "op")
        return Span(i, int(self.start[i]), int(self.end[i]), int(self.wait[i]), CAUSES[self.cause[i]])

    def __iter__(self) -> Iterator[Span]:
        return (self[i] for i in range(len(self)))

    @strict
    def check_fits(self, trace: Trace) -> None:
        """Refuse a trace that this is not a run of, with a ValueError: there is one span for each of its ops."""
        if len(self) != trace.n:
            raise ValueError(f"timeline: {len(self)} ops, but trace {trace.name!r:.60} has {trace.n}")

    @strict
    def overhead(self, base: Timeline) -> float:
        """Return how much longer an iteration takes than in `base`, as a fraction.

        A base with the host off for a run with the host on, or the other way round, is a ValueError: they are not
        comparable (see `gpumem.simulate.baseline`).
        """
        if (self.issued is None) != (base.issued is None):
            on, off = ("run", "base") if base.issued is None else ("base", "run")
            raise ValueError(f"overhead: the host is on in the {on} and off in the {off}; baseline() has the same host")
        if not base.makespan:
            return 0.0 if not self.makespan else float("inf")
        return self.makespan / base.makespan - 1
