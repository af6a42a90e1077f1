"""Where in a plan a run stands: it goes along while ops look as planned, and lets go where they do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic

from gpumem.runtime.residency.environment import RunOp
from gpumem.runtime.residency.hints import At, Hints
from gpumem.runtime.residency.limited_memory import DEVICE, HOST, LimitedMemory, R
from gpumem.swap.plan import Swap
from gpumem.swap.plan.replay import Replay

LOST = -1
DOZEN = 12  # so many ops that look like the first ones are taken for them


class Follower(Generic[R]):
    """Carries out the hints of a plan around the ops of a run.

    `i` is the op that comes next, or `LOST`. `trail` has what the ops of this iteration touched.
    """

    def __init__(self, memory: LimitedMemory[R], hints: Hints) -> None:
        self.memory, self.hints = memory, hints
        self.keys, self.at = hints.keys, hints.at
        self.i = 0
        self.bound: list[R | None] = [None] * hints.count
        self.held: dict[int, Any] = {}  # storages kept after their death
        self.trail: list[list[R]] = []
        self.head = hints.keys[:DOZEN]
        self.key = 0  # of the op that is to run
        self.seen: deque[int] = deque(maxlen=len(self.head) - 1)  # keys and cells of the last that ran, while lost
        self.touched: deque[list[R]] = deque(maxlen=max(len(self.head) - 1, 1))
        self.deviation = ""

    def _hint(self, move: Callable[..., None], *what: Any) -> None:
        """Move something, if there is memory for it: the op has run, or will; it moves when somebody needs it to."""
        with suppress(*self.memory.no_memory):
            move(*what)

    # where it stands

    def before(self, call: RunOp[R]) -> int:
        """Do what is due before an op; return which one of the plan's it looks like, or `LOST`."""
        i, keys, key = self.i, self.keys, call.key
        if i != LOST and keys[i] == key:
            if not i:
                self.trail = []
            if (due := self.at[i]) is not None:
                self._before(due)
            return i
        if i != LOST:
            expected, name = self.hints.trace.ops.name[i], call.name
            self.lose(f"op {i}: {name} came for {expected}" if name != expected else f"op {i}, {name}: of other sizes")
        self.key = key
        if [*self.seen, key] != self.head:
            return LOST
        return self._found()

    def expects(self, key: int) -> bool:
        """Whether an op that looks so is the next one."""
        return self.i != LOST and self.keys[self.i] == key

    def after(self, call: RunOp[R]) -> bool:
        """Do what is due after the op, which has run; return whether the iteration is at its end."""
        touched = call.touched
        if self.i == LOST:
            self.seen.append(self.key)
            self.touched.append(touched)
            return False
        if (due := self.at[self.i]) is not None:
            self._after(due, touched)
        self.trail.append(touched)
        self.i += 1
        if self.i < self.hints.n:
            return False
        self.i = 0
        return True

    def lose(self, why: str) -> None:
        """Let go of the plan; what is away stays so until it is asked for."""
        self.deviation = self.deviation or why
        self.restart()
        self.i = LOST

    def restart(self) -> None:
        """Stand before the first op."""
        self.i = 0
        self.bound = [None] * len(self.bound)
        self.held.clear()
        self.trail = []
        self.seen.clear()
        self.touched.clear()

    def _found(self) -> int:
        """Go on where the first ops have come by; what was due around them is done late."""
        trail = [*self.touched][-len(self.head) + 1 :] if len(self.head) > 1 else []
        self.restart()
        for touched in trail:
            if (due := self.at[self.i]) is not None:
                self._before(due)
                self._after(due, touched)
            self.trail.append(touched)
            self.i += 1
        if (due := self.at[self.i]) is not None:
            self._before(due)
        return self.i

    def switch(self, trail: list[list[R]]) -> None:
        """Begin with a plan where another iteration ends, whose ops touched these: what is away over the boundary goes.

        Else the first planned iteration would begin with what the plan has on the host.
        """
        n = self.hints.n
        for k in self.hints.wraps():
            swap = self.hints.plan.decisions[k]
            assert isinstance(swap, Swap)
            ((place, _),) = [b for b in self.at[swap.after].bind if b[1] == k]  # type: ignore[union-attr]
            touched = trail[swap.after]
            if place < len(touched):
                cell = self.bound[k] = touched[place]
                if swap.out < n:
                    self._hint(self.memory.out, cell)
                if swap.release < n <= swap.prefetch:
                    self._hint(self.memory.release, cell)

    # what is due

    def _before(self, due: At) -> None:
        memory = self.memory
        for k in due.release:
            if (cell := self.bound[k]) is not None and cell.where is DEVICE:
                if k in self.hints.alone:
                    self._hint(self._drop, k, cell)
                else:
                    self._hint(memory.release, cell)
        for k in due.fetch:
            self._fetch(k, once=self.hints.final[k])
        if due.again is not None:
            self._hint(self._remake, due.again, due.wanted)
        for k in due.let:
            self.held.pop(k, None)
            memory.bury()

    def _fetch(self, k: int, *, once: bool) -> None:
        """Begin to bring a cell back, if there is room; else it comes when it is asked for."""
        cell, memory = self.bound[k], self.memory
        if cell is None or cell.where is not HOST or cell.copy is None:
            return
        if memory.held + cell.size <= memory.limit:
            cell.copy.drop_on_return = once
            self._hint(memory.bring, cell)

    def _after(self, due: At, touched: list[R]) -> None:
        for place, k in due.bind:
            self.bound[k] = cell = touched[place] if place < len(touched) else None
            if cell is not None and self.hints.outlives(k):
                self.held[k] = cell.storage
        for k in due.out:
            if (cell := self.bound[k]) is not None:
                self._hint(self.memory.out, cell)

    def _drop(self, k: int, cell: R) -> None:
        """Give up bytes that can be made again; here nothing can, so the host has them."""
        self.memory.release(cell)

    def _remake(self, replay: Replay, ks: list[int]) -> None:
        """Make again what is due; here what was given to the host instead comes back."""
        for k in ks:
            self._fetch(k, once=False)
