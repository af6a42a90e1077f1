"""A trace op by op, to be compared with another one."""

from __future__ import annotations

from collections import Counter

from gpumem import Trace
from gpumem.trace.kinds import PARAM, STATISTICS


def described(trace: Trace) -> list[object]:
    """Each op by name, operands (bytes and kind), flops and bytes moved."""
    b = trace.buffers
    return [
        (op.name, *([(int(b.size[i]), b.kind[i]) for i in ids] for ids in (op.reads, op.writes)), flops, moved)
        for op, flops, moved in zip(trace.ops, trace.ops.flops.tolist(), trace.ops.moved.tolist())
    ]


KEPT = (PARAM, STATISTICS)  # what the files have names of


def check_equal(mine: Trace, theirs: Trace, moved: dict[str, tuple[int, str]]) -> None:
    """Name, operands (bytes and kind), flops and bytes moved of each op; live bytes; parameters, with their names."""
    ours, others = (described(trace) for trace in (mine, theirs))
    assert [row[:-1] for row in ours] == [row[:-1] for row in others]
    differ = Counter(a[0] for a, b in zip(ours, others) if a[-1] != b[-1])
    assert differ == {op: count for op, (count, why) in moved.items()}
    assert mine.peak == theirs.peak
    assert mine.live_bytes().tolist() == theirs.live_bytes().tolist()
    assert mine.ops.rng.tolist() == theirs.ops.rng.tolist()
    held, expected = (
        Counter((b.kind, b.size, b.shape, b.dtype, b.name * (b.kind in KEPT)) for b in trace.buffers)
        for trace in (mine, theirs)
    )
    assert held == expected
