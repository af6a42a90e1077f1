"""What does a run within a limit cost the host, dispatch by dispatch, and where does it go? Needs PyTorch.

    python -m benchmarks.speed.dispatch

Sixty small layers, eight rows, AdamW by lists, one thread: almost all of a step is dispatching. Four of the same step,
in turns: bare, in a dispatch mode that only calls the op, within a limit on demand, and along a plan. What each adds to
the bare step is divided by the calls that the plain mode sees. Then a profile of one planned step, by function.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed._bench import header
from gpumem.torch import managed
from gpumem.torch.run.managed import Managed

LAYERS, WIDTH, ROWS, PAIRS, WARM, SHOWN = 60, 16, 8, 31, 8, 14
Step = Callable[[], None]


class Plain(TorchDispatchMode):
    """Calls the op, and counts."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def training() -> Step:
    """A step that computes next to nothing."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(LAYERS)]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    x = torch.randn(ROWS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


def timed(step: Step) -> float:
    """Seconds that a step takes on the processor."""
    gc.collect()
    begin = time.process_time()
    step()
    return time.process_time() - begin


def entered(run: Managed, step: Step) -> float:
    """Seconds of a step within a run that was entered before it."""
    with run:
        step()
        return timed(step)


def main() -> None:
    """Print microseconds a dispatch, and the profile."""
    torch.set_num_threads(1)
    print(header(0))
    print(f"# torch {torch.__version__}; microseconds a dispatch beyond the bare step, medians of {PAIRS} rounds\n")
    bare, plain, on_demand, planned = (training() for _ in range(4))
    mode = Plain()
    with mode:
        plain()
        mode.calls = 0
        plain()
    calls = mode.calls
    one = managed("100%", device="cpu", planner="on-demand", wait=True, chunk="1GiB")
    two = managed("97%", device="cpu", planner="on-demand", wait=True, chunk="1GiB")
    for run, step in ((one, on_demand), (two, planned)):
        with run:
            for _ in range(WARM):
                step()
    # "on demand" is a run that has given up to plan: nothing is recorded, nothing is followed
    one.loop.give_up("a benchmark")
    found: dict[str, list[float]] = {"plain mode": [], "no plan": [], "planned": []}
    for _ in range(PAIRS):
        base = timed(bare)
        with mode:
            found["plain mode"].append(timed(plain) - base)
        found["no plan"].append(entered(one, on_demand) - base)
        found["planned"].append(entered(two, planned) - base)
    print(
        f"{calls} dispatches a step; states: {one.report().iterations[-1].state}, {two.report().iterations[-1].state}\n"
    )
    plain_us = statistics.median(found["plain mode"]) / calls * 1e6
    for name, seconds in found.items():
        us = [s / calls * 1e6 for s in seconds]
        print(f"{name:12}{statistics.median(us):6.1f} us ({min(us):.1f} to {max(us):.1f})", end="")
        print(f"{statistics.median(us) / plain_us:8.1f} x the plain mode")
    profile = cProfile.Profile()
    with two:
        planned()
        profile.enable()
        planned()
        profile.disable()
    print(f"\na planned step under the profiler, by the {SHOWN} functions that take longest by themselves:\n")
    for (file, line, name), (_, count, own, _, _) in sorted(
        pstats.Stats(profile).stats.items(),  # type: ignore[attr-defined]
        key=lambda item: -item[1][2],
    )[:SHOWN]:
        where = "/".join(file.split("/")[-2:])
        print(f"{own / calls * 1e6:6.2f} us {count / calls:6.2f} calls  {name} ({where}:{line})")


if __name__ == "__main__":
    main()
