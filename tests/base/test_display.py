"""What a person sees at a prompt and in a notebook: short, telling, escaped, with units."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import gpumem
from benchmarks.papers.zero_overhead_limit import lowest_limit
from gpumem import Machine, Placement, Plan, Recorder, Recording, Timeline, Trace
from gpumem.base.display import LONG, Shown
from gpumem.base.exports import LazyPackage
from gpumem.execute import Emulator, GenericOp, prepare
from gpumem.execute.latency import LatencyTable, Measurement, Sample
from gpumem.execute.models import mlp
from gpumem.io import bundled_path, load
from gpumem.jobs import Job, Outcome, Policy, instructions, simulate_jobs, unmanaged
from gpumem.pipeline import Case, in_pool
from gpumem.simulator.hazards import hazards
from gpumem.swap import Hold, Recompute, Swap, Task, Times, Variant, gaps, zero_stall_limit
from gpumem.swap.autoswap import candidates
from gpumem.swap.plan.gaps import windows
from gpumem.swap.planner import PlannerRecord
from gpumem.trace import Buffers, Csr, Ops
from tests.base.packages import packages

GTX = Machine.named("gtx1080ti")
LONG_NAME = "<b>&" + "x" * 496


@cache
def planned() -> gpumem.Planned:
    return gpumem.plan(gpumem.bundled("mlp3"), GTX, load="95%", planner="autoswap", score="doa", check=False)


def tiny(name: str = "tiny") -> Trace:
    ops = Ops.make([[], [0]], [[0], []], name=[name, name], duration=[30, -1], streams=[name])
    return Trace(Buffers.make([8], [0], [2], kind=[name], name=[name]), ops, name=name)


def traces() -> dict[str, Trace]:
    empty = Trace(Buffers.make([], [], []), Ops.make([], []), 3)
    bare = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
    return {"empty": empty, "bare": bare, "tiny": tiny(), "long": tiny(LONG_NAME), "mlp3": gpumem.bundled("mlp3")}


def decided(trace: str) -> Plan:
    return Plan((Swap(0, 0, 2, 1, 2), Recompute(1, 0, 3, 2), Variant(2, LONG_NAME, 5, 6)), 4, trace)


def recorded() -> Recording:
    device = Recorder()
    device.exec(LONG_NAME, writes=[device.malloc(100, kind=LONG_NAME)])
    return device.recording()


def ran() -> Outcome:
    trace = gpumem.bundled("mlp3")
    return simulate_jobs([Job(LONG_NAME, trace, iterations=2)], GTX, 2**34, Policy(unmanaged))


def objects() -> Iterator[tuple[str, Any]]:
    """Whatever a user gets back that has columns or rows, with nothing in it, little, and much."""
    for what, trace in traces().items():
        yield from [(f"trace {what}", trace), (f"buffers {what}", trace.buffers), (f"ops {what}", trace.ops)]
        yield from [(f"reads {what}", trace.ops.reads), (f"accesses {what}", trace.accesses())]
        placement = gpumem.best_fit(trace)
        yield f"placement {what}", placement
        yield f"gaps {what}", gaps(trace)
        if len(trace.ops):
            line = gpumem.simulator.simulate(trace, GTX, placement)
            yield from [(f"timeline {what}", line), (f"case {what}", Case.of(trace, GTX.with_(name=LONG_NAME)))]
    yield from [("plan empty", Plan()), ("plan", decided("t")), ("plan long", decided(LONG_NAME))]
    yield from [("planned", planned()), ("run", planned().after)]
    named = replace(planned(), machine=GTX.with_(name=LONG_NAME), planner=LONG_NAME, score="")
    yield from [("planned long", named)]
    yield from [("recording", recorded()), ("outcome", ran()), ("outcome of nothing", Outcome((), 0, (), (), ()))]
    yield from [("jobrun", ran().jobs[0]), ("job", Job(LONG_NAME, tiny(LONG_NAME)))]
    yield from [("machine", GTX.with_(name=LONG_NAME)), ("task", Task(tiny(LONG_NAME), np.array([1, 2])))]
    trace = gpumem.bundled("mlp3")
    yield "combined", in_pool(trace, 2**40, swap=lambda t, n: Plan.of(t), pool=gpumem.best_fit)
    yield from [("loaded", load(bundled_path("vgg16"))), ("carried", Plan.of(trace).carried(trace))]
    yield from [("instructions", instructions(trace, Plan.of(trace), GTX)), ("bound", zero_stall_limit(tiny(), GTX))]
    sample = Sample(LONG_NAME, (3,) * 30, (4,))
    yield from [
        ("table", LatencyTable((Measurement(sample, 0.0, 5),) * 20, LONG_NAME)),
        ("model", mlp(batch=2, features=3, hidden=[4])),
    ]
    device = Recorder()
    for _ in range(40):
        device.malloc(2**20)
    yield from [("recorder", device), ("hazards", hazards(trace)), ("windows", windows(trace, GTX))]
    yield from [
        ("times", Times.of(gpumem.simulator.simulate(trace, GTX))),
        ("candidates", candidates(trace, GTX, 2**27)),
    ]
    yield "lowest_limit", lowest_limit(trace, GTX, gpumem.autoswap, step=0.2, name=LONG_NAME)
    yield "program", prepare(tiny(), gpumem.best_fit(tiny()), Emulator(), GenericOp(tiny()))


def test_no_public_class_shows_its_columns() -> None:
    column = re.compile(r"\b(I64|F64|Bool|Csr|list|Trace|Plan)\b")
    public = [
        getattr(package, name)
        for package in packages()
        for name in (dir(package) if isinstance(package, LazyPackage) else vars(package))
    ]
    kinds = {thing for thing in public if isinstance(thing, type)}
    for kind in (kind for kind in kinds if is_dataclass(kind) and kind.__module__.startswith("gpumem")):
        if any(column.search(str(f.type)) for f in fields(kind)) and not issubclass(kind, Shown):
            options = issubclass(kind, PlannerRecord)  # a plan among them shows itself
            assert options or kind.__name__ in {"Policy"}, f"{kind} has columns and is no Shown"


def test_a_repr_is_short_and_one_line() -> None:
    for what, thing in objects():
        text = repr(thing)
        assert len(text) <= LONG and "\n" not in text, f"{what}: {text}"
        assert text.startswith(type(thing).__name__), f"{what}: {text}"


def test_a_repr_tells() -> None:
    trace = gpumem.bundled("mlp3")
    line = gpumem.simulator.simulate(trace, GTX)
    assert (
        repr(trace)
        == "Trace(mlp3_b128_sgd: 40 ops, 35 buffers, peak live bytes 231.70 MiB at op 21, persistent 152.88 MiB)"
    )
    assert repr(Trace.from_lifetimes([4, 2], [0, 1], [2, 3])) == (
        "Trace(3 steps, 2 buffers, peak live bytes 6 B at step 1, persistent 0 B)"
    )
    assert repr(decided("t")) == "Plan(t: 1 swaps, 1 recomputations, 1 variants, for 4 ops)"
    assert repr(Placement(np.array([0, -1]), 2048, 256)) == "Placement(1 buffers, height 2.00 KiB, alignment 256 B)"
    assert repr(Placement(np.array([0]), 8, bound=8)).endswith("bound 8 B, optimal)")
    assert repr(line).startswith("Timeline(40 ops, makespan ") and "stalls none, repeats after" in repr(line)
    assert repr(Csr.of([[1], [2, 3]])) == "Csr(2 rows, 3 entries)"
    assert repr(planned()).startswith("Planned(mlp3_b128_sgd, load of ")


class Tags(HTMLParser):
    """Which tags and texts there are."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_html_is_one_small_table_with_everything_escaped() -> None:
    for what, thing in objects():
        if hasattr(thing, "_repr_html_"):
            found, html = Tags(), thing._repr_html_()
            found.feed(html)
            assert found.tags <= {"table", "caption", "tr", "th", "td"} and html.count("<table>") == 1, what
            assert len(html) < 3000 and html.count("<tr>") <= 20, what
            assert type(thing).__name__ in found.text


