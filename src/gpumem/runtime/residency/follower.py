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

LOST = -1  # the position of a run that is not as planned
# So many ops that look like the first ones of the plan are taken for them: fewer are more easily met by
# chance, more are followed later. Not tuned.
DOZEN = 12


class Follower(Generic[R]):
    """Carries out the hints of a plan around the ops of a run.

    `position` is the op that comes next, or `LOST`. `trail` has what the ops of this iteration touched.
    """

    def __init__(self, memory: LimitedMemory[R], hints: Hints) -> None:
        self.memory, self.hints = memory, hints
        self.keys, self.at = hints.keys, hints.at
        self.position = 0
        self.bound: list[R | None] = [None] * hints.count
        self.held: dict[int, Any] = {}  # storages that the plan keeps alive longer than the program does
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
        op, keys, key = self.position, self.keys, call.key
        if op != LOST and keys[op] == key:
            if not op:
                self.trail = []
            if (due := self.at[op]) is not None:
                self._before(due)
            return op
        if op != LOST:
            expected, name = self.hints.trace.ops.name[op], call.name
            self.lose(
                f"op {op}: {name} came for {expected}" if name != expected else f"op {op}, {name}: of other sizes"
            )
        self.key = key
        if [*self.seen, key] != self.head:
            return LOST
        return self._resume()

    def expects(self, key: int) -> bool:
        """Whether an op that looks so is the next one."""
        return self.position != LOST and self.keys[self.position] == key

    def after(self, call: RunOp[R]) -> bool:
        """Do what is due after the op, which has run; return whether the iteration is at its end."""
        touched = call.touched
        if self.position == LOST:
            self.seen.append(self.key)
            self.touched.append(touched)
            return False
        if (due := self.at[self.position]) is not None:
            self._after(due, touched)
        self.trail.append(touched)
        self.position += 1
        if self.position < self.hints.n:
            return False
        self.position = 0
        return True

    def lose(self, why: str) -> None:
        """Let go of the plan; what is off the device stays so until an op needs it."""
        self.deviation = self.deviation or why
        self.restart()
        self.position = LOST

    def restart(self) -> None:
        """Stand before the first op."""
        self.position = 0
        self.bound = [None] * len(self.bound)
        self.held.clear()
        self.trail = []
        self.seen.clear()
        self.touched.clear()

    def _resume(self) -> int:
        """Go on where the first ops have come by; what was due around them is done late."""
        trail = [*self.touched][-len(self.head) + 1 :] if len(self.head) > 1 else []
        self.restart()
        for touched in trail:
            if (due := self.at[self.position]) is not None:
                self._before(due)
                self._after(due, touched)
            self.trail.append(touched)
            self.position += 1
        if (due := self.at[self.position]) is not None:
            self._before(due)
        return self.position

    def switch(self, trail: list[list[R]]) -> None:
        """Begin with a plan where another iteration ends, whose ops touched these: evict what it has on the host then.

        Else the first planned iteration would begin with what the plan has on the host.
        """
        count = self.hints.n
        for index in self.hints.wraps():
            swap = self.hints.plan.decisions[index]
            assert isinstance(swap, Swap)
            ((place, _),) = [bound for bound in self.at[swap.after].bind if bound[1] == index]  # type: ignore[union-attr]
            touched = trail[swap.after]
            if place < len(touched):
                cell = self.bound[index] = touched[place]
                if swap.out < count:
                    self._hint(self.memory.out, cell)
                if swap.release < count <= swap.prefetch:
                    self._hint(self.memory.release, cell)

    # what is due

    def _before(self, due: At) -> None:
        memory = self.memory
        for index in due.release:
            if (cell := self.bound[index]) is not None and cell.where is DEVICE:
                if index in self.hints.alone:
                    self._hint(self._drop, index, cell)
                else:
                    self._hint(memory.release, cell)
        for index in due.fetch:
            self._fetch(index, once=self.hints.final[index])
        if due.replay is not None:
            self._hint(self._recompute, due.replay, due.wanted)
        for index in due.let:
            self.held.pop(index, None)
            memory.reap()

    def _fetch(self, index: int, *, once: bool) -> None:
        """Begin to bring a cell back, if there is room; else it comes when it is asked for."""
        cell, memory = self.bound[index], self.memory
        if cell is None or cell.where is not HOST or cell.copy is None:
            return
        if memory.held + cell.size <= memory.limit:
            cell.copy.drop_copy_on_return = once
            self._hint(memory.bring, cell)

    def _after(self, due: At, touched: list[R]) -> None:
        for place, index in due.bind:
            self.bound[index] = cell = touched[place] if place < len(touched) else None
            if cell is not None and self.hints.outlives(index):
                self.held[index] = cell.storage
        for index in due.out:
            if (cell := self.bound[index]) is not None:
                self._hint(self.memory.out, cell)

    def _drop(self, index: int, cell: R) -> None:
        """Free bytes that can be recomputed; here nothing can be, so the host has them."""
        self.memory.release(cell)

    def _recompute(self, replay: Replay, indexes: list[int]) -> None:
        """Recompute what is due; here what went to the host instead comes back."""
        for index in indexes:
            self._fetch(index, once=False)
