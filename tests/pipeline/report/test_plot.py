"""Pictures: axes of their own or given ones, no backend forced, and what to install without matplotlib; offsets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

import gpumem
from gpumem import Machine, Placement, Plan, Trace, plot
from gpumem.io import bundled
from gpumem.pipeline.report import Figure, Series
from gpumem.pipeline.swap_and_place import at_load
from gpumem.pool import best_fit
from gpumem.swap import Recompute
from gpumem.trace import Buffers, Ops
from tests.pipeline.swapping import report, swap


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    """The user's backend; this one needs no display."""
    from matplotlib import pyplot

    with matplotlib.rc_context({"backend": "agg"}):
        pyplot.switch_backend("agg")
        yield
        pyplot.close("all")


def drawings(trace: Trace) -> list[Callable[..., Any]]:
    placed = gpumem.best_fit(trace)
    line = gpumem.simulator.simulate(trace, Machine.named("v100"), placed)
    curve = Figure("f", "a figure", "x", "y", (Series("one", [0, 1], [2, None]),))
    return [
        partial(plot.profile, trace),
        partial(plot.profile, trace, limit="70%"),
        partial(plot.profile, trace, trace, trace.peak_live_bytes),
        partial(plot.layout, trace, placed),
        partial(plot.streams, trace, line),
        partial(plot.memory, trace, gpumem.simulator.simulate(trace, Machine.named("v100"), sync=True)),
        partial(plot.curves, curve),
    ]


def test_each_makes_its_own_axes_or_draws_on_those_given() -> None:
    from matplotlib import pyplot

    for draw in drawings(gpumem.bundled("mlp3")):
        made = draw()
        assert made.get_title() and made.figure is pyplot.gcf()
        given = pyplot.figure().subplots()
        assert draw(ax=given) is given and given.get_title() == made.get_title()
        pyplot.close("all")


def test_dashed_curves_share_the_colours_of_the_lines_and_marks_are_no_curves() -> None:
    lines = [Series("a", [0, 1], [2, 1]), Series("b", [0, 1], [3, None])]
    more = [Series("a'", [0, 1], [1, 1], "dashed"), Series("p", [1], [0], "point")]
    more += [Series(name, [0], [9], "at most") for name in "qr"]
    ax = plot.curves(Figure("f", "a figure", "x", "y", (*lines, *more), ("twice x", 2.0)))
    drawn = {line.get_label(): line for line in ax.get_lines()}
    assert list(drawn) == ["a", "b", "a'", "p", "q", "r"]
    assert drawn["q"].get_markerfacecolor() != drawn["r"].get_markerfacecolor()
    assert drawn["a'"].get_color() == drawn["a"].get_color() != drawn["b"].get_color()
    assert {drawn[name].get_linestyle() for name in "pqr"} == {"None"}
    (above,) = ax.child_axes
    above.figure.canvas.draw()
    assert above.get_xlabel() == "twice x" and above.get_xlim() == pytest.approx([2 * x for x in ax.get_xlim()])


def test_an_axis_of_x_may_be_logarithmic() -> None:
    series = (Series("a", [1.0, 100.0], [2.0, 1.0]),)
    for log, scale in ((True, "log"), (False, "linear")):
        figure = Figure("f", "a figure", "x", "y", series, log=log)
        assert plot.curves(figure).get_xscale() == scale
        ax = plot.multiples([figure, figure])
        assert ax.get_xscale() == scale and (ax.get_xlim()[0] > 0) == log and ax.get_xlim()[1] > 100


def test_a_bare_instance_with_steps_like_nanoseconds_can_be_drawn() -> None:
    bare = Trace.from_lifetimes([4, 2], [0, 10**12], [10**12, 2 * 10**12])
    assert len(plot.profile(bare).collections) == 1
    assert plot.layout(bare, gpumem.best_fit(bare)).get_legend() is None


def test_files_are_drawn_without_pyplot_and_no_backend_is_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = gpumem.bundled("mlp3")
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot")
    before = matplotlib.rcParams._get("backend")
    assert plot.save(tmp_path / "p.png", partial(plot.profile, trace)).read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules and matplotlib.rcParams._get("backend") == before


def test_a_profile_shows_what_is_held_while_ops_run_again() -> None:
    """What op 3 reads is recomputed before it, from 8 bytes of scratch; op 3 itself holds a byte."""
    ops = Ops.make([[], [0], [], [1]], [[0], [1], [2], []])
    trace = Trace(Buffers.make([8, 1, 8], [0, 1, 2], [2, 4, 3]), ops)
    again = Plan.of(trace, [Recompute(1, 1, 3, 3)]).apply(trace)
    planned = plot.profile(trace, again).lines[0].get_ydata()
    assert (np.asarray(planned) * 2**20).tolist() == [8, 9, 8, 9]
    assert again.live_bytes().tolist() == [8, 9, 8, 8, 9, 1]


