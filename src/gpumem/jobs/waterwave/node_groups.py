"""Node groups: runs of a job's ops that take about as much memory as one another, or give it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.names import choice
from gpumem.base.units import human
from gpumem.jobs.waterwave.op_order import by_depth, reordered
from gpumem.simulator.machine import Machine
from gpumem.trace import I64, Bool, Trace

ORDERS: dict[str, Callable[[Trace], I64]] = {"recorded": lambda trace: np.arange(trace.n), "depth": by_depth}


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """One node group: ops `[first, last)` of its job, in the order in which they run.

    Parameters
    ----------
    first, last : int
    net : int
        Bytes taken less bytes given back; above 0 it is an allocation node group (ANG), below it a deallocation one.
    inside : int
        By how many bytes it is above what is held at its start, at most.
    ns : int
        What its ops take, one after another.
    """

    first: int
    last: int
    net: int
    inside: int
    ns: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Partition(Shown):
    """A job in node groups: `angs` of them that take memory, then others that give it back.

    Parameters
    ----------
    trace : Trace
        The job's iteration, ops in the order in which they run.
    order : int64[n]
        Which op of the job's own trace each of them is.
    cuts : int64[k + 1]
        Group `k` is ops `[cuts[k], cuts[k + 1])`.
    angs : int
        Groups that come before the point at which most is held between two ops.
    held : int64[k + 1]
        Bytes held at each cut; `held[0]`, equal to `held[-1]`, is what the job holds between its iterations.
    inside : int64[k]
        By how many bytes each group is above what is held at its start, at most.
    ns : int64[k]
        What the ops of each group take, one after another.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> parts = partition(bundled("vgg16"), Machine.named("v100"), 100 * 2**20)
    >>> parts
    Partition(vgg16_cifar_b100: 7 groups, 4 of allocation, at rest 114.42 MiB, peak 462.03 MiB)
    >>> [parts[k].net // 2**20 for k in range(len(parts))]
    [107, 109, 100, 24, -109, -125, -109]
    """

    trace: Trace
    order: I64
    cuts: I64
    angs: int
    held: I64
    inside: I64
    ns: I64

    @classmethod
    @strict
    def at(
        cls, trace: Trace, machine: Machine, cuts: Sequence[int], angs: int, *, order: I64 | None = None
    ) -> Partition:
        """Make one of a trace whose ops are in the order in which they run, cut before the ops `cuts`.

        Raises
        ------
        ValueError
            Cuts that do not ascend from 0 to `n`, more groups of allocation than groups, an op that is a copy.
        """
        cut_at = np.array(cuts, np.int64)
        if len(cut_at) < 2 or cut_at[0] != 0 or cut_at[-1] != trace.n or (np.diff(cut_at) < 1).any():
            raise ValueError(
                f"cuts: {list(cuts)!r:.60} do not ascend from 0 to {trace.n}, the ops of {trace.name!r:.60}"
            )
        if not 0 <= angs < len(cut_at):
            raise ValueError(f"angs: {angs} is not in [0, {len(cut_at) - 1}], the groups of {trace.name!r:.60}")
        if len(copies := np.flatnonzero(trace.ops.copies)):
            raise ValueError(f"op {copies[0]} of {trace.name!r:.60} is a copy; share the unswapped trace, then swap")
        held = between(trace)[cut_at]
        peaks, work = (
            np.maximum.reduceat(trace.live_bytes(), cut_at[:-1]),
            np.add.reduceat(machine.durations(trace), cut_at[:-1]),
        )
        ran_as = np.arange(trace.n) if order is None else order
        inside = np.maximum(peaks - held[:-1], 0)
        return cls(trace, ran_as, cut_at, angs, held=held, inside=inside, ns=work)

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, index: int) -> NodeGroup:
        first, last = self.cuts[index : index + 2].tolist()
        return NodeGroup(
            first, last, int(self.held[index + 1] - self.held[index]), int(self.inside[index]), int(self.ns[index])
        )

    @property
    def rest(self) -> int:
        """Bytes that the job holds between its iterations."""
        return int(self.held[0])

    @property
    def peak(self) -> int:
        """The peak live bytes."""
        return int((self.held[:-1] + self.inside).max())

    def _facts(self) -> Facts:
        most = {"at rest": human(self.rest), "peak": human(self.peak)}
        return {"": self.trace.name, "groups": len(self), "of allocation": self.angs, **most}


def between(trace: Trace) -> I64:
    """Return the bytes that a trace holds before each op, and behind the last one, int64[n + 1]."""
    buffers, count = trace.buffers, trace.n
    counted = ~buffers.host & ~trace.eternal
    freed = np.zeros(count, np.int64)
    np.add.at(freed, (buffers.end[counted] - 1) % count, buffers.size[counted])
    behind = trace.live_bytes() - freed
    return np.append(behind[-1], behind)


@strict
def partition(
    trace: Trace, machine: Machine, split: int, *, order: str = "recorded", keep: Sequence[tuple[int, int]] = ()
) -> Partition:
    """Cut a job's iteration into node groups of about `split` bytes.

    Parameters
    ----------
    trace : Trace
        One iteration; no copies. Its ops run one after another, whatever their streams.
    machine : Machine
        Says what ops take.
    split : int
        Bytes, 1 and more. A group ends with the op at which it has taken so much, or given it back. An op that alone
        takes more is in a group that does.
    order : str
        `recorded`, or `depth`: the longest path to an op decides (the paper's, see `by_depth`).
    keep : sequence of (int, int)
        Ranges `[first, last)` of ops of `trace` that no cut divides, as the loop of a recurrent net.

    Returns
    -------
    Partition
        Groups before the peak hold no less at their end than at their start, groups behind it no more: no group mixes
        both. The peak is where most is held between two ops that may be divided.

    Raises
    ------
    ValueError
        A split below 1, a range that is none, a trace without ops or with copies, an order that is none of `ORDERS`.

    Notes
    -----
    The paper says a group of similar size; what is left over before the peak and at the end is a smaller group. Before
    the peak only growth ends a group, else a deallocation group could come first and algorithm 1 would not know it.
    O(accesses + n).

    References
    ----------
    Shi et al., Waterwave, section 4.4.
    """
    if split < 1:
        raise ValueError(f"split: {split} bytes is below 1")
    row, ordered, held, free, peak = _prepared(trace, order, keep)
    up, down = free[free <= peak], free[free >= peak]
    rising = _cuts(held[up], split)
    falling = _cuts(-held[down], split)
    cuts = [*up[rising].tolist(), *down[falling][1:].tolist()]
    return Partition.at(ordered, machine, cuts, len(rising) - 1, order=row)


@strict
def atoms(
    trace: Trace, machine: Machine, count: int = 128, *, order: str = "recorded", keep: Sequence[tuple[int, int]] = ()
) -> Partition:
    """Cut a job's iteration into about `count` small groups, for a search that joins them (see `balanced`).

    Parameters
    ----------
    trace, machine, order, keep
        As for `partition`.
    count : int
        1 and more. Between two cuts lies about as much as between any other two, of time and of bytes taken or given
        back; near where a cut should be it is where least is held. One is at the peak.

    Raises
    ------
    ValueError
        A count below 1; what `partition` refuses.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> atoms(bundled("vgg16"), Machine.named("v100"), 12)
    Partition(vgg16_cifar_b100: 13 groups, 6 of allocation, at rest 114.42 MiB, peak 462.03 MiB)
    """
    if count < 1:
        raise ValueError(f"count: {count} groups is below 1")
    row, ordered, held, free, peak = _prepared(trace, order, keep)
    passed = [np.cumsum(np.abs(np.diff(held))), np.cumsum(machine.durations(ordered))]
    share = np.append(0.0, sum(column / max(int(column[-1]), 1) for column in passed)) / 2
    bins = np.rint(share[free] * count)
    least = np.lexsort((held[free], bins))  # of each bin the cut at which least is held
    first = np.append(True, np.diff(bins[least]) > 0)
    cuts = sorted({0, trace.n, peak, *free[least[first]].tolist()})
    return Partition.at(ordered, machine, cuts, cuts.index(peak), order=row)


def _prepared(trace: Trace, order: str, keep: Sequence[tuple[int, int]]) -> tuple[I64, Trace, I64, I64, int]:
    """The ops' order; the trace in it; bytes held between its ops; where cuts may be; at which of these most are."""
    if not len(trace.ops):
        raise ValueError(f"trace {trace.name!r:.60}: no ops, a bare instance has no node groups")
    row = choice(order, ORDERS, "order")(trace)
    ordered = reordered(trace, row)
    held, free = between(ordered), np.flatnonzero(_divisible(row, keep))
    return row, ordered, held, free, int(free[np.argmax(held[free])])


def _cuts(level: I64, split: int) -> list[int]:
    """Where to cut a level that rises to its highest point: after each rise by `split`, and no piece falls."""
    cuts = [0]
    for index, value in enumerate(level.tolist()):
        if value - level[cuts[-1]] >= split:
            cuts.append(index)
    if cuts[-1] != len(level) - 1:
        cuts.append(len(level) - 1)
    while len(cuts) > 2 and level[cuts[-1]] < level[cuts[-2]]:  # the last piece falls: join it to the one before
        del cuts[-2]
    return cuts


def _divisible(order: I64, keep: Sequence[tuple[int, int]]) -> Bool:
    """Where a cut may be, before which op in the order or behind the last, bool[n + 1]."""
    count = len(order)
    free, position = np.ones(count + 1, np.bool_), np.argsort(order)
    for first, last in keep:
        if not 0 <= first < last <= count:
            raise ValueError(f"keep: [{first}, {last}) is no range of {count} ops")
        kept = position[first:last]
        free[kept.min() + 1 : kept.max() + 1] = False
    return free
