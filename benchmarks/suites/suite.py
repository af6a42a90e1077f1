"""What the suites share: parts that are measured, tables for people, rows for programs, files."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpumem import io
from gpumem.base.names import choices
from gpumem.cli.common.args import check_folder, out_folder
from gpumem.cli.common.files import workspaces_flag
from gpumem.cli.common.parser import Commands, Parser, add_options
from gpumem.cli.common.progress import Progress
from gpumem.pipeline import report

Results = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Suite:
    """`python -m benchmarks NAME`.

    Parameters
    ----------
    name, help : str
    parts : mapping
        Their titles, in the order of `--what all`.
    options : callable
        Adds the suite's own to a parser.
    measure : callable
        `measure(args, parts, progress)` returns a list for each part, and for what else goes into the JSON: of rows,
        which make one table, or, where the part is called `fig...`, of pairs of a trace's name and a figure, which
        make a table and a picture each. With rows of what `failed`, the exit status is 1.
    tables : callable
        Returns what writes a part's rows, or one of its figures, as a table; nothing of the papers is loaded before.
    pictures : callable, optional
        Further figures to draw, with the stem of the file's name, from the results; a list of them makes one picture.
    quick : str
        What `--quick` does instead of the whole, so that it ends within a minute.
    workspaces : str
        By which rules, if `--workspaces` says nothing.
    """

    name: str
    help: str
    parts: Mapping[str, str]
    options: Callable[[Parser], None]
    measure: Callable[[argparse.Namespace, list[str], Progress], Results]
    tables: Callable[[], Mapping[str, Callable[[Any], str]]]
    pictures: Callable[[Results], Iterable[tuple[str, report.Figure | list[report.Figure]]]] = lambda results: ()
    quick: str = "nothing is left out"
    workspaces: str = "none"

    def add(self, suites: Commands) -> None:
        """Add the suite's arguments."""
        p = suites.add_parser(self.name, help=self.help, description=self.measure.__doc__)
        self.options(p)
        add_options(p, workspaces_flag(several=True, usual=self.workspaces))
        p.add_argument("--what", default="all", metavar="NAME[,NAME]|all", help=f"of {', '.join(self.parts)}")
        quick = f"within a minute, to try it out: {self.quick}".replace("%", "%%")
        p.add_argument("--quick", action="store_true", help=quick)
        p.add_argument("--out", metavar="DIR", help="write bench.txt, bench.json and pictures there")
        p.add_argument("--json", action="store_true", help="print one JSON object")
        p.set_defaults(run=self.run)

    def run(self, args: argparse.Namespace) -> int:
        """Measure what was asked for, print it, write it."""
        check_folder(args.out)
        parts = choices(args.what, self.parts, "--what")
        seed = getattr(args, "seed", "none, nothing is random")
        head = report.header(args.command, "each planner's own" if seed is None else seed).splitlines()
        head += [f"# quick: {self.quick}"] if args.quick else []
        head += [] if args.workspaces == "none" else [f"# workspaces: {args.workspaces}"]
        with Progress() as progress:
            results = self.measure(args, parts, progress)
        more = {name: rows for name, rows in results.items() if name not in self.parts}
        results = {part: results[part] for part in parts} | more
        found = json.dumps({"header": head} | {part: [_row(one) for one in mine] for part, mine in results.items()})
        text = "\n\n".join(["\n".join(head), *(block for part in parts for block in self._blocks(part, results[part]))])
        if args.out is not None:
            self._write(args.out, results, found, text)
        print(found if args.json else text)
        return 1 if results.get("failed") else 0

    def _blocks(self, part: str, mine: list[Any]) -> list[str]:
        title, table = self.parts[part], self.tables()[part]
        if _figures(part):
            return [f"{title}: {trace}\n\n{table(figure)}" for trace, figure in mine]
        return [f"{title}\n\n{table(mine)}"]

    def _write(self, out: str, results: Results, found: str, text: str) -> None:
        """Write text, JSON and, where matplotlib is there, pictures."""
        drawn: list[tuple[str, report.Figure | list[report.Figure]]] = [
            (f"{f.name}-{trace}", f) for part in results if _figures(part) for trace, f in results[part]
        ]
        drawn += self.pictures(results)
        with out_folder(out, pictures=bool(drawn)) as folder:
            io.write_text(folder / "bench.txt", text + "\n")
            io.write_text(folder / "bench.json", found + "\n")
            for stem, figure in drawn if report.plot.available() else ():
                path = _unused(folder, re.sub(r"[^0-9A-Za-z._-]", "_", stem))
                plot = report.plot
                draw = partial(plot.multiples, figure) if isinstance(figure, list) else partial(plot.curves, figure)
                plot.save(path, draw)


def _figures(part: str) -> bool:
    return part.startswith("fig")


def _row(one: Any) -> dict[str, Any]:
    """A row as it is, of a figure or a record all it says."""
    if isinstance(one, tuple):
        return {"trace": one[0], **one[1].row()}
    return one if isinstance(one, dict) else dict(one.row())


def _unused(folder: Path, stem: str) -> Path:
    """A picture that is not there yet: two traces may have one name."""
    names = [f"{stem}.png", *(f"{stem}-{k}.png" for k in range(2, 2 + sum(1 for _ in folder.iterdir())))]
    return next(folder / name for name in names if not (folder / name).exists())
