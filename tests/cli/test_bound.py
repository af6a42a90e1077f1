"""`gpumem bound`: what no swap plan can beat, as text and as a row."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpumem
from gpumem.swap.facts.limits import floor
from tests.conftest import Cli
from tests.nets import PEAK


def test_bound_prints_json(cli: Cli, net_file: Path, bounded: None) -> None:
    row = cli("bound", net_file, "--json").json
    assert row.pop("seconds") >= 0
    assert row == {"trace": "net", "machine": "gtx1080ti", "peak_live_bytes": PEAK, "zero_stall_limit": PEAK // 2}
    row = cli("bound", net_file, "--load-limit", "40%", "--machine", "v100", "--json").json
    assert row.pop("seconds") >= 0
    assert row == {
        "trace": "net",
        "machine": "v100",
        "peak_live_bytes": PEAK,
        "zero_stall_limit": PEAK // 2,
        "load_limit": PEAK * 4 // 10,
        "least_stall_ns": 10**6,
        "least_overhead": pytest.approx(0.1),
        "least_stall_recompute_ns": 10**6,
        "least_overhead_recompute": pytest.approx(0.1),
    }


def test_bound_prints_a_table(cli: Cli, net_file: Path, bounded: None) -> None:
    out = cli("bound", net_file, "--load-limit", "40%").out
    assert out.startswith("net on gtx1080ti: what no swap plan can beat\n")
    assert "limit without a stall          12.00 MiB     50.0%\n" in out
    assert "least stall there                1.00 ms   +10.00%\n" in out
    assert "with values recomputed           1.00 ms   +10.00%\n" in out


def test_a_real_bound(cli: Cli) -> None:
    trace = gpumem.bundled("mlp3")
    row = cli("bound", "mlp3", "--json").json
    assert 0.9 * trace.peak_live_bytes < row["zero_stall_limit"] <= trace.peak_live_bytes == row["peak_live_bytes"]


def test_a_bound_takes_no_longer_than_it_may(cli: Cli) -> None:
    whole = cli("bound", "vgg16", "--load-limit", "50%", "--seconds", "1e-6", "--json")
    row = whole.json
    assert row["zero_stall_limit"] == floor(gpumem.bundled("vgg16"))[1]
    assert row["least_stall_ns"] == row["least_stall_recompute_ns"] == 0
    assert whole.status == 0
    assert whole.err == ["gpumem: the time was up: what is said is certain, more seconds may say more"]
    row = cli("bound", "mlp3", "--seconds", "600", "--json")
    assert not row.err and row.json["zero_stall_limit"] == cli("bound", "mlp3", "--json").json["zero_stall_limit"]
    for wrong in ("0", "-1", "nan", "inf"):
        assert "--seconds: " in cli.refuses("bound", "mlp3", "--seconds", wrong)


def test_a_bound_says_what_it_leaves_out_for_a_host_that_takes_its_time(cli: Cli) -> None:
    ran = cli("bound", "mlp3", "--host-ns", "1e6", "--load-limit", "90%", "--json")
    (said,) = ran.err
    assert said.startswith("gpumem: gtx1080ti: an op takes its host 1.00 ms; for such a machine a bound says only what")
    assert (ran.json["zero_stall_limit"], ran.json["least_stall_ns"]) == (floor(gpumem.bundled("mlp3"))[1], 0)
    assert not cli("bound", "mlp3", "--copy-host-ns", "1e6", "--json").err
