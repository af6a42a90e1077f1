"""`python -m benchmarks.papers.dtr LOG ...`: overheads of DTR and of other planners on logs of its prototype."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.dtr.logs import read_log
from benchmarks.papers.dtr.measured import BUDGETS, PRINTED, Row, measure, simulator, table
from gpumem.pipeline.report import header


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.papers.dtr", description=__doc__)
    p.add_argument("log", nargs="+", type=Path, help="logs of the prototype")
    p.add_argument("--simrd", type=Path, metavar="PATH", help="a checkout of simrd, to run beside ours")
    p.add_argument("--python", default=sys.executable, metavar="PATH", help="a Python with attrs, which simrd needs")
    p.add_argument("--collapsed", action="store_true", help="let simrd leave views out, by its own rewriting")
    p.add_argument("--budgets", default=",".join(f"{part:g}" for part in BUDGETS), metavar="R[,R]")
    p.add_argument("--heuristics", default=",".join(PRINTED), metavar="NAME[,NAME]")
    p.add_argument(
        "--planners", default="", metavar="NAME[,NAME]", help="others beside it: search,checkpoint,checkmate"
    )
    p.add_argument("--seconds", type=float, help="of each plan")
    p.add_argument("--overhead", type=float, default=1.0, help="where runtimes give up (default: %(default)s)")
    return p.parse_args(given)


def rows(args: argparse.Namespace) -> list[Row]:
    """Measure what the command line asks for."""
    found: list[Row] = []
    for log in args.log:
        if args.simrd is None:
            beside = None
        else:
            told = {"collapsed": args.collapsed, "python": args.python, "overhead": args.overhead}
            beside = simulator(args.simrd, log, **told)
        found += measure(
            read_log(log),
            budgets=[float(part) for part in args.budgets.split(",")],
            heuristics=[name for name in args.heuristics.split(",") if name],
            planners=[name for name in args.planners.split(",") if name],
            seconds=args.seconds,
            simrd=beside,
            overhead=args.overhead,
        )
    return found


def main() -> None:
    """Print the table."""
    args = arguments()
    try:
        found = table(rows(args))
    except (OSError, ValueError) as error:
        raise SystemExit(f"benchmarks.papers.dtr: error: {error}") from None
    print(header(f"python -m benchmarks.papers.dtr {' '.join(sys.argv[1:])}", None))
    print(f"\n{found}")


if __name__ == "__main__":
    main()
