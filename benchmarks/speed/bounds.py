"""What the certified bounds say and cost: the least stall at two limits, with swaps only and with values made again.

`gtx1080ti`; wall seconds, most of which the solver takes, in a process of its own. Traces of up to a few hundred ops;
larger ones take minutes.
"""

from __future__ import annotations

import argparse

from benchmarks.speed._bench import SHARED, header
from gpumem.base.errors import Infeasible
from gpumem.base.units import percent
from gpumem.base.work import now
from gpumem.io import read
from gpumem.simulator.machine import Machine
from gpumem.swap.bound import least_stall
from gpumem.trace import Trace

MACHINE = Machine.named("gtx1080ti")
LIMITS = (60, 40)
NETS = (
    "vgg11_cifar_b100",
    "vgg16_cifar_b100",
    "resnet18_cifar_b100",
    "vgg16_224_b2",
    "vgg19_227_b144",
    "resnet34_224_b128",
)


def row(trace: Trace, part: int, *, recompute: bool) -> str:
    """Return the cells of one bound: overhead, breakpoints, whether it is settled, seconds."""
    begin = now()
    try:
        bound = least_stall(trace, MACHINE, trace.peak_live_bytes * part // 100, recompute=recompute)
    except Infeasible:
        return f"{'infeasible':>10}{'':>24}"
    overhead = percent(bound.stall_ns / int(MACHINE.durations(trace).sum()))
    settled = "yes" if bound.has_converged else "no"
    return f"{overhead:>10}{bound.breakpoints:>8}{settled:>8}{now() - begin:>8.1f}"


def main() -> None:
    """Print a line a trace and limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=NETS)
    args = parser.parse_args()
    print(header())
    cells = f"{'at least':>10}{'breaks':>8}{'settled':>8}{'seconds':>8}"
    print(f"{'':<30}{'swaps only':>34}{'values made again, too':>34}\n{'trace':<24}{'limit':>6}{cells}{cells}")
    for name in args.nets:
        trace = read(SHARED / "traces" / f"{name}.json.gz")
        for part in LIMITS:
            both = "".join(row(trace, part, recompute=recompute) for recompute in (False, True))
            print(f"{name:<24}{part:>4} %{both}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
