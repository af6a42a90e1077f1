"""Does a run whose shapes change all the time hold more and more of the host's memory?

    python -m benchmarks.speed.long_run [iterations]

A device of blocks and, where PyTorch is there, a training step, each over iterations of sizes that are drawn, one to
four of each: what Python holds (tracemalloc) after a thousand changes of shape and at the end, and how many threads
plan at once. The device's log is short here; it, the rows and the notes of a report are bounded.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import tracemalloc
from collections.abc import Callable

from benchmarks.speed._bench import header
from gpumem.runtime import Adaptive, InMemory

EARLY = 1000


def of_blocks() -> tuple[Callable[[int], None], Callable[[], None]]:
    """An iteration on blocks of a size, and the end."""
    device = Adaptive(InMemory(), 3000, planner="heuristic", min_length=8, seconds=1)
    device.log = type(device.log)(maxlen=1000)
    device._moves.log = device.log
    weights = [device.malloc(100) for _ in range(6)]
    for w in weights:
        device.write(w, b"1")

    def step(size: int) -> None:
        made = [device.malloc(size) for _ in weights]
        for w, x in zip(weights, made):
            device.exec("forward", [w], [x], duration=50)
        for w, x in zip(weights[::-1], made[::-1]):
            device.exec("backward", [x, w], [w], duration=50)
            device.free(x)

    return step, device.close


def of_torch() -> tuple[Callable[[int], None], Callable[[], None]]:
    """A training step on a batch of a size, and the end."""
    import torch

    from gpumem.torch import managed

    torch.set_num_threads(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = managed("1MiB", device="cpu", planner="heuristic", seconds=1)
    run.__enter__()

    def step(size: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(size, 8)).square().mean().backward()
        optimizer.step()

    return step, lambda: run.__exit__(None, None, None)


def held() -> float:
    """MiB that Python holds."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] / 2**20


def main() -> None:
    """Print a line for each program."""
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(header(0))
    for name, program in (("blocks", of_blocks), ("PyTorch", of_torch)):
        try:
            step, close = program()
        except ImportError:
            continue
        draw, most, early = random.Random(0), 0, 0.0
        tracemalloc.start()
        for k in range(iterations):
            size = draw.randrange(100, 400)
            for _ in range(draw.randrange(1, 5)):
                step(size)
            if k % 100 == 0:
                most = max(most, sum(thread.name == "gpumem plans" for thread in threading.enumerate()))
            if k == EARLY - 1:
                early = held()
        late = held()
        tracemalloc.stop()
        close()
        print(f"{name}: {early:.2f} MiB after {EARLY} changes of shape, {late:.2f} after {iterations}; {most} plan")


if __name__ == "__main__":
    main()
