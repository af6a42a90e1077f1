"""What an op is given: views of its buffers, a workspace, and what it draws random numbers from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpumem.execute.backend import Arrays, Call
from gpumem.execute.layout import Block
from gpumem.trace import UNKNOWN, Op


@dataclass(frozen=True, slots=True)
class Views:
    """Typed arrays over the buffers of one op, by their ids in the recorded file.

    Cutting a buffer into pieces leaves these ids alone, so a launch that was written for the recorded
    trace serves every rewritten one.
    """

    backend: Arrays
    op: Op
    blocks: Mapping[int, Block]
    written: tuple[int, ...]  # recorded ids, in the op's order
    spare: Block | None
    generators: dict[int, Any]  # recorded op -> its draw counter; one dict for all ops of a program
    first: int  # what a counter begins with
    draws: int  # the recorded op whose counter it is

    def __call__(self, buffer: int, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return the array over recorded buffer `buffer`."""
        if buffer not in self.blocks:
            where, is_recomputed = f"op {self.op.id} ({self.op.name})", self.op.role == "recompute"
            hint = "; it is recomputed, and so leaves its statistics alone" if is_recomputed else ""
            raise ValueError(f"{where}: does not touch recorded buffer {buffer}{hint}")
        return self.backend.view(self.blocks[buffer], dtype, shape)

    def renumbered(self, op: Op, first: int) -> Views:
        """Return the views for a launch that knows the op as `op`, and recorded buffer `first` as its buffer 0."""
        blocks = {of - first: block for of, block in self.blocks.items()}
        written = tuple(of if of == UNKNOWN else of - first for of in self.written)
        return replace(self, op=op, blocks=blocks, written=written)

    def bytes(self, buffer: int) -> Any:
        """Return all bytes of recorded buffer `buffer`."""
        return self(buffer, np.uint8, (self.blocks[buffer].size,) if buffer in self.blocks else ())

    def workspace(self, dtype: DTypeLike) -> Any:
        """Return the op's workspace as one flat array; of size 0 where it has none."""
        block = self.spare or Block(UNKNOWN, UNKNOWN, False, 0, 0)
        return self.backend.view(block, dtype, (block.size // np.dtype(dtype).itemsize,))

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return a zeroed array of the op's own outside the slabs, for a few bytes that no trace knows of."""
        return self.backend.scratch(dtype, shape)

    def generator(self) -> Any:
        """Return the draw counter of the recorded op, uint64[1]: one array for it and all its recomputations.

        A random op draws bits that are a hash of its seed, this counter and a position, and of nothing else. As
        recorded it adds 1 to the counter and then draws. Recomputed (its role says so) it draws from the counter
        as it stands, and so the same bits. It is 0 at first, or as many as ran before by `prepare`. The
        counter is memory of the device outside the slabs and no part of the state: it counts on from iteration to
        iteration, also where a captured iteration is replayed.
        """
        if self.draws not in self.generators:
            self.generators[self.draws] = self.backend.counter(self.first)
        return self.generators[self.draws]


Launch = Callable[[Op, Views], Call | None]
