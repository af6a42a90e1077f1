"""Pictures of a plan: memory over the iteration, the layout of the pool, the streams. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.units import amount
from gpumem.pipeline.report.figures import (
    _COLOURS,
    Figure as Figure,
    Series as Series,
    available as available,
    axes_of as axes_of,
    curves as curves,
    multiples as multiples,
    save as save,
)
from gpumem.pipeline.report.plan import Run
from gpumem.simulator.timeline import FREED, Timeline
from gpumem.trace import I64, RECOMPUTE, ROLES, Trace
from gpumem.trace.placement import Placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROLES = {"compute": "#4c72b0", "copy_out": "#c44e52", "copy_in": "#55a868", "recompute": "#dd8452", "sync": "#999999"}
_HOST = {"launches": "#8172b3", "waits": "#dddddd"}
_MIB = 2**20  # bytes: the unit of the axis


@strict
def pictures(folder: Path, before: Run, after: Run, limit: int) -> list[Path]:
    """Draw `profile.png`, `layout.png` and `timeline.png` into `folder`; return their paths."""
    draw: dict[str, Callable[..., Axes]] = {
        "profile.png": partial(profile, before.trace, after.trace, limit),
        "layout.png": partial(layout, after.trace, after.placement),
        "timeline.png": partial(streams, after.trace, after.timeline),
    }
    return [save(folder / name, drawing) for name, drawing in draw.items()]


@strict
def profile(
    before: Trace, after: Trace | None = None, limit: int | str | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the live bytes over the ops of an iteration; of a rewritten trace too, on the same axis.

    There an op counts with the copies and recomputations right before it: the most that any of them holds.

    Parameters
    ----------
    before : Trace
    after : Trace, optional
        What a plan made of it.
    limit : int or str, optional
        Bytes, or a text such as `"300MiB"` or `"70%"` (of the peak live bytes): a line.
    ax : Axes, optional
        Where to draw; made by `matplotlib.pyplot` where left out.

    Returns
    -------
    Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    ax = axes_of(ax)
    time, load = before.steps()
    steps, held = np.append(time, before.n), np.append(load, load[-1]) / _MIB
    ax.fill_between(steps, held, step="post", alpha=0.35, label="live bytes" if after is None else "without the plan")
    if after is not None:
        steps, kept = recorded(before), recorded(after)
        if len(kept) != len(steps):
            problem = f"after: {len(kept)} ops of trace {after.name!r:.60}, but {before.name!r:.60} has {len(steps)}"
            raise ValueError(f"{problem}: it is no rewrite of that")
        # Of what a copy or a recomputation holds, the most counts with the op behind it.
        begins = np.append(0, kept[:-1] + 1)
        ax.step(
            steps,
            np.maximum.reduceat(after.live_bytes(), begins) / _MIB,
            where="post",
            label="planned",
            color="#c44e52",
        )
    if limit is not None:
        at = amount(limit, before.peak_live_bytes, "limit") / _MIB
        ink = ax.spines["bottom"].get_edgecolor()  # black would not be seen on a dark ground
        ax.axhline(at, linestyle="--", linewidth=0.8, color=ink, label="limit")
    ax.set(xlabel="op", ylabel="device live bytes (MiB)", title=before.name, ylim=(0, None))
    ax.legend()
    return ax


@strict
def recorded(trace: Trace) -> I64:
    """Return the ops that a rewrite keeps: neither copies nor recomputations."""
    return np.flatnonzero((trace.ops.of >= 0) & (trace.ops.role != RECOMPUTE))


@strict
def layout(trace: Trace, placement: Placement, *, ax: Axes | None = None) -> Axes:
    """Draw every device buffer as a rectangle: time to the right, address up. `ax` as in `profile`."""
    placement.check_fits(trace)
    ax = axes_of(ax)
    from matplotlib.collections import PolyCollection

    boxes, colours = [], []
    for buffers, at in zip(trace.buffers, placement.offset.tolist()):
        if buffers.space == "host" or not buffers.size:
            continue
        low, high = at / _MIB, (at + buffers.size) / _MIB
        for start, end in (
            (buffers.start, min(buffers.end, trace.n)),
            (0, buffers.end - trace.n),
        ):  # an arc may come in two parts
            if end > start:
                boxes.append([(start, low), (end, low), (end, high), (start, high)])
                colours.append(_COLOURS.get(buffers.kind, "#cccccc"))
    ax.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="white", linewidths=0.2))
    ax.set(
        xlim=(0, trace.n), ylim=(0, max(placement.height / _MIB, 1e-9)), xlabel="op (with copies and recomputations)"
    )
    ax.set(ylabel="address (MiB)", title=f"{trace.name}: {placement.height / _MIB:.1f} MiB placed")
    for kind in (kind for kind in _COLOURS if kind in trace.buffers.kind):
        ax.plot([], [], "s", color=_COLOURS[kind], label=kind)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper right", fontsize="small")
    return ax


@strict
def streams(trace: Trace, timeline: Timeline, *, ax: Axes | None = None) -> Axes:
    """Draw one steady iteration: a bar an op, coloured by its role, a row a stream. `ax` as in `profile`.

    With the host on, rows above show what each host launches and where it waits, from one iteration ahead at most.
    """
    timeline.check_fits(trace)
    ax = axes_of(ax)
    host_rows = timeline.host_spans(trace)
    for row, host in enumerate(host_rows):
        turn = timeline.host_period  # the wait before the first op is drawn where the iteration ends
        waits = [(span.start - span.wait + turn * (span is host[0]), span.wait) for span in host if span.wait]
        _bars(ax, row, waits, _HOST["waits"])
        _bars(ax, row, [(span.start, span.end - span.start) for span in host], _HOST["launches"])
    for row in range(len(trace.ops.streams)):
        own_ops = np.flatnonzero(trace.ops.stream == row)
        bars = [*zip(timeline.start[own_ops].tolist(), (timeline.end - timeline.start)[own_ops].tolist())]
        _bars(ax, len(host_rows) + row, bars, [_ROLES[ROLES[role]] for role in trace.ops.role[own_ops].tolist()])
    drawn = {role: _ROLES[role] for row, role in enumerate(ROLES) if (trace.ops.role == row).any()}
    for label, colour in (drawn | (_HOST if host_rows else {})).items():
        ax.plot([], [], "s", color=colour, label=label)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=3.4,  # in font sizes: under the label of the axis
        ncols=len(ROLES) + len(_HOST),
        fontsize="small",
    )
    rows = [*trace.ops.hosts[: len(host_rows)], *trace.ops.streams]
    ax.set_yticks(range(len(rows)), rows)
    if host_rows:
        ax.set_xlim(left=max(ax.get_xlim()[0], -timeline.makespan / 1e6))
    ax.set(xlabel="ms", title=f"{trace.name}: {timeline.makespan / 1e6:.2f} ms an iteration")
    ax.invert_yaxis()
    return ax


@strict
def memory(trace: Trace, timeline: Timeline, *, ax: Axes | None = None) -> Axes:
    """Draw the memory over the time of a steady iteration, freed as ops are scheduled and as they complete.

    `ax` as in `profile`, errors as of `Timeline.memory_over_time`.
    """
    ax = axes_of(ax)
    for freed in FREED:
        time, held = timeline.memory_over_time(trace, freed)
        ends, last = np.append(time, timeline.makespan) / 1e6, np.append(held, held[-1:]) / _MIB
        ax.step(ends, last, where="post", label=f"freed when {freed}")
    ax.set(xlabel="ms", ylabel="device memory (MiB)", title=trace.name, ylim=(0, None))
    ax.legend()
    return ax


def _bars(ax: Axes, row: int, bars: list[tuple[int, int]], colours: str | list[str]) -> None:
    """Draw bars into a row: when each begins and how long it is, in nanoseconds."""
    ms = [(begin / 1e6, length / 1e6) for begin, length in bars]
    ax.broken_barh(ms, (row - 0.4, 0.8), facecolors=colours, edgecolor="white", linewidth=0.1)
