"""The report of a plan: its numbers, its table, and amounts for people."""

from __future__ import annotations

import json

from gpumem.io import bundled
from gpumem.pipeline.report import human, human_ns
from gpumem.pipeline.swap_and_place import at_load
from gpumem.pool import best_fit
from gpumem.trace import COPY_IN, COPY_OUT
from tests.pipeline.swapping import report, swap


def test_the_report_counts_what_is_copied() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 7 // 10
    found = at_load(trace, limit, swap=swap, pool=best_fit)
    row = report(trace, found, limit).row()
    size = {b.id: b.size for b in found.trace.buffers}
    for key, role in (("bytes_out", COPY_OUT), ("bytes_in", COPY_IN)):
        expected = sum(size[o.reads[0]] for o in found.trace.ops if found.trace.ops.role[o.id] == role)
        assert row[key] == expected > 0
    assert row["peak_live_bytes_after"] == found.trace.live_bytes().max()
    assert row["overhead"] == row["makespan_ns"] / row["makespan_before_ns"] - 1
    assert set(row["stalls"]) == {"data", "copy", "memory"}
    json.dumps(row)


def test_the_table_shows_the_row() -> None:
    trace = bundled("mlp3")
    found = at_load(trace, trace.peak_live_bytes, swap=swap, pool=best_fit)
    table = report(trace, found, trace.peak_live_bytes).table()
    assert "231.70 MiB" in table
    assert "0.00%" in table


def test_amounts_are_written_for_people() -> None:
    assert [human(x) for x in (0, 1023, 1024, 2**20, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.00 MiB",
        "5.00 GiB",
    ]
    assert [human_ns(x) for x in (999, 1000, 10**6, 10**9)] == ["999 ns", "1.00 us", "1.00 ms", "1.00 s"]
