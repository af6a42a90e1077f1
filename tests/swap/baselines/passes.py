"""Programs of many passes: loops unrolled in time, forward and backward more than once, weights that are shared."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import PARAM


def unrolled(passes: int, loops: int, *, update: bool = True, sizes: tuple[int, ...] = (8,), ns: int = 10) -> Trace:
    """Return `passes` times: a loop unrolled `loops` times with one weight, its way back, and the weight's update.

    Buffer 0 is the weight, 1 what comes in. A step makes `h` of the step before and the weight, `a` of `h`; its way
    back reads both. Each pass goes on from what the last one ended with, and at the end all of these are read.
    """
    reads: list[list[int]] = [[]]
    writes: list[list[int]] = [[1]]
    count, ends, begin = 2, [], 1
    for _ in range(passes):
        steps, last = [], begin
        for _ in range(loops):
            h, a = count, count + 1
            count += 2
            reads += [[0, last], [h]]
            writes += [[h], [a]]
            steps.append((last, h, a))
            last = a
        gradient = count
        count += 1
        reads.append([last])
        writes.append([gradient])
        for before, h, a in reversed(steps):
            reads.append([gradient, before, h, a])
            writes.append([count])
            gradient, count = count, count + 1
        if update:
            reads.append([0, gradient])
            writes.append([0])
        ends.append(last)
        begin = last
    reads.append(ends)
    writes.append([])
    touched: list[list[int]] = [[] for _ in range(count)]
    for i, row in enumerate(zip(reads, writes)):
        for b in {*row[0], *row[1]}:
            touched[b].append(i)
    n = len(reads)
    start, end = [0] + [t[0] for t in touched[1:]], [n] + [t[-1] + 1 for t in touched[1:]]
    size = [sizes[b % len(sizes)] for b in range(count)]
    kind = [PARAM] + ["activation"] * (count - 1)
    ops = Ops.make(reads, writes, duration=[ns] * n, name=["zeros"] + ["op"] * (n - 1))
    return Trace(
        Buffers.make(size, start, end, persistent=[b == 0 for b in range(count)], kind=kind), ops, name="loops"
    )


def programs() -> st.SearchStrategy[Trace]:
    """Draw one of a few passes."""
    sizes = st.lists(st.integers(1, 40), min_size=1, max_size=7).map(tuple)
    return st.builds(unrolled, st.integers(1, 3), st.integers(1, 6), update=st.booleans(), sizes=sizes)
