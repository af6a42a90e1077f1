"""`python -m benchmarks pool`, and the measures behind it: footprints, Table I, what calls cost."""

from __future__ import annotations

import gc
import json
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import gpumem
from benchmarks.papers import smartpool as pool_tables
from benchmarks.papers.published import BELOW_CNMEM
from benchmarks.papers.smartpool import costs
from gpumem.io import bundled, write
from gpumem.pipeline.footprint import placed, replayed
from gpumem.pool import ALLOCATORS, PLANNERS, best_fit, first_fit
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.smartpool.online import SmartPool
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import Cli
from tests.files import BARE, KINDS, bad_file
from tests.nets import net
from tests.strategies import traces

PARTS = ["table1", "instances", "cost"]
FIGURES = ["native", "cnmem", "cnmem_first_fit", "cnmem_singa", "smartpool"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two planners and two allocators, so that a run is short."""
    monkeypatch.setattr("gpumem.pool.PLANNERS", {"best-fit": best_fit, "first-fit": first_fit})
    monkeypatch.setattr("gpumem.pool.ALLOCATORS", {"native": Native, "cnmem": CnMem})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of instances, and of what is none."""
    path = tmp_path / "instances"
    path.mkdir()
    (path / "b.csv").write_bytes(BARE)
    (path / "a.csv").write_bytes(b"id,lower,upper,size\nv,1,4,3\nw,2,3,3\nx,2,5,3\ny,4,5,5\nz,4,6,2\n")
    (path / "README.md").write_text("no instance")
    return path


# --- the measures ----------------------------------------------------------------------------------------


@given(traces(max_ops=6, max_buffers=6), st.integers(0, 100))
def test_a_footprint_knows_the_better_of_two_bounds(trace: Trace, more: int) -> None:
    def planner(t: Trace) -> Placement:
        found = best_fit(t, alignment=1)
        return Placement(found.offset, found.height, bound=more)

    found, peak = placed(trace, planner, name="p"), trace.peak_load
    height = best_fit(trace, alignment=1).height
    assert (found.name, found.buffers, found.peak_load, found.size) == ("p", len(trace.buffers), peak, height)
    assert found.bound == max(peak, more)
    assert found.optimal is (height <= max(peak, more))
    assert found.ratio == (height / peak if peak else 1.0)


@given(traces(max_ops=6, max_buffers=6))
def test_native_in_bytes_takes_the_peak_load(trace: Trace) -> None:
    try:
        found = replayed(trace, partial(Native, granularity=1))
    except ValueError as error:  # a buffer that wraps and moves on
        assert "no placement" in str(error)
        return
    assert (found.size, found.bound, found.optimal) == (trace.peak_load, trace.peak_load, True)


def test_a_footprint_is_what_was_reserved_not_the_highest_address() -> None:
    trace = bundled("vgg16")
    found, native = replayed(trace, Native), Native()
    height = replay(trace, native).height
    assert found.size == native.statistics.reserved.peak != height == found.placement.height


class Log(Native):
    """Writes down what it is asked for."""

    def __init__(self, log: list[tuple[str, int]]) -> None:
        super().__init__(granularity=1)
        self.log = log

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self.log.append(("malloc", size))
        return super().allocate(size)

    def free(self, offset: int, *, stream: int = 0) -> None:
        self.log.append(("free", self._live[offset].requested))
        super().free(offset)


@given(traces(max_ops=6, max_buffers=6, streams=1), st.integers(1, 3), st.integers(0, 2))
def test_what_is_timed_is_what_replay_asks_for(trace: Trace, replays: int, warm: int) -> None:
    timed: list[tuple[str, int]] = []
    try:
        (cost,) = costs(trace, {"log": partial(Log, timed)}, replays=replays, warm=warm)
    except ValueError as error:
        assert "nothing to time" in str(error)
        assert not any(b.size and b.space == "device" and b.end - b.start < trace.n for b in trace.buffers)
        return
    replayed: list[tuple[str, int]] = []
    try:
        replay(trace, Log(replayed), iterations=9)
    except ValueError as error:
        assert "no placement" in str(error)
    assert timed == replayed[: len(timed)]
    mine = [b for b in trace.buffers if b.size and b.space == "device"]
    passing = sum(b.end - b.start < trace.n for b in mine)
    before = sum(b.end - b.start == trace.n or b.end > trace.n for b in mine)  # the first iteration
    assert len(timed) == before + 2 * passing * (replays + warm)
    assert (cost.allocator, cost.pairs) == ("log", passing)


def test_the_median_of_replays_in_turn_by_a_clock_of_ours() -> None:
    order: list[str] = []

    class Named(Native):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def allocate(self, size: int, *, stream: int = 0) -> int:
            order.append(self.name)
            return super().allocate(size)

    trace = Trace.from_lifetimes([1, 1], [0, 1], [1, 2])
    # three turns of two allocators: a takes 10, 30, 1000 and b 2, 200, 4; two pairs each
    readings = iter([0, 10, 0, 2, 0, 30, 0, 200, 0, 1000, 0, 4])
    makes = {name: partial(Named, name) for name in "ab"}
    found = costs(trace, makes, replays=3, warm=0, clock=lambda: next(readings))
    assert [(c.allocator, c.pairs, c.ns) for c in found] == [("a", 2, 15.0), ("b", 2, 2.0)]
    assert order == ["a", "a", "b", "b"] * 3


def test_no_garbage_is_collected_while_the_clock_runs() -> None:
    seen: list[bool] = []
    ticks = count()

    def clock() -> int:
        seen.append(gc.isenabled())
        return next(ticks)

    trace = Trace.from_lifetimes([1], [0], [1], n=2)
    costs(trace, {"a": Native}, clock=clock)
    assert set(seen) == {False} and gc.isenabled()

    class Broken(Native):
        def free(self, offset: int, *, stream: int = 0) -> None:
            if not gc.isenabled():
                raise ValueError("broken")
            super().free(offset)

    with pytest.raises(ValueError, match="broken"):
        costs(trace, {"a": Broken})
    assert gc.isenabled()


def test_smartpool_is_timed_as_planned() -> None:
    trace = bundled("vgg16")
    pools: list[SmartPool] = []

    def make() -> SmartPool:
        pools.append(SmartPool.of(trace, best_fit(trace)))
        return pools[-1]

    costs(trace, {"smartpool": make}, replays=2)
    (pool,) = pools
    assert (pool.statistics.misses, sum(pool.statistics.deviations.values())) == (0, 0)


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="trace 'still': no buffer comes and goes, so there is nothing to time"):
        costs(Trace.from_lifetimes([1], [0], [2], name="still"), {"a": Native})
    with pytest.raises(ValueError, match="replays: 0, time at least one"):
        costs(bundled("mlp3"), {"a": Native}, replays=0)


