"""Beam search for a placement below a ceiling, where live bytes are near their peak for long; compiled loops.

A state is a skyline: what lies below it is in use or given up. A step takes a *valley* of it, sections whose neighbours
are higher, and lays a buffer there, or gives the valley up to the lower of its walls::

    address ^      +--+
            |  +---+  |       +---      a buffer that fits between the walls goes to the bottom of the valley,
            |  |      +--+    |         a wider one rests on a wall, and what is below it is given up
            |  |         |____|
            +--+--------------------> time, in sections

Of all that the states lead to, the best go on, as many as the beam is wide. A state is as good as what it must lose: no
section ends below the largest pile of what must lie above some offset there, and what that is over the section's live
bytes is lost, whatever comes. An exhausted beam proves nothing, unlike `_depth_first`, but no early mistake holds it
up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base import work
from gpumem.base.jit import assign, inner, jit
from gpumem.pool.search._packing import FAR, PackingInstance
from gpumem.pool.search._problem import RATE, Walk
from gpumem.pool.search._skyline import (
    GIVE_UP,
    TRIES,
    Arc,
    Goal,
    Skylines,
    copy,
    lift,
    look,
    loss,
    resting,
    stretch,
    to_try,
    valley,
    vector,
)
from gpumem.trace import F64, I64
from gpumem.trace.placement import Placement

# Sections that take as long to look at as a buffer: work is counted in buffers, 100 million a second, as in the other
# searches.
SECTIONS = 4
# States of the first beam, and how many times as many the next one has where it found nothing. Not tuned.
WIDTH, WIDER = 32, 2
# Of the buffers: where the first beam leaves so many, one some times as wide does no better (rewritten traces). Not
# tuned.
HOPELESS = 0.75
PROBE = 0.25  # of the effort: what the first beam may take. Not tuned
ENTRIES = 2**22  # of all states at most, by memory: 32 MiB, twice
MOST = 2000  # buffers; not tuned


class BeamSteps(NamedTuple):
    """A row for each step that is possible."""

    state: I64
    buffer: I64  # or `GIVE_UP`
    first: I64  # sections [first, last) of the circle, and where they end then
    last: I64
    top: I64
    loss: F64


@inner
def _is_known(seen: I64, hash_: int) -> bool:
    """Whether a state was met in this round; from then on it was."""
    at = hash_ % len(seen)
    while seen[at] != 0 and seen[at] != hash_:
        at = (at + 1) % len(seen)
    known = seen[at] == hash_
    seen[at] = hash_
    return bool(known)


@inner
def _try(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance,
    skylines: Skylines,
    state: int,
    buffer: int,
    arc: Arc,
    goal: Goal,
    steps: BeamSteps,
    count: int,
) -> int:
    """List a step, if it leads to another state where all can still fit; return how many are listed."""
    scratch = len(skylines.waiting) - 1
    copy(skylines, state, skylines, scratch)
    lift(instance, skylines, scratch, buffer, arc=arc)
    if _is_known(goal.seen, skylines.hash[scratch]):
        return count
    lost = loss(instance, skylines, scratch, goal)
    if lost < 0:
        return count
    steps.state[count], steps.buffer[count], steps.loss[count] = state, buffer, lost
    steps.first[count], steps.last[count], steps.top[count] = arc.first, arc.last, arc.top
    return count + 1


@inner
def _try_resting(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, skylines: Skylines, state: int, arc: Arc, goal: Goal, steps: BeamSteps, count: int
) -> tuple[int, int]:
    """List the steps that place a buffer over an arc; return how many are listed, and how many were tried."""
    buffers = to_try(instance, skylines, state, arc, ceiling=goal.ceiling)
    for buffer in buffers:
        place = resting(instance, skylines, state, buffer)
        count = _try(instance, skylines, state, buffer, arc=place, goal=goal, steps=steps, count=count)
    return count, len(buffers)


@inner
def _expand(
    instance: PackingInstance, skylines: Skylines, states: int, goal: Goal, steps: BeamSteps
) -> tuple[int, int]:
    """List the steps of the states; return how many, and the work. The row behind all states is scratch."""
    count, spent, fitting, cross = 0, 0, vector(instance.sections), vector(instance.sections)
    goal.seen[:] = 0
    for state in range(states):
        area = look(instance, skylines, state, goal.ceiling, fitting=fitting, cross=cross)
        section = valley(skylines, state, fitting, cross)
        arc, before = stretch(skylines, state, section, cross), count
        if arc.top < FAR:
            count = _try(instance, skylines, state, GIVE_UP, arc=arc, goal=goal, steps=steps, count=count)
        over = Arc(section, section + 1, arc.top)
        count, tried = _try_resting(instance, skylines, state, over, goal=goal, steps=steps, count=count)
        # No wall: what lies over the section waits for something that it rests on, elsewhere in the valley.
        if count == before and arc.top == FAR:
            count, more = _try_resting(instance, skylines, state, arc, goal=goal, steps=steps, count=count)
            tried += more
        spent += (tried + 1) * (skylines.waiting[state] + area // SECTIONS)
    return count, spent


@jit
def _beam(  # noqa: PLR0917  compiled: no keyword-only parameters
    instance: PackingInstance, skylines: Skylines, other: Skylines, goal: Goal, steps: BeamSteps, work: int, offset: I64
) -> tuple[int, int]:
    """Search; see `beam`."""
    width, states, spent, fewest = len(skylines.waiting) - 1, 1, 0, len(instance.size)
    while states and fewest and spent <= work:
        count, more = _expand(instance, skylines, states, goal, steps=steps)
        spent += more
        best = np.argsort(steps.loss[:count], kind="mergesort")[:width]
        states = len(best)
        for to in range(states):
            step = best[to]
            copy(skylines, steps.state[step], other, to)
            arc = Arc(steps.first[step], steps.last[step], steps.top[step])
            lift(instance, other, to, steps.buffer[step], arc=arc)
            fewest = min(fewest, other.waiting[to])
            if fewest == 0:
                assign(offset, other.offset[to])
                return 0, spent
        skylines, other = other, skylines
    return fewest, spent


def beam(instance: PackingInstance, width: int, work: int) -> tuple[int, int, I64]:
    """Look for offsets below the ceilings; return how many buffers were left, the work, the offsets.

    Left are what the state that came furthest could not place; if that is 0 the offsets are right. Gives up when about
    `work` buffers were looked at. Deterministic. Memory O(width (B + sections)). Obstacles are not for a skyline: there
    must be none.
    """
    count, sections = len(instance.size), instance.sections
    live = np.zeros(sections, np.int64)
    for first, last, size in zip(instance.first.tolist(), instance.last.tolist(), instance.size.tolist()):
        live[first : min(last, sections)] += size
        live[: max(last - sections, 0)] += size
    start, other = (
        Skylines(
            *np.zeros((2, width + 1, sections), np.int64),
            *np.zeros((3, width + 1, count), np.int64),
            *np.zeros((2, width + 1), np.int64),
        )
        for _ in range(2)
    )
    start.unplaced[0], start.order[0], start.waiting[0] = live, np.arange(count), count
    rows, offset = width * (TRIES + 1), np.zeros(count, np.int64)
    state, buffer, first_section, last_section, top = np.zeros((5, rows), np.int64)
    steps = BeamSteps(state, buffer, first=first_section, last=last_section, top=top, loss=np.zeros(rows))
    pile, end = np.zeros((2, sections), np.int64)
    goal = Goal(live, int(instance.ceiling.max(initial=1)), pile=pile, end=end, seen=np.zeros(2 * rows, np.int64))
    left, spent = _beam(instance, start, other, goal=goal, steps=steps, work=work, offset=offset)
    return left, spent, offset


@dataclass(slots=True)
class BeamWalk(Walk):
    """Beams that get wider; not for problems where something is fixed."""

    def run(self, effort: int) -> Placement:
        """Ask for half of what is above the target each time, with a wider beam where that is not found."""
        ids, width = np.sort(self.problem.free), WIDTH
        while len(ids) <= MOST and self.going(effort):
            instance = self.problem.instance(ids, (self.target + self.best.height - 1) // 2)
            if width * (3 * len(ids) + 2 * instance.sections) > ENTRIES:
                break
            most = effort * PROBE if width == WIDTH else effort - self.work
            left, spent, offset = beam(instance, width, int(min(most, RATE * work.left())))
            self.work += spent
            if left > HOPELESS * len(ids):
                break
            if left:
                width *= WIDER
            else:
                self.keep(self.problem.complete(ids, offset, smallest=True))
            self.tell(f"beam of {width}")
        return self.best