def test_what_a_notebook_shows_has_html() -> None:
    for kind in (Trace, Plan, Placement, Timeline, gpumem.Planned, Buffers, Ops):
        assert issubclass(kind, Shown) and callable(kind._repr_html_)
    found = Tags()
    found.feed(planned()._repr_html_())
    assert {"before", "after", "footprint", "overhead"} <= {*found.text.split("\n")}
    found.feed(tiny(LONG_NAME)._repr_html_())
    assert "<b>&xxx" in found.text


# --- pandas ----------------------------------------------------------------------------------------------


def test_buffers_and_ops_become_tables_with_names_and_units() -> None:
    trace = planned().trace
    buffers, ops = trace.to_pandas()
    assert list(buffers) == ["bytes", "start", "end", "persistent", "space", "kind", "of", "name", "shape", "dtype"]
    assert {"shape", "dtype"}.isdisjoint(tiny().buffers.to_pandas())
    assert list(ops)[-2:] == ["host", "blocking"]
    assert (buffers.index.name, len(buffers)) == ("buffer", len(trace.buffers))
    assert buffers.bytes.tolist() == trace.buffers.size.tolist() and set(buffers.space) == {"device", "host"}
    assert (ops.index.name, len(ops)) == ("op", trace.n)
    assert ops.role.tolist() == [op.role for op in trace.ops] and ops.stream.tolist() == [op.stream for op in trace.ops]
    assert ops.reads.tolist() == trace.ops.reads.tolist()
    assert ops.of.isna().tolist() == (trace.ops.of == -1).tolist() and ops.of.isna().any()
    assert tiny().ops.to_pandas().duration_ns.isna().tolist() == [False, True]