def test_streams_say_what_their_colours_mean() -> None:
    ops = Ops.make([[], [0], [0]], [[0], [], []], duration=[3, 3, 3])
    trace = Trace(Buffers.make([8], [0], [3]), ops)
    again = Plan.of(trace, [Recompute(0, 1, 2, 2)]).apply(trace)
    for shown, told in ((trace, ["compute"]), (again, ["compute", "recompute"])):
        legend = plot.streams(shown, gpumem.simulator.simulate(shown, Machine.named("v100"))).get_legend()
        assert [text.get_text() for text in legend.get_texts()] == told


def test_streams_have_a_row_for_each_host_that_hands_over() -> None:
    trace = gpumem.bundled("mlp3")
    two = replace(trace, ops=replace(trace.ops, hosts=("main", "copies"), host=np.arange(trace.n) % 2))
    drawn = plot.streams(two, gpumem.simulator.simulate(two, Machine.named("v100"), sync=True))
    assert [text.get_text() for text in drawn.get_yticklabels()] == ["main", "copies", "compute"]
    assert [text.get_text() for text in drawn.get_legend().get_texts()] == ["compute", "launches", "waits"]
    ahead = gpumem.simulator.simulate(trace, Machine.named("v100").with_(host_ns=1), sync=False)
    far = replace(ahead, issued=ahead.issued - 10**12)
    assert plot.streams(trace, far).get_xlim()[0] == -far.makespan / 1e6


def test_memory_shows_both_ways_to_free() -> None:
    trace = gpumem.bundled("mlp3")
    line = gpumem.simulator.simulate(trace, Machine.named("v100").with_(host_ns=1e4))
    low, high = (max(curve.get_ydata()) for curve in plot.memory(trace, line).lines)
    assert low < high == line.memory_over_time(trace, "completed")[1].max() / 2**20


def test_what_does_not_belong_together_is_said_so() -> None:
    trace, other = gpumem.bundled("mlp3"), Trace.from_lifetimes([4], [0], [2])
    with pytest.raises(ValueError, match=r"placement: 35 offsets, but trace '' has 1 buffers"):
        plot.layout(other, gpumem.best_fit(trace))
    with pytest.raises(ValueError, match=r"timeline: 40 ops, but trace '' has 2"):
        plot.streams(other, gpumem.simulator.simulate(trace, Machine.named("v100")))
    with pytest.raises(TypeError, match=r"ax: Trace\(.* is a Trace; it must be axes of matplotlib or None"):
        plot.profile(trace, ax=trace)
    with pytest.raises(ValueError, match=r"limit: '70 apples'|limit: unit 'apples'"):
        plot.profile(trace, limit="70 apples")


def test_without_matplotlib_a_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    draw = drawings(gpumem.bundled("mlp3"))
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for drawing in draw:
        with pytest.raises(ImportError, match=r"pip install 'gpumem\[plot\]'"):
            drawing()
    with pytest.raises(ImportError, match=r"pip install 'gpumem\[plot\]'"):
        plot.save(tmp_path / "p.png", draw[0])
    assert not list(tmp_path.iterdir())


def test_pictures_are_drawn(tmp_path: Path) -> None:
    trace = bundled("mlp3")
    limit = trace.peak_live_bytes
    found = at_load(trace, limit, swap=swap, pool=best_fit)
    r = report(trace, found, limit)
    paths = plot.pictures(tmp_path, r.before, r.after, limit)
    assert sorted(p.name for p in paths) == ["layout.png", "profile.png", "timeline.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)


# --- offsets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "offset, alignment, message",
    [
        ([0], 1, "offset: 1 for 3 buffers; give one for each, -1 on the host"),
        ([0, 8, -1, 0], 1, "offset: 4 for 3 buffers"),
        ([0.5, 8.0, -1.0], 1, "offset: expected a list of integers"),
        ([[0, 8, -1]], 1, "offset: expected a list of integers"),
        (["0", "8", "-1"], 1, "offset: expected a list of integers"),
        ([0, -8, -1], 1, r"offset\[1\]: -8 for 2 bytes is not within \[0, 2\*\*62\)"),
        ([2**62 - 4, 0, -1], 1, rf"offset\[0\]: {2**62 - 4} for 4 bytes is not within"),
        ([2**63 - 1, 0, -1], 1, r"offset\[0\]: 9223372036854775807 for 4 bytes"),
        ([0, 100, -1], 256, r"offset\[1\]: 100 is no multiple of the alignment of 256 bytes"),
        ([0, 8, 8], 1, r"offset\[2\]: 8, but buffer 2 is on the host: -1 would do"),
        ([0, 8, -1], 0, "alignment: 0 is below 1"),
    ],
)
def test_a_placement_wants_one_whole_offset_a_buffer(offset: Any, alignment: int, message: str) -> None:
    from gpumem.trace import Buffers, Ops

    trace = Trace(Buffers.make([4, 2, 4], [0] * 3, [1] * 3, host=[False, False, True]), Ops.make([], []), 1)
    assert Placement.at(trace, np.array([0, 8, -1])).height == 10
    with pytest.raises(ValueError, match=message):
        Placement.at(trace, offset, alignment=alignment)
