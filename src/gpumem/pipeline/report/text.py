"""Text for people: aligned tables, figures before and after, what made them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from itertools import zip_longest
from pathlib import Path

from gpumem.base.units import exact, human
from gpumem.base.version import __version__


def columns(rows: list[list[str]]) -> str:
    """Write rows of cells as aligned columns, the first to the left, the others to the right.

    A row may be shorter than others; each cell is written.

    >>> print(columns([["name", "size"], ["a", "12"], ["b"]]))
    name  size
    a       12
    b
    """
    width = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = [
        [row[0].ljust(width[0]), *(cell.rjust(cell_width) for cell, cell_width in zip(row[1:], width[1:]))]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def header(command: str, seed: int | str | None = None) -> str:
    """Return as comment lines what made some figures: machine, versions, seed and command."""
    cpu = Path("/proc/cpuinfo")
    known = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.split(":")[1].strip() for line in known if line.startswith("model name")), platform.processor())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "msgspec"))
    return "\n".join(
        [
            f"# machine: {model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            f"# gpumem {__version__}, python {platform.python_version()}, {versions}",
            f"# seed: {seed}",
            f"# command: {command}",
        ]
    )


def unswapped(load: int, height: int, pool: int | None, load_limit: int | None) -> str:
    """Say that a trace is within its limits without a swap, or beyond them by less than the figures show.

    Parameters
    ----------
    load, height : int
        Peak live bytes and footprint of the unswapped trace, in bytes.
    pool, load_limit : int, optional
        What was asked for.

    Returns
    -------
    str
        Empty where swapping is plainly needed.

    Examples
    --------
    >>> unswapped(4096, 5120, 2**20, None)
    'fits already, without a swap: its pool takes 5.00 KiB of 1.00 MiB'
    >>> unswapped(4000, 4100, 4096, None)
    'without a swap its pool takes 4.00 KiB (4100 bytes), 4 bytes more than the limit'
    >>> unswapped(4096, 5120, None, 2048)
    ''
    """
    needs = [("pool", height, pool), ("load", load, load_limit)]
    given = [(what, need, limit) for what, need, limit in needs if limit is not None]
    above = [(what, need, limit) for what, need, limit in given if need > limit]
    if not above:
        figures = " and ".join(f"its {what} takes {human(need)} of {human(limit)}" for what, need, limit in given)
        return f"fits already, without a swap: {figures}"
    if any(human(need) != human(limit) and load > limit for _, need, limit in above):
        return ""
    figures = " and ".join(
        f"its {what} takes {exact(need)}, {exact(need - limit)} more than the limit" for what, need, limit in above
    )
    return f"without a swap {figures}"


def versus(what: str, before: int, after: int, show: Callable[[int], str]) -> str:
    """Write a figure before and after as a line of a table, with the change.

    >>> from gpumem.base.units import human
    >>> versus("load", 4096, 3072, human)
    'load                            4.00 KiB      3.00 KiB    -25.0%'
    """
    change = f"{after / before - 1:+.1%}" if before > 0 else ""
    return f"{what:26}{show(before):>14}{show(after):>14} {change:>9}"
