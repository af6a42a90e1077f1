"""A trace made ready to run: every buffer has a block, every op its views and its waits, once for all iterations."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import at_least, expect, strict
from gpumem.base.display import Shown
from gpumem.base.errors import ExecutionError
from gpumem.execute.backend import Backend, Bytes, Call, Token, Work
from gpumem.execute.layout import Block, Layout
from gpumem.execute.measured import timeline_of
from gpumem.execute.views import Launch, Views
from gpumem.simulator.timeline import Span, Timeline
from gpumem.trace import COPY_IN, COPY_OUT, I64, SYNC, UNKNOWN, Bool, Csr, Op, Trace
from gpumem.trace.kinds import WORKSPACE
from gpumem.trace.placement import Placement


@dataclass(slots=True, eq=False, repr=False)
class Program(Shown):
    """A placed trace on a backend; see `prepare`."""

    layout: Layout
    backend: Backend
    works: list[Work]
    reads: list[tuple[Block, ...]]
    writes: list[tuple[Block, ...]]
    after: list[list[int]]

    @property
    def trace(self) -> Trace:
        """The trace that runs."""
        return self.layout.trace

    def _has_memory(self) -> None:
        if self.backend.layout is not self.layout:
            raise ValueError(
                "this program has no memory: its backend was closed, or has run `prepare` for another since"
            )

    def crossing(self) -> dict[int, list[Block]]:
        """Return who carries a value over the boundary: recorded buffer -> its blocks, device first."""
        over = np.flatnonzero(self.trace.crossing).tolist()
        blocks: dict[int, list[Block]] = {}
        for block in sorted((self.layout.blocks[buffer] for buffer in over), key=lambda entry: entry.host):
            blocks.setdefault(block.of, []).append(block)
        return blocks

    def write(self, state: Mapping[int, NDArray[Any]]) -> None:
        """Give every buffer that crosses the boundary its value, by recorded id; zeros where `state` has none.

        Raises
        ------
        ValueError
            A buffer that does not cross the boundary, a value larger than its buffer, or a program whose backend was
            closed or is another program's by now; as for `run` and `read`.
        """
        self._has_memory()
        over = self.crossing()
        for of, value in state.items():
            if of not in over:
                raise ValueError(f"state: recorded buffer {of} carries no value over the boundary")
            if not hasattr(value, "nbytes"):
                raise TypeError(f"state: recorded buffer {of}: {value!r:.60} is no array")
            if value.nbytes > over[of][0].size:
                raise ValueError(f"state: {value.nbytes} bytes for buffer {of}, which has {over[of][0].size}")
        nothing = np.zeros(0, np.uint8)
        for of, blocks in over.items():
            for block in blocks:
                self.backend.put(block, _flat(state[of]) if of in state else nothing)

    def read(self) -> dict[int, Bytes]:
        """Return what crosses the boundary now: recorded buffer -> bytes."""
        self._has_memory()
        return {of: self.backend.get(blocks[0]) for of, blocks in self.crossing().items()}

    def run(self, iterations: int = 1, *, lag: I64 | None = None) -> Timeline:
        """Run so many iterations; the host waits at the end only.

        With `lag`, int64[n], they overlap as those of a software pipeline do: what op `i` does for iteration `k` comes
        in round `k + lag[i]`. There are `iterations + lag.max()` rounds, and in the first and the last of them ops are
        left out. The timeline is that of the last round with all ops, if there is one.
        """
        at_least(1, iterations=iterations)
        self._has_memory()
        late = np.zeros(len(self.works), np.int64) if lag is None else np.asarray(lag)
        if late.shape != (len(self.works),) or late.min(initial=0) < 0:
            problem = f"lag: {late.tolist()!r:.60}"
            raise ValueError(f"{problem} is no number of rounds, 0 and more, for each of {len(self.works)} ops")
        over = int(late.max(initial=0))
        self.backend.begin(self.works, iterations + over)
        rows: list[list[tuple[Work, Token]]] = []
        last = set({work.stream: work.op for work in self.works}.values())
        before: list[Token] = []
        for turn in range(iterations + over):
            before = self._round(before, (late <= turn) & (turn < iterations + late))
            rows.append(list(zip(self.works, before)))
            if turn > 1 + over:  # of earlier rounds only the end matters
                rows[turn - 2 - over] = [pair for pair in rows[turn - 2 - over] if pair[0].op in last]
        spans = [[self._wait(*pair) for pair in row] for row in rows]
        return timeline_of(self.layout, spans[:iterations] if iterations > over else spans)

    def _round(self, before: list[Token], runs: Bool) -> list[Token]:
        """Have a round submitted of which only the ops `runs` run; `before` holds the tokens of the previous one."""
        if runs.all():
            return self.backend.iteration(partial(self._issue, before))
        return self.backend.part(partial(self._issue, before, runs))

    def _issue(self, before: list[Token], runs: Bool | None = None) -> list[Token]:
        """Submit one round; `before` holds the tokens of the previous one, or nothing.

        An op that is left out keeps its place, its waits and its token, so whoever waits for it waits for all that it
        would have waited for.
        """
        count, submit = len(self.works), self.backend.submit
        tokens: list[Token] = []
        for work, reads, writes, row in zip(self.works, self.reads, self.writes, self.after):
            if runs is not None and not runs[work.op]:
                work, reads, writes = replace(work, role=SYNC, call=None, ends=()), (), ()
            after = [
                tokens[earlier] if earlier >= 0 else before[earlier + count]
                for earlier in row
                if earlier >= 0 or before
            ]
            try:
                tokens.append(submit(work, reads, writes, after))
            except ExecutionError:
                raise
            except Exception as error:
                raise ExecutionError(work.op, work.name, f"could not be started: {error}") from error
        return tokens

    def _wait(self, work: Work, token: Token) -> Span:
        try:
            span = self.backend.wait(token)
            if not isinstance(span, Span):
                expect(f"{type(self.backend).__name__}.wait", "what it returned", span, "Span")
            return span
        except ExecutionError:
            raise
        except Exception as error:
            raise ExecutionError(work.op, work.name, f"did not end, it or an op before it: {error}") from error


def _flat(value: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


@strict
def prepare(
    trace: Trace,
    placement: Placement,
    backend: Backend,
    launch: Launch | None = None,
    *,
    host: Placement | None = None,
    first: int = 0,
) -> Program:
    """Allocate the slabs and bind every op of a placed trace to its memory, once.

    Parameters
    ----------
    trace : Trace
        With ops, rewritten or not.
    placement : Placement
        Of its device buffers.
    backend : Backend
    launch : callable
        `launch(op, views)` returns what starts computing op `op` (an `Op` record; `op.of` is its index in the
        recorded trace), or None where there is nothing to do. `views(buffer, dtype, shape)` is an array over
        recorded buffer `buffer`. It is called once for each op; copies are the backend's own.
    host : Placement, optional
        Of the host buffers: a placement of `trace.host_side()`. Without it they share nothing.
    first : int
        Iterations that ran before, under another plan: random ops go on drawing from there.

    Returns
    -------
    Program
        With `write`, `run` and `read`.

    Raises
    ------
    ValueError
        A bare trace, a placement that does not belong to it, an op that views what it does not touch.
    """
    layout = Layout.of(trace, placement, host)
    backend.open(layout)
    backend.layout = layout
    try:
        return _bind(layout, backend, launch, first)
    except BaseException:
        backend.close()
        raise


def _bind(layout: Layout, backend: Backend, launch: Launch | None, first: int) -> Program:
    trace, blocks, count = layout.trace, layout.blocks, layout.trace.n
    signals = np.zeros(count, np.bool_)
    signals[layout.waits.after.idx % count] = True
    buffers = trace.buffers
    written = np.zeros(len(buffers), np.bool_)  # of the others nobody reads, and no op orders what ends them
    written[trace.ops.writes.idx] = True
    mortal = np.flatnonzero(written & ~trace.eternal)
    ending = Csr.grouped((buffers.end[mortal] - 1) % count, mortal, count)
    reads, writes, ends = (_rows(rows, blocks) for rows in (trace.ops.reads, trace.ops.writes, ending))
    works = []
    generators: dict[int, Any] = {}
    for op, read, written_to in zip(trace.ops, reads, writes):
        call = call_of(op, trace, backend, launch, reads=read, writes=written_to, generators=generators, first=first)
        index = op.id
        stream, role = int(trace.ops.stream[index]), int(trace.ops.role[index])
        works.append(Work(index, op.name, stream, role, call, bool(signals[index]), ends[index]))
    return Program(layout, backend, works, reads, writes, layout.waits.after.tolist())


def _rows(rows: Csr, blocks: tuple[Block, ...]) -> list[tuple[Block, ...]]:
    return [tuple(blocks[buffer] for buffer in row) for row in rows.tolist()]


def call_of(
    op: Op,
    trace: Trace,
    backend: Backend,
    launch: Launch | None,
    *,
    reads: tuple[Block, ...],
    writes: tuple[Block, ...],
    generators: dict[int, Any],
    first: int,
) -> Call | None:
    """Bind an op to the blocks that it touches; None where there is nothing to do."""
    role = trace.ops.role[op.id]
    if role in (COPY_OUT, COPY_IN):
        return backend.copier(reads[0], writes[0])
    if role == SYNC or launch is None:
        return None
    touched = {block.of: block for block in (*reads, *writes) if block.of != UNKNOWN}
    spare = next((block for block in writes if trace.buffers.kind[block.buffer] == WORKSPACE), None)
    written = tuple(block.of for block in writes)
    return launch(op, Views(backend, op, touched, written, spare, generators, first, op.of))


@strict
def run(
    trace: Trace,
    placement: Placement,
    backend: Backend,
    launch: Launch | None = None,
    iterations: int = 1,
    *,
    host: Placement | None = None,
    state: MutableMapping[int, NDArray[Any]] | None = None,
    lag: I64 | None = None,
) -> Timeline:
    """Run a placed trace on a backend: `prepare`, write the state, run, read it back.

    Parameters
    ----------
    trace, placement, backend, launch, host
        As for `prepare`.
    iterations : int
    state : dict of int to array, optional
        Recorded buffer -> value, for buffers whose lifetime covers the boundary; the arrays are overwritten
        with the values after the last iteration. What is left out starts as zeros.
    lag : int64[n], optional
        As for `Program.run`: how many rounds late each op is.

    Returns
    -------
    Timeline
        Of the last iteration, as this backend measured it; `makespan` is the mean over the second half of
        the iterations.

    Examples
    --------
    Two ops: `x = w`, then `w = w + x`.

    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.execute import Emulator
    >>> ops = Ops.make([[0], [0, 1]], [[1], [0]], name=["copy", "add"])
    >>> trace = Trace(Buffers.make([8, 8], [0, 0], [2, 2], persistent=[True, False]), ops)
    >>> def launch(op, view):
    ...     w, x = view(0, "int64", (1,)), view(1, "int64", (1,))
    ...     return (lambda stream: np.copyto(x, w)) if op.name == "copy" else (lambda stream: np.add(w, x, out=w))
    >>> w = np.array([3])
    >>> _ = run(trace, Placement.at(trace, [0, 8]), Emulator(), launch, iterations=4, state={0: w})
    >>> w
    array([48])
    """
    program = prepare(trace, placement, backend, launch, host=host)
    if state is not None:
        program.write(state)
    timeline = program.run(iterations, lag=lag)
    if state is not None:
        after = program.read()
        for of, value in state.items():
            _flat(value)[...] = after[of][: value.nbytes]
    return timeline
