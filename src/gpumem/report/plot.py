"""Pictures of a plan: memory over the iteration, the layout of the pool, the streams. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem.columns import (
    ACT_GRAD,
    ACTIVATION,
    GRADIENT,
    I64,
    INPUT,
    OPT_STATE,
    PARAM,
    RECOMPUTE,
    STATISTICS,
)
from gpumem.io import replacing
from gpumem.placement import Placement
from gpumem.report.plan import Run
from gpumem.timeline import Timeline
from gpumem.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    PARAM: "#4c72b0",
    STATISTICS: "#4c72b0",
    OPT_STATE: "#8172b3",
    INPUT: "#937860",
    ACTIVATION: "#55a868",
    GRADIENT: "#c44e52",
    ACT_GRAD: "#dd8452",
}
_ROLES = {"compute": "#4c72b0", "copy_out": "#c44e52", "copy_in": "#55a868", "recompute": "#dd8452", "sync": "#999999"}
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its name, and as many `y` as `x`; None where there is no value."""

    name: str
    x: list[float]
    y: list[float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """Curves in one picture; `name` is for files, `x` and `y` say what the axes are."""

    name: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]

    def row(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self)


def available() -> bool:
    """Whether matplotlib can be imported."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def pictures(folder: Path, before: Run, after: Run, limit: int) -> list[Path]:
    """Draw `profile.png`, `layout.png` and `timeline.png` into `folder`; return their paths."""
    draw: dict[str, Callable[[Axes], None]] = {
        "profile.png": lambda ax: profile(ax, before.trace, after.trace, limit),
        "layout.png": lambda ax: layout(ax, after.trace, after.placement),
        "timeline.png": lambda ax: streams(ax, after.trace, after.timeline),
    }
    return [_save(folder / name, drawing) for name, drawing in draw.items()]


def profile(ax: Axes, before: Trace, after: Trace, limit: int | None = None) -> None:
    """Draw the load of both traces over the ops of the iteration, the rewritten one on the same axis."""
    ax.fill_between(np.arange(before.n), before.load() / _MIB, step="post", alpha=0.35, label="without swapping")
    ax.step(recorded(before), after.load()[recorded(after)] / _MIB, where="post", label="planned", color="#c44e52")
    if limit is not None:
        ax.axhline(limit / _MIB, linestyle="--", linewidth=0.8, color="black", label="limit")
    ax.set(xlabel="op", ylabel="device load (MiB)", title=before.name, ylim=(0, None))
    ax.legend()


def recorded(trace: Trace) -> I64:
    """Return the ops that a rewrite keeps: neither copies nor recomputations."""
    return np.flatnonzero((trace.ops.of >= 0) & (trace.ops.role != RECOMPUTE))


def curves(path: Path, figure: Figure) -> Path:
    """Draw the curves of a figure; points without a value are left out."""

    def draw(ax: Axes) -> None:
        for series in figure.series:
            y = np.array([np.nan if v is None else v for v in series.y], np.float64)
            ax.plot(series.x, y, marker="" if len(y) > 50 else "o", markersize=3, label=series.name)
        ax.set(xlabel=figure.x, ylabel=figure.y, title=figure.title, ylim=(0, None))
        ax.legend(fontsize="small")

    return _save(path, draw)


def layout(ax: Axes, trace: Trace, placement: Placement) -> None:
    """Draw every device buffer as a rectangle: time to the right, address up."""
    from matplotlib.collections import PolyCollection

    boxes, colours = [], []
    for b, at in zip(trace.buffers, placement.offset.tolist()):
        if b.space == "host" or not b.size:
            continue
        low, high = at / _MIB, (at + b.size) / _MIB
        for start, end in ((b.start, min(b.end, trace.n)), (0, b.end - trace.n)):  # an arc may come in two parts
            if end > start:
                boxes.append([(start, low), (end, low), (end, high), (start, high)])
                colours.append(_COLOURS.get(b.kind, "#cccccc"))
    ax.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="white", linewidths=0.2))
    ax.set(xlim=(0, trace.n), ylim=(0, max(placement.height / _MIB, 1e-9)), xlabel="op (with copies)")
    ax.set(ylabel="address (MiB)", title=f"{trace.name}: {placement.height / _MIB:.1f} MiB placed")
    for kind in (kind for kind in _COLOURS if kind in trace.buffers.kind):
        ax.plot([], [], "s", color=_COLOURS[kind], label=kind)
    ax.legend(loc="upper right", fontsize="small")


def streams(ax: Axes, trace: Trace, timeline: Timeline) -> None:
    """Draw one steady iteration: a bar an op, a row a stream."""
    for k in range(len(trace.ops.streams)):
        mine = np.flatnonzero(trace.ops.stream == k)
        bars = [(timeline.start[i] / 1e6, (timeline.end[i] - timeline.start[i]) / 1e6) for i in mine.tolist()]
        colours = [_ROLES[trace.ops[i].role] for i in mine.tolist()]
        ax.broken_barh(bars, (k - 0.4, 0.8), facecolors=colours, edgecolor="white", linewidth=0.1)
    ax.set_yticks(range(len(trace.ops.streams)), trace.ops.streams)
    ax.set(xlabel="ms", title=f"{trace.name}: {timeline.makespan / 1e6:.2f} ms an iteration")
    ax.invert_yaxis()


def _save(path: Path, draw: Callable[[Axes], None]) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.subplots())
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return path
