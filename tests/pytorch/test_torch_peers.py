"""The benchmark of what else people use runs, on a net of a moment, and tells what it holds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gpumem import Machine

ROOT = str(Path(__file__).parents[2])


def block() -> nn.Module:
    """Something that keeps five times what it is given."""
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))


def test_a_table_of_a_peer_and_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.speed import torch_peers as bench
    from benchmarks.speed._training import Net, classified

    monkeypatch.setattr(sys, "path", [*sys.path])
    net = Net(
        "tiny",
        lambda: nn.Sequential(*(block() for _ in range(3)), nn.Linear(32, 10)),
        lambda model: [*model][:3],
        lambda: (torch.randn(256, 32), torch.randint(10, (256,))),
        classified,
    )
    said: list[str] = []
    offloads = [peer for peer in bench.PEERS if "ours" in peer.name]
    better, slower = bench.compare(net, Machine.named("rtx4090"), offloads, (50,), 0.2, said.append)
    eager, theirs, ours, verdict, _, beside, _ = said[1].splitlines()[1], *said[2:]
    assert eager.startswith("eager") and "100.00%" in eager
    assert theirs.startswith("OffloadsAsTorchtune") and ours.startswith("managed, 50 %")
    assert verdict.startswith("FAILS" if better else "holds") and ("FAILS" in beside) == bool(slower)
    assert not any("other losses" in line for line in said)
