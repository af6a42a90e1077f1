"""`python -m benchmarks pool`: its parts, instances from files and folders, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpumem
from gpumem.io import bundled, write
from gpumem.pool import ALLOCATORS, PLANNERS, best_fit, first_fit
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import Cli
from tests.files import BARE, KINDS, bad_file
from tests.nets import net

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


def test_table_1_is_three_replays_over_the_load(cli: Cli) -> None:
    found = cli("bench", "pool", "vgg16", "resnet18", "--what", "table1", "--json").json
    assert list(found) == ["header", "table1", "table1_means"]
    for row, name in zip(found["table1"], ("vgg16", "resnet18")):
        trace = bundled(name)
        heights = {"native": trace.peak_live_bytes, "smartpool": best_fit(trace).height}
        pools = {"cnmem": CnMem(), "cnmem_first_fit": CnMem(fit="first"), "cnmem_singa": CnMem(pool=256 * 2**20)}
        for key, pool in pools.items():
            replay(trace, pool)
            heights[key] = pool.statistics.reserved.peak
        assert (row["net"], row["peak_live_bytes"]) == (trace.name, trace.peak_live_bytes)
        assert {key: row[key] for key in FIGURES} == {
            k: pytest.approx(h / trace.peak_live_bytes) for k, h in heights.items()
        }
        for key in pools:
            assert row[f"below_{key}"] == pytest.approx(1 - heights["smartpool"] / heights[key])
        assert row["paper_below_cnmem"] is None
    assert [m["net"] for m in found["table1_means"]] == ["VGGs, mean of 1", "ResNets, mean of 1"]
    assert all(m[key] == r[key] for m, r in zip(found["table1_means"], found["table1"]) for key in FIGURES)


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
    heads = ["instance", "buffers", "peak", "live", "best-fit", "s", "first-fit", "s", "lowest", "bound"]
    assert text[-3].split() == heads
    a, b = text[-2].split(), text[-1].split()
    assert (a[:4], a[5], a[-2:]) == (["a", "5", "10", "1.1000"], "1.1000", ["1.1000", "1.0000"])
    assert b[-2:] == ["1.0000", "optimal"]


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
    assert told == [1.0, 0.03, 2.0]


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
