"""What a host that issues and waits changes, beside the figures of the papers that measured it.

    PYTHONPATH=src python benchmarks/host.py waterwave > benchmarks/results/host_waterwave.txt

`waterwave`: memory freed as ops are scheduled and as they complete, and ops scheduled one after another: Waterwave's
figures 2 and 3. The SNU thesis' figures are in `gpumem bench snu`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from _bench import SHARED, header

from gpumem.io import read
from gpumem.machine import Machine
from gpumem.report import columns
from gpumem.simulate import simulate
from gpumem.timeline import Timeline
from gpumem.trace import Trace

PASCAL = Machine.named("p100")
HOST_NS = 2e5  # of an op: 893 of them take about the 180 ms after which the paper's backward pass starts
BAND = (2.2, 2.7)  # completed over scheduled; the paper's figure 2 gives 13 over 5.4
# Figure 3: % of the speed that sequential scheduling loses. The text names Bert-base and Tacotron2; the third is a CNN.
SEQUENTIAL = {"resnet50_224_b64": 24.6, "bert_base_s128_b32": 34.6, "tacotron2_t40_b32": 70.7}


def recorded(name: str) -> Trace:
    """Return a shared trace."""
    return read(SHARED / "traces" / f"{name}.json.gz")


def peaks(trace: Trace, line: Timeline) -> list[str]:
    """Return both peaks in GiB, when they come, and the one over the other."""
    cells, high = [], []
    for freed in ("scheduled", "completed"):
        try:
            time, held = line.memory_over_time(trace, freed)
        except ValueError:
            return [*cells, "without end", "", "", ""]
        high.append(int(held.max()))
        cells += [f"{high[-1] / 2**30:.2f}", f"{time[held.argmax()] / 1e6:.0f}"]
    ratio = high[1] / high[0]
    return [*cells, f"{ratio:.2f}", "kept" if BAND[0] <= ratio <= BAND[1] else "missed"]


def figure2() -> list[list[str]]:
    """A line a host: how long it takes to hand over an op, and whether it waits for the end of an iteration."""
    trace = recorded("resnet50_224_b64")
    rows = [["host us an op", "waits", "scheduled GiB", "at ms", "completed GiB", "at ms", "ratio", "2.2 to 2.7"]]
    rows += [["the paper", "", "5.4", "50", "over 13", "200", "2.4", ""]]
    for host_ns in (HOST_NS, 0, HOST_NS / 4, HOST_NS / 2, 1.5 * HOST_NS, 2 * HOST_NS, 4 * HOST_NS):
        for sync in (True, False) if host_ns else (True,):
            line = simulate(trace, PASCAL.with_(host_ns=host_ns), sync=sync)
            rows.append([f"{host_ns / 1e3:.0f}", "yes" if sync else "no", *peaks(trace, line)])
    return rows


def figure3() -> list[list[str]]:
    """A line a net and a host: what sequential scheduling loses, and what an op more would give the paper's figure."""
    rows = [
        [
            "net",
            "ops",
            "host us an op",
            "computation ms",
            "parallel ms",
            "sequential ms",
            "lost %",
            "paper %",
            "more us an op",
        ]
    ]
    for name, paper in SEQUENTIAL.items():
        trace = recorded(name)
        for host_ns in (HOST_NS, HOST_NS / 4):
            machine = PASCAL.with_(host_ns=host_ns)
            work = int(machine.durations(trace).sum())
            both, one = (simulate(t, machine).makespan for t in (trace, trace.with_blocking()))
            more = (both / (1 - paper / 100) - one) / trace.n
            times = [f"{ns / 1e6:.0f}" for ns in (work, both, one)]
            rows.append(
                [
                    name,
                    str(trace.n),
                    f"{host_ns / 1e3:.0f}",
                    *times,
                    f"{100 * (1 - both / one):.1f}",
                    str(paper),
                    f"{more / 1e3:.0f}",
                ]
            )
    return rows


def waterwave() -> None:
    """Print Waterwave's figures 2 and 3."""
    print(f"\nWaterwave's figure 2: ResNet50, 224 x 224, batch 64, on {PASCAL.name}\n")
    print(columns(figure2()))
    print(f"\nWaterwave's figure 3, on {PASCAL.name}; more: what each wait would have to take besides\n")
    print(columns(figure3()), flush=True)


SUITES: dict[str, Callable[[], None]] = {"waterwave": waterwave}


def main() -> None:
    """Print the suites named, else all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", help=f"of {', '.join(SUITES)} (default: all)")
    names = parser.parse_args().suite or [*SUITES]
    print(header())
    for name in names:
        SUITES[name]()


if __name__ == "__main__":
    main()
