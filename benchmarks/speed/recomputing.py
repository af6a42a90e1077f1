"""How low do TENSILE and Capuchin get with values made again, and what does it cost?

TENSILE's lowest load, in % of the peak, and the time that its plan adds without a limit: with all the pinned memory of
`gtx1080ti`, and with none, so that nothing can be swapped. Capuchin with `queue=True`: the lowest limit out of steps of
5 % of the peak, and overheads by the byte-counting simulation at three limits. Seconds are planning alone.
"""

from __future__ import annotations

from functools import partial

from benchmarks.speed._bench import SHARED, header
from benchmarks.speed.baselines import overhead
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.units import percent
from gpumem.base.work import now
from gpumem.io import read
from gpumem.pipeline.report import columns
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import Task, capuchin, schedule
from gpumem.trace import Trace

GTX = Machine.named("gtx1080ti")
TRACES = (
    "vgg16_cifar_b100",
    "vgg19_227_b144",
    "unet_256_b16",
    "resnet50_224_b64",
    "densenet121_224_b2",
    "bert_base_s128_b32",
)


def tensile(trace: Trace, machine: Machine) -> list[str]:
    """Return the lowest load, the overhead, how many are swapped and made again, seconds."""
    begin = now()
    (found,) = schedule([Task(trace, machine.durations(trace))], machine, 1)
    seconds = now() - begin
    more = simulate(found.plan.apply(trace), machine).overhead(simulate(trace, machine))
    swaps = len(found.plan.swaps)
    counts = [str(swaps), str(len(found.plan.decisions) - swaps)]
    return [percent(found.peak / trace.peak_live_bytes), percent(more), *counts, f"{seconds:.2f}"]


def lowest(trace: Trace) -> str:
    """Return the lowest limit that Capuchin reaches."""
    least = 100
    for share in range(95, 0, -5):
        try:
            capuchin(trace, GTX, trace.peak_live_bytes * share // 100, queue=True)
        except (Infeasible, NotReached):
            return f"{least} %"
        least = share
    return f"{least} %"


def main() -> None:
    """Print a table for each of the two."""
    print(header())
    traces = [(name, read(SHARED / "traces" / f"{name}.json.gz")) for name in TRACES]
    heads = ["lowest", "overhead", "swaps", "again", "seconds"]
    rows = [[name, *tensile(t, GTX), *tensile(t, GTX.with_(pinned=0))] for name, t in traces]
    print(f"\nTENSILE, then without pinned memory\n\n{columns([['trace', *heads, *heads], *rows])}")
    planner = partial(capuchin, queue=True)
    rows = [
        [name, lowest(t), *(overhead(t, planner, t.peak_live_bytes * x // 100) for x in (60, 50, 40))]
        for name, t in traces
    ]
    print(f"\nCapuchin, queue=True\n\n{columns([['trace', 'lowest', '60 %', '50 %', '40 %'], *rows])}")


if __name__ == "__main__":
    main()
