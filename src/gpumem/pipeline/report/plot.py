"""Pictures of a plan: memory over the iteration, the layout of the pool, the streams. Needs matplotlib."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.base.units import amount
from gpumem.io import replacing
from gpumem.pipeline.report.plan import Run
from gpumem.simulator.timeline import FREED, Timeline
from gpumem.trace import I64, RECOMPUTE, ROLES, Trace
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, GRADIENT, INPUT, OPT_STATE, PARAM, STATISTICS
from gpumem.trace.placement import Placement

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
_HOST = {"hands over": "#8172b3", "waits": "#dddddd"}
_MIB = 2**20
_SIZE = (10, 4.5)  # inches
_MARK = {"linestyle": "", "color": "black", "markersize": 8, "clip_on": False, "zorder": 3}
_MANY = (
    "C0",
    "C1",
    "C2",
    "C3",
    "C4",
    "C5",
    "C6",
    "C8",
    "C9",
    "navy",
    "olive",
    "teal",
    "gold",
    "salmon",
    "orchid",
    "tan",
)
_MARKERS = ("o", "s", "^", "v", "D")
_FILLS = ("black", "white", "grey")  # of the marks of one style
_STYLES: dict[str, dict[str, Any]] = {
    "line": {},
    "bold": {"linewidth": 2.5, "color": "black", "zorder": 3},
    "dashed": {"linestyle": "--", "marker": ""},
    "point": {**_MARK, "marker": "D"},
    "at most": {**_MARK, "marker": "v"},
}


@dataclass(frozen=True, slots=True, repr=False)
class Series(Shown):
    """One curve: its name, and as many `y` as `x`; None where there is no value.

    `style`: `line`, `bold`, `dashed` (the k-th has the colour of the k-th line), or marks: `point`, and `at most` for
    a `y` that the value lies below.
    """

    name: str
    x: list[float]
    y: list[float | None]
    style: str = "line"

    @property
    def marks(self) -> bool:
        """Whether these are single points, not a curve."""
        return self.style in ("point", "at most")


@dataclass(frozen=True, slots=True, repr=False)
class Figure(Shown):
    """Curves in one picture; `name` is for files, `x` and `y` say what the axes are.

    `above`: the label of a second axis of `x`, and how many of its units are 1 on the first.
    """

    name: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    above: tuple[str, float] | None = None

    def row(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self)


def available() -> bool:
    """Whether matplotlib can be imported."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


@strict
def pictures(folder: Path, before: Run, after: Run, limit: int) -> list[Path]:
    """Draw `profile.png`, `layout.png` and `timeline.png` into `folder`; return their paths."""
    draw: dict[str, Callable[..., Axes]] = {
        "profile.png": partial(profile, before.trace, after.trace, limit),
        "layout.png": partial(layout, after.trace, after.placement),
        "timeline.png": partial(streams, after.trace, after.timeline),
    }
    return [save(folder / name, drawing) for name, drawing in draw.items()]


def save(path: str | Path, draw: Callable[..., Axes]) -> Path:
    """Draw into a PNG: `draw` is called with `ax`, as `functools.partial(profile, trace)` can be; needs no display."""
    with _installed():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure: Any = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    draw(ax=figure.subplots())
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    return Path(path)


