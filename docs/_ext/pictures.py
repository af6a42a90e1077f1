"""The pictures on the pages, drawn when the pages are built, so that none is older than the code.

A function under `@picture` draws on the axes that it is given; the pages show it as `_pictures/<its name>.svg`. It may
have axes of its own size: `@picture(width=8, height=3)`, in inches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

import gpumem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from sphinx.application import Sphinx

Draw = Callable[["Axes"], object]
PICTURES: dict[str, tuple[Draw, tuple[float, float]]] = {}
STYLE = {"svg.hashsalt": "gpumem", "font.size": 11, "axes.spines.top": False, "axes.spines.right": False}


def picture(*, width: float = 9, height: float = 4) -> Callable[[Draw], Draw]:
    """Put the function below among those that are drawn."""

    def add(draw: Draw) -> Draw:
        PICTURES[draw.__name__] = draw, (width, height)
        return draw

    return add


@cache
def planned() -> Any:
    """Plan what README's first command plans."""
    return gpumem.plan(gpumem.bundled("vgg16"), "gtx1080ti", pool="70%")


@picture()
def profile(ax: Axes) -> None:
    """The load before and after."""
    gpumem.plot.profile(planned().before.trace, planned().trace, planned().pool, ax=ax)


@picture()
def layout(ax: Axes) -> None:
    """Where each buffer lies, and when."""
    gpumem.plot.layout(planned().trace, planned().placement, ax=ax)


@picture(height=2.5)
def timeline(ax: Axes) -> None:
    """What each stream does, and when."""
    gpumem.plot.streams(planned().trace, planned().after.timeline, ax=ax)


def draw_all(app: Sphinx) -> None:
    """Draw them all into `_pictures`."""
    folder = Path(app.srcdir) / "_pictures"
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, (draw, size) in PICTURES.items():
            figure = Figure(figsize=size, layout="constrained")
            draw(figure.subplots())
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def setup(app: Sphinx) -> dict[str, Any]:
    """Draw before the pages are read."""
    app.connect("builder-inited", draw_all)
    return {"parallel_read_safe": True}
