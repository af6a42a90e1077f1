"""Node groups that know addresses: of two turns that meet one grows up from below, the other one down from above.

::

    address ^ ____________________________________  capacity
            |   the next turn, upside down   \\     slots in which both together would be too high are not there:
            |  .-----.                        '--   `pipeline` delays one of them, as it does where their bytes would be
            | /       \\
            |/  a turn \\__________________________
            |  what jobs keep between iterations
            +------------------------------------> slots

Tried instead, two ResNet50 on a V100 (`python -m benchmarks waterwave --what pool`): an online allocator for the round,
which leaves holes that the other job's feature maps do not fit into; `best_fit` of the whole round, which lets streams
wait for one another in the middle of a slot where one takes what the other gave back there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.units import human
from gpumem.jobs.waterwave.co_schedule import CoSchedule
from gpumem.jobs.waterwave.node_groups import Partition
from gpumem.jobs.waterwave.pipeline import Pipeline
from gpumem.trace import I64, Bool, Trace
from gpumem.trace.placement import NOWHERE, Placement


@strict
def in_pool(part: Partition, placement: Placement) -> Partition:
    """Let a job's node groups count addresses: how high its pool is in each of them, instead of how much it holds.

    Parameters
    ----------
    part : Partition
    placement : Placement
        Of `part.trace`, which may be in another order than the job was recorded in. Any will do, `pool.stacked` is made
        for it: it is low whenever little is held.

    Returns
    -------
    Partition
        The same groups. At rest the job takes what its buffers that cross the boundary of its iteration reach up to.
        So what `pipeline` and `Pipeline.bound` count are bytes of a pool that `two_ends` fills. (`balanced` makes other
        groups, which count what they hold again.)

    Raises
    ------
    ValueError
        A placement that has not one offset for each buffer.

    Notes
    -----
    O(lifetimes).

    Examples
    --------
    >>> from gpumem import Machine, best_fit, bundled
    >>> from gpumem.jobs.waterwave import partition, pipeline
    >>> from gpumem.pool import stacked
    >>> part = partition(bundled("vgg16"), Machine.named("v100"), 100 * 2**20)
    >>> for placement in (stacked(part.trace), best_fit(part.trace)):
    ...     placed = in_pool(part, placement)
    ...     print([height // 2**20 for height in placed.held.tolist()], pipeline([placed] * 2, overlap=0))
    [114, 279, 388, 460, 466, 360, 279, 114] Pipeline(2 jobs, 2 turns, 8 slots, 6 pairs, at most 748.68 MiB)
    [464, 464, 464, 464, 464, 464, 464, 464] Pipeline(2 jobs, 2 turns, 8 slots, 6 pairs, at most 929.18 MiB)
    """
    placement.check_fits(part.trace)
    low, floor, top = _kept(part.trace, placement)
    buffers, count = part.trace.buffers, part.trace.n
    within, between = np.full(count, floor), np.full(count + 1, floor)
    for buffer in np.flatnonzero(~low & ~buffers.host & (buffers.size > 0)).tolist():
        lifetime, inner = (
            slice(buffers.start[buffer], buffers.end[buffer]),
            slice(buffers.start[buffer] + 1, buffers.end[buffer]),
        )
        within[lifetime] = np.maximum(within[lifetime], top[buffer])
        between[inner] = np.maximum(between[inner], top[buffer])
    held = between[part.cuts]
    return replace(part, held=held, inside=np.maximum.reduceat(within, part.cuts[:-1]) - held[:-1])


def _kept(trace: Trace, placement: Placement) -> tuple[Bool, int, I64]:
    """Which buffers lie among those that cross the boundary; how high these reach; where each ends, rounded up."""
    buffers, unit = trace.buffers, placement.alignment
    top = np.where(buffers.host | (buffers.size == 0), 0, -(-(placement.offset + buffers.size) // unit) * unit)
    is_kept, floor = trace.crossing, -1
    while (reach := int(top[is_kept].max(initial=0))) > floor:
        is_kept, floor = is_kept | (placement.offset < reach), reach
    return is_kept, floor, top


@strict
def two_ends(schedule: CoSchedule, placements: Sequence[Placement], capacity: int | None = None) -> Placement:
    """Place a round of jobs of which each has a placement of its own: turns that meet grow from opposite ends.

    Parameters
    ----------
    schedule : CoSchedule
    placements : sequence of Placement
        Of each job's part, as for `in_pool`.
    capacity : int, optional
        Bytes of the pool; by default as few as suffice.

    Returns
    -------
    Placement
        Valid in whatever order the host enqueues the ops of a slot: bytes that one group frees serve the other one from
        the next slot on, so no stream waits for another but between slots.

    Raises
    ------
    ValueError
        Not one placement for each job, one that is not of it, or not aligned as the others; a capacity below what the
        round takes: `pipeline` keeps to a limit where its parts are `in_pool`. Turns that two ends are too few
        for: an odd number in overlapping rounds, or three that meet, of three jobs and more, where the limit is loose.

    Examples
    --------
    >>> from gpumem import Machine, bundled, check
    >>> from gpumem.jobs.waterwave import partition, pipeline, co_schedule
    >>> from gpumem.pool import stacked
    >>> machine, limit = Machine.named("v100"), 600 * 2**20
    >>> part = partition(bundled("vgg16"), machine, 100 * 2**20)
    >>> stack = stacked(part.trace)
    >>> both = co_schedule(pipeline([in_pool(part, stack)] * 2, limit), machine)
    >>> placed = two_ends(both, [stack] * 2, limit)
    >>> check.placement(both.trace, placed)
    >>> placed
    Placement(738 buffers, height 600.00 MiB, alignment 256 B)
    """
    pipeline_ = schedule.pipeline
    unit = _alignment(placements, len(schedule.ops))
    needed = int(replace(pipeline_, parts=tuple(map(in_pool, pipeline_.parts, placements))).bound().max())
    height = (needed if capacity is None else capacity) // unit * unit
    if height < needed:
        raise ValueError(f"capacity: {human(height)} is below the {human(needed)} that the round takes from two ends")
    kept = [_kept(part.trace, placement) for part, placement in zip(pipeline_.parts, placements)]
    floors = [floor for _, floor, _ in kept]
    buffers = schedule.trace.buffers
    offset = np.where(buffers.host, NOWHERE, 0)
    for index, (turn, above) in enumerate(zip(pipeline_.turns, _ends(pipeline_))):
        is_kept, floor, top = kept[turn.job]
        offsets = placements[turn.job].offset
        grown_offset = height - (top - floor) if above else sum(floors) + offsets - floor
        moved = np.where(
            is_kept, sum(floors[: turn.job]) + offsets, grown_offset
        )  # what is kept lies at the bottom, job by job
        own = (schedule.buffer_turn == index) & ~buffers.host & (buffers.size > 0)
        offset[own] = moved[schedule.buffer[own]]
    return Placement(offset, height, unit)


def _alignment(placements: Sequence[Placement], jobs: int) -> int:
    """The alignment that all placements, one for each job, have in common."""
    if len(placements) != jobs:
        raise ValueError(f"placements: there are {len(placements)}, one for each of {jobs} jobs would do")
    units = sorted({one.alignment for one in placements})
    if len(units) > 1:
        raise ValueError(f"placements: alignments {units} differ")
    return units[0]


def _ends(pipeline: Pipeline) -> list[bool]:
    """Whether each turn grows down from above: no two that meet grow from the same end."""
    slots = [{slot % pipeline.period for slot in range(turn.slot[0], turn.slot[-1] + 1)} for turn in pipeline.turns]
    turns = range(len(slots))
    meets = [[other for other in turns if other != one and slots[one] & slots[other]] for one in turns]
    above: dict[int, bool] = {}
    for first in turns:
        pending = [] if first in above else [first]
        above.setdefault(first, False)
        while pending:
            one = pending.pop()
            pending += [other for other in meets[one] if other not in above]
            above |= {other: not above[one] for other in meets[one] if other not in above}
            for other in meets[one]:
                if above[other] == above[one]:
                    raise ValueError(
                        f"turns {min(one, other)} and {max(one, other)} meet, and others leave them one end: two are "
                        "too few; a lower limit, pipeline(..., wrap=False) or best_fit of the round's trace would do"
                    )
    return [above[one] for one in turns]
