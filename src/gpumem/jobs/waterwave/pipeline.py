"""The pipeline of node groups: which of them run side by side, slot by slot, so that their memory fits.

::

    slot       0     1     2     3     4     5   | 0     1     2
    stream 0   A1    A2    A3    B1    B2    B3  | A1    A2    ...    A1-A3, B1-B3 take memory
    stream 1   B4    B5    B6    A4    A5    A6  | B4    B5           A4-A6, B4-B6 give it back
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.errors import Infeasible
from gpumem.base.units import human
from gpumem.jobs.waterwave.algorithm1 import Row
from gpumem.jobs.waterwave.node_groups import Partition
from gpumem.trace import I64

NO_LIMIT = 2**62  # bytes: above any sum of sizes, and with such a sum added it stays within int64


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration of a job in the pipeline: in which slot each of its node groups runs, and on which stream.

    Slots count from the round in which the turn begins; those from the pipeline's period on are in the next round.
    """

    job: int
    slot: tuple[int, ...]
    stream: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pipeline(Shown):
    """Node groups of several jobs on two streams, round after round.

    Parameters
    ----------
    parts : tuple of Partition
        The jobs.
    turns : tuple of Turn
        What a round has begun when the next one begins, in the order in which turns begin; those of one job in turn.
    period : int
        Slots of a round.

    Notes
    -----
    All streams wait for one another between two slots. What runs in one slot runs side by side, in whatever order the
    host enqueues it; `bound` holds for any.
    """

    parts: tuple[Partition, ...]
    turns: tuple[Turn, ...]
    period: int

    def rows(self) -> tuple[Row, Row]:
        """Return what runs in each slot of a round on stream 0, and on stream 1: (job, group) or None."""
        rows: tuple[Row, Row] = [None] * self.period, [None] * self.period
        for turn in self.turns:
            for group, (slot, stream) in enumerate(zip(turn.slot, turn.stream)):
                rows[stream][slot % self.period] = turn.job, group
        return rows

    def bound(self) -> I64:
        """Return for each slot the bytes that are held in it at most, in whatever order its ops are enqueued.

        The bytes of all jobs at its start, and by how much the two groups may be above that, each by itself. Memory
        that a group frees serves the other one in the next slot, so no stream waits for another within a slot.
        """
        held = np.full(self.period, sum(part.rest for part in self.parts), np.int64)
        for turn in self.turns:
            slots = np.arange(turn.slot[0], turn.slot[-1] + 1)
            np.add.at(held, slots % self.period, _above_rest(self.parts[turn.job], turn.slot)[slots])
        return held

    @property
    def pairs(self) -> int:
        """Slots in which both streams have a group."""
        return sum(first is not None and second is not None for first, second in zip(*self.rows()))

    def turns_of(self, job: int) -> list[int]:
        """Return which turns are of a job, in turn."""
        return [index for index, turn in enumerate(self.turns) if turn.job == job]

    def _facts(self) -> Facts:
        counts = {"jobs": len(self.parts), "turns": len(self.turns), "slots": self.period, "pairs": self.pairs}
        return {**counts, "at most": human(int(self.bound().max()))}


def _above_rest(part: Partition, slot: Sequence[int]) -> I64:
    """What a turn holds in each slot at most above what its job holds at rest; 0 before and behind it."""
    level = np.zeros(slot[-1] + 1, np.int64)
    for group, slot_of in enumerate(slot):
        level[slot_of] = part.held[group] + part.inside[group]
        if group + 1 < len(slot):
            level[slot_of + 1 : slot[group + 1]] = part.held[group + 1]
    level[slot[0] :] -= part.rest
    return level


