"""`gpumem bench pool`: pool planners and allocators on traces and instances, next to the SmartPool paper's figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem.commands import pool_tables
from gpumem.commands.args import Commands, Progress, choices, tell_when_compiling
from gpumem.commands.placing import add_search, allocators_of, by_planners, planners_of, search_options
from gpumem.commands.planning import QUICK, source_of
from gpumem.commands.saving import check_name, staged

if TYPE_CHECKING:
    from gpumem.commands.placing import Allocators, Planners
    from gpumem.trace import Trace

PARTS = {
    "table1": "Table I: competitive ratios without swapping, and how far SmartPool is below CnMem",
    "instances": "Pool planners: competitive ratio and seconds; optimal, or a bound that no placement goes below",
    "cost": "A malloc and its free: us of CPU time (over native); all of it is Python, nobody calls a driver",
}
REPLAYS, FEW = 21, 3


def add(suite: Commands) -> None:
    """Add the suite's arguments."""
    p = suite.add_parser("pool", help="pool planners and allocators", description=run.__doc__)
    p.add_argument("file", nargs="*", help="trace files, bundled names or minimalloc CSVs (default: the bundled ones)")
    p.add_argument("--instances", metavar="DIR", help="a folder of minimalloc CSVs for --what instances")
    p.add_argument("--what", default="all", metavar="NAME[,NAME]|all", help=f"of {', '.join(PARTS)}")
    p.add_argument("--planner", default="all", metavar="NAME[,NAME]|all", help="of instances (default: %(default)s)")
    p.add_argument("--allocator", default="all", metavar="NAME[,NAME]|all", help="of cost (default: %(default)s)")
    add_search(p)
    p.add_argument("--quick", action="store_true", help="little effort and few replays, to try it out")
    p.add_argument("--out", metavar="DIR", help="write bench.txt and bench.json there")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print Table I of the SmartPool paper, pool planners on instances, and what calls of allocators cost."""
    check_name(args.out)
    tell_when_compiling()
    from gpumem.report import header

    parts = choices(args.what, PARTS, "--what")
    planners, allocators = planners_of(args.planner), allocators_of(args.allocator)
    options = {**(QUICK[0] if args.quick else {}), **search_options(args, planners)}
    seed = "each planner's own" if args.seed is None else args.seed
    with Progress() as progress:
        bench = Bench(planners, allocators, options, FEW if args.quick else REPLAYS, progress)
        bench.header = header(args.command, seed).splitlines()
        files, folder = _files(args)
        for path in files:
            bench.measure(_read(path, progress), [p for p in parts if p != "instances" or args.file or not folder])
        for path in folder:
            bench.measure(_read(path, progress), [p for p in parts if p == "instances"])
    found, text = bench.found(parts), bench.text(parts)
    if args.out is not None:
        with staged(Path(args.out)) as out:
            _write(out, found, text)
    print(json.dumps(found) if args.json else text)
    return 0


def _files(args: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The files that were given, or the bundled ones; and what is in the folder of instances."""
    from gpumem.io import BUNDLED

    files = [source_of(file) for file in args.file or BUNDLED]
    if args.instances is None:
        return files, []
    folder = sorted(path for path in Path(args.instances).glob("*.csv*") if path.is_file())
    if not folder:
        raise ValueError(f"--instances: {args.instances!r} is no folder with .csv files")
    return files, folder


def _read(path: Path, progress: Progress) -> Trace:
    from gpumem.io import load

    progress(f"reading {path}")
    return load(path).trace


@dataclass(slots=True, eq=False)
class Bench:
    """What was measured so far."""

    planners: Planners
    allocators: Allocators
    options: Mapping[str, Any]
    replays: int
    progress: Progress
    header: list[str] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def measure(self, trace: Trace, parts: list[str]) -> None:
        """Measure the parts that were asked for, for one trace."""
        if "table1" in parts:
            self.rows["table1"].append(pool_tables.ratios(trace, self.progress))
        if "instances" in parts:
            found = by_planners(trace, self.planners, self.options, self.progress)
            self.rows["instances"] += pool_tables.instance(trace.name, found)
        if "cost" in parts:
            self.rows["cost"] += pool_tables.call_costs(trace, self.allocators, self.replays, self.progress)

    def found(self, parts: list[str]) -> dict[str, Any]:
        """Return everything for JSON."""
        result: dict[str, Any] = {"header": self.header} | {part: self.rows[part] for part in parts}
        if "table1" in parts:
            result["table1_means"] = pool_tables.means(self.rows["table1"])
        return result

    def text(self, parts: list[str]) -> str:
        """Return everything for people."""
        tables = {
            "table1": pool_tables.ratio_table,
            "instances": pool_tables.instance_table,
            "cost": pool_tables.cost_table,
        }
        blocks = ["\n".join(self.header)]
        blocks += [f"{PARTS[part]}\n\n{tables[part](self.rows[part])}" for part in parts]
        return "\n\n".join(blocks)


def _write(folder: Path, found: dict[str, Any], text: str) -> None:
    from gpumem.io import write_text

    write_text(folder / "bench.txt", text + "\n")
    write_text(folder / "bench.json", json.dumps(found) + "\n")
