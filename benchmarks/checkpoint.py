"""Checkpointing on real nets: what loads the printed rule and the searched cuts reach, at what cost, and in what time.

Overheads by the capacity clock at the limit, on `gtx1080ti`; `-` where a rule does not get there.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from _bench import SHARED, header

from gpumem.errors import Infeasible, NotReached
from gpumem.io import read
from gpumem.machine import Machine
from gpumem.report import columns
from gpumem.simulate import simulate
from gpumem.swap import checkpoint
from gpumem.swap.gaps import gaps, without
from gpumem.trace import Trace

MACHINE = Machine.named("gtx1080ti")
NETS = {  # the loads to look at, in % of the peak
    "vgg19_227_b144": 60,
    "unet_256_b16": 55,
    "resnet50_224_b64": 35,
    "vgg16_cifar_b100": 63,
    "bert_base_s128_b32": 50,
    "densenet121_224_b2": 46,
}
LIMITS = (80, 60, 50, 40, 30)


def lasting(trace: Trace) -> int:
    """Bytes that some op needs if everything is away that can be, but for what persists: what recomputation leaves."""
    found = gaps(trace)
    found = found.where(~trace.buffers.persistent[found.buffer])
    return int(without(trace.load(), found, trace.buffers.size[found.buffer]).max())


def cost(trace: Trace, percent: float, **options: object) -> str:
    """Return what the plan for a load limit costs, in %."""
    limit = int(trace.peak_load * percent / 100)
    try:
        again = checkpoint(trace, MACHINE, limit, **options).apply(trace)  # type: ignore[arg-type]
    except (Infeasible, NotReached):
        return "-"
    return f"{100 * simulate(again, MACHINE, capacity=limit).overhead(simulate(trace, MACHINE)):.1f}"


def printed(trace: Trace) -> tuple[str, str]:
    """Return the lowest load of the printed rule, in % of the peak, and what it costs there."""
    try:
        checkpoint(trace, MACHINE, max(lasting(trace), 1), rule="sqrt")
        load = lasting(trace)
    except NotReached as stop:
        load = stop.reached
    except Infeasible:
        return "-", "-"
    percent = 100 * load / trace.peak_load
    return f"{percent:.1f}", cost(trace, percent + 1e-9, rule="sqrt")


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n\n{columns([head, *rows])}", flush=True)


def main() -> None:
    print(header())
    rows = []
    for name, percent in NETS.items():
        trace = read(SHARED / "traces" / f"{name}.json.gz")
        least = f"{100 * lasting(trace) / trace.peak_load:.1f}"
        both = [cost(trace, percent, hold=hold) for hold in (False, True)]
        rows.append([name, least, *printed(trace), str(percent), *both])
    head = ["trace", "lasting %", "sqrt(n): lowest %", "overhead %", "limit %", "cuts: overhead %", "with Hold"]
    table("The loads asked for, in % of the peak", head, rows)

    rows, seconds = [], []
    for path in sorted((SHARED / "traces").glob("*.json.gz")):
        trace = read(path)
        cells = []
        for percent in LIMITS:
            begin = perf_counter()
            cells.append(cost(trace, percent))
            seconds.append(perf_counter() - begin)
        longest = max(seconds[-len(LIMITS) :])
        rows.append([path.name.removesuffix(".json.gz"), str(trace.n), *cells, f"{longest:.1f}"])
    head = ["trace", "ops", *(f"{percent} %" for percent in LIMITS), "longest s"]
    table("Overhead in % by limit, and the longest time for a plan and its judgement", head, rows)
    print(f"\nmedian {np.median(seconds):.1f} s, longest {max(seconds):.1f} s")


if __name__ == "__main__":
    main()
