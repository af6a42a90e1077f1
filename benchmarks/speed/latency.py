"""How well are the times of ops of unseen shapes predicted, by type, and what does a trace lose by not knowing shapes?

Without `--table`, the measurements are made up: the roofline with an efficiency of each type's own, waves, the stated
slow-down beside other jobs, noise. They show that the method works, not how well it predicts a real GPU. With a table
that `gpu.py --latency FILE` has written, they are real.

R^2 of times (and of their logarithms) on a quarter of the shapes, the median over the seeds: networks that look at
`sizes` (flops, and bytes of each operand: what a trace knows) and at `shapes` (dimensions and parameters: the paper's
inputs); the roofline as it is; the roofline with the true slow-down. The settings were chosen on seed 0.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.speed._bench import SHARED, header
from gpumem import Machine
from gpumem.execute.latency import (
    Measurement,
    Sample,
    Score,
    fit,
    grid,
    read_table,
    samples,
    scores,
    shapes,
    sizes,
    split,
    synthetic,
)
from gpumem.execute.latency.predictor import LEAST
from gpumem.io import BUNDLED, bundled, read
from gpumem.trace import F64

Way = Callable[[list[Measurement], Sequence[Measurement]], F64]
SLOWDOWN = 1.0


def roofline(machine: Machine, rows: Sequence[Measurement], slowdown: float) -> F64:
    """Return the machine's roofline, slowed down as stated."""
    flops, moved, busy = (
        np.array(column) for column in zip(*((r.sample.flops, r.sample.moved, r.utilisation) for r in rows))
    )
    return machine.roofline_ns(flops, moved) * (1 + slowdown * busy)


def ways(machine: Machine, known: bool, real: bool) -> dict[str, Way]:
    """The predictions that are compared: each learns from rows and predicts others, the roofline where it cannot."""

    def network(features: Callable[[Sample], list[tuple[float, ...]]]) -> Way:
        def way(learn: list[Measurement], judge: Sequence[Measurement]) -> F64:
            ns = fit(learn, features=features).ns([r.sample for r in judge], [r.utilisation for r in judge])
            return np.where(np.isnan(ns), roofline(machine, judge, 0), ns)

        return way

    found: dict[str, Way] = {"sizes": network(sizes)}
    if known:
        found["shapes"] = network(shapes)
    found["roofline"] = lambda learn, judge: roofline(machine, judge, 0)
    if not real:
        found["slowed"] = lambda learn, judge: roofline(machine, judge, SLOWDOWN)
    return found


def recorded() -> tuple[list[Sample], int]:
    """Return the distinct ops of the recorded traces that are here, and how many traces those are."""
    files = sorted(SHARED.glob("traces/*.json.gz"))
    traces = [read(path) for path in files] or [bundled(name) for name in BUNDLED]
    return list(dict.fromkeys(op for trace in traces for op in samples(trace))), len(traces)


def table(title: str, rows: Callable[[int], Sequence[Measurement]], seeds: Sequence[int], ways: dict[str, Way]) -> None:
    """Print a line for each type, the most expensive first, and the mean over types."""
    found: dict[str, list[dict[str, Score]]] = {name: [] for name in ways}
    begin = time.process_time()
    for seed in seeds:
        learn, judge = split(rows(seed), seed=seed)
        for name, way in ways.items():
            found[name].append({s.name: s for s in scores(judge, way(learn, judge)) if s.shapes >= 3})
    types = sorted(found["sizes"][0].values(), key=lambda s: -s.total)
    if not types:
        raise SystemExit(f"{title}: no type has 3 shapes to judge by; measure more")
    total = sum(s.total for s in types)
    print(f"\n{title}; {len(seeds)} seeds, {time.process_time() - begin:.0f} s of CPU")
    print(f"{'type':42}{'shapes':>7}{'time %':>7}" + "".join(f"{name:>10}{'(log)':>8}" for name in ways))

    left = {t.name for t in types if all(run["sizes"] == run["roofline"] for run in by_seed(found, t.name))}

    def line(what: str, picked: Sequence[str], start: str) -> None:
        cells = ""
        for name in ways:
            for field in ("r2", "log_r2"):
                means = [np.mean([getattr(run[t], field) for t in picked if t in run]) for run in found[name]]
                cells += f"{np.median(means):>{10 if field == 'r2' else 8}.3f}"
        print(f"{what:42}{start:>14}{cells}")

    for s in types:
        line(s.name + " *" * (s.name in left), [s.name], f"{s.shapes:>7}{100 * s.total / total:>7.1f}")
    line("mean over types", [s.name for s in types], "")
    if left:
        line("mean over types but those with *", [s.name for s in types if s.name not in left], "")
        print(f"* fewer than {LEAST} shapes to learn from: left to the roofline")


def by_seed(found: dict[str, list[dict[str, Score]]], name: str) -> list[dict[str, Score]]:
    """Return the scores of a type, by way, for each seed that has them."""
    runs = [dict(zip(found, run)) for run in zip(*found.values())]
    return [{way: run[way][name] for way in run} for run in runs if all(name in run[way] for way in run)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", metavar="FILE", help="measurements instead of made-up ones")
    parser.add_argument("--machine", default="gtx1080ti", help="whose roofline")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    seeds, machine = range(1, args.seeds + 1), Machine.named(args.machine)
    print(header(f"1 to {args.seeds}"))
    print(f"# scikit-learn {importlib.metadata.version('scikit-learn')}; roofline of {machine.name}")
    print("# the paper: 0.582 in the mean over operators, 0.805 for the most expensive ones, such as convolution")
    if args.table:
        measured = read_table(args.table)
        known = all(row.sample.shapes is not None for row in measured.rows)
        print(f"# measured: {measured.source}")
        table(f"{args.table}: {len(measured.rows)} rows", lambda s: measured.rows, seeds, ways(machine, known, True))
        return
    print("# MADE-UP MEASUREMENTS: these figures say that the method works, not how well it predicts a real GPU")
    for count in (20, 60, 180):
        title = f"made up: {count} log-uniform shapes of each type at 3 utilisations, noise 10 %"
        drawn = ways(machine, True, False)
        table(title, lambda s, n=count: synthetic(grid(n, seed=s), machine, seed=s, slowdown=SLOWDOWN), seeds, drawn)
    ops, count = recorded()
    title = f"made up: {len(ops)} distinct ops of {count} recorded traces at 3 utilisations, noise 10 %"
    table(title, lambda s: synthetic(ops, machine, seed=s, slowdown=SLOWDOWN), seeds, ways(machine, False, False))


if __name__ == "__main__":
    main()