@strict
def pipeline(
    parts: Sequence[Partition],
    limit: int | None = None,
    *,
    turns: Sequence[int] | None = None,
    overlap: int | None = None,
    wrap: bool = True,
) -> Pipeline:
    """Put the node groups of jobs into slots: algorithm 1, mended, with a bound on each pair.

    Parameters
    ----------
    parts : sequence of Partition
        The jobs, one and more.
    limit : int, optional
        Bytes that all jobs together may hold; without it there is no limit.
    turns : sequence of int, optional
        Which jobs run an iteration in a round, in this order; a job may come more than once. By default each comes
        once, those with most groups first, as in the paper.
    overlap : int, optional
        How many groups of the second turn run at most beside those of the first that still take memory (the paper's
        `p`); by default as many as the limit allows.
    wrap : bool
        Whether a round begins before the last groups of the one before have run, in slots that these leave free.
        Without it, as in the paper, all jobs end an iteration together.

    Returns
    -------
    Pipeline

    Raises
    ------
    Infeasible
        A job cannot run while all others rest. The error says which, in a note.
    ValueError
        No jobs, turns of others than these or without one of them.

    Notes
    -----
    Groups that take memory go on stream 0, the others on stream 1, each behind what is there. So far it is the printed
    algorithm. A group comes no earlier than right behind the job's last one, which the printed form forgets, and waits
    for a slot from which on the bound holds, the job keeping what it then holds. So whatever was put first can always
    end, and all that comes later too. The last turn's groups of deallocation go on stream 0 where that is earlier.
    Any number of jobs; O(groups + slots) a turn, and for each period that is tried.

    References
    ----------
    Shi et al., Waterwave, section 4.4, algorithm 1 and figure 5.

    Examples
    --------
    >>> from gpumem import Machine, bundled
    >>> from gpumem.jobs.waterwave import partition
    >>> job = partition(bundled("vgg16"), Machine.named("v100"), 100 * 2**20)
    >>> pipeline([job, job], limit=1100 * 2**20)
    Pipeline(2 jobs, 2 turns, 7 slots, 7 pairs, at most 924.06 MiB)
    """
    if not parts:
        raise ValueError("pipeline: no jobs")
    feasible(parts, limit)
    order = sorted(range(len(parts)), key=lambda job: -len(parts[job])) if turns is None else list(turns)
    if set(order) != set(range(len(parts))):
        raise ValueError(
            f"turns: {order!r:.60} are not of the {len(parts)} jobs 0 to {len(parts) - 1}, each at least once"
        )
    flat = _flat(parts, limit, order, overlap)
    return folded(flat, limit) if wrap else flat


def feasible(parts: Sequence[Partition], limit: int | None) -> None:
    """Raise where the limit is below what the job that rises highest above its rest needs, others being at rest."""
    rest = sum(part.rest for part in parts)
    most, index = max((part.peak - part.rest, -index) for index, part in enumerate(parts))
    if limit is not None and rest + most > limit:
        part = parts[-index]
        error = Infeasible(int(part.order[int(np.argmax(part.trace.live_bytes()))]), rest + most, limit)
        others = f", beside {human(rest - part.rest)} that the others keep" if len(parts) > 1 else ""
        error.add_note(f"job {-index} ({part.trace.name}) needs {human(part.peak)} by itself{others}")
        raise error


def _flat(parts: Sequence[Partition], limit: int | None, order: Sequence[int], overlap: int | None) -> Pipeline:
    """One round that begins and ends with no turn in the middle of an iteration."""
    flat = _Flat(parts, limit, order)
    for place, job in enumerate(order):
        beside = flat.beside(job, overlap) if place == 1 else 0
        flat.put(job, beside, last=place == len(order) - 1)
    return Pipeline(tuple(parts), tuple(flat.turns), 1 + max(turn.slot[-1] for turn in flat.turns))


