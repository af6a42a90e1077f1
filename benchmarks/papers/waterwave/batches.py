"""The largest batch that fits: of one job, and of jobs that share a GPU, by halves and by node groups.

What fits, in bytes of the machine that a program can have:

- *solo*: the peak live bytes of the trace.
- *waterwave*: the paper's schedule without delays, two jobs' node groups in pairs. *Bound*: whatever the order in
  which the host comes to the ops of a pair. *Issue order*: that of `together`, in which both groups begin at once.
- *waterwave-s*: two groups a job, cut at the peak or between the two passes, the better; the largest batch of six runs
  in which one stream is handed over up to a tenth faster or slower than the other: the paper runs each batch six times.

With delays a pipeline always exists where a job fits beside what the others hold at rest, so beside that batch stands
how much still runs side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from benchmarks.papers.waterwave.published import MIXED, SEVERAL, SEVERAL_RATE, TABLE1, model_of
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs import verify
from gpumem.jobs.waterwave import Pipeline, co_schedule, halves, partition, pipeline, reordered, round_ns
from gpumem.jobs.waterwave.node_groups import ORDERS, Partition, between
from gpumem.jobs.waterwave.sharing_policies import SharingPolicy
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.trace import Trace
from gpumem.trace.batch import largest, rebatch, recorded_batch

Row = dict[str, Any]
Needs = Callable[[Pipeline, Machine], int]  # bytes

PIECES = tuple(2 * 2 ** (k / 6) for k in range(37))  # of a job's peak, a split size each
FEW = PIECES[::6]
PACES = (0.9, 0.94, 0.98, 1.02, 1.06, 1.1)  # of one stream's handing over beside the other's: six runs
FINE = 1000  # of the batches of two models, in parts of what each has alone
NEEDS: dict[str, Needs] = {
    "bound": lambda line, machine: int(line.bound().max()),
    "issue order": lambda line, machine: co_schedule(line, machine).trace.peak_live_bytes,
}


@dataclass(frozen=True, slots=True, eq=False)
class Sizing:
    """What all measurements have in common."""

    machine: Machine
    progress: Callable[[str], None]
    pieces: tuple[float, ...] = PIECES
    slowdown: float = 1.0  # of kernels that run side by side: see `gpumem.simulator.sharing.share`
    clock: Callable[..., int] = round_ns  # what a round of a pipeline takes; `judged_ns` asks the oracle as well

    @property
    def limit(self) -> int:
        """Bytes that a program can have."""
        return self.machine.available


@strict
def ordered(trace: Trace, order: str) -> Trace:
    """Return a job's trace with its ops in one of `ORDERS`; solo, too, it then runs so.

    >>> from gpumem.io import bundled
    >>> ordered(bundled("mlp3"), "depth").n == bundled("mlp3").n
    True
    """
    return reordered(trace, ORDERS[order](trace))


def judged_ns(line: Pipeline, machine: Machine, *, slowdown: float = 1.0, hosts: int = 1) -> int:
    """Return what a round of a pipeline takes; a few rounds of it are held against the naive oracle.

    >>> from gpumem.io import bundled
    >>> from gpumem.jobs.waterwave import temporal
    >>> judged_ns(temporal([bundled("vgg16")] * 2, Machine.named("v100")), Machine.named("v100"))
    90606234
    """
    verify.rounds(line, machine, slowdown, hosts=hosts)
    return round_ns(line, machine, slowdown=slowdown, hosts=hosts)


def beside(line: Pipeline) -> float:
    """Return the part of the work that runs side by side, if nothing slows down what does."""
    ns = [[0 if run is None else int(line.parts[run[0]].ns[run[1]]) for run in row] for row in line.rows()]
    return float(2 * sum(min(pair) for pair in zip(*ns)) / max(sum(map(sum, ns)), 1))


class Ladder:
    """Whether jobs fit at one of several split sizes; what fitted last is tried first."""

    def __init__(self, sizing: Sizing, needs: Needs, pieces: Sequence[float] = ()) -> None:
        self.sizing, self.needs, self.pieces = sizing, needs, list(pieces or sizing.pieces)
        self.found: Pipeline | None = None

    def __call__(self, traces: Sequence[Trace]) -> bool:
        most = max(trace.peak_live_bytes for trace in traces)
        for piece in self.pieces:
            line = undelayed(traces, self.sizing.machine, int(most / piece))
            if self.needs(line, self.sizing.machine) <= self.sizing.limit:
                self.found = line
                self.pieces = [piece, *(other for other in self.pieces if other != piece)]
                return True
        return False


def undelayed(traces: Sequence[Trace], machine: Machine, split: int, keep: Sequence[tuple[int, int]] = ()) -> Pipeline:
    """The paper's schedule of jobs, without delays."""
    return pipeline(parts_of(traces, machine, split, keep), overlap=0)


