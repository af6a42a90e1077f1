"""`gpumem info`: what it says of traces, as text and as rows."""

from __future__ import annotations

from pathlib import Path

from gpumem.io import write
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import Cli
from tests.nets import MIB, PEAK


def test_info_tells_of_copies_that_block(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "75%", "--planner", "on-demand", "--out", tmp_path / "out")
    row = cli("info", tmp_path / "out" / "trace.json.gz", "--json").json[0]
    assert row["hosts"] == ["host"] and row["blocking"] > 0
    assert "blocking" not in cli("info", net_file, "--json").json[0]


def test_info_describes_traces(cli: Cli, net_file: Path, bare_file: Path) -> None:
    ran = cli("info", net_file, bare_file)
    assert (ran.status, ran.err) == (0, [])
    first, second = ran.out.split("\n\n")
    assert first.splitlines()[0] == str(net_file)
    assert f"peak live bytes {PEAK} (24.00 MiB)" in first
    assert "activation 16.00 MiB" in first and "param 4.00 MiB" in first and "input 4.00 MiB" in first
    assert second.splitlines()[0] == str(bare_file)
    assert "peak live bytes 9 (9 B)" in second and "unknown" in second


def test_info_prints_rows_of_json(cli: Cli, net_file: Path, bare_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "75%", "--out", tmp_path / "out")
    rows = cli("info", net_file, bare_file, tmp_path / "out" / "trace.json.gz", "--json").json
    recorded, bare, swapped = rows
    assert recorded["file"] == str(net_file)
    assert (recorded["ops"], recorded["steps"], recorded["buffers"], recorded["persistent"]) == (10, 10, 9, 4)
    assert (recorded["peak_live_bytes"], recorded["peak_op"]) == (PEAK, 4)
    assert recorded["peak_by_kind"] == {"activation": 16 * MIB, "param": 4 * MIB, "input": 4 * MIB}
    assert (bare["ops"], bare["steps"], bare["streams"], bare["peak_live_bytes"]) == (0, 3, [], 9)
    assert swapped["host_buffers"] > 0 and swapped["streams"] == ["compute", "d2h", "h2d"]
    assert swapped["footprint"] <= PEAK * 3 // 4 and swapped["ratio"] >= 1
    assert "footprint" not in recorded


def test_info_counts_what_came_over_the_boundary(cli: Cli, tmp_path: Path) -> None:
    trace = Trace(Buffers.make([1, 4, 2], [0, 2, 1], [3, 4, 2], kind=["a", "b", "c"]), Ops.make([], []), 3)
    write(tmp_path / "arc.json", trace)
    (row,) = cli("info", tmp_path / "arc.json", "--json").json
    assert (row["peak_live_bytes"], row["peak_op"], row["wrapping"]) == (5, 0, 1)
    assert row["peak_by_kind"] == {"b": 4, "a": 1}
