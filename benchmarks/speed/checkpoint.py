"""How low does checkpointing get, and what does it cost: by the printed rule, by ours, with and without held buffers?

`least`: what lasting buffers and the op that touches most hold together, which no recomputation goes below. Overheads
by the capacity clock at that limit, on `gtx1080ti`; seconds are planning alone.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.speed._bench import SHARED, header
from benchmarks.speed.baselines import lowest, overhead
from gpumem.base.work import now
from gpumem.io import read
from gpumem.pipeline.report import columns
from gpumem.swap import checkpoint
from gpumem.trace import Trace

LIMITS = {  # in % of the peak load
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


def least(trace: Trace) -> float:
    """Return what no recomputation goes below, in % of the peak."""
    size, lasting = trace.buffers.size, trace.eternal
    touched = trace.accesses().op
    extra = np.bincount(touched.idx, np.where(lasting, 0, size)[touched.rows()], trace.n)
    return float(100 * (size[lasting].sum() + extra.max()) / trace.peak_load)


def line(name: str, percent: int) -> list[str]:
    """Return a trace's line of the table."""
    trace = read(SHARED / "traces" / f"{name}.json.gz")
    rules = [partial(checkpoint, rule=rule) for rule in ("sqrt", "cuts")]
    cells = [cell for rule in rules for cell in lowest(trace, rule)]
    limit, begin = trace.peak_load * percent // 100, now()
    held = overhead(trace, checkpoint, limit)
    seconds = now() - begin
    within = [overhead(trace, partial(checkpoint, hold=False), limit), held]
    return [name, f"{least(trace):.1f}", *cells, str(percent), *within, f"{seconds:.1f}"]


def main() -> None:
    """Print the table."""
    print(header())
    heads = ["sqrt %", "overhead", "cuts %", "overhead", "limit %", "not held", "overhead", "seconds"]
    print(f"\n{columns([['trace', 'least %', *heads], *(line(*row) for row in LIMITS.items())])}")


if __name__ == "__main__":
    main()
