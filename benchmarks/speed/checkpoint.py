"""How low does checkpointing get, and what does it cost: by the printed rule, by ours, with and without held buffers?

`sqrt` is the printed rule, `cuts` ours by segments, `evict` ours by runs, which is the default. `least`: what lasting
buffers and the op that touches most hold together, a bound of recomputation. Overheads by byte-counting simulation
at that limit, on `gtx1080ti`; seconds are planning alone, by `evict` with held buffers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.speed._bench import SHARED, header
from benchmarks.speed.baselines import MACHINE, Planner, lowest, overhead, table
from gpumem.base.work import now
from gpumem.io import read
from gpumem.swap import checkpoint
from gpumem.trace import Trace

LIMITS = {  # in % of the peak live bytes
    "vgg16_cifar_b100": 63,
    "vgg19_227_b144": 60,
    "resnet18_cifar_b100": 50,
    "resnet50_cifar_b100": 40,
    "resnet50_224_b64": 35,
    "resnet152_224_b64": 30,
    "densenet121_224_b2": 46,
    "unet_256_b16": 55,
    "bert_base_s128_b32": 50,
    "gpt2_s512_b8": 50,
}
COMPARED = ("resnet50_224_b64", "densenet121_224_b2", "ddpm_unet_32_b64", "gpt2_s512_b8")
SHARES = (70, 50, 40)  # in % of the peak live bytes


def least(trace: Trace) -> float:
    """Return what no recomputation goes below, in % of the peak."""
    size, lasting = trace.buffers.size, trace.eternal
    touched = trace.accesses().op
    extra = np.bincount(touched.idx, np.where(lasting, 0, size)[touched.rows()], trace.n)
    return float(100 * (size[lasting].sum() + extra.max()) / trace.peak_live_bytes)


def rule(name: str, **options: bool) -> Planner:
    """Return the planner by one of its rules."""
    return partial(checkpoint, rule=name, **options)


def by_rules(trace: Trace) -> list[str]:
    """Return what no recomputation goes below, then the lowest load and its overhead by each rule."""
    return [f"{least(trace):.1f}", *(cell for name in ("sqrt", "cuts", "evict") for cell in lowest(trace, rule(name)))]


def held(trace: Trace, percent: int) -> list[str]:
    """Return overheads at a limit, without and with held buffers, and the seconds of the last plan."""
    limit = trace.peak_live_bytes * percent // 100
    costs = [overhead(trace, rule(name, hold=hold), limit) for name in ("cuts", "evict") for hold in (False, True)]
    begin = now()
    rule("evict")(trace, MACHINE, limit)
    return [str(percent), *costs, f"{now() - begin:.1f}"]


def by_limits(trace: Trace) -> list[str]:
    """Return overheads by `evict` and by `cuts` at each share of the peak."""
    limits = [trace.peak_live_bytes * percent // 100 for percent in SHARES]
    return [overhead(trace, rule(name), limit) for limit in limits for name in ("evict", "cuts")]


def main() -> None:
    """Print a table for each question."""
    print(header())
    traces = {name: read(SHARED / "traces" / f"{name}.json.gz") for name in {**LIMITS, **dict.fromkeys(COMPARED)}}
    heads = [cell for name in ("sqrt", "cuts", "evict") for cell in (f"{name} %", "overhead")]
    rows = [[name, *by_rules(traces[name])] for name in LIMITS]
    table("The lowest load in % of the peak by each rule, and the overhead there", ["trace", "least %", *heads], rows)
    heads = ["limit %", "cuts, not held", "cuts", "evict, not held", "evict", "seconds"]
    rows = [[name, *held(traces[name], percent)] for name, percent in LIMITS.items()]
    table("At a load that is asked for, without and with held buffers: overhead in %", ["trace", *heads], rows)
    heads = [f"{name} {percent} %" for percent in SHARES for name in ("evict", "cuts")]
    rows = [[name, *by_limits(traces[name])] for name in COMPARED]
    table("By limit: overhead in %", ["trace", *heads], rows)


if __name__ == "__main__":
    main()