def parts_of(
    traces: Sequence[Trace], machine: Machine, split: int, keep: Sequence[tuple[int, int]] = ()
) -> list[Partition]:
    """Jobs in node groups, once for jobs that are the same."""
    cut = cache(lambda trace: partition(trace, machine, max(split, 1), keep=keep))
    return [cut(trace) for trace in traces]


def _coarse_fits(sizing: Sizing, needs: str, traces: Sequence[Trace]) -> bool:
    lines = halves(traces, sizing.machine)
    if needs == "bound":
        return min(NEEDS[needs](line, sizing.machine) for line in lines) <= sizing.limit
    runs = (co_schedule(line, sizing.machine, pace=pace) for line in lines for pace in PACES)
    return any(run.trace.peak_live_bytes <= sizing.limit for run in runs)


@strict
def needed(traces: Sequence[Trace]) -> int:
    """Return the bytes that the job which needs most takes beside the others at rest: they fit in turn in no less.

    >>> from gpumem import bundled
    >>> round(needed([bundled("vgg16")] * 2) / bundled("vgg16").peak_live_bytes, 2)
    1.25
    """
    rest = [int(between(trace)[0]) for trace in traces]
    return max((sum(rest) - own + trace.peak_live_bytes for own, trace in zip(rest, traces)), default=0)


def alone_ns(traces: Sequence[Trace], machine: Machine) -> list[int]:
    """What an iteration of each job takes that has the GPU for itself."""
    return [simulate(trace, machine).makespan for trace in traces]


def named(traces: Sequence[Trace]) -> str:
    """What jobs are called together."""
    return " + ".join(trace.name for trace in traces)


def within(policy: SharingPolicy, *args: Any, **options: Any) -> Pipeline | None:
    """What a sharing policy makes of jobs, None where it does not keep within the limit."""
    try:
        return policy(*args, **options)
    except (Infeasible, NotReached):
        return None


@strict
def delayed(sizing: Sizing, traces: Sequence[Trace]) -> Pipeline:
    """Return the pipeline within the limit, with delays, in which most runs side by side.

    Raises
    ------
    Infeasible
        A job does not fit beside what the others hold at rest.
    """
    most = max(trace.peak_live_bytes for trace in traces)
    lines = [pipeline(parts_of(traces, sizing.machine, int(most / piece)), sizing.limit) for piece in sizing.pieces]
    return max(lines, key=beside)


def at_batch(trace: Trace, jobs: int, batch: int) -> list[Trace]:
    """So many jobs, each a trace at another batch."""
    return [rebatch(trace, batch / recorded_batch(trace))] * jobs


def most_of(make: Callable[[int], list[Trace]], fits: Callable[[list[Trace]], bool], start: int) -> int:
    """The largest batch at which jobs fit."""
    return largest(lambda k: fits(make(k)), start, exact=True)


def solo(sizing: Sizing, trace: Trace) -> int:
    """Return the largest batch of a job that has the GPU for itself."""
    return most_of(
        partial(at_batch, trace, 1), lambda traces: traces[0].peak_live_bytes <= sizing.limit, recorded_batch(trace)
    )


