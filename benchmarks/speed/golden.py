"""Plans, bounds, placements, logs and tables as hashes, so that a change which should change none can show that.

    python -m benchmarks.speed.golden > after.txt && diff benchmarks/results/golden.txt after.txt
    python -m benchmarks.speed.golden --quick    # compares with the rows that it has there, in a minute; so does
    CI

A row is the SHA-256 of the plan's JSON (of a placement's offsets; of a bound's figure), or the kind of refusal, then
trace, machine, limit, planner and the makespan in nanoseconds by the clock that the limit asks for, or what a refusal
says of how far it got. Rows of `_golden_runs.py` follow, of what runs: jobs, programs within a limit, MO-SOS, and what
commands print. `tight` is a machine that may pin a third of the peak live bytes, `half` one whose two copy directions
share the link. Searches get little effort. Traces that do not ship with gpumem are left out where they are absent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.speed._bench import SHARED
from benchmarks.speed._golden_runs import digest, runs
from gpumem import Infeasible, Machine, NotReached, Trace, bundled, pool, read, swap
from gpumem.io import BUNDLED
from gpumem.simulator.simulate import simulate
from gpumem.swap import least_stall, zero_stall_limit

RESULT = Path(__file__).parents[1] / "results" / "golden.txt"
SMALL = 400  # ops up to which the costly planners run as well
LIMITS = (70, 50)
SCORES = ("doa", "aoa", "wdoa", "swdoa")


def machines(trace: Trace) -> dict[str, Machine]:
    """Three environments: the usual one, one with little pinned memory, one with half the link."""
    usual = Machine.named("gtx1080ti")
    return {
        "gtx1080ti": usual,
        "tight": replace(usual, pinned=trace.peak_live_bytes // 3),
        "half": replace(Machine.named("v100"), duplex=False),
    }


def planners(trace: Trace, machine: str) -> dict[str, Callable[..., object]]:
    """Swap planners by name; the slow ones on small traces only."""
    table: dict[str, Callable[..., object]] = dict(swap.PLANNERS)
    usual = ("on-demand", "on-demand-nonblocking", "heuristic", "vdnn-all", "vdnn-conv", "checkpoint", "tensile")
    cheap = {name: table[name] for name in usual}
    scores = SCORES if machine == "gtx1080ti" else SCORES[:1]
    found = cheap | {f"autoswap-{score}": partial(table["autoswap"], score=score) for score in scores}
    if trace.n <= 1000:
        found["capuchin"] = table["capuchin"]
    if trace.n <= SMALL:
        found["search"] = partial(table["search"], effort=0.03)
        if machine == "gtx1080ti":
            found["search-placed"] = partial(table["search"], effort=0.03, placed=True)
            found["bayes"] = partial(table["bayes"], evaluations=12)
            found["least-stall"] = lambda t, m, limit: least_stall(t, m, limit, rounds=4)
    return found


def planned(trace: Trace, machine: Machine, limit: int, planner: Callable[..., object]) -> tuple[str, object]:
    """Hash of one plan or bound, and its makespan."""
    try:
        found = planner(trace, machine, limit)
    except (Infeasible, NotReached) as stop:
        return f"{type(stop).__name__:16}", stop.needs if isinstance(stop, Infeasible) else stop.reached
    except ValueError as error:
        return f"{'refused':16}", digest(str(error))
    if isinstance(found, swap.Plan):
        return digest(found.to_json()), simulate(found.apply(trace), machine, capacity=limit).makespan
    return digest(str(found.stall_ns)), found.stall_ns


def rows(path: str) -> Iterator[str]:
    """All rows of one trace."""
    trace = bundled(path) if path in BUNDLED else read(path)
    name = path if path in BUNDLED else Path(path).name.split(".")[0]
    for label, planner in pool.PLANNERS.items():
        if label != "exact" and (label != "search" or len(trace.buffers) <= 3000):
            placed = planner(trace, **({"effort": 0.05} if label == "search" else {}))
            line = simulate(trace, Machine.named("gtx1080ti"), placed).makespan if len(trace.ops) else "-"
            yield f"{digest(str(placed.offset.tolist()))} {name} - {placed.height} {label} {line}"
    if not len(trace.ops):
        return
    for where, machine in machines(trace).items():
        for percent in LIMITS:
            for label, planner in planners(trace, where).items():
                hashed, cost = planned(trace, machine, trace.peak_live_bytes * percent // 100, planner)
                yield f"{hashed} {name} {where} {percent}% {label} {cost}"
    if trace.n <= 1000:
        least = zero_stall_limit(trace, Machine.named("gtx1080ti"), rounds=4).limit
        yield f"{digest(str(least))} {name} gtx1080ti - zero-stall-limit {least}"


def of_one(path: str) -> list[str]:
    """Rows of one trace, and a word on stderr, since this takes a while."""
    found = list(rows(path))
    print(path.split("/")[-1], len(found), file=sys.stderr, flush=True)
    return found


def changed(found: list[str]) -> list[str]:
    """Rows that the kept output has otherwise, or not at all; what needs a package that is absent is not asked for."""
    kept = set(RESULT.read_text().splitlines())
    return [row for row in found if row not in kept]


def main() -> None:
    """Print the rows of the traces named, else of all there are; or compare the quick ones."""
    if sys.argv[1:] == ["--quick"]:
        found = [*of_one("mlp3"), *runs(quick=True)]
        sys.exit("\n".join(["not as in benchmarks/results/golden.txt:", *lost]) if (lost := changed(found)) else 0)
    shared = [*SHARED.glob("traces/*.json.gz"), *SHARED.glob("dsa/*/*.csv")]
    paths = sys.argv[1:] or [*BUNDLED, *map(str, sorted(shared))]
    with ProcessPoolExecutor(2) as workers:
        for found in workers.map(of_one, paths):
            print(*found, sep="\n", flush=True)
    if not sys.argv[1:]:
        print(*runs(quick=False), sep="\n")


if __name__ == "__main__":
    main()
