"""Where in a plan a run stands, and what it makes again there: `gpumem.runtime.residency.follower`, and calls that run again."""

from __future__ import annotations

from dataclasses import replace

from gpumem.runtime.residency.follower import Follower
from gpumem.runtime.residency.hints import Hints, keys_of
from gpumem.runtime.residency.limited_memory import LimitError
from gpumem.swap.plan.replay import Replay
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.recompute import Kept, Making, NotKept, remake
from gpumem.torch.step.ops import WRITTEN_AS, out_of_place


class Remaker(Follower[Cell]):
    """A follower of plans that make values again: `calls` are those that may be asked for, of this iteration."""

    memory: Memory

    def __init__(self, memory: Memory, hints: Hints) -> None:
        self.calls: dict[int, Kept] = {}
        ops = hints.trace.ops
        run = replace(hints.trace, ops=replace(ops, name=tuple(map(out_of_place, ops.name))))
        hints.keys = keys_of(run)[0]  # ops are known by the form that runs, whichever was written down
        super().__init__(memory, hints)
        rows = zip(ops.name, ops.reads.tolist(), ops.writes.tolist())
        # planned in place: what runs may be out of place
        self.sums = [name in WRITTEN_AS and {*writes} <= {*reads} for name, reads, writes in rows]

    @staticmethod
    def succeeded(touched: list[Cell]) -> list[Cell]:
        """What an op touched that is planned in place and ran out of place: its result stands for its first operand."""
        return [touched[-1], *touched[1:-1]] if len(touched) > 1 else touched

    def after(self, touched: list[Cell]) -> bool:
        """Do what is due after the op; at the end of an iteration its calls are over."""
        ended = super().after(touched)
        if ended:
            self.calls = {}
        return ended

    def restart(self) -> None:
        """Stand before the first op."""
        super().restart()
        self.calls = {}

    def _drop(self, k: int, cell: Cell) -> None:
        """Give up bytes that can be made again; where they cannot, they stay.

        Where that alone would take more than the limit, as it may where nothing goes as planned, the host has them.
        """
        if cell.fixed or cell.storage is None:
            return
        if cell.copy is None:
            try:
                making = Making(cell, self.hints.alone[k], self.calls, self.hints.rows)
            except NotKept:
                return
            if making.needs + self.memory.fixed <= self.memory.limit:
                cell.again = making
            else:
                making.done()
        self.memory.release(cell)

    def _remake(self, replay: Replay, ks: list[int]) -> None:
        wanted = {}
        by_buffer = {self.hints.buffer(k): self.bound[k] for k in ks}
        for value in replay.wanted:
            cell = by_buffer[value.buffer]
            if cell is not None and cell.again is not None and cell.storage is not None:
                wanted[value] = cell
        try:
            if len(wanted) == len(replay.wanted) and all(step.op in self.calls for step in replay.reruns):
                remake(self.memory, replay, self.calls, self.hints.rows, wanted)
                for cell in wanted.values():
                    cell.again.done()
            else:
                for cell in wanted.values():
                    self.memory.bring(cell)
        except LimitError:  # then they are made when they are asked for
            return


def recover(memory: Memory, cell: Cell) -> None:
    """Make a cell's bytes again, by its own recipe, and first what that reads, so that one thing is made at a time."""
    recipe: Making = cell.again
    for source in [*recipe.sources]:
        if source.again is not None:
            recover(memory, source)
    (value,) = recipe.steps.wanted
    remake(memory, recipe.steps, recipe.calls, recipe.rows, {value: cell})
    recipe.done()