@strict
def several(sizing: Sizing, trace: Trace, jobs: int = 2, order: str = "recorded") -> Row:
    """Find the largest batches of jobs that are the same: a row of Table 1 for two, of section 5.5 for more.

    Returns
    -------
    dict
        `solo`; `coarse` (Waterwave-s, of six runs) and `coarse bound`; `waterwave` in issue order, and `bound`, each
        with the groups of a job and how much runs side by side at it; `rate`, samples a second; `delayed`, with how
        much then does; the paper's row, where it is a model of it.
    """
    mine = ordered(trace, order)
    sizing.progress(f"{trace.name}, {order}: {jobs} jobs")
    alone = solo(sizing, mine)
    make = cache(partial(at_batch, mine, jobs))
    row: Row = {
        "trace": trace.name,
        "machine": sizing.machine.name,
        "order": order,
        "jobs": jobs,
        "solo": alone,
        "rate": None,
    }
    row["coarse"] = most_of(make, partial(_coarse_fits, sizing, "issue order"), max(alone * 5 // 8, 1))
    row["coarse bound"] = most_of(make, partial(_coarse_fits, sizing, "bound"), max(alone // 2, 1))
    for name, needs in (("waterwave", "issue order"), ("bound", "bound")):
        fits = Ladder(sizing, NEEDS[needs])
        row[name] = most_of(make, fits, max(alone * 7 // 8, 1))
        row |= about(fits.found, name)
        if name == "waterwave" and fits.found is not None:
            row["rate"] = rate(sizing, fits.found, jobs * row[name])
    row["delayed"] = most_of(make, lambda traces: needed(traces) <= sizing.limit, max(alone, 1))
    row["delayed beside"] = beside(delayed(sizing, make(row["delayed"]))) if row["delayed"] else None
    model = model_of(trace.name)
    row["paper"] = TABLE1.get((sizing.machine.name, model)) if jobs == 2 else None
    known = (sizing.machine.name, model) == ("v100", "resnet50")
    row["paper several"] = SEVERAL.get(jobs) if known else None
    return row | {"paper rate": SEVERAL_RATE.get(jobs) if known else None}


def rate(sizing: Sizing, line: Pipeline, samples: int) -> float:
    """Samples a second of a pipeline, so many a round, with a host thread a stream."""
    return 1e9 * samples / sizing.clock(line, sizing.machine, slowdown=sizing.slowdown, hosts=2)


def about(line: Pipeline | None, name: str) -> Row:
    """What a pipeline is, under a name."""
    if line is None:
        return dict.fromkeys((f"{name} groups", f"{name} beside"))
    return {f"{name} groups": max(map(len, line.parts)), f"{name} beside": beside(line)}


@strict
def mixed(sizing: Sizing, traces: Sequence[Trace], order: str = "recorded") -> Row:
    """Find the largest batches of two models, each the same part of what it has alone: Table 2."""
    mine = [ordered(trace, order) for trace in traces]
    sizing.progress(f"{named(traces)}, {order}")
    alone = [solo(sizing, trace) for trace in mine]

    @cache
    def make(part: int) -> list[Trace]:
        return [at_batch(trace, 1, max(most * part // FINE, 1))[0] for trace, most in zip(mine, alone)]

    row: Row = {"traces": [trace.name for trace in traces], "machine": sizing.machine.name, "order": order}
    row["solo"] = alone
    for name, needs in (("waterwave", "issue order"), ("bound", "bound")):
        fits = Ladder(sizing, NEEDS[needs])
        part = most_of(make, fits, FINE * 7 // 8)
        row[name] = [max(most * part // FINE, 1) for most in alone]
        row |= about(fits.found, name)
    part = most_of(make, lambda traces: needed(traces) <= sizing.limit, FINE)
    row["delayed"] = [most * part // FINE for most in alone]
    first, second = (model_of(trace.name) for trace in traces)
    return row | {"paper": MIXED.get((first, second)) if sizing.machine.name == "v100" else None}
