"""The simulator as a backend: no bytes, only time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpumem.execute.backend import Backend, Bytes, Call, Token, Work
from gpumem.execute.layout import Block, Layout
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Span
from gpumem.trace import COPY_IN, COPY_OUT, SYNC

LINK = -1  # the one copy engine of a machine that is not duplex


class Simulator(Backend):
    """An op starts when its engine is free and its waits have ended: the address-aware simulation, one op at a time.

    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.execute import run
    >>> from gpumem.trace import Placement
    >>> from gpumem.trace import Trace
    >>> ops = Ops.make([[], [0]], [[0], []], duration=[30, 40])
    >>> trace = Trace(Buffers.make([8], [0], [2]), ops)
    >>> run(trace, Placement.at(trace, [0]), Simulator(Machine.named("h200")), iterations=2).makespan
    70
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def open(self, layout: Layout) -> None:
        """Look up how long each op takes."""
        self.duration = self.machine.durations(layout.trace).tolist()
        self.free: dict[int, int] = {}

    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return an empty array: nothing is computed here."""
        return np.zeros(0, dtype)

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return an empty array."""
        return np.zeros(0, dtype)

    def copier(self, source: Block, target: Block) -> Call:
        """Return what does nothing."""
        return lambda stream: None

    def put(self, block: Block, data: Bytes) -> None:
        """Forget `data`."""

    def get(self, block: Block) -> Bytes:
        """Refuse: there are no bytes."""
        raise ValueError(f"{block}: the simulator moves no bytes, there is nothing to read back")

    def submit(self, work: Work, reads: Sequence[Block], writes: Sequence[Block], after: Sequence[Token]) -> Token:
        """Compute when the op runs; the token is its span."""
        copies = work.role in (COPY_OUT, COPY_IN)
        engine = LINK if copies and not self.machine.duplex else work.stream
        start = max([self.free.get(engine, 0), *(span.end for span in after)])
        self.free[engine] = start + (0 if work.role == SYNC else self.duration[work.op])
        return Span(work.op, start, self.free[engine])

    def wait(self, token: Token) -> Span:
        """Return the span."""
        span: Span = token
        return span
