"""How well are the times of ops, and of whole nets that were never measured, predicted from measured ones?

`gpumem measure` wrote the tables; its commands are printed. Eight nets are held out whole, twice. By type of op: R^2 of
times, as the paper has it, and of their logarithms; then R^2 of the logarithms of all ops, weighted by time; then each
net's iteration.

ours: the roofline, corrected by one regression (`latency.calibrate`). by type: the roofline times the median correction
of the type. network: the paper's rule, a network for each type that looks at dimensions and arguments, the roofline
where it cannot tell (`latency.fit` with `shapes`). roofline: of the rates that were measured along with the table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.latency import HELD
from benchmarks.speed._bench import header
from gpumem import Machine
from gpumem.execute.latency import LatencyTable, Measurement, Sample, calibrate, fit, read_table, scores, shapes
from gpumem.execute.latency.calibration import rooflines
from gpumem.trace import F64

TABLES = [Path(__file__).with_name(f"{draw}_table.jsonl.gz") for draw in ("first", "second")]
FEWEST = 3  # distinct ops of a type that are worth an R^2
FOLDS = 5
Way = Callable[[LatencyTable, Sequence[Measurement]], F64]


def main() -> None:
    """Print the tables of both draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folds", action="store_true", help="judge by nets to learn from, on which settings were chosen"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(header(args.seed))
    print(f"# scikit-learn {importlib.metadata.version('scikit-learn')}")
    first, second = map(read_table, TABLES)
    learn, held = part(first, lambda net: net not in HELD), part(first, lambda net: net in HELD)
    for name, table in (("first", first), ("second", second)):
        print(f"# {name} table: {table.source}\n# {about(table)}")
    if args.folds:
        print_folds(learn, args.seed)
        return
    draw("first draw", learn, held, args.seed)
    draw("second draw, the first is learned from as well", first, second, args.seed)


def part(table: LatencyTable, chosen: Callable[[str], bool]) -> LatencyTable:
    """Return the rows of some nets."""
    return replace(table, rows=tuple(row for row in table.rows if chosen(row.net)))


def draw(title: str, learn: LatencyTable, judge: LatencyTable, seed: int) -> None:
    """Learn from a table; print how well all of another are predicted."""
    print(f"\n{title}: learned from {told(learn.rows)};\njudged by {told(judge.rows)}")
    found = {name: way(learn, judge.rows) for name, way in ways(seed).items()}
    print_types(judge.rows, found, {row.sample.name for row in learn.rows})
    print_nets(judge, judge.rows, found)


def about(table: LatencyTable) -> str:
    """Say what was measured of the machine."""
    m = table.machine
    assert m is not None
    rates = f"{m.flops / 1e9:.4g} Gflop/s in products, {m.bandwidth / 1e9:.4g} GB/s in copies"
    return f"{m.name}: {rates}, {m.launch_ns:.0f} ns an op of one element"


def told(rows: Sequence[Measurement]) -> str:
    """Say how many rows there are, of how many types and nets."""
    types, nets = ({*names} for names in zip(*((row.sample.name, row.net) for row in rows)))
    return f"{len(rows)} distinct ops of {len(types)} types in {len(nets)} nets"


def ways(seed: int) -> dict[str, Way]:
    """The predictions that are compared: each learns from a table and predicts other rows."""
    return {"ours": ours(seed), "by type": by_type, "network": network, "roofline": roofline}


def ours(seed: int) -> Way:
    """The corrected roofline."""
    return lambda table, judge: calibrate(table, seed=seed).ns(ops_of(judge))


def by_type(table: LatencyTable, judge: Sequence[Measurement]) -> F64:
    """The roofline times the type's median correction."""
    rows, machine = table.rows, machine_of(table)
    ratio = np.array([row.ns for row in rows]) / rooflines(machine, ops_of(rows))
    names = np.array([row.sample.name for row in rows])
    factor = {name: float(np.median(ratio[names == name])) for name in {*names.tolist()}}
    usual = float(np.median(ratio))
    return rooflines(machine, ops_of(judge)) * np.array([factor.get(row.sample.name, usual) for row in judge])


def network(table: LatencyTable, judge: Sequence[Measurement]) -> F64:
    """The paper's rule."""
    ns = fit(table.rows, features=shapes).ns(ops_of(judge), 0)
    return np.where(np.isnan(ns), roofline(table, judge), ns)


def roofline(table: LatencyTable, judge: Sequence[Measurement]) -> F64:
    """The machine's roofline, of its measured rates."""
    return rooflines(machine_of(table), ops_of(judge))


def machine_of(table: LatencyTable) -> Machine:
    """Return the machine that was measured."""
    if table.machine is None:
        raise SystemExit("the table does not say which machine was measured; gpumem measure --ops writes one that does")
    return table.machine


def ops_of(rows: Sequence[Measurement]) -> list[Sample]:
    """Return the ops of some rows."""
    return [row.sample for row in rows]


def weighted_r2(rows: Sequence[Measurement], ns: F64) -> float:
    """R^2 of the logarithm, each op weighted by its time in an iteration."""
    took = np.array([row.ns for row in rows], np.float64)
    weight, true = took * [row.count for row in rows], np.log(took)
    off, spread = (true - np.log(ns)) ** 2, (true - np.average(true, weights=weight)) ** 2
    return 1 - float((weight * off).sum() / (weight * spread).sum())


