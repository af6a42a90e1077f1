"""What the baselines cost: vDNN and checkpointing at the lowest load they reach, Capuchin and the SNU thesis by limit.

Overheads by the byte-counting simulation at that limit, on `gtx1080ti`; `-` where a planner does not get there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.speed._bench import SHARED, header
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import read
from gpumem.pipeline.report import columns
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.swap import Plan, capuchin, checkpoint, heuristic, vdnn
from gpumem.swap.facts.limits import floor
from gpumem.swap.snu import on_demand
from gpumem.swap.snu.on_demand import VICTIMS
from gpumem.trace import Trace

MACHINE = Machine.named("gtx1080ti")
NETS = ("vgg16_cifar_b100", "resnet50_cifar_b100", "vgg16_224_b2", "bert_base_s128_b32", "resnet152_224_b64")
CAPUCHIN = ("vgg16_cifar_b100", "resnet50_cifar_b100", "bert_base_s128_b32", "resnet152_224_b64", "gpt2_s512_b8")
SNU = ("vgg16_cifar_b100", "resnet50_cifar_b100", "gpt2_s512_b8", "tacotron2_t40_b32")
Planner = Callable[[Trace, Machine, int], Plan]


def overhead(trace: Trace, planner: Planner, limit: int) -> str:
    """Return what the plan for a limit costs, in %."""
    try:
        swapped = planner(trace, MACHINE, limit).apply(trace)
    except (Infeasible, NotReached):
        return "-"
    base = baseline(trace, MACHINE, swapped)
    return f"{100 * simulate(swapped, MACHINE, capacity=limit).overhead(base):.1f}"


def lowest(trace: Trace, planner: Planner) -> list[str]:
    """Return the lowest load that a planner reaches when asked for it, in % of the peak, and what it costs there."""
    load = max(floor(trace)[1], 1)
    while True:
        try:
            planner(trace, MACHINE, load)
        except NotReached as stop:
            # A plan for less may drop dead tails that one for what it reached keeps: asked again, it ends 808 bytes
            # higher on resnet18_cifar_b100.
            load = stop.reached
        else:
            return [f"{100 * load / trace.peak_live_bytes:.1f}", overhead(trace, planner, load)]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n\n{columns([list(head), *map(list, rows)])}", flush=True)


def main() -> None:
    print(header())
    traces = {name: read(SHARED / "traces" / f"{name}.json.gz") for name in {*NETS, *CAPUCHIN, *SNU}}
    kinds = {
        "vdnn all": partial(vdnn, layers="all"),
        "vdnn conv": partial(vdnn, layers="conv"),
        "checkpoint": checkpoint,
    }
    rows = [[name, *(cell for plan in kinds.values() for cell in lowest(traces[name], plan))] for name in NETS]
    heads = [cell for kind in kinds for cell in (f"{kind} %", "overhead %")]
    table("The lowest load in % of the peak, and the overhead there", ["trace", *heads], rows)

    rows = []
    for name in CAPUCHIN:
        limits = [traces[name].peak_live_bytes * percent // 100 for percent in (70, 60, 50, 40)]
        both = [[overhead(traces[name], partial(capuchin, queue=q), limit) for q in (False, True)] for limit in limits]
        rows.append([name, *(" / ".join(pair) for pair in both)])
    table("Capuchin: overhead in %, the paper's policy / queue=True", ["trace", "70 %", "60 %", "50 %", "40 %"], rows)

    rows = []
    for name in SNU:
        for percent in (80, 60, 40):
            trace, limit = traces[name], traces[name].peak_live_bytes * percent // 100
            demand = [partial(on_demand, victim=v, blocking=b) for v in VICTIMS for b in (True, False)]
            rows.append([name, str(percent), *(overhead(trace, plan, limit) for plan in [*demand, heuristic])])
    head = ["trace", "limit %", *(name for v in VICTIMS for name in (v, f"{v}, not blocking")), "heuristic"]
    table("Swapping on demand, by victim, and the thesis' heuristic: overhead in %", head, rows)


if __name__ == "__main__":
    main()
