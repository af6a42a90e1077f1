"""What a report shows: a row for iterations that are alike, where a plan was left, what is to be said."""

from __future__ import annotations

from dataclasses import replace

from gpumem.runtime.residency.report import Iteration, ManagedReport
from gpumem.swap.plan import Plan, Swap
from tests.runtime.residency.test_follower import A, long

ROW = Iteration(0, "planned", 16, 2048, 1024, 512, 3, 4, 5, "", 0.25)


def text(*rows: Iteration, notes: tuple[str, ...] = (), planned: bool = False) -> str:
    trace = long()
    plan = Plan.of(trace, [Swap(A, 0, 5, 2, 4)]) if planned else None
    return str(ManagedReport(4096, 1024, trace, plan, 108 if planned else 0, rows, notes))


def test_rows_that_are_alike_are_one() -> None:
    rows = [replace(ROW, number=7 + k, seconds=0.25 * (k + 1)) for k in range(3)]
    told = text(*rows, replace(ROW, number=10, evictions=6), notes=("late",))
    assert told.splitlines() == [
        "limit 4.00 KiB, held now 1.00 KiB",
        "",
        "iteration    state  ops      peak       out   back  recomputed  misses  evicted       time",
        "      7-9  planned   16  2.00 KiB  1.00 KiB  512 B           3       4        5  500.00 ms",
        "       10  planned   16  2.00 KiB  1.00 KiB  512 B           3       4        6  250.00 ms",
        "note: late",
    ]


def test_rows_that_left_the_plan_elsewhere_are_told_apart() -> None:
    rows = [replace(ROW, number=k, state="on demand", deviation=f"op {k // 2}: a came for b") for k in range(4)]
    rows.append(replace(rows[-1], number=4, deviation="op 3: it ended"))
    assert text(*rows, planned=True).splitlines()[1:] == [
        "plan: Plan(1 swaps, 0 recomputations, for 16 ops), 108 B held at most",
        "",
        "iteration      state  ops      peak       out   back  recomputed  misses  evicted       time",
        "      0-1  on demand   16  2.00 KiB  1.00 KiB  512 B           3       4        5  250.00 ms",
        "      2-3  on demand   16  2.00 KiB  1.00 KiB  512 B           3       4        5  250.00 ms",
        "        4  on demand   16  2.00 KiB  1.00 KiB  512 B           3       4        5  250.00 ms",
        "iteration 0-1: op 0: a came for b",
        "iteration 2-3: op 1: a came for b",
        "iteration 4: op 3: it ended",
    ]
