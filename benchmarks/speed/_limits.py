"""A PyTorch step within limits, on a device: the allocator's own peak beside the planned one, and what it costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

TITLE = "a PyTorch step within a limit (MiB as the allocator counts; bits: whether they are those without a limit)"
SHARES = ("90%", "70%", "50%", "30%")
MIB = 2**20


def limits(
    quick: bool, device: str = "cuda", *, late: Callable[[str], bool] = lambda what: False
) -> list[dict[str, Any]]:
    """Train a net of linear layers as it is, then within each limit; one row each."""
    import torch

    from gpumem.torch import managed

    width, depth, batch, steps = (256, 6, 512, 6) if quick else (2048, 24, 8192, 12)
    there = device == "cuda"
    wait: Callable[[], object] = torch.cuda.synchronize if there else lambda: None

    def run(managing: Any) -> tuple[list[bytes], float, int]:
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        net = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        seconds: list[float] = []
        with managing:
            for _ in range(steps):
                wait()
                if there:
                    torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                net(torch.randn(batch, width, device=device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                wait()
                seconds.append(time.perf_counter() - begin)
            peak = torch.cuda.max_memory_allocated() if there else 0
        bits = [p.detach().cpu().numpy().tobytes() for p in net.parameters()]
        return bits, statistics.median(seconds[-3:]), peak

    expected, alone, peak = run(nullcontext())
    rows = [{"limit": "none", "ms": alone * 1e3, "peak": peak / MIB, "planned": 0.0, "moved": 0.0, "bits": "as is"}]
    for share in SHARES:
        if late(f"at {share}"):
            continue
        managing = managed(share, wait=True, seconds=10.0, device=device)
        found, took, peak = run(managing)
        report = managing.report()
        last = report.iterations[-1]
        moved = (last.moved_out + last.moved_in) / MIB
        bits = "equal" if found == expected else "OTHER"
        planned = report.planned_peak / MIB
        rows.append(
            {"limit": share, "ms": took * 1e3, "peak": peak / MIB, "planned": planned, "moved": moved, "bits": bits}
        )
    return rows
