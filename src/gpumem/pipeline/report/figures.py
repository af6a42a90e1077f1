"""Charts of any rows."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem.base.display import Shown
from gpumem.io import replacing
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, GRADIENT, INPUT, OPT_STATE, PARAM, STATISTICS

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

    `above`: the label of a second axis of `x`, and how many of its units are 1 on the first. `log`: `x` is logarithmic.
    """

    name: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    above: tuple[str, float] | None = None
    log: bool = False

    def row(self) -> dict[str, object]:
        """Return everything for JSON."""
        return asdict(self)


def available() -> bool:
    """Whether matplotlib can be imported."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


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


def curves(figure: Figure, *, ax: Axes | None = None) -> Axes:
    """Draw the curves of a figure; points without a value are left out. `ax` as in `profile`."""
    ax = axes_of(ax)
    for style, look in _STYLES.items():
        for number, series in enumerate(one for one in figure.series if one.style == style):
            values = np.array([np.nan if value is None else value for value in series.y], np.float64)
            own = {"color": f"C{number}", "marker": "" if len(values) > 50 else "o", "markersize": 3} | look
            own |= {"markerfacecolor": _FILLS[number % len(_FILLS)]} if series.marks else {}
            ax.plot(series.x, values, label=series.name, **own)
    ax.set(xlabel=figure.x, ylabel=figure.y, title=figure.title, ylim=(0, None))
    if figure.log:
        ax.set_xscale("log")
    if figure.above is not None:
        label, units = figure.above
        ax.secondary_xaxis("top", functions=(partial(np.multiply, units), partial(np.multiply, 1 / units))).set_xlabel(
            label
        )
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    many = len(figure.series) > 5  # more names than that would hide the curves
    ax.legend(fontsize="small", **(beside if many else {}))
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
    looks = {name: _look(style, styles[:number].count(style)) for number, (name, style) in enumerate(series.items())}
    positions = [value for figure in figures for one in figure.series for value in one.x]
    log = any(figure.log for figure in figures)
    least, most = min(positions, default=0), max(positions, default=100)
    wide = (least / 1.3, most * 1.3) if log else (least - 3, most + 3)
    across = min(across, len(figures))
    width = 3.2 * max(across, 2)
    columns = _columns(looks, width)
    down, lines = -(-len(figures) // across), -(-len(looks) // columns)
    canvas.set_size_inches(width, 2.6 * down + 0.25 * lines + 0.4)
    axes = canvas.subplots(down, across, squeeze=False).ravel()
    for number, (small, figure) in enumerate(zip(axes, figures)):
        _small(small, figure, looks)
        names = {
            "ylabel": "" if number % across else figure.y,
            "xlabel": "" if number + across < len(figures) else figure.x,
        }
        small.set(xlim=wide, **names)
    for small in axes[len(figures) :]:
        small.set_axis_off()
    handles = {label: handle for small in axes for handle, label in zip(*small.get_legend_handles_labels())}
    drawn = [name for name in looks if name in handles]
    look = {"loc": "outside lower center", "ncols": columns, "fontsize": "small"}
    canvas.legend([handles[name] for name in drawn], drawn, **look)
    first: Axes = axes[0]
    return first


def _columns(names: Iterable[str], width: float) -> int:
    """How many columns of a legend have room in `width` inches: a letter is 0.6 of the font wide, a handle 0.5."""
    from matplotlib.font_manager import FontProperties

    letter = 0.6 * float(FontProperties(size="small").get_size_in_points()) / 72
    return max(1, int(width / (letter * max(map(len, names), default=1) + 0.5)))


def _look(style: str, number: int) -> dict[str, Any]:
    """How the k-th curve of a style looks in each of the `multiples`."""
    if style == "dashed":
        return {"color": "black", "linestyle": (":", "--")[number % 2], "linewidth": 1.6, "zorder": 4}
    shape = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1}
    return shape | {"color": _MANY[number % len(_MANY)]} | (_STYLES[style] if style == "bold" else {})


def _small(ax: Axes, figure: Figure, looks: Mapping[str, dict[str, Any]]) -> None:
    """One of the `multiples`."""
    for series in figure.series:
        values = np.array([np.nan if value is None else value for value in series.y], np.float64)
        ax.plot(series.x, values, label=series.name, **looks[series.name])
    ax.set_yscale("symlog", linthresh=1, linscale=0.5)
    top = max((value for series in figure.series for value in series.y if value is not None), default=1)
    ax.set(title=figure.title, ylim=(-0.05, max(top * 1.3, 2)))
    ax.yaxis.set_major_formatter("{x:g}")
    if figure.log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    ax.title.set_fontsize("small")
    ax.tick_params(labelsize="small")


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