# --- Table I ---------------------------------------------------------------------------------------------


def test_table_1_is_three_replays_over_the_load(cli: Cli) -> None:
    found = cli("bench", "pool", "vgg16", "resnet18", "--what", "table1", "--json").json
    assert list(found) == ["header", "table1", "table1_means"]
    for row, name in zip(found["table1"], ("vgg16", "resnet18")):
        trace = bundled(name)
        heights = {"native": trace.peak_load, "smartpool": best_fit(trace).height}
        pools = {"cnmem": CnMem(), "cnmem_first_fit": CnMem(fit="first"), "cnmem_singa": CnMem(pool=256 * 2**20)}
        for key, pool in pools.items():
            replay(trace, pool)
            heights[key] = pool.statistics.reserved.peak
        assert (row["net"], row["peak_load"]) == (trace.name, trace.peak_load)
        assert {key: row[key] for key in FIGURES} == {k: pytest.approx(h / trace.peak_load) for k, h in heights.items()}
        for key in pools:
            assert row[f"below_{key}"] == pytest.approx(1 - heights["smartpool"] / heights[key])
        assert row["paper_below_cnmem"] is None
    assert [m["net"] for m in found["table1_means"]] == ["VGGs, mean of 1", "ResNets, mean of 1"]
    assert all(m[key] == r[key] for m, r in zip(found["table1_means"], found["table1"]) for key in FIGURES)


def line_of(net: str, below: float) -> dict[str, object]:
    savings = {"below_cnmem": below, "below_cnmem_first_fit": 2 * below, "below_cnmem_singa": 3 * below}
    ratios = dict.fromkeys(FIGURES, 1.0) | savings
    return {"net": net, "peak_load": 2**20, **ratios, "paper_below_cnmem": BELOW_CNMEM.get(net)}


