"""Text for people: aligned tables, figures before and after, what made them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from gpumem._version import __version__


def columns(rows: list[list[str]]) -> str:
    """Write rows of cells as aligned columns, the first to the left, the others to the right.

    >>> print(columns([["name", "size"], ["a", "12"]]))
    name  size
    a       12
    """
    width = [max(len(cell) for cell in column) for column in zip(*rows)]
    lines = [[row[0].ljust(width[0]), *(cell.rjust(w) for cell, w in zip(row[1:], width[1:]))] for row in rows]
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


def versus(what: str, before: int, after: int, show: Callable[[int], str]) -> str:
    """Write a figure before and after as a line of a table, with the change.

    >>> from gpumem.units import human
    >>> versus("load", 4096, 3072, human)
    'load                            4.00 KiB      3.00 KiB    -25.0%'
    """
    change = f"{after / before - 1:+.1%}" if before > 0 else ""
    return f"{what:26}{show(before):>14}{show(after):>14}{change:>10}"