@strict
def profile(
    before: Trace, after: Trace | None = None, limit: int | str | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the load over the ops of an iteration; of a rewritten trace too, on the same axis.

    There an op counts with the copies and reruns right before it: the most that any of them holds.

    Parameters
    ----------
    before : Trace
    after : Trace, optional
        What a plan made of it.
    limit : int or str, optional
        Bytes, or a text such as `"300MiB"` or `"70%"` (of the peak load): a line.
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
    ax.fill_between(steps, held, step="post", alpha=0.35, label="load" if after is None else "without the plan")
    if after is not None:
        steps, kept = recorded(before), recorded(after)
        if len(kept) != len(steps):
            told = f"after: {len(kept)} ops of trace {after.name!r:.60}, but {before.name!r:.60} has {len(steps)}"
            raise ValueError(f"{told}: it is no rewrite of that")
        begins = np.append(0, kept[:-1] + 1)  # of what a copy or a rerun holds, the most counts with the op behind it
        ax.step(steps, np.maximum.reduceat(after.load(), begins) / _MIB, where="post", label="planned", color="#c44e52")
    if limit is not None:
        at = amount(limit, before.peak_load, "limit") / _MIB
        ax.axhline(at, linestyle="--", linewidth=0.8, color="black", label="limit")
    ax.set(xlabel="op", ylabel="device load (MiB)", title=before.name, ylim=(0, None))
    ax.legend()
    return ax


@strict
def recorded(trace: Trace) -> I64:
    """Return the ops that a rewrite keeps: neither copies nor recomputations."""
    return np.flatnonzero((trace.ops.of >= 0) & (trace.ops.role != RECOMPUTE))


def curves(figure: Figure, *, ax: Axes | None = None) -> Axes:
    """Draw the curves of a figure; points without a value are left out. `ax` as in `profile`."""
    ax = axes_of(ax)
    for style, look in _STYLES.items():
        for k, series in enumerate(s for s in figure.series if s.style == style):
            y = np.array([np.nan if v is None else v for v in series.y], np.float64)
            own = {"color": f"C{k}", "marker": "" if len(y) > 50 else "o", "markersize": 3} | look
            own |= {"markerfacecolor": _FILLS[k % len(_FILLS)]} if series.marks else {}
            ax.plot(series.x, y, label=series.name, **own)
    ax.set(xlabel=figure.x, ylabel=figure.y, title=figure.title, ylim=(0, None))
    if figure.above is not None:
        label, units = figure.above
        ax.secondary_xaxis("top", functions=(partial(np.multiply, units), partial(np.multiply, 1 / units))).set_xlabel(
            label
        )
    ax.legend(fontsize="small")
    return ax


def multiples(figures: Sequence[Figure], *, ax: Axes | None = None, across: int = 4) -> Axes:
    """Draw the curves of several figures, small, side by side, with one legend for all.

    A curve has the same look in each. `y` is in proportion up to 1 and logarithmic above it, so that little and much
    can be told apart in one picture. `ax` as in `profile`: the whole picture that it is in is taken, its size as well.
    Returned is the first of the small ones.
    """
    canvas: Any = axes_of(ax).figure
    canvas.clear()
    series = {series.name: series.style for figure in figures for series in figure.series}
    styles = list(series.values())
    looks = {name: _look(style, styles[:k].count(style)) for k, (name, style) in enumerate(series.items())}
    x = [value for figure in figures for one in figure.series for value in one.x]
    wide = min(x, default=0) - 3, max(x, default=100) + 3
    across = min(across, len(figures))
    columns = 2 * max(across, 2)  # of the legend
    down, lines = -(-len(figures) // across), -(-len(looks) // columns)
    canvas.set_size_inches(1.6 * columns, 2.6 * down + 0.25 * lines + 0.4)
    axes = canvas.subplots(down, across, squeeze=False).ravel()
    for k, (small, figure) in enumerate(zip(axes, figures)):
        _small(small, figure, looks)
        names = {"ylabel": "" if k % across else figure.y, "xlabel": "" if k + across < len(figures) else figure.x}
        small.set(xlim=wide, **names)
    for small in axes[len(figures) :]:
        small.set_axis_off()
    handles = {label: handle for small in axes for handle, label in zip(*small.get_legend_handles_labels())}
    shown = [name for name in looks if name in handles]
    look = {"loc": "outside lower center", "ncols": columns, "fontsize": "small"}
    canvas.legend([handles[name] for name in shown], shown, **look)
    first: Axes = axes[0]
    return first


def _look(style: str, k: int) -> dict[str, Any]:
    """How the k-th curve of a style looks in each of the `multiples`."""
    if style == "dashed":
        return {"color": "black", "linestyle": (":", "--")[k % 2], "linewidth": 1.6, "zorder": 4}
    shape = {"marker": _MARKERS[k % len(_MARKERS)], "markersize": 4, "linewidth": 1}
    return shape | {"color": _MANY[k % len(_MANY)]} | (_STYLES[style] if style == "bold" else {})


def _small(ax: Axes, figure: Figure, looks: Mapping[str, dict[str, Any]]) -> None:
    """One of the `multiples`."""
    for series in figure.series:
        y = np.array([np.nan if v is None else v for v in series.y], np.float64)
        ax.plot(series.x, y, label=series.name, **looks[series.name])
    ax.set_yscale("symlog", linthresh=1, linscale=0.5)
    top = max((v for series in figure.series for v in series.y if v is not None), default=1)
    ax.set(title=figure.title, ylim=(-0.05, max(top * 1.3, 2)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.title.set_fontsize("small")
    ax.tick_params(labelsize="small")


@strict
def layout(trace: Trace, placement: Placement, *, ax: Axes | None = None) -> Axes:
    """Draw every device buffer as a rectangle: time to the right, address up. `ax` as in `profile`."""
    placement.check_fits(trace)
    ax = axes_of(ax)
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
    ax.set(xlim=(0, trace.n), ylim=(0, max(placement.height / _MIB, 1e-9)), xlabel="op (with copies and reruns)")
    ax.set(ylabel="address (MiB)", title=f"{trace.name}: {placement.height / _MIB:.1f} MiB placed")
    for kind in (kind for kind in _COLOURS if kind in trace.buffers.kind):
        ax.plot([], [], "s", color=_COLOURS[kind], label=kind)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper right", fontsize="small")
    return ax


@strict
def streams(trace: Trace, timeline: Timeline, *, ax: Axes | None = None) -> Axes:
    """Draw one steady iteration: a bar an op, coloured by its role, a row a stream. `ax` as in `profile`.

    With the host on, rows above show what each host hands over and where it waits, from one iteration ahead at most.
    """
    timeline.check_fits(trace)
    ax = axes_of(ax)
    handed = timeline.handed(trace)
    for k, host in enumerate(handed):
        turn = timeline.host_period  # the wait before the first op is drawn where the iteration ends
        waits = [(s.start - s.wait + turn * (s is host[0]), s.wait) for s in host if s.wait]
        _bars(ax, k, waits, _HOST["waits"])
        _bars(ax, k, [(s.start, s.end - s.start) for s in host], _HOST["hands over"])
    for k in range(len(trace.ops.streams)):
        mine = np.flatnonzero(trace.ops.stream == k)
        bars = [*zip(timeline.start[mine].tolist(), (timeline.end - timeline.start)[mine].tolist())]
        _bars(ax, len(handed) + k, bars, [_ROLES[ROLES[role]] for role in trace.ops.role[mine].tolist()])
    shown = {role: _ROLES[role] for k, role in enumerate(ROLES) if (trace.ops.role == k).any()}
    for label, colour in (shown | (_HOST if handed else {})).items():
        ax.plot([], [], "s", color=colour, label=label)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(ROLES) + len(_HOST), fontsize="small")
    rows = [*trace.ops.hosts[: len(handed)], *trace.ops.streams]
    ax.set_yticks(range(len(rows)), rows)
    if handed:
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


def axes_of(ax: Axes | None) -> Axes:
    """The axes to draw on: those given, or new ones by pyplot, which is what shows them in a notebook."""
    if ax is not None:
        if not hasattr(ax, "fill_between"):
            raise TypeError(f"ax: {reprlib.repr(ax)} is a {type(ax).__name__}; it must be axes of matplotlib or None")
        return ax
    with _installed():
        from matplotlib import pyplot
    made: Axes = pyplot.subplots(figsize=_SIZE, layout="constrained")[1]
    return made


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(f"pictures need matplotlib: pip install 'gpumem[plot]' ({error})") from error
