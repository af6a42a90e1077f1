"""How much of what the forward pass keeps for the backward pass can be made again?

A line a recorded trace (the bundled ones where no others are here): the activations kept over the turn, which share of
their bytes a `Recompute` may drop, each value by itself, and why not the others. `before` is that share by the rule
of commit eb7500b, which refused what is changed in place or random and what has lost an input: this script, run there,
printed `results/again_before.txt`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.speed._bench import SHARED, header
from gpumem.io import BUNDLED, bundled, read
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.recompute import REASONS, backward_start, kept_over, recomputable
from gpumem.trace import Trace
from gpumem.trace.kinds import ACTIVATION

BEFORE = Path(__file__).parents[1] / "results" / "again_before.txt"
MACHINE = Machine.named("gtx1080ti")


def line(name: str, trace: Trace, before: str) -> str:
    """Return a trace's line of the table."""
    again = recomputable(trace, MACHINE)
    kind = np.array(trace.buffers.kind)[again.gaps.buffer]
    mine = kept_over(again.gaps, backward_start(trace), trace.n) & (kind == ACTIVATION)
    size = np.where(mine, trace.buffers.size[again.gaps.buffer], 0)
    share = size[again.ok].sum() / max(size.sum(), 1)
    lost = {REASONS[r]: int(size[again.reason == r].sum()) for r in range(1, len(REASONS))}
    why = "; ".join(f"{part / size.sum():.3%} {reason}" for reason, part in lost.items() if part)
    return f"{name:32}{size.sum() / 2**20:>10.1f}{before:>10}{share:>10.3%}  {why}".rstrip()


def main() -> None:
    """Print the table."""
    print(header())
    kept = [row.split() for row in BEFORE.read_text().splitlines()] if BEFORE.exists() else []
    before = {row[0]: row[3] for row in kept if len(row) > 3 and row[3].endswith("%")}
    files = {path.name.split(".")[0]: path for path in sorted(SHARED.glob("traces/*.json.gz"))}
    print(f"\n{'':32}{'MiB':>10}{'before':>10}{'share':>10}")
    ours = {} if files else {trace.name: trace for trace in map(bundled, BUNDLED)}
    for name in files or ours:
        trace = read(files[name]) if name in files else ours[name]
        print(line(name, trace, before.get(name, "-")), flush=True)


if __name__ == "__main__":
    main()
