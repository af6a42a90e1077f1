"""Random traces: arcs, zero-size buffers, in-place ops, equal lifetimes, buffers never touched, two streams."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem.columns import Buffers, Ops
from gpumem.swap.gaps import gaps
from gpumem.swap.plan import Plan, Swap
from gpumem.trace import Trace


@st.composite
def lifetimes(draw: st.DrawFn, n: int) -> tuple[int, int, bool]:
    """An arc of a circle of `n` steps, and whether it is persistent."""
    if draw(st.integers(0, 3)) == 0:
        return 0, n, draw(st.booleans())
    start = draw(st.integers(0, n - 1))
    end = start + draw(st.integers(1, n))
    crosses = end > n or end - start == n
    return start, end, crosses and draw(st.booleans())


@st.composite
def traces(draw: st.DrawFn, *, max_ops: int = 10, max_buffers: int = 8, streams: int = 2) -> Trace:
    """A valid trace with measured durations."""
    n = draw(st.integers(1, max_ops))
    arcs = draw(st.lists(lifetimes(n), min_size=1, max_size=max_buffers))
    if len(arcs) > 1 and draw(st.booleans()):
        arcs[1] = arcs[0]
    sizes = [draw(st.sampled_from([0, 1, 3, 4, 4, 7, 8, 16, 40])) for _ in arcs]
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    for i in range(n):
        alive = [b for b, (s, e, _) in enumerate(arcs) if (i - s) % n < e - s]
        access = [draw(st.sampled_from(["", "", "r", "w", "rw"])) for _ in alive]
        reads.append([b for b, a in zip(alive, access) if "r" in a])
        writes.append([b for b, a in zip(alive, access) if "w" in a])
    used = draw(st.integers(1, streams))
    ops = Ops.make(
        reads,
        writes,
        name=[f"op{i}" for i in range(n)],
        duration=[draw(st.integers(0, 30)) for _ in range(n)],
        stream=[draw(st.integers(0, used - 1)) for _ in range(n)],
        streams=[f"compute{s}" for s in range(used)],
    )
    start, end, persistent = zip(*arcs)
    return Trace(Buffers.make(sizes, list(start), list(end), persistent=list(persistent)), ops, name="random")


@st.composite
def plans(draw: st.DrawFn, trace: Trace) -> Plan:
    """Any valid swaps of a trace, however unwise."""
    found = gaps(trace)
    swaps = []
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        if draw(st.booleans()):
            release = draw(st.integers(after + 1, before))
            prefetch, out = draw(st.integers(release, before)), draw(st.integers(after, release - 1))
            swaps.append(Swap(b, after, before, release, prefetch, out))
    return Plan(tuple(draw(st.permutations(swaps))), trace.n)