def test_means_are_over_the_vggs_and_over_the_resnets() -> None:
    rows = [line_of(*row) for row in (("vgg11", 0.1), ("vgg16", 0.3), ("resnet50", 0.5), ("mlp3", 0.9), ("unet", 0.9))]
    vggs, resnets = pool_tables.means(rows)
    assert (vggs["net"], vggs["below_cnmem"], vggs["below_cnmem_first_fit"]) == (
        "VGGs, mean of 2",
        pytest.approx(0.2),
        pytest.approx(0.4),
    )
    assert (resnets["net"], resnets["below_cnmem"]) == ("ResNets, mean of 1", 0.5)
    assert pool_tables.means(rows[3:]) == []
    lines = pool_tables.ratio_table(rows).splitlines()
    assert lines[1].split() == ["vgg11", "1.0", *["1.0000"] * 5, "10.0", "20.0", "30.0", "13.3"]
    assert lines[2].split()[-1] == "-"
    assert lines[6].split() == ["VGGs,", "mean", "of", "2", *["1.0000"] * 5, "20.0", "40.0", "60.0", "-"]
    assert lines[-1].startswith("paper: SmartPool up to 13.3 % below CnMem (VGG11), and itself at most at 1.016")


def test_means_are_of_one_rule_for_workspaces_each() -> None:
    rows = [line_of("vgg11", 0.1) | {"workspaces": "none"}, line_of("vgg11, fastest", 0.3) | {"workspaces": "fastest"}]
    found = [(row["net"], row["below_cnmem"]) for row in pool_tables.means(rows)]
    assert found == [("VGGs, mean of 1", 0.1), ("VGGs, mean of 1, fastest", 0.3)]
    assert [row["net"] for row in pool_tables.means(rows[1:])] == ["VGGs, mean of 1"]


# --- the command -----------------------------------------------------------------------------------------


def test_all_parts_of_the_bundled_traces(cli: Cli, few: None) -> None:
    ran = cli("bench", "pool", "--quick")
    assert (ran.status, ran.err) == (0, [])
    lines = ran.out.splitlines()
    assert lines[0].startswith("# machine: ") and lines[2] == "# seed: each planner's own"
    assert lines[3] == "# command: python -m benchmarks pool --quick"
    names = list(gpumem.io.BUNDLED.values())  # type: ignore[attr-defined]
    for title, first in (("Table I", "net"), ("Pool planners", "instance"), ("A malloc and its free", "trace")):
        (at,) = [k for k, line in enumerate(lines) if line.startswith(title)]
        assert lines[at + 2].split()[0] == first
        assert [line.split()[0] for line in lines[at + 3 : at + 6]] == names


def test_instances_of_a_folder(cli: Cli, few: None, folder: Path, tmp_path: Path) -> None:
    ran = cli("bench", "pool", "--instances", folder, "--what", "instances", "--json", "--out", tmp_path / "out")
    rows = ran.json["instances"]
    assert [(r["instance"], r["planner"]) for r in rows] == [(i, p) for i in "ab" for p in ("best-fit", "first-fit")]
    assert [r["footprint"] for r in rows] == [11, 11, 9, 9]
    assert [r["optimal"] for r in rows] == [False, False, True, True]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"bench.txt", "bench.json"}
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == ran.json
    text = (tmp_path / "out" / "bench.txt").read_text().splitlines()
    assert text[:4] == ran.json["header"]
    heads = ["instance", "buffers", "peak", "load", "best-fit", "s", "first-fit", "s", "lowest", "bound"]
    assert text[-3].split() == heads
    a, b = text[-2].split(), text[-1].split()
    assert (a[:4], a[5], a[-2:]) == (["a", "5", "10", "1.1000"], "1.1000", ["1.1000", "1.0000"])
    assert b[-2:] == ["1.0000", "optimal"]


def test_the_lowest_of_an_instance_is_shown_with_what_is_proven() -> None:
    sizes = {"high": 30, "low": 21, "middle": 25}
    rows = [
        {"instance": "i", "planner": name, "buffers": 9, "peak_load": 20, "footprint": size, "ratio": size / 20}
        | {"bound": 20.5, "optimal": False, "seconds": 0.25}
        for name, size in sizes.items()
    ]
    head, line = pool_tables.instance_table(rows).splitlines()
    assert head.split() == [
        "instance",
        "buffers",
        "peak",
        "load",
        "high",
        "s",
        "low",
        "s",
        "middle",
        "s",
        "lowest",
        "bound",
    ]
    assert line.split() == ["i", "9", "20", "1.5000", "0.25", "1.0500", "0.25", "1.2500", "0.25", "1.0500", "1.0250"]