class _Flat:
    """Slots, filled turn by turn."""

    def __init__(self, parts: Sequence[Partition], limit: int | None, order: Sequence[int]) -> None:
        self.parts, self.turns = parts, list[Turn]()
        self.headroom = NO_LIMIT if limit is None else limit - sum(part.rest for part in parts)
        self.next = [0, 0]  # of each stream: behind the last group on it
        # in each slot, and more than can be needed: bytes above what all jobs hold at rest, by turns that have been put
        self.held = np.zeros(2 * sum(len(parts[job]) for job in order) + 2, np.int64)

    def beside(self, job: int, overlap: int | None) -> int:
        """How many groups of the second turn fit beside the last ones of the first that take memory."""
        first, part = self.turns[0], self.parts[job]
        if first.job == job:
            return 0
        angs = self.parts[first.job].angs
        largest = min(angs, part.angs, *([] if overlap is None else [overlap]))
        during, behind = _levels(part)
        later = _later(self.held)
        for count in range(largest, 0, -1):
            slots = np.arange(angs - count, angs)
            if (
                max((self.held[slots] + during[:count]).max(), (later[slots + 1] + behind[:count]).max())
                <= self.headroom
            ):
                return count
        return 0

    def put(self, job: int, beside: int, last: bool) -> None:
        """Put the groups of a turn, the first `beside` of them beside the first turn's last groups of allocation."""
        part, later = self.parts[job], _later(self.held)
        during, behind = (column.tolist() for column in _levels(part))
        slots, streams = list[int](), list[int]()
        ready = max((turn.slot[-1] + 1 for turn in self.turns if turn.job == job), default=0)
        if beside:
            ready = self.parts[self.turns[0].job].angs - beside
        for group in range(len(part)):
            stream = 1 if group < beside or group >= part.angs else 0
            slot_ = ready if group < beside else max(self.next[stream], ready)
            if last and group >= part.angs and max(self.next[0], ready) < slot_:
                stream, slot_ = 0, max(self.next[0], ready)
            while self.held[slot_] + during[group] > self.headroom or later[slot_ + 1] + behind[group] > self.headroom:
                slot_ += 1  # until the group fits, and its job can keep what it holds after it
            self.next[stream], ready = max(self.next[stream], slot_ + 1), slot_ + 1
            slots.append(slot_)
            streams.append(stream)
        self.held[: slots[-1] + 1] += _above_rest(part, slots)
        self.turns.append(Turn(job, tuple(slots), tuple(streams)))


def _levels(part: Partition) -> tuple[I64, I64]:
    """What a job holds above its rest in each group at most, and behind it."""
    return part.held[:-1] + part.inside - part.rest, part.held[1:] - part.rest


def _later(held: I64) -> I64:
    """The most that is held from each slot on; 0 behind the last."""
    return np.append(np.maximum.accumulate(held[::-1])[::-1], 0)


def folded(flat: Pipeline, limit: int | None) -> Pipeline:
    """The shortest period at which rounds may follow each other: no slot taken twice, jobs in turn, the bound kept."""
    groups_on = np.bincount([stream for turn in flat.turns for stream in turn.stream])  # a slot for each group
    shortest = max(*(turn.slot[-1] - turn.slot[0] + 1 for turn in flat.turns), *groups_on.tolist())
    for period in range(shortest, flat.period):
        candidate = _rounds(flat, period)
        if _is_valid(candidate) and (limit is None or int(candidate.bound().max()) <= limit):
            return candidate
    return flat


def _rounds(flat: Pipeline, period: int) -> Pipeline:
    """Begin a round every `period` slots: a turn that begins later than that is one of the round before."""
    shifts = [turn.slot[0] // period * period for turn in flat.turns]
    turns = [replace(turn, slot=tuple(slot - shift for slot in turn.slot)) for turn, shift in zip(flat.turns, shifts)]
    return replace(flat, turns=tuple(sorted(turns, key=lambda turn: turn.slot[0])), period=period)


def _is_valid(rounds: Pipeline) -> bool:
    """Whether each slot of a stream has one group at most, and the turns of each job follow one another."""
    occupied = [(slot % rounds.period, stream) for turn in rounds.turns for slot, stream in zip(turn.slot, turn.stream)]
    if len(set(occupied)) < len(occupied):
        return False
    for job in range(len(rounds.parts)):
        own = [rounds.turns[index].slot for index in rounds.turns_of(job)]
        begin = [*(slot[0] for slot in own[1:]), own[0][0] + rounds.period]  # of the iteration behind each
        if any(slot[-1] >= next_begin for slot, next_begin in zip(own, begin)):
            return False
    return True