def print_types(rows: Sequence[Measurement], found: dict[str, F64], known: set[str]) -> None:
    """Print a line for each type of op, the most expensive first, and what is to be said of all."""
    by_way = {name: {s.name: s for s in scores(rows, ns)} for name, ns in found.items()}
    took = {name: sum(r.ns * r.count for r in rows if r.sample.name == name) for name in {r.sample.name for r in rows}}
    whole = sum(took.values())
    types = sorted(took, key=lambda name: -took[name])
    print(f"\n{'type':46}{'ops':>5}{'time %':>8}" + "".join(f"{name:>10}{'(log)':>8}" for name in found))
    enough = [t for t in types if by_way["ours"][t].shapes >= FEWEST]
    for name in enough:
        of = [by_way[way][name] for way in found]
        cells = "".join(f"{s.r2:>10.3f}{s.log_r2:>8.3f}" for s in of)
        print(f"{name + ' *' * (name not in known):46}{of[0].shapes:>5}{100 * took[name] / whole:>8.2f}{cells}")
    for what, of_all in (("mean", np.nanmean), ("median", np.nanmedian)):
        for title, picked in (("all these types", enough), ("the ten most expensive", enough[:10])):
            cells = ""
            for way in found:
                r2, log = ([getattr(by_way[way][t], f) for t in picked] for f in ("r2", "log_r2"))
                cells += f"{of_all(r2):>10.3f}{of_all(log):>8.3f}"
            print(f"{what + ' over ' + title:59}{cells}")
    cells = "".join(f"{'':10}{weighted_r2(rows, ns):>8.3f}" for ns in found.values())
    print(f"{'all ops, weighted by time':59}{cells}")
    if [t for t in types if t not in known]:
        print("* never measured in a net that was learned from")
    print("the paper, of a GPU and nets of its own: 0.582 in the mean over types, 0.805 for the most expensive")


def print_nets(table: LatencyTable, rows: Sequence[Measurement], found: dict[str, F64]) -> None:
    """Print each net's iteration: as measured alone, as the sum of its ops, and as predicted."""
    print(f"\n{'net':15}{'iteration':>11}{'sum of ops':>11}" + "".join(f"{way:>10}{'off':>8}" for way in found))
    errors: dict[str, list[float]] = {way: [] for way in found}
    for net, sums in nets(rows, found):
        alone = table.iterations[net]
        cells = ""
        for way in found:
            off = sums[way] / alone - 1
            errors[way].append(abs(off))
            cells += f"{sums[way] / 1e6:>10.2f}{100 * off:>+7.1f}%"
        print(f"{net:15}{alone / 1e6:>8.2f} ms{sums['measured'] / 1e6:>8.2f} ms{cells}")
    for title, of in (("median", np.median), ("worst", np.max)):
        print(f"{title + ' error':37}" + "".join(f"{100 * float(of(errors[way])):>17.1f}%" for way in found))
    better = sum(a < b for a, b in zip(errors["ours"], errors["roofline"]))
    print(f"ours is nearer than the roofline on {better} of {len(errors['ours'])} nets")


def nets(rows: Sequence[Measurement], found: dict[str, F64]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each net with the ns of an iteration by each way, and by the measured ops."""
    count = np.array([row.count for row in rows], np.float64)
    of = {"measured": np.array([row.ns for row in rows], np.float64), **found}
    for net in dict.fromkeys(row.net for row in rows):
        mine = np.array([row.net == net for row in rows])
        yield net, {way: float((ns * count)[mine].sum()) for way, ns in of.items()}


@dataclass(frozen=True, slots=True)
class Fold:
    """Nets to learn from, and some to judge by: all batches of a net are on one side."""

    learn: tuple[Measurement, ...]
    judge: tuple[Measurement, ...]


def folds(rows: Sequence[Measurement], seed: int) -> list[Fold]:
    """Split rows by net."""
    family = [row.net.rpartition("_b")[0] for row in rows]
    names = sorted({*family})
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    place = {names[i]: k % FOLDS for k, i in enumerate(order)}
    return [
        Fold(*(tuple(r for r, f in zip(rows, family) if (place[f] == k) is own) for own in (False, True)))
        for k in range(FOLDS)
    ]


def print_folds(table: LatencyTable, seed: int) -> None:
    """Print how well nets among those to learn from are predicted by the others."""
    split = folds(table.rows, seed)
    print(f"\n{FOLDS} folds by net: R^2 (log, weighted by time); error of an iteration: median, 90th percentile")
    for name, way in ways(seed).items():
        if name == "network":  # it takes minutes
            continue
        guesses = [way(replace(table, rows=fold.learn), fold.judge) for fold in split]
        rows = [row for fold in split for row in fold.judge]
        found = {name: np.concatenate(guesses)}
        errors = [abs(sums[name] / sums["measured"] - 1) for _, sums in nets(rows, found)]
        cells = f"{np.median(errors):>9.1%}{np.percentile(errors, 90):>9.1%}"
        print(f"{name:12}{weighted_r2(rows, found[name]):>8.3f}{cells}")


if __name__ == "__main__":
    main()
