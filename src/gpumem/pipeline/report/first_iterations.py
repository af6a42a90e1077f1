"""A picture of a device at work: what it held and copied over the time of its first iterations. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.units import human
from gpumem.pipeline.report import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OTHER = "#cccccc"
_STATES = {"native": _OTHER, "idle": _OTHER, "on demand": "#dd8452", "planned": "#55a868"}
_LINKS = {"out": "#c44e52", "in": "#4c72b0"}
_MIB, _MS = 2**20, 1e6  # bytes and ns: the units of the axes


class _Entry(Protocol):
    kind: str
    op: int
    size: int
    start: int
    end: int


class _Iteration(Protocol):
    state: str
    ops: int


@strict
def first_iterations(
    log: Iterable[Any],
    iterations: Sequence[Any],
    limit: int,
    *,
    count: int = 6,
    ax: Axes | None = None,
) -> Axes:
    """Draw what a transparent device held over time, and below it what its links copied; the ground says its state.

    Parameters
    ----------
    log : iterable of LogEntry
        `Adaptive.log`, in an environment that knows the time of what it does: on the clock.
    iterations : sequence of Iteration
        `Adaptive.report().iterations`, all of them.
    limit : int
        Bytes.
    count : int
        So many iterations, the first ones.
    ax : Axes, optional
        Where to draw; made by `matplotlib.pyplot` where left out.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        No iterations, or a log whose times are not known.
    ImportError
        matplotlib is not installed.
    """
    if count < 1 or not iterations:
        raise ValueError(f"count: {count} of {len(iterations)} iterations is nothing to draw")
    rows: list[_Iteration] = [*iterations[:count]]
    ends = [*accumulate(row.ops for row in rows)]
    entries: list[_Entry] = [entry for entry in log if entry.op < ends[-1]]
    done = [entry.end for entry in entries if entry.kind == "op"]
    if len(done) != ends[-1] or min(done) < 0:
        raise ValueError(f"log: {len(done)} ops of these {ends[-1]}, or without their times; a clock's log has them")
    ax = plot.axes_of(ax)
    bounds = [0, *(done[end - 1] / _MS for end in ends)]
    for row, low, high in zip(rows, bounds, bounds[1:]):
        ax.axvspan(low, high, color=_STATES.get(row.state, _OTHER), alpha=0.25, linewidth=0)
        ax.axvline(high, color="white", linewidth=1)
    time, held = _held(entries)
    top = limit / _MIB
    ax.step(time / _MS, held / _MIB, where="post", color="black", linewidth=0.8, label="held")
    ax.axhline(top, linestyle="--", linewidth=0.8, color="black", label="limit")
    for state in dict.fromkeys(row.state for row in rows):
        ax.plot([], [], "s", color=_STATES.get(state, _OTHER), alpha=0.5, label=state)
    ax.set(title=f"within {human(limit)}", xlabel="ms", ylabel="device memory (MiB)", xlim=(0, bounds[-1]))
    _links(ax, entries, top)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 0.22), fontsize="small", ncols=2)
    return ax


def _held(entries: Sequence[_Entry]) -> tuple[Any, Any]:
    """The bytes on the device over time."""
    moves = [
        (entry.start, entry.size if entry.kind == "fill" else -entry.size)
        for entry in entries
        if entry.kind in ("fill", "empty")
    ]
    time, change = np.array([(0, 0), *moves], np.int64).T
    return time, np.cumsum(change)


def _links(ax: Axes, entries: Sequence[_Entry], top: float) -> None:
    """Bars for the copies, a row for each way, below the memory."""
    from matplotlib.ticker import MaxNLocator

    ticks = [tick for tick in MaxNLocator(5).tick_values(0, top) if tick <= top]
    rows = [-0.11 * top, -0.22 * top]
    for at, (kind, colour) in zip(rows, _LINKS.items()):
        bars = [(entry.start / _MS, (entry.end - entry.start) / _MS) for entry in entries if entry.kind == kind]
        ax.broken_barh(bars, (at - 0.04 * top, 0.08 * top), facecolors=colour)
    ax.axhline(0, linewidth=0.8, color="black")
    ax.set_yticks([*ticks, *rows], [*(f"{tick:g}" for tick in ticks), "copies out", "copies in"])
    ax.set_ylim(-0.3 * top, 1.1 * top)
