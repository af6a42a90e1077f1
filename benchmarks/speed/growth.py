"""How do time and memory of every planner, bound, clock and check grow with the number of ops?

Training steps of 2,000 to 128,000 ops (`_growing.py`), blocks of a transformer repeated and random ones, are planned
at 60 % of their peak on `rtx4090`; clocks and checks take what `heuristic` plans there. Each figure is taken in a
process of its own, after a run on a small step that compiles or loads: seconds of the processor, and by how much the
resident bytes rise, with those of processes that solve programs. What takes longer than the cap, or more memory than
`--gib`, is stopped and not asked for more ops. Integer and linear programs are given `--seconds`, which is their cap.
`slope` is the least-squares fit of log over log of ops, 1 is linear: of seconds above 0.02, of memory above 16 MiB. At
the end: what came out of the most ops, for a plan its overhead by byte-counting. Needs Linux; `capture` needs the
`torch` extra.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed._bench import header
from benchmarks.speed._growth_rows import MACHINE, PERCENT, PROGRAMS, rows

SIZES = (2_000, 8_000, 32_000, 128_000)
SMALL = 500  # ops of the step that everything is compiled on
KINDS = ("blocks", "random")
WAIT = 30  # times as long by the clock, where the machine has more to do: with two busy neighbours a core is a tenth
SECONDS, MIB = 0.02, 16.0  # below these a figure says nothing


def asked(*command: object, cap: int = 600) -> dict[str, Any]:
    """Run `_growth_rows.py` for at most `cap` seconds of the processor; return what it printed, or how it ended."""
    begun = [sys.executable, "-m", "benchmarks.speed._growth_rows", *map(str, command), "--cap", str(cap)]
    with subprocess.Popen(begun, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, err = child.communicate(timeout=WAIT * cap)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()[0], f"stopped after {WAIT * cap} s by the clock"
    if lines := out.splitlines():  # of a row that was stopped later as well
        said: dict[str, Any] = json.loads(lines[-1])
        return said
    if child.returncode == -signal.SIGXCPU:
        return {"says": f"stopped after {cap} s"}
    return {"says": (err.strip().splitlines() or [f"status {child.returncode}"])[-1][:60]}


def slope(ops: Sequence[int], values: list[float | None], least: float) -> str:
    """Return the least-squares slope of log over log, of values that are at least `least`."""
    pairs = [(math.log(n), math.log(x)) for n, x in zip(ops, values) if x is not None and x >= least]
    if len(pairs) < 2:
        return "-"
    mean_x, mean_y = (sum(column) / len(pairs) for column in zip(*pairs))
    return f"{sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum((x - mean_x) ** 2 for x, _ in pairs):.2f}"


def line(name: str, ops: Sequence[int], found: list[dict[str, Any]]) -> str:
    """Return one row of the table."""
    seconds, mib = ([x.get(key) for x in found] for key in ("seconds", "mib"))
    cells = [f"{name + (', capped' if name in PROGRAMS else ''):26}"]
    cells += [*(_cell(x, 9, 2) for x in seconds), f"{slope(ops, seconds, SECONDS):>7}"]
    cells += [*(_cell(x, 8, 0) for x in mib), f"{slope(ops, mib, MIB):>7}"]
    return "".join(cells) + "   " + next((x["says"] for x in reversed(found) if "says" in x), "")


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"


def prepared(kind: str, ops: int, seed: int, folder: Path) -> tuple[int, Path]:
    """Make a step, and what `heuristic` plans for it; return how many ops it has, and the file."""
    path = folder / f"{Path(kind).name}-{ops}.pickle"
    made = asked("--prepare", kind, ops, path, "--seed", seed)
    if "ops" not in made:
        raise SystemExit(f"{kind}, {ops} ops: {made['says']}")
    return made["ops"], path


def table(kind: str, sizes: Sequence[int], args: argparse.Namespace, folder: Path) -> None:
    """Print the rows of one kind of step."""
    print(
        f"\n## {kind}, {PERCENT} % of the peak live bytes on {MACHINE}; cap {args.cap} s, programs {args.seconds:g} s\n"
    )
    small = prepared("blocks", SMALL, 0, folder)[1]
    sizes, files = zip(*[prepared(kind, n, args.seed, folder) for n in sizes])
    print(f"{'':26}{'seconds':>{9 * len(sizes)}}{'':7}{'MiB':>{8 * len(sizes)}}")
    heads = ["".join(f"{n:>{width},}" for n in sizes) + f"{'slope':>7}" for width in (9, 8)]
    print(f"{'ops':26}{''.join(heads)}", flush=True)
    for name in args.only or rows(args.seconds):
        if name == "capture" and kind != "blocks":
            continue
        asked("--row", name, small, small)  # compiles
        found: list[dict[str, Any]] = []
        for path in files:
            stopped = bool(found) and "seconds" not in found[-1]
            command = ("--row", name, path, small, "--seconds", args.seconds, "--gib", args.gib)
            found.append({} if stopped else asked(*command, cap=args.cap))
        print(line(name, sizes, found), flush=True)


def main() -> None:
    """Print a table for each kind of step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"{', '.join(KINDS)}, or the file of a trace")
    parser.add_argument("--only", nargs="+", metavar="ROW")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="OPS")
    parser.add_argument(
        "--cap", type=int, default=150, help="seconds of the processor after which a measurement is stopped"
    )
    parser.add_argument("--gib", type=int, default=6, help="of address space that a measurement may have")
    parser.add_argument("--seconds", type=float, default=10, help="of integer and linear programs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(header(args.seed))
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds:
            table(kind, args.sizes if kind in KINDS else [0], args, Path(folder))


if __name__ == "__main__":
    main()
