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
from gpumem.base.jit import inner, jit
from gpumem.pool.search._packing import FAR, PackingInstance
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search._skyline import GIVE_UP, TRIES, Skylines, copy, lift, look, loss, row, stretch, to_try, valley
from gpumem.trace import F64, I64
from gpumem.trace.placement import Placement

SECTIONS = 4  # looked at for the price of a buffer: 100 million of these a second, as in the other searches
WIDTH, WIDER = 32, 2  # of the first beam, and how much wider the next one is where it found nothing; not tuned
HOPELESS = 0.75  # of the buffers: where so many are left a beam some times as wide does no better. Not tuned
PROBE = 0.25  # of the effort: what the first beam may take
ROOM = 2**22  # entries of all states
MOST = 2000  # buffers; not tuned


class Steps(NamedTuple):
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
def _expand(
    p: PackingInstance, s: Skylines, states: int, load: I64, ceiling: int, out: Steps, seen: I64
) -> tuple[int, int]:
    """List the steps of the states; return how many, and the work. The row behind all states is scratch."""
    scratch, found, spent = len(s.many) - 1, 0, 0
    pile, end, fitting, cross = row(p.sections), row(p.sections), row(p.sections), row(p.sections)
    seen[:] = 0
    for k in range(states):
        area = look(p, s, k, ceiling, fitting, cross)
        t = valley(s, k, fitting, cross)
        first, last, top = stretch(s, k, t, cross)
        buffers = to_try(p, s, k, t, ceiling)
        for at in range(-1 if top < FAR else 0, len(buffers)):
            j = GIVE_UP
            if at >= 0:
                j = buffers[at]
                first, last, top = p.first[j], p.last[j], s.least[k, j] + p.size[j]
            copy(s, k, s, scratch)
            lift(p, s, scratch, j, first, last, top)
            spent += s.many[k] + area // SECTIONS
            if _known(seen, s.mark[scratch]):
                continue
            lost = loss(p, s, scratch, load, ceiling, pile, end)
            if lost >= 0:
                out.state[found], out.buffer[found], out.first[found], out.last[found] = k, j, first, last
                out.top[found], out.loss[found] = top, lost
                found += 1
    return found, spent


@jit
def _beam(
    p: PackingInstance, s: Skylines, other: Skylines, out: Steps, seen: I64, work: int, offset: I64
) -> tuple[int, int]:
    """Search; see `beam`."""
    width, states, ceiling, spent, fewest = len(s.many) - 1, 1, 0, 0, len(p.size)
    load = s.left[0].copy()
    for j in range(len(p.size)):
        ceiling = max(ceiling, p.ceiling[j])
    while states and spent <= work:
        found, more = _expand(p, s, states, load, ceiling, out, seen)
        spent += more
        best = np.argsort(out.loss[:found], kind="mergesort")[:width]
        states = len(best)
        for to in range(states):
            step = best[to]
            copy(s, out.state[step], other, to)
            lift(p, other, to, out.buffer[step], out.first[step], out.last[step], out.top[step])
            fewest = min(fewest, other.many[to])
            if fewest == 0:
                offset[:] = other.offset[to]
                return 0, spent
        s, other = other, s
    return fewest, spent


def beam(p: PackingInstance, width: int, work: int) -> tuple[int, int, I64]:
    """Look for offsets below the ceilings; return how many buffers no state could place, the work, the offsets.

    Of the buffers one at least; where all are placed the offsets are right. Gives up when about `work` buffers were looked at. Deterministic. Memory O(width (B + sections)). Obstacles are
    not for a skyline: there must be none.
    """
    count, n = len(p.size), p.sections
    left = np.zeros(n, np.int64)
    for first, last, size in zip(p.first.tolist(), p.last.tolist(), p.size.tolist()):
        left[first : min(last, n)] += size
        left[: max(last - n, 0)] += size
    states = [
        Skylines(
            *np.zeros((2, width + 1, n), np.int64),
            *np.zeros((3, width + 1, count), np.int64),
            *np.zeros((2, width + 1), np.int64),
        )
        for _ in range(2)
    ]
    s = states[0]
    s.left[0], s.order[0], s.many[0] = left, np.arange(count), count
    rows = width * (TRIES + 1)
    columns = np.zeros((5, rows), np.int64)
    steps = Steps(columns[0], columns[1], columns[2], columns[3], columns[4], np.zeros(rows))
    offset = np.zeros(count, np.int64)
    left, spent = _beam(p, s, states[1], steps, np.zeros(2 * rows + 1, np.int64), work, offset)
    return left, spent, offset


@dataclass(slots=True)
class BeamWalk:
    """The lowest placement met by beams that get wider; not for problems where something is fixed."""

    problem: PlacementProblem
    best: Placement
    target: int  # bytes
    work: int = 0

    def run(self, effort: int) -> Placement:
        """Ask for half of what is above the target each time, with a wider beam where that is not found."""
        ids, width = np.sort(self.problem.free), WIDTH
        while len(ids) <= MOST and self.best.height > self.target and self.work < effort and not work.over():
            p = self.problem.instance(ids, (self.target + self.best.height - 1) // 2)
            if width * (3 * len(ids) + 2 * p.sections) > ROOM:
                break
            left, spent, offset = beam(p, width, int(effort * PROBE) if width == WIDTH else effort - self.work)
            self.work += spent
            if left > HOPELESS * len(ids):
                break
            if not left:
                placed = self.problem.complete(ids, offset, smallest=True)
                self.best = min(self.best, placed, key=lambda p: p.height)
            else:
                width *= WIDER
            work.tell(f"beam of {width}, {self.best.height / max(self.problem.lowest, 1):.4f} of the lower bound")
        return self.best