def test_files_are_instances_too_and_a_folder_is_nothing_else(cli: Cli, few: None, folder: Path) -> None:
    found = cli("bench", "pool", "--instances", folder, "--quick", "--json").json
    bundled_ones = list(gpumem.io.BUNDLED.values())  # type: ignore[attr-defined]
    assert [r["net"] for r in found["table1"]] == bundled_ones
    assert list(dict.fromkeys(r["instance"] for r in found["instances"])) == ["a", "b"]
    found = cli("bench", "pool", "mlp3", "--instances", folder, "--quick", "--json").json
    assert [r["net"] for r in found["table1"]] == ["mlp3_b128_sgd"]
    assert list(dict.fromkeys(r["instance"] for r in found["instances"])) == ["mlp3_b128_sgd", "a", "b"]
    assert list(dict.fromkeys(r["trace"] for r in found["cost"])) == ["mlp3_b128_sgd"]


def test_native_and_smartpool_are_always_timed(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "net.json", net())
    args = [tmp_path / "net.json", "--what", "cost", "--quick", "--json"]
    rows = cli("bench", "pool", *args, "--allocator", "buddy").json["cost"]
    assert [r["allocator"] for r in rows] == ["native", "buddy", "smartpool"]
    assert rows[0]["relative"] == 1 and all(r["ns"] > 0 and r["pairs"] == 4 for r in rows)
    assert all(r["relative"] == pytest.approx(r["ns"] / rows[0]["ns"]) for r in rows)
    rows = cli("bench", "pool", *args).json["cost"]
    assert [r["allocator"] for r in rows] == [*ALLOCATORS, "smartpool"]


def test_one_trace_twice_is_two_lines(cli: Cli, few: None) -> None:
    lines = cli("bench", "pool", "mlp3", "mlp3", "--what", "instances,cost", "--quick").out.splitlines()
    mine = [line.split() for line in lines if line.startswith("mlp3")]
    assert len(mine) == 4 and len({len(line) for line in mine[:2]}) == len({len(line) for line in mine[2:]}) == 1


def test_quick_is_little_effort_unless_told_otherwise(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def listens(trace: Trace, *, alignment: int = 256, effort: float = 1.0) -> Placement:
        told.append(effort)
        return best_fit(trace, alignment=alignment)

    monkeypatch.setattr("gpumem.pool.PLANNERS", {"listens": listens})
    for options in ([], ["--quick"], ["--quick", "--effort", "2"]):
        assert cli("bench", "pool", "mlp3", "--what", "instances", *options).status == 0
    assert told == [1.0, 1.0, 0.03, 0.03, 2.0, 2.0]


def test_what_the_oracles_reject_is_never_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def flat(trace: Trace, *, alignment: int = 256) -> Placement:
        return Placement(best_fit(trace).offset * 0, best_fit(trace).height)

    monkeypatch.setattr("gpumem.pool.PLANNERS", {"flat": flat})
    line = cli.refuses("bench", "pool", "mlp3", "--what", "instances", "--out", tmp_path / "out", status=1)
    assert "the result failed its own check" in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--what", "table2"], "--what: 'table2' is unknown; there are table1, instances, cost"),
        (["--planner", "x"], "--planner: 'x' is unknown; there are best-fit"),
        (["--allocator", "x"], "--allocator: 'x' is unknown; there are native"),
        (["--instances", "nowhere"], "--instances: 'nowhere' is no folder with .csv files"),
        (["--out", ""], "--out: the name is empty"),
        (["--planner", "best-fit", "--seed", "1"], "--seed: no use to best-fit"),
        (["--planner", "search", "--effort", "-1"], "--effort: -1.0 is not positive and finite"),
        (["nowhere"], "nowhere: No such file or directory"),
    ],
)
def test_bad_usage_is_one_line(cli: Cli, args: list[str], message: str) -> None:
    assert message in cli.refuses("bench", "pool", *args)


@pytest.mark.parametrize("kind", KINDS[::4])
def test_a_bad_file_is_one_line_that_names_it(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = bad_file(tmp_path, kind)
    assert cli.refuses("bench", "pool", path, "--out", tmp_path / "out").startswith(f"gpumem: error: {path}: ")
    assert {p.name for p in tmp_path.iterdir()} <= {path.name}


def test_every_planner_of_the_package_is_a_column(cli: Cli) -> None:
    rows = cli("bench", "pool", "mlp3", "--what", "instances", "--quick", "--json").json["instances"]
    assert [r["planner"] for r in rows] == list(PLANNERS)
    assert len({r["bound"] for r in rows}) == 1
