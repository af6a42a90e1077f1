"""The pictures on the pages, drawn when the pages are built, so that none is older than the code.

A function under `@picture` draws on the axes that it is given; the pages show it as `_pictures/<its name>.svg`. It may
have axes of its own size: `@picture(width=8, height=3)`, in inches. What a page's own examples make, `made_by` has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from doctest import DocTestParser
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.style
import numpy as np
from lifetimes import forward_values, lifetimes
from matplotlib.figure import Figure
from matplotlib.font_manager import font_scalings

import benchmarks.papers.waterwave
import gpumem
from gpumem.pipeline.report import first_iterations, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
Draw = Callable[["Axes"], object]
PICTURES: dict[str, tuple[Draw, tuple[float, float]]] = {}
WIDTH = 8  # inches, 768 pixels: what a page of 1300 pixels has room for, so nothing on a picture shrinks
STYLE = {  # 12 points are 16 pixels, as the text of a page; `font_scalings` below sees to legends
    "svg.hashsalt": "gpumem",
    "svg.fonttype": "none",
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
font_scalings |= {"small": 1.0, "medium": 1.0, "large": 1.0}


def picture(*, width: float = WIDTH, height: float = 4) -> Callable[[Draw], Draw]:
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


def front(folder: Path) -> list[Path]:
    """Draw the front page's picture, `load-light.svg` and `load-dark.svg`, which stand in the repository.

    What it shows is in its description as well, for `tests/test_front.py` to hold against the plan of today.
    """
    written = []
    for look, style in {"light": "default", "dark": "dark_background"}.items():
        with matplotlib.style.context([style, STYLE | {"savefig.transparent": True}]):
            figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
            ax = figure.subplots()
            gpumem.plot.profile(planned().before.trace, planned().trace, planned().pool, ax=ax)
            ax.set(title="", xlabel="op of the training step", ylabel="on the GPU (MiB)")
            ax.legend(frameon=False)
            written.append(folder / f"load-{look}.svg")
            figure.savefig(written[-1], metadata={"Date": None, "Creator": None, "Description": shows()})
    return written


def shows() -> str:
    """Say what the front page's picture shows, in figures."""
    before, after = planned().before.trace, planned().trace
    return f"peak live bytes {before.peak_live_bytes}, planned {after.peak_live_bytes}, limit {planned().pool} bytes"


@cache
def made_by(page: str) -> dict[str, Any]:
    """Run the examples of a page, silently; return what they name."""
    names: dict[str, Any] = {"print": lambda *_: None}
    for example in DocTestParser().get_examples((DOCS / page).read_text()):
        with suppress(Exception if example.exc_msg else ()):
            exec(example.source, names)
    return names


def _again(ax: Axes, name: str, only: str = "") -> None:
    lifetimes(ax, made_by("guides/recompute.md")[name], only=only)


@picture(height=4.7)
def recompute_values(ax: Axes) -> None:
    """The net before: who makes each value, and who reads it."""
    _again(ax, "trace")


@picture(height=3.3)
def recompute_chain(ax: Axes) -> None:
    """A recomputed chain."""
    _again(ax, "chain", "y s h")


@picture(height=3.3)
def recompute_scratch(ax: Axes) -> None:
    """An input off the device, made in scratch."""
    _again(ax, "apart", "x y s h")


@picture(height=3.3)
def recompute_united(ax: Axes) -> None:
    """Two decisions at one place."""
    _again(ax, "united", "x y s h")


@picture(height=2.9)
def recompute_place(ax: Axes) -> None:
    """Copies out, copies in, recomputations."""
    _again(ax, "mixed", "y h")


@picture(height=3.6)
def recompute_random(ax: Axes) -> None:
    """A recomputed random op, and its generator's state."""
    _again(ax, "drawn", "h d m p generator")


@picture(height=3.1)
def recompute_hold(ax: Axes) -> None:
    """A dead input held instead."""
    _again(ax, "held", "h d m p")


@picture(height=3.6)
def recompute_stays(ax: Axes) -> None:
    """A recomputed value that stays for a second recomputation."""
    _again(ax, "stays", "y h d p")


@picture(height=3.6)
def checkpoint_printed(ax: Axes) -> None:
    """Chen's rule as printed."""
    forward_values(ax, made_by("papers/recompute.md")["printed"])


