"""What does `Plan.apply` cost: 1,000 decisions with 5,000 reruns among 100,000 ops, and plans of recorded nets?

The synthetic net has layers of 4 to 6 ops forward and 3 backward: a convolution into a temporary, perhaps a copy of it,
a batch norm with its statistics, an activation in place, perhaps a dropout in place, an addition. Each decision drops
what a layer hands to the backward pass, and makes it again right before its use there. Of recorded nets all activations
are dropped but the last of each segment. CPU times.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.speed._bench import SHARED, header
from gpumem.io import bundled, read
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.recompute import backward_start, kept_over, recomputable
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.trace import I64, RECOMPUTE, Buffers, Csr, Ops, Trace
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, GRADIENT, INPUT, PARAM, STATISTICS, TEMP

MACHINE = Machine.named("gtx1080ti")
OPS, DECISIONS = 100_000, 1_000
NETS = ("resnet50_224_b64", "bert_base_s128_b32", "densenet121_224_b2")
MIB = 2**20


class Net:
    """Layers one after the other, then their backward ops."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ops: list[tuple[str, list[int], list[int], bool]] = []
        self.size: list[int] = []
        self.kind: list[str] = []

    def buffer(self, kind: str) -> int:
        """Add a buffer of some size; return its id."""
        self.size.append(int(self.rng.integers(1, 64)) * MIB // 4)
        self.kind.append(kind)
        return len(self.kind) - 1

    def op(self, name: str, reads: list[int], writes: list[int]) -> None:
        """Add an op; dropout draws."""
        self.ops.append((name, reads, writes, name == "dropout_"))

    def layer(self, x: int) -> tuple[int, int]:
        """Add a forward layer of 4 to 6 ops that reads `x`; return what it makes, and its weight."""
        weight, mean, y, z = (self.buffer(kind) for kind in (PARAM, STATISTICS, TEMP, ACTIVATION))
        self.op("convolution", [x, weight], [y])
        if self.rng.random() < 0.5:
            copy = self.buffer(TEMP)
            self.op("clone", [y], [copy])
            y = copy
        self.op("native_batch_norm", [y, mean], [z, mean])
        self.op("relu_", [z], [z])
        if self.rng.random() < 0.5:
            self.op("dropout_", [z], [z])
        self.op("add_", [z, x], [z])
        return z, weight

    def backward(self, x: int, z: int, weight: int, grad: int) -> int:
        """Add the backward ops of a layer, its last one first."""
        masked, dw, dx = self.buffer(ACT_GRAD), self.buffer(GRADIENT), self.buffer(ACT_GRAD)
        self.op("threshold_backward", [grad, z], [masked])
        self.op("convolution_backward", [masked, x, weight], [dw, dx])
        self.op("sgd_", [dw, weight], [weight])
        return dx

    def trace(self) -> Trace:
        """Return the trace: each buffer lives from its first access through its last, weights for ever."""
        n = len(self.ops)
        start, end = np.full(len(self.size), n), np.zeros(len(self.size), np.int64)
        for i, (_, reads, writes, _) in enumerate(self.ops):
            for b in (*reads, *writes):
                start[b], end[b] = min(start[b], i), i + 1
        kept = np.isin(self.kind, (PARAM, STATISTICS))
        start[kept], end[kept] = 0, n
        name, reads, writes, rng = zip(*self.ops)
        duration = self.rng.integers(10_000, 1_000_000, n)
        ops = Ops.make(Csr.of(reads), Csr.of(writes), name=name, duration=duration, rng=rng)
        return Trace(Buffers.make(self.size, start, end, persistent=kept, kind=self.kind), ops, name=f"layers {n}")


def layers(ops: int, seed: int) -> Trace:
    """Return a net of about `ops` ops."""
    net = Net(seed)
    x = net.buffer(INPUT)
    net.op("_to_copy", [], [x])
    made = []
    while len(net.ops) + 3 * len(made) < ops:
        z, weight = net.layer(x)
        made.append((x, z, weight))
        x = z
    grad = net.buffer(ACT_GRAD)
    net.op("mse_loss_backward", [x], [grad])
    for x, z, weight in reversed(made):
        grad = net.backward(x, z, weight, grad)
    return net.trace()


def droppable(trace: Trace) -> Gaps:
    """Return the gaps of activations over the turn that can be made again, by the first of the two accesses."""
    found = gaps(trace)
    kind = np.array(trace.buffers.kind)[found.buffer]
    found = found.where(kept_over(found, backward_start(trace), trace.n) & (kind == ACTIVATION))
    found = found.where(recomputable(trace, MACHINE, found).ok)
    return found.where(np.argsort(found.after, kind="stable"))


def dropping(trace: Trace, chosen: Gaps, at: I64) -> Plan:
    """Return the plan that makes the chosen gaps' values again before ops `at`."""
    columns = (chosen.buffer.tolist(), chosen.after.tolist(), chosen.before.tolist(), at.tolist())
    return Plan.of(trace, [Recompute(*row) for row in zip(*columns)])


def one_by_one(trace: Trace, count: int, seed: int) -> Plan:
    """Drop so many of them by chance; each is made again right before its use."""
    found = droppable(trace)
    chosen = found.where(np.sort(np.random.default_rng(seed).choice(len(found), count, replace=False)))
    return dropping(trace, chosen, chosen.before)


def by_segments(trace: Trace) -> Plan:
    """Drop all of them but the last of each segment; the segments' number is the root, as in Chen's rule."""
    found = droppable(trace)
    part = np.arange(len(found)) // max(math.isqrt(len(found)), 1)
    at = np.full(int(part.max(initial=0)) + 1, trace.n)
    np.minimum.at(at, part, found.before)
    inner = np.diff(part, append=-1) == 0
    return dropping(trace, found.where(inner), at[part][inner])


def seconds(run: Callable[[], object], times: int) -> list[float]:
    """Return the CPU seconds of a few runs, after one that is not counted, ascending."""
    run()
    taken = []
    for _ in range(times):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return sorted(taken)


def line(trace: Trace, plan: Plan, times: int) -> None:
    """Print what applying a plan takes."""
    taken = seconds(lambda: plan.apply(trace), times)
    reruns = int((plan.apply(trace).ops.role == RECOMPUTE).sum())
    low, high = taken[0] * 1e3, taken[-1] * 1e3
    figures = f"{statistics.median(taken) * 1e3:>10.1f}{low:>10.1f}{high:>10.1f}"
    print(f"{trace.name[:34]:36}{trace.n:>8}{len(plan.decisions):>11}{reruns:>8}{figures}", flush=True)


def main() -> None:
    """Print a line a trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=int, default=9, help="runs of each, of which the median counts")
    args = parser.parse_args()
    print(header(args.seed))
    print(f"\n{'':36}{'ops':>8}{'decisions':>11}{'reruns':>8}{'ms':>10}{'least':>10}{'most':>10}")
    trace = layers(OPS, args.seed)
    line(trace, one_by_one(trace, DECISIONS, args.seed), args.times)
    for name in NETS:
        path = SHARED / "traces" / f"{name}.json.gz"
        if path.exists():
            trace = read(path)
            line(trace, by_segments(trace), args.times)
    trace = bundled("vgg16")
    line(trace, by_segments(trace), args.times)


if __name__ == "__main__":
    main()
