"""The emulator: real bytes in NumPy, ops in any order that the ordering rule allows."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from threading import Lock

from gpumem.base.arguments import strict
from gpumem.base.errors import ExecutionError
from gpumem.execute.backend import HostMemory, Token, Work
from gpumem.execute.layout import Block, Layout
from gpumem.execute.races import Races
from gpumem.simulator.timeline import Span

Order = Callable[[list[int]], int]


def in_issue_order(ready: list[int]) -> int:
    """Run what was issued first.

    >>> in_issue_order([3, 8])
    3
    """
    return ready[0]


def shuffled(seed: int) -> Order:
    """Return an order drawn from `seed`, in bursts: for a while one stream runs as far as it can, then another.

    Drawing evenly at each step would hardly ever hold a copy back for long, and only long delays show what
    is not ordered.

    >>> order = shuffled(7)
    >>> [order([3, 8]) for _ in range(30)].count(3)
    3
    """
    rng = random.Random(seed)
    hold = 0
    favour = 0.0

    def order(ready: list[int]) -> int:
        nonlocal hold, favour
        if hold == 0:
            hold, favour = rng.choice((1, 2, 5, 20, 100)), rng.random()
        hold -= 1
        return ready[int(favour * len(ready))]

    return order


def late(held: Collection[int]) -> Order:
    """Return the order that holds the ops numbered `held` back as long as anything else can run.

    >>> late({3})([3, 8]), late({3})([3])
    (8, 3)
    """

    def order(ready: list[int]) -> int:
        return next((number for number in ready if number not in held), ready[0])

    return order


POISON = 0xA5  # bytes where no buffer is alive: no zeros, which a missing write could pass as. Not tuned
AHEAD = 64  # iterations that are queued at most, so that a long run does not hold all of its ops. Not tuned


class _Task:
    """An op of one iteration, and its token: submitted, perhaps not run yet.

    Nothing else keeps it, so it is freed once it has run and nothing can wait for it any more.
    """

    __slots__ = ("after", "deaths", "end", "number", "start", "work")

    def __init__(self, number: int, work: Work, after: Sequence[_Task]) -> None:
        self.number, self.work, self.after = number, work, after
        self.start = self.end = -1
        self.deaths: list[tuple[Block, set[_Task]]] = []  # what to poison once the last of these ops has run


class Emulator(HostMemory):
    """Runs ops one at a time on NumPy memory, in an order drawn from the legal ones.

    Parameters
    ----------
    order : int or callable
        A seed for `shuffled`, or a function that picks one of the ops that could run next, such as
        `in_issue_order` or one that lets Hypothesis draw.
    races : bool
        Whether to refuse, with a `Race`, ops that touch the same bytes with nothing to order them.
    poison : int, optional
        The byte that fills memory outside live buffers; None leaves it as it is.

    Notes
    -----
    `submit` only queues; `wait` runs queued ops until the one asked for has. So a whole run of up to 64
    iterations is there to choose from, as on a GPU whose host is far ahead; of a longer one `submit` runs what is
    older. Spans are wall-clock times of the computation, one op at a time.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.execute import GenericOp, initial, run
    >>> from gpumem.trace import Placement
    >>> from gpumem.trace import Trace
    >>> ops = Ops.make([[0], [1]], [[1], [0]], stream=[0, 1], streams=["a", "b"])
    >>> trace = Trace(Buffers.make([8, 8], [0, 0], [2, 2], persistent=[True, False]), ops)
    >>> state = initial(trace, seed=1)
    >>> _ = run(trace, Placement.at(trace, [0, 8]), Emulator(3), GenericOp(trace), iterations=2, state=state)
    >>> state[0].tobytes().hex()
    '7b76a774f644719e'
    """

    @strict
    def __init__(self, order: int | Order = 0, *, races: bool = True, poison: int | None = POISON) -> None:
        self.order = shuffled(order) if isinstance(order, int) else order
        self.races: Races | None = None
        self.poison = poison
        self._detect = races
        self.lock = Lock()  # several threads may submit and wait

    def open(self, layout: Layout) -> None:
        """Take two poisoned arrays."""
        super().open(layout)
        if self.poison is not None:
            for slab in self.slabs:
                slab[:] = self.poison
        self.races = Races(layout) if self._detect else None
        self.touching: list[list[_Task]] = [[] for _ in layout.blocks]

    def begin(self, works: Sequence[Work], iterations: int) -> None:
        """Forget what ran before: it has all ended."""
        self.queues: dict[int, deque[_Task]] = {}
        self.issued = [0] * len(works)  # how often each op was
        self.dying = {block.buffer for work in works for block in work.ends}
        if self.races:
            self.races.begin(min(iterations, 2 * AHEAD) * len(works))

    def submit(self, work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        """Queue an op, or raise a `Race`. Its number is that of issue order, even if later ones came before."""
        with self.lock:
            number = self.issued[work.op] * len(self.issued) + work.op
            self.issued[work.op] += 1
            if self.races:
                self.races.issue(number, work, [task.number for task in after])
            task = _Task(number, work, after)
            self.queues.setdefault(work.stream, deque()).append(task)
            if self.poison is not None:
                for block in (*reads, *writes):
                    if block.buffer in self.dying:  # of any other the list would never be emptied
                        self.touching[block.buffer].append(task)
                for block in work.ends:
                    self._die(block)
            self._catch_up(self.issued[work.op] - 1 - AHEAD)
            return task

    def _catch_up(self, turn: int) -> None:
        """Run queued ops until none is left of an iteration as old as that."""
        count = len(self.issued)
        while any(queue and queue[0].number // count <= turn for queue in self.queues.values()):
            self._run(self._next())

    def _die(self, block: Block) -> None:
        """The buffer's lifetime ends with the op just queued: poison it when all who touch it are done."""
        users = {task for task in self.touching[block.buffer] if task.end < 0}
        self.touching[block.buffer] = []
        for task in users:
            task.deaths.append((block, users))

    def wait(self, token: Token) -> Span:
        """Run queued ops until this one has run."""
        with self.lock:
            while token.end < 0:
                self._run(self._next())
        return Span(token.work.op, token.start, token.end)

    def _next(self) -> _Task:
        """Take the op that the order picks among those at the heads of streams that wait for nothing."""
        heads = {
            queue[0].number: queue
            for queue in self.queues.values()
            if queue and all(task.end >= 0 for task in queue[0].after)
        }
        ready = sorted(heads)
        chosen = self.order(ready)
        if chosen not in heads:
            raise ValueError(f"order: {chosen} is none of the ops that can run, {ready}")
        return heads[chosen].popleft()

    def _run(self, task: _Task) -> None:
        task.start = time.perf_counter_ns()
        if task.work.call is not None:
            try:
                task.work.call(None)
            except Exception as error:
                raise ExecutionError(task.work.op, task.work.name, str(error)) from error
        task.end = time.perf_counter_ns()
        for block, users in task.deaths:
            users.remove(task)
            if not users and self.poison is not None:
                self.bytes(block)[:] = self.poison
        task.after, task.deaths = (), []  # or each op would keep all that came before it
