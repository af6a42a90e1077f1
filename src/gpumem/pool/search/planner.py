"""Better than greedy: searches for one height after another, and greedy for what they leave.

Greedy placements end far above the peak live bytes where buffers are many and alike in size; most traces as recorded
are easy. So the greedy ones come first. Depth-first searches (`_descents`) look for the target itself, of all buffers
and of the boxes that these make up (`glue`) by turns; then, with what is left, one after the other,

    beams       where live bytes are near their peak for long, and all is one puzzle (`beam`)
    descents    for higher goals, of fewer buffers
    ejection    where a trace was rewritten (`ejection`)
    annealing   over orders, which finds something else where live bytes are uneven (`annealing`)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.pool.search._descents import Descents
from gpumem.pool.search._packing import FAR
from gpumem.pool.search._problem import RATE, PlacementProblem
from gpumem.pool.search.annealing import OrderWalk
from gpumem.pool.search.beam import BeamWalk
from gpumem.pool.search.ejection import EjectionWalk
from gpumem.pool.search.glue import Boxes
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

# How the effort and the seconds are divided. Not tuned, but for BEAMING: beams have most of the time where they get
# anywhere (git 53473b67), since they alone put together instances that are near their peak all the time.
ANNEALING = 0.3  # of the effort
EJECTION = 3.0  # times the effort, on top of it
BEAMS = 0.3  # of the effort, on top of it
BEAMING, SEARCHING, EJECTING = 0.6, 0.3, 0.7  # of the seconds of boxes or buffers, each of what is left then
QUICK = 0.25  # of the effort, on top of it: what the tries at the target may take where no target is given
LARGEST = 0.5  # of the seconds, where one descent cannot take in all: then those tries are of the largest buffers

# Up to so many buffers ejection has no turn: these are left to the depth-first search, whose effort may end before it
# has solved or refuted them. Not tuned.
FEW = 50
# Times the rate of `_problem`: no machine works faster, so the clock ends what looks at it, not the count of work.
FAST = 10
# Seconds of a search for a target not below the lower bound, where neither seconds nor an effort are given. Not tuned.
CAPACITY = 30.0
# Efforts that no search spends: the seconds end it.
ENDLESS = 1e9
# Boxes are searched beside the buffers where they are at most so many of these: where they are hardly fewer nothing is
# gained by them. Not tuned.
GLUED = 0.9


@strict
@work.budgeted
def search(
    trace: Trace,
    *,
    alignment: int = 256,
    target: int | None = None,
    effort: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
    fixed: Mapping[int, int] | None = None,
    progress: work.Progress | None = None,
) -> Placement:
    """Place buffers by a depth-first search over canonical placements, restarted with other orders and goals.

    Parameters
    ----------
    trace, alignment, fixed
        As all planners: see `gpumem.pool`.
    target : int, optional
        Bytes of height at which the search stops, as it does where it has proved that no placement is so low. It always
        stops within 0.001 % of the peak live bytes.
    effort : float, optional
        Work to spend at most; 1 takes 2 to 12 s, less on small instances, and 0 is greedy. Left out, it is 1, or
        where there are seconds, or a target that is not below the peak live bytes, as much as these last.
    seconds : float, optional
        The whole time; see `gpumem.pool`. Left out, 30 where there is such a target and no effort.
    seed : int
        Of the random changes to the orders, at least 0.
    progress : callable, optional
        Called with a line on how far it got.

    Raises
    ------
    ValueError
        A target, effort or seed that is negative or not finite.

    Notes
    -----
    Not from the paper. `bound` is more than the peak live bytes where padding, what is fixed, or an exhausted search
    says so. Deterministic without `seconds`: the effort is counted, not timed. Memory O(B). A part of the
    buffers is searched where one descent through all of them would take too much of the effort.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([3, 3, 3, 5, 2], [1, 2, 2, 4, 4], [4, 3, 5, 5, 6])
    >>> from gpumem.pool import best_fit
    >>> placed = search(trace, alignment=1)
    >>> best_fit(trace, alignment=1).height, placed.height, placed.optimal
    (11, 10, True)
    """
    problem = PlacementProblem.of(trace, alignment, fixed)
    open_ = target is not None and target >= problem.lower_bound
    with work.within(CAPACITY if open_ and effort is None and not work.hurried() else None):
        if effort is None:
            effort = ENDLESS if work.hurried() else 1.0
        state = Descents.of(problem, target or 0, effort, seed)
        state.capacity = target if target is not None and open_ else FAR
        run(state, state.goal(target or 0), seed)
        return state.result()


def run(state: Descents, target: int, seed: int) -> None:
    """Try the target, with boxes and with buffers by turns; then search on with boxes, and then with buffers."""
    rng, whole = np.random.default_rng(seed), state.work
    boxes = _boxes(state.problem) if state.most else None
    stages = [(state, target)]
    if boxes is not None:
        problem = PlacementProblem.of(boxes.trace, 1)
        goal = (target - state.problem.base) // state.problem.alignment
        stages.insert(0, (Descents.of(problem, goal, whole / state.unit, seed), goal))
        _take(state, boxes, stages[0][0])
    share = whole if target > state.goal(0) else whole * QUICK
    quick = QUICK if state.most == len(state.problem.free) else LARGEST
    with work.part(share=1.0 if share == whole else quick):
        for _ in _by_turns(*(stage.tries(goal, share, rng.spawn(1)[0]) for stage, goal in stages)):
            _take(state, boxes, stages[0][0])
            if state.refuted:
                return
    for turn, (stage, goal) in enumerate(stages):
        state.work = stage.work = whole
        if state.going(target):
            with work.part(share=1 / (len(stages) - turn)):
                _rest(stage, goal, rng)
            _take(state, boxes, stages[0][0])


def _boxes(problem: PlacementProblem) -> Boxes | None:
    """Return the boxes that the free buffers make up, if that is worth anything."""
    if len(problem.fixed):
        return None
    boxes = problem.boxes()
    return boxes if 0 < len(boxes.trace.buffers) <= GLUED * len(problem.free) else None


def _take(state: Descents, boxes: Boxes | None, boxed: Descents) -> None:
    """Keep the best placement of the boxes, if it is lower."""
    if boxes is not None and state.problem.height(boxed.best.height * state.problem.alignment) < state.best.height:
        state.keep(state.problem.free, boxes.offset(boxed.best.offset))


def _rest(state: Descents, target: int, rng: np.random.Generator) -> None:
    """Go through beams, descents, ejection, annealing until the target is reached or nothing is left to spend."""
    problem, whole = state.problem, state.work
    keep = 0 if len(problem.fixed) else whole * ANNEALING
    if keep and state.going(target):
        with work.part(share=BEAMING):
            state.best = BeamWalk(problem, state.best, max(target, state.lower_bound)).run(_most(whole * BEAMS))
    state.work = whole - keep
    with work.part(share=SEARCHING):
        state.rounds(target, rng)
    state.work += keep
    if state.going(target) and len(problem.free) > FEW:
        with work.part(share=EJECTING):
            walk = EjectionWalk(problem, state.best, max(target, state.lower_bound), rng.spawn(1)[0])
            state.best = walk.run(_most(whole * EJECTION))
    if keep and state.going(target):
        orders = OrderWalk(problem, state.best, max(target, state.lower_bound), rng)
        state.best = orders.run(_most(state.work))


def _most(effort: float) -> int:
    """Return the effort, or what cannot be exceeded within the time that is left."""
    return int(min(effort, FAST * RATE * work.left()))


def _by_turns(*rounds: Iterator[None]) -> Iterator[None]:
    """Go on with each in turn, until all have ended: what one finds may end the others."""
    waiting = deque(rounds)
    while waiting:
        first = waiting.popleft()
        for _ in first:
            yield
            waiting.append(first)
            break
