"""`gpumem pool`: tables and rows, planners and allocators, what is feasible, the file that is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpumem import check
from gpumem.io import bundled, bundled_path, load, write
from gpumem.pool import ALLOCATORS, PLANNERS
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import Cli
from tests.nets import net

ROW_KEYS = {
    "file",
    "planner",
    "buffers",
    "peak_live_bytes",
    "footprint",
    "ratio",
    "bound",
    "optimal",
    "seconds",
    "feasible",
}


def test_pool_prints_a_table(cli: Cli, net_file: Path, bare_file: Path) -> None:
    ran = cli("pool", net_file, bare_file, "--planner", "all")
    lines = ran.out.splitlines()
    assert (ran.status, ran.err, len(lines)) == (0, [], 1 + 2 * len(PLANNERS))
    heads = ["file", "planner", "buffers", "peak", "live", "footprint", "ratio", "bound", "seconds", "fits"]
    assert lines[0].split() == heads
    assert [line.split()[-8] for line in lines[1:]] == [*PLANNERS, *PLANNERS]
    assert {line.split()[-3] for line in lines[1:]} == {"optimal"}
    assert {line.split()[-1] for line in lines[1:]} == {"yes"}


def test_pool_prints_rows_of_json_for_every_file_and_planner(cli: Cli, net_file: Path, bare_file: Path) -> None:
    rows = cli("pool", net_file, bare_file, "--planner", "first-fit,best-fit", "--json").json
    assert [(row["file"], row["planner"]) for row in rows] == [
        (str(path), planner) for path in (net_file, bare_file) for planner in ("first-fit", "best-fit")
    ]
    for row, trace in zip(rows, (net(), net(), load(bare_file).trace, load(bare_file).trace)):
        assert set(row) == ROW_KEYS
        placed = PLANNERS[row["planner"]](trace, alignment=256 if len(trace.ops) else 1)
        assert row["buffers"] == len(trace.buffers)
        assert row["peak_live_bytes"] == trace.peak_live_bytes
        assert row["footprint"] == placed.height
        assert row["ratio"] == placed.height / trace.peak_live_bytes
        assert row["seconds"] >= 0 and row["feasible"] is True
        assert row["bound"] == trace.peak_live_bytes and row["optimal"] is (placed.height == trace.peak_live_bytes)


def proves(trace: Trace, *, alignment: int = 1, seed: int = 0, effort: float = 1.0) -> Placement:
    """A planner that places 100 bytes too high, and knows a bound that depends on what it was told."""
    placed = best_fit(trace, alignment=alignment)
    return Placement(placed.offset + 100, placed.height + 100, bound=trace.peak_live_bytes + seed)


def test_a_bound_that_one_planner_proves_holds_for_all(
    cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLANNERS, "proves", proves)
    args = ["pool", bare_file, "--planner", "best-fit,proves"]  # the peak live bytes are 9
    for options, bound, optimal in (([], 9, [True, False]), (["--seed", "100", "--effort", "2"], 109, [True, True])):
        rows = cli(*args, *options, "--json").json
        assert [(row["bound"], row["optimal"]) for row in rows] == [(bound, o) for o in optimal]
    assert [line.split()[-3] for line in cli(*args).out.splitlines()[1:]] == ["optimal", "1.0000"]
    rows = cli("pool", bare_file, "--planner", "proves", "--seed", "50", "--json").json
    assert (rows[0]["bound"], rows[0]["optimal"]) == (59, False)
    assert cli("pool", bare_file, "--planner", "proves", "--seed", "9").out.splitlines()[1].split()[-3] == "2.0000"


def test_options_reach_only_the_planners_that_take_them(
    cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, ...]] = []

    def listens(
        trace: Trace,
        *,
        alignment: int,
        effort: float = 1.0,
        seconds: float = 9.0,
        seed: int = 0,
        progress: object = None,
    ) -> Placement:
        told.append((alignment, effort, seconds, seed, callable(progress)))
        return best_fit(trace, alignment=alignment)

    monkeypatch.setitem(PLANNERS, "listens", listens)
    options = ["--effort", "0.5", "--seconds", "3", "--seed", "7", "--alignment", "2"]
    assert cli("pool", bare_file, "--planner", "best-fit,listens", *options).status == 0
    assert told == [(2, 0.5, 3.0, 7, True)]
    line = cli.refuses("pool", bare_file, "--seed", "7")
    assert line == "gpumem: error: --seed: no use to best-fit; it is an option of search, exact, listens"


def test_pool_replays_through_allocators(cli: Cli, net_file: Path, bare_file: Path) -> None:
    rows = cli("pool", net_file, bare_file, "--allocator", "all", "--json").json
    names = ["best-fit", *ALLOCATORS]
    assert [(row["file"], row["planner"]) for row in rows] == [
        (str(f), n) for f in (net_file, bare_file) for n in names
    ]
    for row in rows:
        trace = load(row["file"]).trace
        assert set(row) == ROW_KEYS
        if row["planner"] == "best-fit":
            continue
        allocator = ALLOCATORS[row["planner"]]()
        replay(trace, allocator)
        assert row["footprint"] == allocator.statistics.reserved.peak
        assert (row["peak_live_bytes"], row["bound"]) == (trace.peak_live_bytes, trace.peak_live_bytes)
        assert row["optimal"] is (row["footprint"] == trace.peak_live_bytes)
    ran = cli("pool", bare_file, "--allocator", "cnmem", "--capacity", "9")
    assert [line.split()[-1] for line in ran.out.splitlines()[1:]] == ["yes", "no"]


def test_an_allocator_in_pieces_may_fit_where_no_placement_does(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def far() -> Native:
        """Take as many bytes as are alive, at addresses that no pool reaches up to."""
        device = Native(granularity=1)
        device.reserve(100)
        return device

    trace = Trace.from_lifetimes([2, 2, 2, 4], [0, 0, 0, 1], [1, 2, 1, 2], name="holes")
    write(tmp_path / "holes.json", trace)
    monkeypatch.setitem(PLANNERS, "wide", lambda t, *, alignment: Placement(np.array([0, 2, 4, 6]), 10))
    monkeypatch.setitem(ALLOCATORS, "far", far)
    args = ["--planner", "wide", "--allocator", "far", "--capacity", "6", "--out", tmp_path / "out.csv", "--json"]
    ran = cli("pool", tmp_path / "holes.json", *args)
    assert (ran.status, [row["feasible"] for row in ran.json]) == (0, [False, True])
    assert [row["footprint"] for row in ran.json] == [10, 6]
    assert ran.err == [
        f"gpumem: {tmp_path}/holes.json: no placement fits 6 bytes, the lowest takes 10 bytes; not shown impossible"
    ]
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("kind", ["overlap", "moves", "full"])
def test_an_allocator_that_does_wrong_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Wrong(Native):
        """Hands out what another one has, never the same twice, or nothing at all."""

        calls = 0

        def allocate(self, size: int, *, stream: int = 0) -> int:
            if kind == "full":
                raise MemoryError("no room")
            self.calls += 1
            return 0 if kind == "overlap" else self.calls * 2**20

        def free(self, offset: int, *, stream: int = 0) -> None:
            pass

    monkeypatch.setitem(ALLOCATORS, "wrong", Wrong)
    trace = Trace.from_lifetimes([1, 4], [0, 2], [3, 4], n=3, name="arc")
    write(tmp_path / "arc.json", trace)
    line = cli.refuses("pool", tmp_path / "arc.json", "--allocator", "wrong", status=1 if kind == "overlap" else 2)
    message = {
        "overlap": "gpumem: internal error: the result failed its own check, please report this: buffers ",
        "moves": "gpumem: error: arc: wrong: buffer 1: wraps, but lies at ",
        "full": "gpumem: error: arc: wrong: buffer 0, before the first iteration: no room",
    }
    assert line.startswith(message[kind])


def test_pool_takes_best_fit_unless_told_otherwise(cli: Cli, net_file: Path) -> None:
    assert [row["planner"] for row in cli("pool", net_file, "--json").json] == ["best-fit"]
    rows = cli("pool", net_file, "--planner", "best-fit, first-fit,best-fit", "--json").json
    assert [row["planner"] for row in rows] == ["best-fit", "first-fit"]


def test_alignment_is_256_for_traces_and_1_for_bare_instances(cli: Cli, bare_file: Path) -> None:
    assert cli("pool", bare_file, "--json").json[0]["footprint"] == 9
    assert cli("pool", bare_file, "--alignment", "256", "--json").json[0]["footprint"] == 256 + 4
    default, packed = (
        cli("pool", bundled_path("vgg16"), *args, "--json").json[0]["footprint"] for args in ([], ["--alignment", "1"])
    )
    assert default == best_fit(bundled()).height
    assert packed == best_fit(bundled(), alignment=1).height


def test_capacity_decides_what_is_feasible(cli: Cli, net_file: Path, bare_file: Path) -> None:
    rows = cli("pool", bare_file, "--capacity", "9", "--json")
    assert (rows.status, rows.json[0]["feasible"]) == (0, True)
    rows = cli("pool", bare_file, "--capacity", "8", "--planner", "all", "--json")
    assert (rows.status, [row["feasible"] for row in rows.json]) == (3, [False] * len(PLANNERS))
    assert rows.err == [f"gpumem: {bare_file}: no placement fits 8 bytes, the lowest takes 9 bytes; none can"]
    mixed = cli("pool", net_file, bare_file, "--capacity", "1MiB", "--json")
    assert (mixed.status, [row["feasible"] for row in mixed.json]) == (3, [False, True])
    assert cli("pool", net_file, bare_file, "--capacity", "100%").status == 0
    assert "no" in cli("pool", bare_file, "--capacity", "8").out.split()


def test_a_planner_that_searches_is_told_the_capacity(
    cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def asked(trace: Trace, *, alignment: int = 1, target: int | None = None) -> Placement:
        told.append(target)
        return best_fit(trace, alignment=alignment)

    monkeypatch.setitem(PLANNERS, "asked", asked)
    for options in ([], ["--capacity", "9"], ["--capacity", "100%"]):
        cli("pool", bare_file, "--planner", "asked,first-fit", *options)  # one of them takes no target
    assert told == [None, 9, load(bare_file).trace.peak_live_bytes]


def test_one_planner_that_fits_is_enough(cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tall(trace: Trace, *, alignment: int = 1) -> object:
        placed = best_fit(trace, alignment=alignment)
        return type(placed)(placed.offset + 100, placed.height + 100)

    monkeypatch.setitem(PLANNERS, "tall", tall)  # type: ignore[arg-type]
    ran = cli("pool", bare_file, "--planner", "tall,best-fit", "--capacity", "9", "--json")
    assert (ran.status, [row["feasible"] for row in ran.json], ran.err) == (0, [False, True], [])


@pytest.mark.parametrize("name", ["out.csv", "out.json", "out.json.gz"])
def test_out_holds_the_best_placement(cli: Cli, bare_file: Path, tmp_path: Path, name: str) -> None:
    ran = cli("pool", bare_file, "--planner", "all", "--out", tmp_path / name, "--json")
    assert (ran.status, ran.err) == (0, [])
    written, original = load(tmp_path / name), load(bare_file).trace
    assert written.placement is not None
    check.placement(written.trace, written.placement)
    assert written.placement.height == min(row["footprint"] for row in ran.json)
    assert written.trace.live_bytes().tolist() == original.live_bytes().tolist()
    if name != "out.csv":
        assert written.meta["source"] == "bare.csv"
        assert written.meta["height"] == written.meta["capacity"] == 9


def test_out_of_a_recording_keeps_its_ops(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "vgg16.json.gz"
    cli("pool", bundled_path("vgg16"), "--capacity", "1GiB", "--out", out)
    written, trace = load(out), bundled()
    assert written.placement is not None
    check.placement(written.trace, written.placement)
    assert written.trace.ops.reads.tolist() == trace.ops.reads.tolist()
    assert written.trace.buffers.persistent.tolist() == trace.buffers.persistent.tolist()
    assert written.meta["capacity"] == 2**30 >= written.meta["height"]
    assert written.meta["source"] == "vgg16_cifar_b100.json.gz"


def test_what_does_not_fit_is_not_written(cli: Cli, bare_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    ran = cli("pool", bare_file, "--capacity", "8", "--out", out)
    assert (ran.status, len(ran.err)) == (3, 1)
    assert not out.exists()


def test_an_arc_does_not_go_into_a_csv(cli: Cli, tmp_path: Path) -> None:
    trace = Trace.from_lifetimes([1, 4], [0, 2], [3, 4], n=3)
    write(tmp_path / "arc.json", trace)
    line = cli.refuses("pool", tmp_path / "arc.json", "--out", tmp_path / "out.csv")
    assert line == f"gpumem: error: {tmp_path}/out.csv: buffer 1: [2, 4) crosses the boundary at 3; the CSV has no arcs"
    assert [p.name for p in tmp_path.iterdir()] == ["arc.json"]
