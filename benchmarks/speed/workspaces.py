"""Peak loads with workspaces, the algorithms chosen, and SmartPool below CnMem, beside the papers' figures."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from statistics import fmean

from benchmarks.papers.singa import as_singa, cnmem
from benchmarks.speed._bench import SHARED, header
from gpumem.io import BUNDLED, bundled_path as path_of, read
from gpumem.pipeline import by_allocators
from gpumem.pipeline.report import columns
from gpumem.pool import CnMem, best_fit
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.trace import Trace
from gpumem.trace.kinds import GRADIENT

GTX = Machine.named("gtx1080ti")
PAPER = {"vgg16_cifar_b100": 647, "resnet50_cifar_b100": 4418}  # MB, AutoSwap's Table II
LIMIT = 2**26


def files() -> list[Path]:
    """The shared traces, or else the bundled ones."""
    return sorted(SHARED.glob("traces/*.json.gz")) or [path_of(name) for name in BUNDLED]


def peaks(trace: Trace) -> list[str]:
    """A row: MB without, with the fastest algorithms, within 64 MiB; the iteration's time within; seconds; choices."""
    begin = time.perf_counter()
    fastest = workspaces.add(trace)
    seconds = time.perf_counter() - begin
    small = workspaces.add(trace, rule=LIMIT)
    slower = simulate(small, GTX).makespan / simulate(fastest, GTX).makespan - 1
    done = workspaces.convolutions(trace)
    names = Counter(part for op in done for part in workspaces.offers(trace, op)[0].name.split(" + "))
    chosen = ", ".join(f"{name} {count}" for name, count in names.most_common())
    largest = int(fastest.buffers.size[len(trace.buffers) :].max(initial=0))
    loads = [f"{t.peak_live_bytes / 1e6:.1f}" for t in (trace, fastest, small)]
    cells = [str(len(done)), *loads, f"{largest / 1e6:.1f}", f"{slower:+.2%}", f"{seconds * 1e3:.0f}", chosen]
    return [trace.name, *cells]


def held(trace: Trace) -> int:
    """Bytes of the workspaces if each layer keeps its own for good, as SINGA's do."""
    found, most = workspaces.add(trace), dict[int, int]()
    for b in list(found.buffers)[len(trace.buffers) :]:
        reads = trace.ops.reads[b.start].tolist()
        weights = reads[2 if "backward" in trace.ops.name[b.start] else 1]
        most[weights] = max(most.get(weights, 0), b.size)
    return sum(most.values())


def paper(trace: Trace) -> list[str]:
    """A row: MB as PyTorch and as SINGA hold it, without and with workspaces; what SINGA may hold besides; the paper's.

    SINGA's examples/cifar10/train.py holds the last iteration's gradients until it has the next, as `grads` is bound to
    them; its layers hold their workspaces for good.
    """
    singa = as_singa(trace)
    found = [t.peak_live_bytes for t in (trace, workspaces.add(trace), singa, workspaces.add(singa))]
    last = sum(b.size for b in trace.buffers if b.kind == GRADIENT)
    found += [found[-1] + last, singa.peak_live_bytes + last + held(singa)]
    want = PAPER.get(trace.name, 0)
    cells = [f"{peak / 1e6:.0f}" + (f" ({peak / 1e6 / want - 1:+.1%})" if want else "") for peak in found]
    return [trace.name, *cells, str(want or "")]


def below(trace: Trace) -> list[float]:
    """How far SmartPool is below CnMem, in %: of one pool by best and by first fit, and as SINGA sets it up."""
    height = best_fit(trace).height
    makes = {"best": CnMem, "first": lambda: CnMem(fit="first"), "singa": cnmem}
    return [100 * (1 - height / found.size) for found in by_allocators(trace, makes, lambda text: None)]


def pools(traces: list[Trace], name: str) -> list[list[str]]:
    """Rows of `below`, for each trace without and with workspaces, and their means."""
    rows = [[*below(trace), *below(workspaces.add(trace))] for trace in traces]
    lines = [[t.name, *(f"{x:.1f}" for x in row)] for t, row in zip(traces, rows)]
    return [*lines, [f"mean of {len(rows)} {name}", *(f"{fmean(column):.1f}" for column in zip(*rows))]]


def main() -> None:
    """Print the three tables."""
    print(header())
    print("\nPeak loads in MB (10^6 bytes); time of an iteration within 64 MiB over that of the fastest; ms to add\n")
    heads = ["trace", "convolutions", "without", "fastest", "64 MiB", "largest", "longer", "ms", "algorithms"]
    print(columns([heads, *(peaks(read(path)) for path in files())]))
    traces = {trace.name: trace for trace in map(read, files()) if "cifar" in trace.name or "vgg" in trace.name}
    cifar = [trace for name, trace in traces.items() if "cifar" in name]
    print("\nPeak loads in MB beside the paper's, as PyTorch and as SINGA hold an iteration's buffers\n")
    heads = [
        "trace",
        "PyTorch",
        "with workspaces",
        "SINGA",
        "with workspaces",
        "and last gradients",
        "kept by layers",
        "paper",
    ]
    print(columns([heads, *map(paper, cifar)]))
    heads = ["trace", *(f"{fit}{ws}" for ws in ("", ", workspaces") for fit in ("best fit", "first fit", "SINGA's"))]
    for title, change in (("PyTorch", lambda trace: trace), ("SINGA", as_singa)):
        print(f"\nSmartPool below CnMem in %, buffers held as {title} holds them; the paper: up to 13.3, on VGG11\n")
        nets = {"VGGs": "vgg", "ResNets": "resnet"}
        mine = {name: [change(t) for t in traces.values() if t.name.startswith(key)] for name, key in nets.items()}
        print(columns([heads, *(row for name, found in mine.items() for row in pools(found, name))]))


if __name__ == "__main__":
    main()
