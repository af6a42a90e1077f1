"""What do iterations on demand copy, and make again, by LRU and by DTR's rule? Needs PyTorch. Counted, not timed.

    python -m benchmarks.speed.on_demand [NET ...]     names of the zoo

Each row is the last of three iterations without a plan, at a part of the peak of the same step without a limit. Steps
run on the host, which plays the device's part; what is cheaper, times of the machine say.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator

import torch

from benchmarks.speed._bench import header
from gpumem.base.units import human
from gpumem.simulator.machine import Machine
from gpumem.torch import managed
from gpumem.torch.zoo import recipe

NETS = ("vgg11_cifar_b128", "unet_64_b8", "mlp3_b2048")
PERCENT = (70, 50)
RULES = ("lru", "dtr")
STEPS = 3


def last(name: str, limit: int, rule: str, machine: Machine) -> tuple[int, int, int, int, int]:
    """Peak, bytes out and back, reruns and evictions of the last iteration of a step that has no plan."""
    torch.manual_seed(0)
    step: Callable[[], object] = recipe(name).make(device="cpu")
    run = managed(limit, machine=machine, on_demand=rule, on_exit="host", device="cpu")
    run.loop.give_up("no plan is wanted here")
    with run:
        for _ in range(STEPS):
            step()
    row = run.report().iterations[-1]
    return row.peak, row.moved_out, row.moved_in, row.recomputed, row.evictions


def rows(name: str, machine: Machine) -> Iterator[str]:
    """A net's lines of the table."""
    peak = last(name, 2**50, "lru", machine)[0]
    for percent in PERCENT:
        for rule in RULES:
            _, out, back, again, evicted = last(name, peak * percent // 100, rule, machine)
            yield f"| {name} | {percent} % | {rule} | {human(out)} | {human(back)} | {again:,} | {evicted:,} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.on_demand", description=__doc__)
    parser.add_argument("nets", nargs="*", default=NETS)
    parser.add_argument("--machine", default="gtx1080ti", help="whose link, bandwidth and compute say what is cheaper")
    args = parser.parse_args()
    try:
        machine = Machine.named(args.machine)
        for name in args.nets:
            recipe(name)
    except ValueError as error:
        parser.error(str(error))
    print(header())
    print(f"# the last of {STEPS} iterations without a plan, on the host; times by {machine!r}")
    print("| net | limit | rule | out | back | made again | evicted |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what could not come back stays on the host
        for name in args.nets:
            for line in rows(name, machine):
                print(line, flush=True)


if __name__ == "__main__":
    main()
