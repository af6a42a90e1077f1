"""What a plan of recomputations holds and takes, without carrying it out: a search asks thousands of times.

Positions as in `load`: `2 i` is the place before op `i`, `2 i + 1` is op `i`. A buffer that is recomputed at a place
counts there from the recomputation that begins it; scratch from its first write to its last reader::

    position   2 after + 1 |              2 at               | 2 at + 1
    dropped    ============|              [ w  c  x  y ]     |============
                                             =============== wanted, begun by c
                                            ====              scratch
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.load import at_places
from gpumem.swap.plan.gaps import Spans
from gpumem.swap.plan.replay import FREE, ascending, chase, clear, is_kept, is_there, marks
from gpumem.swap.plan.values import FINE, Origins
from gpumem.trace import I64, Bool, Trace
from gpumem.trace.kinds import WORKSPACE

# Recomputations: more than any plan has.
ANY = 2**62
# The rows of what `RecomputableGaps.written` returns.
LAST_PLACE, NS = range(2)


class Costs(NamedTuple):
    """The peak live bytes, their position, ns and number of recomputations; -1 where a value cannot be recomputed.

    Where there are more recomputations than was asked for, all but their number so far is -1.
    """

    peak: int
    position: int
    ns: int
    recomputed_ops: int


class RecomputableGaps(NamedTuple):
    """Columns over gaps that a plan may bridge by recomputing their values, and over the trace they are in."""

    origins: Origins
    size: I64  # B: bytes
    duration: I64  # n: ns
    load: I64  # 2 n: the live bytes of the trace
    end: I64  # B: where lifetimes end, for those that are held longer
    lives: Bool  # B: whether a lifetime is within the iteration, so that it can be; workspaces are of no use to others
    read_value: I64  # of each read of `origins`, which value; values are numbered
    write_value: I64
    holder: I64  # V, of each value: its buffer; those of one buffer are neighbours
    begins: I64  # its whole write in `origins.writer`, -1 where it has none that could be recomputed
    ends: I64  # where the chain of its last version stops there
    buffer: I64  # m, of each gap
    after: I64
    before: I64
    value: I64
    first: I64  # the chain
    stop: I64

    @classmethod
    def of(cls, trace: Trace, duration: I64, gaps: Spans, barred: Bool | None = None) -> RecomputableGaps:
        """Take gaps within the iteration whose values can be recomputed; `barred`, bool[n]: ops that must not run."""
        origins = Origins.of(trace)
        origins = origins if barred is None else origins.without(barred)
        access = np.array([origins.after(*at) for at in zip(gaps.buffer.tolist(), gaps.after.tolist())], np.int64)
        stride, writer = trace.n + 1, np.append(origins.writer, -1) + 1
        keys = [
            origins.read * stride + writer[origins.finds.first],
            gaps.buffer * stride + writer[origins.left.first[access]],
            origins.write * stride + origins.made + 1,
        ]
        key, number = np.unique(np.concatenate(keys), return_inverse=True)
        read, value, write = np.split(number.astype(np.int64), np.cumsum([len(column) for column in keys])[:-1])
        begins, ends = _last_versions(origins, key, stride)
        workspace = np.array([kind == WORKSPACE for kind in trace.buffers.kind], np.bool_)
        begins[workspace[key // stride]] = -1
        return cls(
            origins=origins,
            size=trace.buffers.size,
            duration=duration,
            load=at_places(trace),
            end=trace.buffers.end,
            lives=~trace.buffers.host & ~trace.eternal & (trace.buffers.end <= trace.n) & ~workspace,
            read_value=read,
            write_value=write,
            holder=key // stride,
            begins=begins,
            ends=ends,
            buffer=gaps.buffer,
            after=gaps.after,
            before=gaps.before,
            value=value,
            first=origins.left.first[access],
            stop=origins.left.stop[access],
        )

    def costs(self, at: I64, until: I64, most: int = ANY) -> Costs:
        """Return what it costs to drop each gap and recompute it before op `at[k]`; it stays where that is 0.

        `until`, int64[B]: until when a dead buffer is held; -1 where it is not. `most`: recomputations that are
        followed.

        Notes
        -----
        Exact: `peak` is the peak live bytes of the trace that `Plan.apply` makes, `ns` the durations of its
        recomputations. One compiled pass: O(n + gaps log gaps + recomputed ops and their reads).
        """
        return Costs(*_costs(self, at, until, most, np.zeros((2, 0), np.int64)))

    def written(self, at: I64, until: I64) -> I64:
        """Return, int64[2, B], before which op a buffer is recomputed last (0: none), and its recomputations' ns.

        Parameters as in `costs`.
        """
        writes = np.zeros((2, len(self.size)), np.int64)
        _costs(self, at, until, ANY, writes)
        return writes


def _last_versions(origins: Origins, key: I64, stride: int) -> tuple[I64, I64]:
    """Of each value the chain that makes its last version; -1 where that cannot be recomputed."""
    buffer = np.repeat(np.arange(len(origins.access_ptr) - 1), np.diff(origins.access_ptr))
    rows = np.flatnonzero(origins.left.first < origins.left.stop)
    value = np.searchsorted(key, buffer[rows] * stride + origins.writer[origins.left.first[rows]] + 1)
    begins, ends = np.full((2, len(key)), -1, np.int64)
    np.maximum.at(ends, value, origins.left.stop[rows])
    last = (origins.left.stop[rows] == ends[value]) & (origins.left.why[rows] == FINE)
    begins[value[last]] = origins.left.first[rows[last]]
    return begins, ends


@inner
def _highest_op(load: I64) -> int:
    """Return the place of the op that holds most; ops are the odd places, and the first of equal ones is meant."""
    best = 1
    for place in range(3, len(load), 2):
        if load[place] > load[best]:
            best = place
    return best if load[best] > 0 else 0


@jit
def _costs(gaps: RecomputableGaps, at: I64, until: I64, most: int, written: I64) -> tuple[int, int, int, int]:
    """As `RecomputableGaps.costs`; what `RecomputableGaps.written` returns is noted where there is room for it."""
    origins, ops_count = gaps.origins, len(gaps.duration)
    load = loads(gaps, at, until)
    order = np.argsort(at, kind="mergesort")
    by_after, begun = np.argsort(gaps.after, kind="mergesort"), 0  # so many of these are dropped by the place
    absent, none = np.zeros(len(gaps.size), np.bool_), np.full(len(gaps.size), -1)
    marked, free = marks(np.zeros(ops_count, np.bool_), len(origins.writer)), np.zeros(ops_count, np.int64)
    first, last = np.full(len(gaps.holder), -1), np.full(len(gaps.holder), -1)
    scratch = np.ones(len(gaps.holder), np.bool_)
    ns, recomputed, position = 0, 0, _highest_op(load)
    peak = load[position]
    places = at[order]
    start = np.searchsorted(places, 1)  # gaps of place 0 stay
    while start < len(order):
        place = places[start]
        stop = np.searchsorted(places, place, side="right")
        wanted, start = order[start:stop], stop
        begun = _absent(gaps, at, place, by_after=by_after, begun=begun, absent=absent)
        clear(marked)
        obstacle, _ = chase(
            origins,
            gaps.first[wanted],
            gaps.stop[wanted],
            place,
            least=place,
            absent=absent,
            until=until,
            kept=none,
            marked=marked,
            duration=free,
            most=0,
        )
        if obstacle != FREE:
            return -1, -1, -1, -1
        ops = ascending(marked)
        extra, took = replayed(
            gaps,
            gaps.size,
            gaps.duration,
            stay=gaps.value[wanted],
            place=place,
            absent=absent,
            until=until,
            kept=none,
            ops=ops,
            first=first,
            last=last,
            scratch=scratch,
        )
        ns, recomputed = ns + took, recomputed + len(ops)
        if recomputed > most:
            return -1, -1, -1, recomputed
        if written.shape[1]:
            _note_writes(gaps, ops, place, written)
        if load[2 * place] + extra > peak:
            peak, position = load[2 * place] + extra, 2 * place
        for row in wanted:
            absent[gaps.buffer[row]] = False
    return peak, position, ns, recomputed


@inner
def _note_writes(gaps: RecomputableGaps, ops: I64, place: int, written: I64) -> None:
    """Note which buffers the ops recomputed at a place write, and for how long they run."""
    origins = gaps.origins
    for op in ops:
        for row in range(origins.write_ptr[op], origins.write_ptr[op + 1]):
            written[LAST_PLACE, origins.write[row]] = place
            written[NS, origins.write[row]] += gaps.duration[op]


@jit
def loads(gaps: RecomputableGaps, at: I64, until: I64) -> I64:
    """The live bytes with dropped gaps absent and dead buffers held, at all positions."""
    ops = len(gaps.duration)
    change = np.zeros(2 * ops + 2, np.int64)
    for gap in range(len(at)):
        if at[gap] > 0:
            change[2 * gaps.after[gap] + 2] -= gaps.size[gaps.buffer[gap]]
            change[2 * at[gap]] += gaps.size[gaps.buffer[gap]]
    for buffer in range(len(until)):
        if until[buffer] >= 0:
            change[2 * gaps.end[buffer]] += gaps.size[buffer]
            change[2 * until[buffer] + 1] -= gaps.size[buffer]
    return gaps.load + np.cumsum(change)[: 2 * ops]


@inner
def _absent(  # noqa: PLR0917  compiled: no keyword-only parameters
    gaps: RecomputableGaps, at: I64, place: int, by_after: I64, begun: int, absent: Bool
) -> int:
    """Mark what has been dropped by a place, and comes back there or later; return how many of the gaps have begun."""
    while begun < len(by_after) and gaps.after[by_after[begun]] < place:
        if at[by_after[begun]] >= place:
            absent[gaps.buffer[by_after[begun]]] = True
        begun += 1
    return begun


@jit
def replayed(  # noqa: C901, PLR0913, PLR0917  compiled: columns of a record are looked up at each use, and cost time
    gaps: RecomputableGaps,
    size: I64,
    duration: I64,
    stay: I64,
    place: int,
    absent: Bool,
    until: I64,
    kept: I64,
    ops: I64,
    first: I64,
    last: I64,
    scratch: Bool,
) -> tuple[int, int]:
    """The most bytes that the recomputations of a place hold beside its live bytes, and their ns; columns are lent.

    `stay`: the values that the live bytes include there. `absent`, `until`, `kept`: as in `replay.Present`. `size` and
    `duration` may be others than those of `gaps`, where ops run by other implementations.
    """
    # Columns by name: looked up in the tuples at every use, the loop takes many times as long.
    origins = gaps.origins
    read_ptr, read, read_value = origins.read_ptr, origins.read, gaps.read_value
    lasts, dies, stops = origins.last, origins.dies, origins.finds.stop
    write_ptr, write, write_value = origins.write_ptr, origins.write, gaps.write_value
    held = 0
    for row in stay:
        scratch[row] = False
        held -= size[gaps.holder[row]]
    for op in ops:
        for row in range(write_ptr[op], write_ptr[op + 1]):
            if first[write_value[row]] < 0:
                first[write_value[row]] = op
            last[write_value[row]] = op
        for row in range(read_ptr[op], read_ptr[op + 1]):
            buffer = read[row]
            if is_there(place, lasts[row], dies=dies[row], absent=absent[buffer], until=until[buffer]):
                continue
            if not is_kept(op, lasts[row], dies=dies[row], stop=stops[row], kept=kept[buffer]):
                last[read_value[row]] = op
    most, ns = held, 0
    for op in ops:
        ns += duration[op]
        for row in range(write_ptr[op], write_ptr[op + 1]):
            if first[write_value[row]] == op:
                held += size[write[row]]
        most = max(most, held)
        for row in range(write_ptr[op], write_ptr[op + 1]):
            held -= _ends(write_value[row], op, last, scratch) * size[write[row]]
        for row in range(read_ptr[op], read_ptr[op + 1]):
            buffer = read[row]
            if is_there(place, lasts[row], dies=dies[row], absent=absent[buffer], until=until[buffer]):
                continue
            if not is_kept(op, lasts[row], dies=dies[row], stop=stops[row], kept=kept[buffer]):
                held -= _ends(read_value[row], op, last, scratch) * size[buffer]
    for op in ops:
        for row in range(write_ptr[op], write_ptr[op + 1]):
            first[write_value[row]] = last[write_value[row]] = -1
    for row in stay:
        scratch[row] = True
    return most, ns


@inner
def _ends(value: int, op: int, last: I64, scratch: Bool) -> int:
    """1 where op `op` touches a scratch value for the last time; it is asked once."""
    if last[value] != op or not scratch[value]:
        return 0
    last[value] = -1
    return 1
