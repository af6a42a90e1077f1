"""What does a run within a limit cost an op of the processor's time: idle, under a plan, on demand? Needs PyTorch."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed._bench import header
from gpumem.torch import managed

PAIRS, WARM = 15, 6
Step = Callable[[], None]


class Encoder(nn.Module):
    """Twelve small layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean()


def encoder() -> Step:
    """Attention, Adam parameter by parameter."""
    return trained(Encoder(), (4, 16, 32))


def deep() -> Step:
    """200 small linear layers, norms and activations, Adam."""
    return trained(
        nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(200)]), (2, 8)
    )


def convolutions() -> Step:
    """100 small convolutions, batch norms and activations, Adam."""
    layers = [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)) for _ in range(100)
    ]
    return trained(nn.Sequential(*layers), (2, 4, 8, 8))


def trained(net: nn.Module, shape: tuple[int, ...]) -> Step:
    """One iteration of training."""
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)

    def step() -> None:
        net(torch.randn(shape)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Step) -> float:
    """Seconds that a step takes on the processor."""
    gc.collect()
    begin = time.process_time()
    step()
    return time.process_time() - begin


class Empty(TorchDispatchMode):
    """A mode that does nothing: what PyTorch takes to call one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def pairs(make: Callable[[], Step], limit: str, **how: Any) -> tuple[list[float], list[float], list[float], Any]:
    """Microseconds an op of bare steps, in an empty mode and managed, in turns; and the last row of the report.

    The bare step of a pair runs outside of the `with` block, which is entered anew: it goes on where it was.
    """
    plain, called, watched = make(), make(), make()
    run = managed(limit, device="cpu", wait=True, seconds=60.0, **how)
    with run:
        for _ in range(WARM):
            watched()
    bare, empty, within = [], [], []
    for _ in range(PAIRS):
        bare.append(timed(plain))
        with Empty():
            empty.append(timed(called))
        with run:
            watched()
            within.append(timed(watched))
    row = run.report().iterations[-1]
    bare, empty, within = ([s / row.ops * 1e6 for s in column] for column in (bare, empty, within))
    return bare, empty, within, row


def main() -> None:
    """Print microseconds an op."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(header(0))
    print(f"# torch {torch.__version__}; microseconds an op of the processor, medians of {PAIRS} pairs in turns")
    print("# empty: in a mode that does nothing; beyond: within, beyond bare\n")
    beyond = "beyond (min to max)"
    head = f"{'net':14}{'ops':>6}  {'state':12}{'limit':>6}{'bare':>7}{'empty':>7}{'within':>8}"
    print(f"{head}{beyond:>24}  moved, made again")
    for make in (encoder, deep, convolutions):
        for limit, how in (
            ("100%", {}),
            ("70%", {"planner": "on-demand-nonblocking"}),
            ("70%", {"planner": "checkpoint"}),
        ):
            bare, empty, within, row = pairs(make, limit, **how)
            more = [b - a for a, b in zip(bare, within)]
            spread = f"{statistics.median(more):.1f} ({min(more):.1f} to {max(more):.1f})"
            print(
                f"{make.__name__:14}{row.ops:>6}  {row.state:12}{limit:>6}{statistics.median(bare):>7.1f}"
                f"{statistics.median(empty):>7.1f}"
                f"{statistics.median(within):>8.1f}{spread:>24}  {row.moved_out + row.moved_in} B, {row.recomputed} ops"
            )


if __name__ == "__main__":
    main()
