"""What a plan of recomputations holds and takes, without carrying it out: a search asks thousands of times.

Positions as in `load`: `2 i` is the place before op `i`, `2 i + 1` is op `i`. A buffer that is made again at a place
counts there from the rerun that begins it; scratch from its first write to its last reader::

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

ANY = 2**62  # reruns: more than any plan has


class Costs(NamedTuple):
    """The highest load, its position, what reruns take, and how many; -1 where a value cannot be made again.

    Where there are more reruns than was asked for, all but their number so far is -1.
    """

    peak: int
    position: int
    ns: int
    reruns: int


class MadeAgain(NamedTuple):
    """Columns over gaps that a plan may bridge by making their values again, and over the trace they are in."""

    origins: Origins
    size: I64  # B: bytes
    duration: I64  # n: ns
    load: I64  # 2 n: the load of the trace
    end: I64  # B: where lifetimes end, for those that are held longer
    lives: Bool  # B: whether a lifetime is within the iteration, so that it can be; workspaces are of no use to others
    read_value: I64  # of each read of `origins`, which value; values are numbered
    write_value: I64
    holder: I64  # V, of each value: its buffer; those of one buffer are neighbours
    begins: I64  # its whole write in `origins.writer`, -1 where it has none that could run again
    ends: I64  # where the chain of its last version stops there
    buffer: I64  # m, of each gap
    after: I64
    before: I64
    value: I64
    first: I64  # the chain
    stop: I64

    @classmethod
    def of(cls, trace: Trace, duration: I64, found: Spans, barred: Bool | None = None) -> MadeAgain:
        """Take gaps within the iteration whose values can be made again; `barred`, bool[n]: ops that must not run."""
        v = Origins.of(trace)
        v = v if barred is None else v.without(barred)
        row = np.array([v.after(*at) for at in zip(found.buffer.tolist(), found.after.tolist())], np.int64)
        stride, writer = trace.n + 1, np.append(v.writer, -1) + 1
        made = [b * stride + writer[first] for first, b in ((v.found.first, v.read), (v.left.first[row], found.buffer))]
        made.append(v.write * stride + v.made + 1)
        key, number = np.unique(np.concatenate(made), return_inverse=True)
        read, value, write = np.split(number.astype(np.int64), np.cumsum([len(x) for x in made])[:-1])
        begins, ends = _last_versions(v, key, stride)
        workspace = np.array([kind == WORKSPACE for kind in trace.buffers.kind], np.bool_)
        begins[workspace[key // stride]] = -1
        return cls(
            v,
            trace.buffers.size,
            duration,
            at_places(trace),
            trace.buffers.end,
            ~trace.buffers.host & ~trace.eternal & (trace.buffers.end <= trace.n) & ~workspace,
            read,
            write,
            key // stride,
            begins,
            ends,
            found.buffer,
            found.after,
            found.before,
            value,
            v.left.first[row],
            v.left.stop[row],
        )

    def costs(self, at: I64, until: I64, most: int = ANY) -> Costs:
        """Return what it costs to drop each gap and make it again before op `at[k]`; it stays where that is 0.

        `until`, int64[B]: until when a dead buffer is held; -1 where it is not. `most`: reruns that are followed.

        Notes
        -----
        Exact: `peak` is the peak load of the trace that `Plan.apply` makes, `ns` the durations of its reruns. One
        compiled pass: O(n + gaps log gaps + ops run again and their reads).
        """
        return Costs(*_costs(self, at, until, most, np.zeros((2, 0), np.int64)))

    def written(self, at: I64, until: I64) -> I64:
        """Return, int64[2, B], before which op reruns write each buffer last (0: none does), and the ns of all of them.

        Parameters as in `costs`.
        """
        found = np.zeros((2, len(self.size)), np.int64)
        _costs(self, at, until, ANY, found)
        return found


def _last_versions(v: Origins, key: I64, stride: int) -> tuple[I64, I64]:
    """Of each value the chain that makes its last version; -1 where that cannot run again."""
    buffer = np.repeat(np.arange(len(v.access_ptr) - 1), np.diff(v.access_ptr))
    mine = np.flatnonzero(v.left.first < v.left.stop)
    value = np.searchsorted(key, buffer[mine] * stride + v.writer[v.left.first[mine]] + 1)
    begins, ends = np.full((2, len(key)), -1, np.int64)
    np.maximum.at(ends, value, v.left.stop[mine])
    last = (v.left.stop[mine] == ends[value]) & (v.left.why[mine] == FINE)
    begins[value[last]] = v.left.first[mine[last]]
    return begins, ends


@jit
def _costs(m: MadeAgain, at: I64, until: I64, most: int, written: I64) -> tuple[int, int, int, int]:
    """As `MadeAgain.costs`; what `MadeAgain.written` returns is noted where there is room for it."""
    v, n = m.origins, len(m.duration)
    load = loads(m, at, until)
    order = np.argsort(at, kind="mergesort")
    by_after, gone = np.argsort(m.after, kind="mergesort"), 0  # so many of these are dropped by the place
    absent, none = np.zeros(len(m.size), np.bool_), np.full(len(m.size), -1)
    marked, free = marks(np.zeros(n, np.bool_), len(v.writer)), np.zeros(n, np.int64)
    first, last = np.full(len(m.holder), -1), np.full(len(m.holder), -1)
    scratch = np.ones(len(m.holder), np.bool_)
    peak, position, ns, reruns = 0, 0, 0, 0
    for i in range(n):
        if load[2 * i + 1] > peak:
            peak, position = load[2 * i + 1], 2 * i + 1
    k = np.searchsorted(at[order], 1)
    while k < len(order):
        place, stop = at[order[k]], k
        while stop < len(order) and at[order[stop]] == place:
            stop += 1
        wanted = order[k:stop]
        k = stop
        gone = _absent(m, at, place, by_after, gone, absent)
        clear(marked)
        stuck, _ = chase(v, m.first[wanted], m.stop[wanted], place, place, absent, until, none, marked, free, 0)
        if stuck != FREE:
            return -1, -1, -1, -1
        ops = ascending(marked)
        stay = m.value[wanted]
        extra, took = replayed(m, m.size, m.duration, stay, place, absent, until, none, ops, first, last, scratch)
        ns += took
        reruns += len(ops)
        if reruns > most:
            return -1, -1, -1, reruns
        for x in ops if written.shape[1] else ops[:0]:
            for j in range(v.write_ptr[x], v.write_ptr[x + 1]):
                written[0, v.write[j]] = place
                written[1, v.write[j]] += m.duration[x]
        if load[2 * place] + extra > peak:
            peak, position = load[2 * place] + extra, 2 * place
        for j in wanted:
            absent[m.buffer[j]] = False
    return peak, position, ns, reruns


@jit
def loads(m: MadeAgain, at: I64, until: I64) -> I64:
    """The load with dropped gaps absent and dead buffers held, at all positions."""
    n = len(m.duration)
    change = np.zeros(2 * n + 2, np.int64)
    for k in range(len(at)):
        if at[k] > 0:
            change[2 * m.after[k] + 2] -= m.size[m.buffer[k]]
            change[2 * at[k]] += m.size[m.buffer[k]]
    for b in range(len(until)):
        if until[b] >= 0:
            change[2 * m.end[b]] += m.size[b]
            change[2 * until[b] + 1] -= m.size[b]
    return m.load + np.cumsum(change)[: 2 * n]


@inner
def _absent(m: MadeAgain, at: I64, place: int, by_after: I64, gone: int, absent: Bool) -> int:
    """Mark what has been dropped by a place, and comes back there or later; return how many of the gaps have begun."""
    while gone < len(by_after) and m.after[by_after[gone]] < place:
        if at[by_after[gone]] >= place:
            absent[m.buffer[by_after[gone]]] = True
        gone += 1
    return gone


@jit
def replayed(
    m: MadeAgain,
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
    """The most bytes that the reruns of a place hold beside its load, and their ns; columns over values are lent.

    `stay`: the values that the load counts there. `absent`, `until`, `kept`: as in `replay.Present`. `size` and
    `duration` may be others than those of `m`, where ops run by other implementations.
    """
    # columns by name: looked up in the tuples at every use, the loop takes many times as long
    v = m.origins
    read_ptr, read, lasts, dies, stops, read_value = v.read_ptr, v.read, v.last, v.dies, v.found.stop, m.read_value
    write_ptr, write, write_value = v.write_ptr, v.write, m.write_value
    held = 0
    for k in stay:
        scratch[k] = False
        held -= size[m.holder[k]]
    for x in ops:
        for k in range(write_ptr[x], write_ptr[x + 1]):
            if first[write_value[k]] < 0:
                first[write_value[k]] = x
            last[write_value[k]] = x
        for k in range(read_ptr[x], read_ptr[x + 1]):
            b = read[k]
            if is_there(place, lasts[k], dies[k], absent[b], until[b]):
                continue
            if not is_kept(x, lasts[k], dies[k], stops[k], kept[b]):
                last[read_value[k]] = x
    most, ns = held, 0
    for x in ops:
        ns += duration[x]
        for k in range(write_ptr[x], write_ptr[x + 1]):
            if first[write_value[k]] == x:
                held += size[write[k]]
        most = max(most, held)
        for k in range(write_ptr[x], write_ptr[x + 1]):
            held -= _ends(write_value[k], x, last, scratch) * size[write[k]]
        for k in range(read_ptr[x], read_ptr[x + 1]):
            b = read[k]
            if is_there(place, lasts[k], dies[k], absent[b], until[b]):
                continue
            if not is_kept(x, lasts[k], dies[k], stops[k], kept[b]):
                held -= _ends(read_value[k], x, last, scratch) * size[b]
    for x in ops:
        for k in range(write_ptr[x], write_ptr[x + 1]):
            first[write_value[k]] = last[write_value[k]] = -1
    for k in stay:
        scratch[k] = True
    return most, ns


@inner
def _ends(value: int, x: int, last: I64, scratch: Bool) -> int:
    """1 where op `x` touches a scratch value for the last time; it is asked once."""
    if last[value] != x or not scratch[value]:
        return 0
    last[value] = -1
    return 1
