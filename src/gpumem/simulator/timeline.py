"""What every run returns: when each op ran, what it waited for, how long an iteration takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown, frame
from gpumem.base.names import one_of
from gpumem.base.units import human_ns
from gpumem.trace import I64, Trace, position

if TYPE_CHECKING:
    from pandas import DataFrame

NONE, DATA, COPY, MEMORY, HOST = range(5)  # indices into `CAUSES`; of two reasons to wait for one op, the lower counts
CAUSES = ("none", "data", "copy", "memory", "host")
FREED = ("scheduled", "completed")


@dataclass(frozen=True, slots=True)
class Span:
    """One op of a timeline: `[start, end)` in ns, how long it waited beyond its stream, and for what.

    `issued` is when its host launched it, None with the host off.
    """

    op: int
    start: int
    end: int
    wait: int = 0
    cause: str = "none"
    issued: int | None = None


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
        held, or the `host` that launched it; `none` where it did not wait. Where a
        blocking copy held the host until all else was there, or longer, that copy is the cause.
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
        When each op was launched, in nanoseconds as `start`; below 0 where the host leads. None with the host off.
    host_costs : int64[n], optional
        How long its host took to launch each op, in nanoseconds, up to `issued`.
    gain : int
        Nanoseconds by which the host gets further ahead of the device in an iteration, the mean over the regime; above
        0 only where nothing lets it wait.
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
    host_costs: I64 | None = None
    gain: int = 0

    def _facts(self) -> Facts:
        stalls = ", ".join(f"{human_ns(ns)} for {cause}" for cause, ns in self.stalls.items() if ns)
        regime = f"after {self.first} iterations, every {self.cycle}" if self.cycle else "not found"
        return {"ops": len(self), "makespan": human_ns(self.makespan), "stalls": stalls or "none", "repeats": regime}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row an op; needs `gpumem[pandas]`.

        `start_ns`, `end_ns`, `wait_ns`, and `cause`: what it waited for, one of `CAUSES`; with the host on `issued_ns`.
        """
        cause = [CAUSES[number] for number in self.cause.tolist()]
        rows = {"start_ns": self.start, "end_ns": self.end, "wait_ns": self.wait, "cause": cause}
        return frame(rows if self.issued is None else rows | {"issued_ns": self.issued}, index="op")

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, op: int) -> Span:
        op = position(op, len(self), "op")
        issued = None if self.issued is None else int(self.issued[op])
        return Span(
            op,
            int(self.start[op]),
            int(self.end[op]),
            wait=int(self.wait[op]),
            cause=CAUSES[self.cause[op]],
            issued=issued,
        )

    def __iter__(self) -> Iterator[Span]:
        return (self[op] for op in range(len(self)))

    @property
    def host_period(self) -> int:
        """Nanoseconds that the hosts take for an iteration: as long as the device, less what they gain on it."""
        return self.makespan - self.gain

    @strict
    def check_fits(self, trace: Trace) -> None:
        """Refuse a trace that this is not a run of, with a ValueError: there is one span for each of its ops."""
        if len(self) != trace.n:
            raise ValueError(f"timeline: {len(self)} ops, but trace {trace.name!r:.60} has {trace.n}")

    @strict
    def overhead(self, base: Timeline) -> float:
        """Return how much longer an iteration takes than in `base`, as a fraction.

        Both are to have the same host: where one has it on and the other off, take
        `gpumem.simulator.simulate.baseline`.
        """
        if not base.makespan:
            return 0.0 if not self.makespan else float("inf")
        return self.makespan / base.makespan - 1

    @strict
    def host_spans(self, trace: Trace) -> list[list[Span]]:
        """Return what each host does in the iteration: a span an op that it launches. No hosts while the host is off.

        `[start, end)` is the time that takes, `wait` how long the host waited right before, be it for an op that blocks
        or for the turn of other hosts; for its first op, from its last one in the iteration before.

        >>> from gpumem import Machine, bundled, simulate
        >>> line = simulate(bundled("mlp3"), Machine.named("p100").with_(host_ns=1e5))
        >>> line.host_spans(bundled("mlp3"))[0][1]
        Span(op=1, start=0, end=100000, wait=0, cause='none', issued=100000)
        """
        self.check_fits(trace)
        if self.issued is None or self.host_costs is None:
            return []
        rows: list[list[Span]] = [[] for _ in trace.ops.hosts]
        for host, spans in enumerate(rows):
            launched = np.flatnonzero(trace.ops.host == host)
            issued = self.issued[launched]
            begin = issued - self.host_costs[launched]
            wait = begin - np.concatenate([issued[-1:] - self.host_period, issued[:-1]])
            columns = (column.tolist() for column in (launched, begin, issued, np.maximum(wait, 0)))
            spans += [Span(op, start, end, waited, issued=end) for op, start, end, waited in zip(*columns)]
        return rows

    @strict
    def memory_over_time(self, trace: Trace, freed: str = "scheduled") -> tuple[I64, I64]:
        """Return the device memory that is taken during one steady iteration, as the host launches ops.

        A buffer is taken when the op that starts it is issued. It is given back when the last op that touches it is
        issued (`freed="scheduled"`), or when all that touch it have ended (`"completed"`). A dead tail is not held; a
        buffer that nobody touches is held through its arc, as if the last op of that touched it. Eternal buffers are
        always there.

        At one instant, what an op takes comes before what the same op gives back, and what has ended by then is given
        back before an op that is issued later takes. With `"scheduled"` that is issue order, so the peak is at most
        that of `trace.live_bytes()`, and the same where no lifetime has a dead tail.

        Parameters
        ----------
        trace : Trace
            That this is a run of.
        freed : str
            One of `FREED`.

        Returns
        -------
        time, bytes : int64[k]
            `bytes[j]` from `time[j]` to `time[j + 1]`, the last to the end of the iteration; nanoseconds from its first
            start, modulo the makespan (`host_period` with `"scheduled"`, the same unless the host gains), ascending
            from 0. Equal times are steps of no length: what ops at one instant take and give back in turn.

        Raises
        ------
        ValueError
            The host is off, `freed` is none of `FREED`, the trace is another; or it is freed at completion while the
            host gains in every iteration: then more is taken in each than in the one before.

        Notes
        -----
        O(accesses log accesses). Iterations before and after are the one shown, so long apart, and count where they
        overlap it. That is exact where `cycle` is 1; with a longer cycle, or none, neighbours differ and the curve is
        that of the iteration shown.

        References
        ----------
        Shi et al., Waterwave, section 3.1 and figure 2.

        Examples
        --------
        >>> from gpumem import Machine, simulate
        >>> from gpumem.trace import Buffers, Ops
        >>> ops = Ops.make([[], [0], [1]], [[0], [1], []], duration=[10, 10, 10])
        >>> trace = Trace(Buffers.make([8, 4], [0, 1], [2, 3]), ops)
        >>> line = simulate(trace, Machine.named("p100").with_(host_ns=1))
        >>> [column.tolist() for column in line.memory_over_time(trace)]
        [[0, 1, 1, 2], [8, 12, 4, 0]]
        >>> [column.tolist() for column in line.memory_over_time(trace, freed="completed")]
        [[0, 1, 20, 30], [8, 12, 4, 0]]
        """
        self.check_fits(trace)
        one_of("freed", freed, FREED)
        if self.issued is None:
            problem = (
                "nothing says when ops are issued; simulate with sync=True, or on a machine with host_ns, turns it on"
            )
            raise ValueError(f"memory_over_time: the host is off, so {problem}")
        if freed == "completed" and self.cycle and self.gain > 0:
            problem = f"the host gains {human_ns(self.gain)} in every iteration, so ever more is taken"
            raise ValueError(f"memory_over_time: {problem}; simulate with sync=True lets it wait for the last op")
        period = self.makespan if freed == "completed" else self.host_period
        taken, given, last = self._lifetimes(trace, self.issued, freed, period)
        buffers, eternal = trace.buffers, trace.eternal
        counted = ~buffers.host & ~eternal & (buffers.size > 0)
        time, at = (
            np.concatenate([taken[counted], given[counted]]),
            np.concatenate([buffers.start[counted], last[counted]]),
        )
        size = np.concatenate([buffers.size[counted], -buffers.size[counted]])
        turn = time // period if period else at // trace.n
        time, at = time - turn * period, at - turn * trace.n
        always = int(buffers.size[eternal & ~buffers.host].sum()) - int((size * turn).sum())
        return _steps(time, at, size, always)

    def _lifetimes(self, trace: Trace, issued: I64, freed: str, period: int) -> tuple[I64, I64, I64]:
        """Return when each buffer is taken and given back, and by which op: from `n` on, one of the next iteration."""
        buffers, touched = trace.buffers, trace.accesses().op
        idle = np.flatnonzero(np.diff(touched.ptr) == 0)
        buffer, op = np.concatenate([touched.rows(), idle]), np.concatenate([touched.idx, buffers.end[idle] - 1])
        at = buffers.start[buffer] + (op - buffers.start[buffer]) % trace.n
        taken, last = issued[buffers.start], buffers.start.copy()
        np.maximum.at(last, buffer, at)
        given = taken.copy()
        if freed == "scheduled":
            buffer, at = np.arange(len(buffers)), last
        when = (issued if freed == "scheduled" else self.end)[at % trace.n] + at // trace.n * period
        np.maximum.at(given, buffer, when)
        return taken, given, last


def _steps(time: I64, at: I64, change: I64, always: int) -> tuple[I64, I64]:
    """Add up changes by time, then op; of one op what it takes (a change above 0), then what it gives back."""
    order = np.lexsort((-change, at, time))
    time, at, change = time[order], at[order], change[order]
    held = always + np.cumsum(change)
    differs = (np.diff(time) != 0) | (np.diff(at) != 0) | (np.diff(np.sign(change)) != 0)
    ends = np.flatnonzero(np.append(differs, True)[: len(time)])
    time, held = time[ends], held[ends]
    if not len(time) or time[0] > 0:
        time, held = np.append(0, time), np.append(held[-1] if len(held) else always, held)
    return time, held
