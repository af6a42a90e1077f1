"""What does recording a step cost, and how long does a decoder of seven billion parameters take? Needs PyTorch."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.speed._bench import header
from gpumem.torch import load, record

PAIRS = 9
DECODER = Path(__file__).with_name("_decoder.py")


def deep(batch: int = 2) -> Callable[[], None]:
    """Many small ops on the host: 200 layers, Adam parameter by parameter."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(200)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step() -> None:
        model(torch.randn(batch, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pairs(count: int) -> tuple[list[float], list[float], int]:
    """Microseconds an op of bare and of recorded steps, one after the other; and the ops."""
    bare: list[float] = []
    recorded: list[float] = []

    def make() -> Callable[[], None]:
        plain, watched = deep(), deep()

        def step() -> None:
            with _disable_current_modes():
                bare.append(timed(plain))
            gc.collect()
            recorded.append(timed(watched))

        return step

    n = record(make, "cpu", iterations=count, warmup=2).trace.n
    return [s / n * 1e6 for s in bare[2:]], [s / n * 1e6 for s in recorded[2:]], n


def timed(step: Callable[[], None]) -> float:
    """Seconds that a step takes on the processor."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def main() -> None:
    """Print both answers."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(header(0))
    print(f"# torch {torch.__version__}\n")
    begin = time.perf_counter()
    captured = record(load(str(DECODER)), batch=1)
    seconds = time.perf_counter() - begin
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    weights = sum(b.size for b in captured.trace.buffers if b.kind == "param") / 4e9
    load_gib = captured.trace.live_bytes().max() / 2**30
    print(f"decoder of {weights:.2f} billion parameters, Adam, on meta: {captured.trace.n} ops in {seconds:.1f} s,")
    print(f"peak live bytes {load_gib:.1f} GiB; {most:.2f} GiB of the host's memory\n")
    bare, recorded, n = pairs(PAIRS)
    extra = [b - a for a, b in zip(bare, recorded)]
    print(f"{'us an op, ' + str(n) + ' ops on the host':36}{'min':>8}{'median':>8}{'max':>8}")
    for what, us in (("bare", bare), ("recorded", recorded), ("recording", extra)):
        print(f"{what:36}{min(us):>8.1f}{statistics.median(us):>8.1f}{max(us):>8.1f}")


if __name__ == "__main__":
    main()