def test_plans_placements_and_timelines_become_tables() -> None:
    plan = decided("t").to_pandas()
    assert plan.kind.tolist() == ["swap", "recompute", "variant"]
    assert plan.loc[0, "prefetch"] == 2 and plan["at"].isna().tolist() == [True, False, True]
    assert plan.loc[2, ["duration_ns", "workspace_bytes", "name"]].tolist() == [5, 6, LONG_NAME]
    assert {"duration", "workspace"}.isdisjoint(plan) and len(Plan().to_pandas()) == 0
    placed = planned().placement.to_pandas()
    assert placed.offset_bytes.isna().tolist() == planned().trace.buffers.host.tolist()
    line = planned().placed.to_pandas()
    assert list(line) == ["start_ns", "end_ns", "wait_ns", "cause"] and len(line) == planned().trace.n
    assert set(line.cause) <= {"none", "data", "copy", "memory"}
    hosted = gpumem.simulator.simulate(planned().trace, Machine.named("v100"), sync=True)
    assert hosted.to_pandas().issued_ns.tolist() == hosted.issued.tolist() == [span.issued for span in hosted]
    assert "issued_ns" not in line and planned().placed[0].issued is None
    both = planned().to_pandas()
    assert both.index.tolist() == ["before", "after"]
    assert both.loc["after", "peak_live_bytes"] == planned().trace.peak_live_bytes
    assert both.loc["before", "copied_out_bytes"] == 0 < both.loc["after", "copied_out_bytes"]


def test_what_runs_again_and_what_is_held_is_told_beside_swaps() -> None:
    ops = Ops.make([[], [0], [], [1], [3]], [[0], [1], [3], [], []], duration=[5, 7, 1, 1, 1])
    trace = Trace(Buffers.make([8, 8, 8, 8], [0, 1, 2, 2], [2, 4, 3, 5]), ops)
    case = Case.of(trace, GTX, load=100)
    held = Plan.of(trace, [Hold(0, 3), Recompute(1, 1, 3, 3)])
    for plan, reruns in ((held, [(1, 7)]), (Plan.of(trace, held.decisions[1:]), [(2, 12)])):
        done = plan.apply(trace)
        found = in_pool(trace, 2**40, swap=lambda t, n, plan=plan: plan, pool=gpumem.best_fit)
        shown = case.planned(found, gpumem.simulator.simulate(done, GTX), "by hand")
        row = shown.row()
        assert [(row["recomputed_ops"], row["recompute_ns"])] == reruns and row["held"] == len(plan.decisions) - 1
        assert shown.to_pandas().recomputed_ops.tolist() == [0, row["recomputed_ops"]]
        assert shown.to_pandas().recompute_ns.tolist() == [0, row["recompute_ns"]]
        assert "0 swaps, 1 recomputations by by hand" in repr(shown) and "recomputed" in shown._repr_html_()
        assert ("\nheld                      1 value for recomputations" in shown.table()) == bool(row["held"])
    assert "recomputed" not in planned()._repr_html_() and "recomputations" not in repr(planned())


@pytest.mark.parametrize("what", traces())
def test_every_trace_becomes_tables(what: str) -> None:
    buffers, ops = traces()[what].to_pandas()
    assert (len(buffers), len(ops)) == (len(traces()[what].buffers), len(traces()[what].ops))


def test_without_pandas_a_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    trace, line = gpumem.bundled("mlp3"), planned().placed
    for thing in (trace, trace.buffers, trace.ops, planned().plan, planned().placement, line, planned()):
        with pytest.raises(ImportError, match=r"pip install 'gpumem\[pandas\]'"):
            thing.to_pandas()
