"""Programs of ops that look like letters, on a memory that says what was asked of it: for tests without a device."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.environment import Movable
from gpumem.runtime.residency.follower import Follower
from gpumem.runtime.residency.hints import Hints, looks
from gpumem.runtime.residency.iteration_recorder import Alike, IterationRecorder
from gpumem.runtime.residency.limited_memory import LimitedMemory
from gpumem.runtime.residency.run_loop import RunLoop
from gpumem.trace import Trace
from gpumem.trace.record.recorder import Recorder


class Cell(Movable):
    """A storage without bytes: `name` tells which."""

    def __init__(self, name: Any, size: int) -> None:
        super().__init__(size)
        self.name = name
        self.dead = False

    def __repr__(self) -> str:
        return f"Cell({self.name})"

    @property
    def storage(self) -> Any:
        return None if self.dead else self


class Nothing:
    """Moves nothing, and says yes."""

    def out(self, storage: Any) -> Any:
        return object()

    def back(self, storage: Any, copy: Any) -> None: ...

    def wait_for_copy(self, copy: Any) -> None: ...

    def drop(self, copy: Any) -> None: ...

    def empty(self, storage: Any) -> None: ...

    def fill(self, storage: Any, size: int) -> None: ...


class Told(LimitedMemory[Cell]):
    """A memory that notes what it is asked for from outside: at which `clock`, which move, of what."""

    def __init__(self, limit: int = 2**62) -> None:
        super().__init__(Nothing(), Nothing(), limit)
        self.clock: Any = None
        self.moves: list[tuple[Any, str, Any]] = []
        self._inside = False

    def _note(self, move: str, cell: Cell, *rest: Any) -> None:
        outside, self._inside = not self._inside, True
        if outside:
            self.moves.append((self.clock, move, cell.name))
        try:
            getattr(LimitedMemory, move)(self, cell, *rest)
        finally:
            self._inside = self._inside and not outside

    def out(self, cell: Cell) -> None:
        self._note("out", cell)

    def release(self, cell: Cell) -> None:
        self._note("release", cell)

    def bring(self, cell: Cell, keep: Sequence[Cell] = ()) -> None:
        self._note("bring", cell, keep)


@dataclass
class Op:
    """An op that is called like `name`, and looks like `key`."""

    name: str
    key: int
    touched: list[Any] = field(default_factory=list)


class Cells:
    """The storages of a trace that is run several times: those of what lasts stay, all others are new each time."""

    def __init__(self, trace: Trace, memory: Told) -> None:
        self.trace, self.memory = trace, memory
        self.met: dict[tuple[int, int], Cell] = {}

    def of(self, turn: int, op: int) -> list[Cell]:
        """What op `op` touches in iteration `turn`: reads, then writes, each once, by buffer and iteration."""
        buffers, ops = self.trace.buffers, self.trace.ops
        found = []
        for b in dict.fromkeys([*ops.reads[op].tolist(), *ops.writes[op].tolist()]):
            born = 0 if buffers.persistent[b] else turn - int(op < buffers.start[b])  # some live on into the next
            if (b, born) not in self.met:
                cell = self.met[b, born] = Cell((b, born), int(buffers.size[b]))
                self.memory.arrive(cell)
            found.append(self.met[b, born])
        return found


class Written(IterationRecorder[Cell]):
    """A iterations of letters; `wrong` says why what repeats is no iteration."""

    def __init__(self, environment: Letters) -> None:
        super().__init__(Recorder(), environment.repeats, min_length=1)
        self.environment, self.blocks = environment, dict[Any, int]()
        self.begun = self.closed = False

    def begin(self) -> None:
        self.begun = True

    def record(self, call: Op) -> None:
        """Write an op down, which reads what it touches."""
        for cell in call.touched:
            if cell.name not in self.blocks:
                self.blocks[cell.name] = self.recorder.malloc(cell.size, kind="param")
        self.recorder.exec(call.name, [self.blocks[cell.name] for cell in call.touched], [], duration=1)

    def close(self) -> None:
        self.closed = True

    def trace(self, found: Alike) -> Trace:
        if self.environment.wrong:
            raise ValueError(self.environment.wrong)
        return self.recorder.trace(*found.bounds[-1])


class Letters:
    """A program whose ops are letters, under a run loop: `environment` and driver in one.

    A letter's op reads the cell of its name, `sizes` bytes large.
    """

    def __init__(self, *, limit: int = 2**62, repeats: bool = False, eager: bool = False) -> None:
        self.memory, self.repeats, self.wrong = Told(limit), repeats, ""
        self.log: list[tuple[str, str]] = []
        self.least: list[int] = []
        self.plan: Callable[[Trace], Planning | str | None] = lambda trace: None
        self.cells: dict[str, Cell] = {}
        self.sizes: dict[str, int] = {}
        self.time = 0
        self.books: list[Written] = []
        self.loop: RunLoop[Cell] = RunLoop(self, wait=True, eager=eager)
        self.loop.start()

    def now(self) -> int:
        self.time += 1
        return self.time

    def iterations(self) -> Written:
        self.books.append(Written(self))
        return self.books[-1]

    def follower(self, hints: Hints) -> Follower[Cell]:
        return Follower(self.memory, hints)

    def on_iteration(self, trace: Trace) -> Planning | str | None:
        return self.plan(trace)

    def lasts(self, size: int) -> None:
        self.least.append(size)

    def report(self, kind: str, why: str) -> None:
        self.log.append((kind, why))

    def run(self, text: str) -> None:
        """Run a letter an op; `|` is a boundary, `.` one that may be none, `aB` an op `a` that reads B's cell."""
        for letter in re.findall("[a-z][A-Z]?|[|.]", text):
            if letter in "|.":
                self.loop.boundary(letter == "|")
            else:
                self.op(letter[0], letter[-1].lower())

    def op(self, name: str, reads: str) -> None:
        if reads not in self.cells:
            self.cells[reads] = Cell(reads, self.sizes.get(reads, 1))
            self.memory.arrive(self.cells[reads])
        cell = self.cells[reads]
        call = Op(name, looks(name, [cell.size]), [cell])
        self.loop.before(call)
        self.memory.ensure_resident([cell], 0, name)
        iterations = self.loop.phase.iterations
        if iterations is not None:
            assert isinstance(iterations, Written)
            iterations.record(call)
        self.loop.after(call)

    @property
    def rows(self) -> list[tuple[str, int]]:
        """State and ops of each row that was closed."""
        return [(row.state, row.ops) for row in self.loop.ledger.rows]
