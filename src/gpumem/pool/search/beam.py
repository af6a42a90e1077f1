"""Beam search for a placement below a ceiling, where the load is near its peak for long; compiled loops.

A state is a skyline: what lies below it is in use or given up. A step takes a *valley* of it, sections whose neighbours
are higher, and lays a buffer there, or gives the valley up to the lower of its walls::

    address ^      +--+
            |  +---+  |       +---      a buffer that fits between the walls goes to the bottom of the valley,
            |  |      +--+    |         a wider one rests on a wall, and what is below it is given up
            |  |         |____|
            +--+--------------------> time, in sections

Of all that the states lead to, the best go on, as many as the beam is wide. A state is as good as what it must lose: no
section ends below the largest pile of what must lie above some offset there, and what that is over the section's load
is lost, whatever comes. An exhausted beam proves nothing, unlike `_depth_first`, but no early mistake holds it up.
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
    Goal,
    Skylines,
    copy,
    lift,
    look,
    loss,
    rest,
    row,
    stretch,
    to_try,
    valley,
)
from gpumem.trace import F64, I64
from gpumem.trace.placement import Placement

SECTIONS = 4  # looked at for the price of a buffer: 100 million of these a second, as in the other searches
WIDTH, WIDER = 32, 2  # of the first beam, and how much wider the next one is where it found nothing; not tuned
HOPELESS = 0.75  # of the buffers: where so many are left a beam some times as wide does no better. Not tuned
PROBE = 0.25  # of the effort: what the first beam may take
ROOM = 2**22  # entries of all states
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
def _known(seen: I64, mark: int) -> bool:
    """Whether a state was met in this round; from then on it was."""
    at = mark % len(seen)
    while seen[at] != 0 and seen[at] != mark:
        at = (at + 1) % len(seen)
    known = seen[at] == mark
    seen[at] = mark
    return bool(known)


@inner
def _try(
    p: PackingInstance, s: Skylines, k: int, j: int, arc: tuple[int, int, int], goal: Goal, out: BeamSteps, found: int
) -> int:
    """List a step, if it leads to another state where all can still fit; return how many are listed."""
    scratch, (first, last, top) = len(s.many) - 1, arc
    copy(s, k, s, scratch)
    lift(p, s, scratch, j, first, last, top)
    if _known(goal.seen, s.mark[scratch]):
        return found
    lost = loss(p, s, scratch, goal)
    if lost < 0:
        return found
    out.state[found], out.buffer[found], out.first[found], out.last[found] = k, j, first, last
    out.top[found], out.loss[found] = top, lost
    return found + 1


@inner
def _expand(p: PackingInstance, s: Skylines, states: int, goal: Goal, out: BeamSteps) -> tuple[int, int]:
    """List the steps of the states; return how many, and the work. The row behind all states is scratch."""
    found, spent, fitting, cross = 0, 0, row(p.sections), row(p.sections)
    goal.seen[:] = 0
    for k in range(states):
        area = look(p, s, k, goal.ceiling, fitting, cross)
        t = valley(s, k, fitting, cross)
        arc, before, tried = stretch(s, k, t, cross), found, 0
        if arc[2] < FAR:
            found = _try(p, s, k, GIVE_UP, arc, goal, out, found)
        for j in to_try(p, s, k, t, t + 1, goal.ceiling):
            found, tried = _try(p, s, k, j, rest(p, s, k, j), goal, out, found), tried + 1
        if found == before and arc[2] == FAR:  # no wall: what lies over `t` waits for something that it rests on
            for j in to_try(p, s, k, arc[0], arc[1], goal.ceiling):
                found, tried = _try(p, s, k, j, rest(p, s, k, j), goal, out, found), tried + 1
        spent += (tried + 1) * (s.many[k] + area // SECTIONS)
    return found, spent


@jit
def _beam(
    p: PackingInstance, s: Skylines, other: Skylines, goal: Goal, out: BeamSteps, work: int, offset: I64
) -> tuple[int, int]:
    """Search; see `beam`."""
    width, states, spent, fewest = len(s.many) - 1, 1, 0, len(p.size)
    while states and fewest and spent <= work:
        found, more = _expand(p, s, states, goal, out)
        spent += more
        best = np.argsort(out.loss[:found], kind="mergesort")[:width]
        states = len(best)
        for to in range(states):
            step = best[to]
            copy(s, out.state[step], other, to)
            lift(p, other, to, out.buffer[step], out.first[step], out.last[step], out.top[step])
            fewest = min(fewest, other.many[to])
            if fewest == 0:
                assign(offset, other.offset[to])
                return 0, spent
        s, other = other, s
    return fewest, spent


def beam(p: PackingInstance, width: int, work: int) -> tuple[int, int, I64]:
    """Look for offsets below the ceilings; return how many buffers were left, the work, the offsets.

    Left are what the state that came furthest could not place; if that is 0 the offsets are right. Gives up when about
    `work` buffers were looked at. Deterministic. Memory O(width (B + sections)). Obstacles are not for a skyline: there
    must be none.
    """
    count, n = len(p.size), p.sections
    load = np.zeros(n, np.int64)
    for first, last, size in zip(p.first.tolist(), p.last.tolist(), p.size.tolist()):
        load[first : min(last, n)] += size
        load[: max(last - n, 0)] += size
    states = [
        Skylines(
            *np.zeros((2, width + 1, n), np.int64),
            *np.zeros((3, width + 1, count), np.int64),
            *np.zeros((2, width + 1), np.int64),
        )
        for _ in range(2)
    ]
    s = states[0]
    s.left[0], s.order[0], s.many[0] = load, np.arange(count), count
    rows, offset = width * (TRIES + 1), np.zeros(count, np.int64)
    columns = np.zeros((5, rows), np.int64)
    steps = BeamSteps(columns[0], columns[1], columns[2], columns[3], columns[4], np.zeros(rows))
    goal = Goal(
        load, int(p.ceiling.max(initial=1)), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(2 * rows, np.int64)
    )
    left, spent = _beam(p, s, states[1], goal, steps, work, offset)
    return left, spent, offset


@dataclass(slots=True)
class BeamWalk(Walk):
    """Beams that get wider; not for problems where something is fixed."""

    def run(self, effort: int) -> Placement:
        """Ask for half of what is above the target each time, with a wider beam where that is not found."""
        ids, width = np.sort(self.problem.free), WIDTH
        while len(ids) <= MOST and self.going(effort):
            p = self.problem.instance(ids, (self.target + self.best.height - 1) // 2)
            if width * (3 * len(ids) + 2 * p.sections) > ROOM:
                break
            most = effort * PROBE if width == WIDTH else effort - self.work
            left, spent, offset = beam(p, width, int(min(most, RATE * work.left())))
            self.work += spent
            if left > HOPELESS * len(ids):
                break
            if left:
                width *= WIDER
            else:
                self.keep(self.problem.complete(ids, offset, smallest=True))
            self.tell(f"beam of {width}")
        return self.best