@picture(height=3.6)
def checkpoint_cuts(ax: Axes) -> None:
    """Two levels, cuts searched for."""
    forward_values(ax, made_by("papers/recompute.md")["cuts"])


@picture(height=3)
def waterwave(ax: Axes) -> None:
    """Memory freed when ops are scheduled, and when they have completed."""
    made = made_by("papers/waterwave.md")
    gpumem.plot.memory(made["trace"], made["line"], ax=ax)


@picture(height=3)
def waterwave_groups(ax: Axes) -> None:
    """Two jobs in node groups: what each holds over the ops of a round."""
    _both(ax, "groups")


@picture(height=3)
def waterwave_halves(ax: Axes) -> None:
    """Two jobs in halves of an iteration."""
    _both(ax, "halves")


def _both(ax: Axes, name: str) -> None:
    made = made_by("papers/waterwave.md")
    both, alone = made["rounds"][name], made["job"].peak_live_bytes / 2**30
    trace, n = both.trace, both.trace.n
    second = trace.buffers.of >= both.buffers[1]
    held = [_load_of(trace, mine) / 2**30 for mine in (~second, second)]
    ax.stackplot(range(n), *held, labels=("job 1", "job 2"), colors=("#4c72b0", "#dd8452"), step="post")
    ax.axhline(alone, linestyle="--", linewidth=0.8, color="black", label="one job, at most")
    ax.set(xlabel="op of a round, as launched", ylabel="GiB", ylim=(0, 2.3 * alone), xlim=(0, n - 1))
    ax.legend(loc="upper right", ncols=3, fontsize="small")


def _load_of(trace: gpumem.Trace, mine: Any) -> Any:
    """The load of some of the buffers."""
    buffers = trace.buffers
    return replace(trace, buffers=replace(buffers, size=np.where(mine, buffers.size, 0))).live_bytes()


@picture()
def waterwave_sharing(ax: Axes) -> None:
    """What two jobs get done over the memory there is, as measured."""
    text = (DOCS.parent / "benchmarks/results/bench_waterwave_sharing.txt").read_text()
    rows = [line.split() for line in text.splitlines() if line.startswith("resnet50_224_b64 + resnet50_224_b64")]
    memory = [float(row[6]) for row in rows]
    for k, way in enumerate(benchmarks.papers.waterwave.SHARING):
        gains = [float(row[7 + k]) if row[7 + k] != "-" else float("nan") for row in rows]
        ax.plot(memory, gains, marker="o", markersize=3, label=way)
    ax.set(xlabel="memory, GiB", ylabel="times as much as in turn", ylim=(0.5, 1.4))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))


@picture()
def live(ax: Axes) -> None:
    """The first iterations of a program that knows nothing of plans."""
    made = made_by("guides/live.md")
    first_iterations(made["timed"].log, made["timed"].report().iterations, made["limit"], count=5, ax=ax)


@picture()
def mosos(ax: Axes) -> None:
    """What convolutions need: MO-SOS' figure 2."""
    made = made_by("papers/mosos.md")
    ((_, figure),) = made["mosos"].figures([], made["rows"])
    gpumem.plot.curves(figure, ax=ax)


SHOWN = [
    "vgg16_cifar_b100",
    "resnet50_224_b64",
    "unet_256_b16",
    "inceptionv3_299_b2",
    "gpt2_s512_b8",
    "llama_8l1024_s1024_b4_bf16",
]


@picture()
def leaderboard(ax: Axes) -> None:
    """Every planner on six kinds of nets, as measured; on a page all 33 recorded traces would be too small to read."""
    curves = json.loads((DOCS.parent / "benchmarks/results/planners.json").read_text())["curves"]
    curves = [one for one in curves if one["title"] in SHOWN]
    plot.multiples([_figure(one) for one in curves], ax=ax, across=2)


def _figure(row: dict[str, Any]) -> plot.Figure:
    return plot.Figure(**row | {"series": tuple(plot.Series(**each) for each in row["series"])})


@picture(height=6)
def peers(ax: Axes) -> None:
    """Pool planners beside those of other projects, as measured."""
    curves = json.loads((DOCS.parent / "benchmarks/results/peers.json").read_text())["curves"]
    plot.multiples([_figure(one) for one in curves], ax=ax, across=2)


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


if __name__ == "__main__":
    print(*front(DOCS / "_static"), sep="\n")
