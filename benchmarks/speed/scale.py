"""How does the time of best fit and first fit grow with the number of buffers, and where do the pairs that meet tell?

`iterations` and `one iteration` are random: forward and backward ops, mostly short lifetimes, half of what the forward
ops make kept until the backward op that mirrors them, sizes log-normal and half of them repeated, 400 weights alive all
the time. `iterations` has 2,000 ops in each iteration, and so a bounded load; `one iteration` nests ever deeper.
Recorded traces are laid end to end. `pairs` is what a look at every pair takes, up to 30,000 buffers.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.speed._bench import SHARED, header
from gpumem.io import bundled, load, read
from gpumem.pool import best_fit, first_fit
from gpumem.pool.smartpool import offline as smartpool
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

OPS, WEIGHTS = 2000, 400


def iterations(count: int, ops: int, seed: int) -> Trace:
    """Return about `count` buffers, one an op, in iterations of `ops` ops."""
    rng = np.random.default_rng(seed)
    turns, half = max(count // ops, 1), ops // 2
    at = np.tile(np.arange(ops), turns)
    end = np.minimum(at + 1 + rng.geometric(0.5, len(at)), ops)
    saved = (at < half) & (rng.random(len(at)) < 0.5)
    end[saved] = ops - at[saved]
    size = (rng.lognormal(12, 2, len(at)).astype(np.int64) // 512 + 1) * 512
    again = rng.random(len(at)) < 0.5
    size[again] = rng.choice(size[: ops // 10], int(again.sum()))
    first = np.repeat(np.arange(turns) * ops, ops)
    start, end = first + at, first + end
    weights = rng.choice(len(at), min(WEIGHTS, len(at) // 10), replace=False)
    start[weights], end[weights] = 0, turns * ops
    return Trace.from_lifetimes(size, start, end, n=turns * ops)


def tiled(trace: Trace, turns: int) -> Trace:
    """Return `turns` iterations of a trace; what is alive all the time is there once."""
    b, n = trace.buffers, trace.n
    part, whole = b.end - b.start < n, b.end - b.start == n
    first = np.repeat(np.arange(turns) * n, int(part.sum()))
    start = np.concatenate([np.tile(b.start[part], turns) + first, np.zeros(int(whole.sum()), np.int64)])
    end = np.concatenate([np.tile(b.end[part], turns) + first, np.full(int(whole.sum()), turns * n)])
    size = np.concatenate([np.tile(b.size[part], turns), b.size[whole]])
    return Trace.from_lifetimes(size, start, end, n=turns * n)


def seconds(run: Callable[[], object], times: int) -> float:
    """Return the median CPU time of a few runs."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def line(name: str, trace: Trace) -> None:
    """Print what an instance takes."""
    count = len(trace.buffers)
    times = 5 if count < 50_000 else 3 if count < 500_000 else 1
    placed: list[Placement] = [best_fit(trace), first_fit(trace)] if times > 1 else []
    best, first = (seconds(lambda p=p: placed.append(p(trace)), times) for p in (best_fit, first_fit))  # type: ignore[misc]
    pairs = ""
    if count <= 30_000:
        few, smartpool.FEW = smartpool.FEW, 10**9
        pairs = f"{seconds(lambda: best_fit(trace), 1):>9.3f}"
        smartpool.FEW = few
    ratios = f"{placed[0].ratio(trace):>9.4f}{placed[-1].ratio(trace):>9.4f}"
    print(f"{name:34}{count:>9}{best:>10.3f}{first:>10.3f}{best / count * 1e6:>9.1f}{ratios}{pairs}", flush=True)


def main() -> None:
    """Print a line an instance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=1_000_000, help="buffers of the largest instance")
    args = parser.parse_args()
    print(header(args.seed))
    for few in (smartpool.FEW, 0):
        smartpool.FEW, kept = few, smartpool.FEW
        took = seconds(lambda: best_fit(bundled("mlp3")), 1)
        smartpool.FEW = kept
        print(f"# first call with {'pairs' if few else 'the index'}: {took:.2f} s, compilation unless it was cached")
    print(f"\n{'':34}{'buffers':>9}{'best-fit s':>10}{'first-fit':>10}{'us each':>9}{'ratio':>9}{'':>9}{'pairs s':>9}")
    counts = [n for n in (10_000, 30_000, 62_000, 100_000, 300_000, 1_000_000) if n <= args.most]
    for n in counts:
        line("iterations of 2,000 ops", iterations(n, OPS, args.seed))
    for n in counts[:4]:
        line("one iteration", iterations(n, n, args.seed))
    for path in sorted(SHARED.glob("dsa/idealloc/*.csv")):
        line(path.stem, load(path).trace)
    files = {path.name.split(".")[0]: path for path in SHARED.glob("traces/*.json.gz")}
    for name in ("resnet50_224_b64", "bert_base_s128_b32", "densenet121_224_b2"):
        trace = read(files[name]) if name in files else bundled("vgg16")
        for n in (10_000, 62_000, args.most):
            line(name, tiled(trace, max(n // len(trace.buffers), 1)))
    print(f"\npeak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
