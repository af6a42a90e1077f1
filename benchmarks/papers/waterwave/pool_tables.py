"""What was measured of pools, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.waterwave.batches import Row
from gpumem.pipeline.report import columns, percent

POOLS = ("flat", "wrapped", "offline", "ends", "ends delayed")
BESIDE = ("ends beside", "load at 90", "served at 90", "ends at 90")
POOL_NOTES = """
Of one job: `load`, as Table 1 has it; `solo`, served by the allocator for several streams. Of two:
`flat`: the paper's rounds, served; `wrapped`: ours, served; `offline`: best_fit of ours; `ends`: from two ends.
`ends delayed`: from two ends, with delays; `ends beside`: how much of the work then runs side by side.
`at most`: by load with delays, no pool has more. `at 90`: what runs side by side, with delays, at 90 % of `load`."""


def pool_table(rows: Sequence[Row]) -> str:
    """Table 1 in a pool: a line a trace and an order, batches and parts of the solo batch by load."""
    head = ["trace", "on", "order", "load", "solo", *(cell for name in POOLS for cell in (name, "of load"))]
    lines = [[*head, "at most", *BESIDE, "paper: of solo"]]
    for r in rows:
        cells = [r["trace"], r["machine"], r["order"], str(r["load"]), str(r["solo"])]
        for name in POOLS:
            cells += [str(r[name]), percent(r[name] / max(r["load"], 1))]
        besides = ["-" if r[key] is None else percent(r[key]) for key in BESIDE]
        paper = percent(r["paper"].waterwave / r["paper"].solo) if r["paper"] else ""
        lines.append([*cells, str(r["at most"]), *besides, paper])
    return f"{columns(lines)}\n{POOL_NOTES}"


def rounds_table(rows: Sequence[Row]) -> str:
    """What pools need next to the load of a round: a line a trace and a kind of rounds."""
    head = ["trace", "on", "rounds", "load", "served: 1 round", "2", "8", "one list: 1 round", "2", "8"]
    lines = [[*head, "offline", "two ends"]]
    for r in rows:
        parts = [r["load"], *r["apart"], *r["one list"], r["offline"], r["ends"]]
        lines.append([r["trace"], r["machine"], r["rounds"], *(f"{part:.2f}" for part in parts)])
    told = (
        "`load`: of two, next to that of one. All others: next to the load of two. `one list`: a sync at every request."
    )
    return f"{columns(lines)}\n\n{told}"
