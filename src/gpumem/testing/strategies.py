"""Hypothesis strategies: traces, bare instances, and requests to an online allocator.

All of them shrink: to fewer buffers, ops and requests, to smaller sizes, to one stream. Needs Hypothesis, which
comes with `gpumem[test]`.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumem.trace import COMPUTE, COPY_IN, COPY_OUT, UNKNOWN, Buffers, Ops, Trace

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("gpumem.testing.strategies needs Hypothesis: pip install 'gpumem[test]'") from missing
SIZES = st.sampled_from([0, 1, 3, 4, 4, 7, 8, 16, 40])  # 4 twice: equal sizes are common, and hard


class Lifetimes(NamedTuple):
    """Bare lifetimes: `size[i]` bytes during steps `[start[i], end[i])` of a circle of `n` steps."""

    size: list[int]
    start: list[int]
    end: list[int]
    n: int


# Arcs are drawn as a kind and two parts of a circle, and then scaled to `n` steps, so that `n` can shrink alone.
_KIND = st.integers(0, 5)
_PART = st.integers(0, 99)
_HOW = ("r", "w", "rw")


def _arc(kind: int, here: int, there: int, steps: int) -> tuple[int, int]:
    """Return a lifetime `[start, end)` on a circle of some steps: all of it, or within it, or across the boundary."""
    if kind == 0 or steps == 1:
        return 0, steps
    if kind <= 3:
        start = here * steps // 100
        return start, start + 1 + there * (steps - start) // 100
    start = 1 + here * (steps - 1) // 100
    return start, steps + 1 + there * start // 100


@st.composite
def lifetimes(
    draw: st.DrawFn,
    *,
    max_steps: int = 10,
    max_buffers: int = 8,
    sizes: st.SearchStrategy[int] = SIZES,
    wrap: bool = True,
) -> Lifetimes:
    """Draw a bare instance, for an offline planner.

    Parameters
    ----------
    max_steps, max_buffers : int
        At most so many; at least one of each.
    sizes : SearchStrategy of int
        Bytes of a buffer; by default small ones that often agree, 0 among them.
    wrap : bool
        Whether lifetimes may cross the boundary; otherwise `end <= n`.

    Returns
    -------
    SearchStrategy of Lifetimes

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> from gpumem import Trace, best_fit, check
    >>> @settings(max_examples=20, derandomize=True, database=None, deadline=None)
    ... @given(lifetimes(sizes=st.integers(1, 2**20)))
    ... def every_placement_is_valid(instance):
    ...     size, start, end, n = instance
    ...     trace = Trace.from_lifetimes(size, start, end, n=n)
    ...     check.placement(trace, best_fit(trace))
    >>> every_placement_is_valid()
    """
    steps = draw(st.integers(1, max_steps))
    rows = draw(st.lists(st.tuples(sizes, _KIND, _PART, _PART), min_size=1, max_size=max_buffers))
    pieces = [_arc(kind, here, there, steps) for _, kind, here, there in rows]
    if len(rows) > 1 and draw(st.booleans()):
        pieces[1] = pieces[0]
    end = [end_of if wrap else min(end_of, steps) for _, end_of in pieces]
    return Lifetimes([size for size, *_ in rows], [start_of for start_of, _ in pieces], end, steps)


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    max_ops: int = 10,
    max_buffers: int = 8,
    streams: int = 2,
    sizes: st.SearchStrategy[int] = SIZES,
    host: bool = False,
    hosts: int = 0,
) -> Trace:
    """Draw a valid trace with ops of measured durations.

    Parameters
    ----------
    max_ops, max_buffers, sizes
        As for `lifetimes`.
    streams : int
        Compute streams at most.
    host : bool
        Whether some buffers may lie on the host; no op touches these.
    hosts : int
        Host threads at most that launch the ops. With any, ops may block, and some are copies, on streams `d2h` and
        `h2d`, whose time a machine's link gives; 0 is for one thread, nothing that blocks and no copies.

    Returns
    -------
    SearchStrategy of Trace
        With arcs across the boundary, persistent buffers, equal lifetimes, buffers of no bytes, buffers that no op
        touches, ops that change a buffer in place, and ops of no duration.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=20, derandomize=True, database=None, deadline=None)
    ... @given(traces(streams=1))
    ... def the_peak_is_never_above_all_sizes(trace):
    ...     assert trace.peak_live_bytes <= trace.buffers.size.sum()
    >>> the_peak_is_never_above_all_sizes()
    """
    half = st.booleans()
    off = st.integers(0, 3).map(lambda kind: kind == 3) if host else st.just(False)
    rows = draw(st.lists(st.tuples(_KIND, _PART, _PART, half, sizes, off), min_size=1, max_size=max_buffers))
    touches = st.lists(st.integers(0, 3 * max_buffers - 1), max_size=6)  # which of those alive, and how
    parts = st.tuples(touches, st.integers(0, 30), st.integers(0, streams - 1))
    steps = draw(st.lists(parts, min_size=1, max_size=max_ops))
    count = len(steps)
    pieces = [(*_arc(row[0], row[1], row[2], count), row[3]) for row in rows]
    if len(rows) > 1 and draw(half):
        pieces[1] = pieces[0]
    alive = [
        [
            buffer
            for buffer, (birth, death, _) in enumerate(pieces)
            if (op - birth) % count < death - birth and not rows[buffer][5]
        ]
        for op in range(count)
    ]
    access = [
        {here[code // 3 % len(here)]: _HOW[code % 3] for code in step[0] if here} for here, step in zip(alive, steps)
    ]
    start, end = [birth for birth, *_ in pieces], [death for _, death, _ in pieces]
    persistent = [kept and (death > count or death - birth == count) for birth, death, kept in pieces]
    buffers = Buffers.make([row[4] for row in rows], start, end, persistent=persistent, host=[row[5] for row in rows])
    ops = Ops.make(
        [[buffer for buffer in sorted(touched) if "r" in touched[buffer]] for touched in access],
        [[buffer for buffer in sorted(touched) if "w" in touched[buffer]] for touched in access],
        name=[f"op{op}" for op in range(count)],
        duration=[duration for _, duration, _ in steps],
        stream=[stream for *_, stream in steps],
        streams=[f"compute{stream}" for stream in range(streams)],
    )
    trace = Trace(buffers, ops, name="random")
    return draw(_with_hosts(trace, hosts)) if hosts else trace


@st.composite
def _with_hosts(draw: st.DrawFn, trace: Trace, hosts: int) -> Trace:
    """Draw which host launches each op, which ops block, and some that copy the first buffer they touch, out or in."""
    buffers, recorded, count = trace.buffers, trace.ops, trace.n
    kinds = draw(st.lists(st.tuples(st.integers(0, hosts - 1), _KIND, _KIND), min_size=count, max_size=count))
    reads, writes = recorded.reads.tolist(), recorded.writes.tolist()
    role, stream, columns = (
        [COMPUTE] * count,
        recorded.stream.tolist(),
        [list(column) for column in (buffers.size, buffers.start, buffers.end)],
    )
    for op, (_, _, kind) in enumerate(kinds):
        if kind > 3 and (device := sorted({*reads[op], *writes[op]})):
            role[op], pinned = (COPY_OUT, COPY_IN)[kind - 4], len(columns[0])
            reads[op], writes[op] = ([device[0]], [pinned]) if kind == 4 else ([pinned], [device[0]])
            stream[op] = len(recorded.streams) + kind - 4
            for column, value in zip(columns, (int(buffers.size[device[0]]), op, op + 1)):
                column.append(value)
    more = len(columns[0]) - len(buffers)
    ops = Ops.make(
        reads,
        writes,
        name=recorded.name,
        duration=[UNKNOWN if role[op] else int(recorded.duration[op]) for op in range(count)],
        stream=stream,
        streams=(*recorded.streams, "d2h", "h2d"),
        role=role,
        host=[which for which, *_ in kinds],
        hosts=[f"host{number}" for number in range(hosts)],
        blocking=[kind == 5 for _, kind, _ in kinds],
    )
    persistent, host = [*buffers.persistent.tolist(), *[False] * more], [*buffers.host.tolist(), *[True] * more]
    return Trace(Buffers.make(*columns, persistent=persistent, host=host), ops, name=trace.name)
