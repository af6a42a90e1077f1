"""A trace as a program that knows nothing of plans: it allocates, runs and frees as the recorded program did."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpumem.base.arguments import at_least, strict
from gpumem.base.display import Facts, Shown
from gpumem.execute import Block, Launch, Views
from gpumem.execute.backend import Bytes, Call, nbytes
from gpumem.trace import COMPUTE, ROLES, SYNC, UNKNOWN, Op, Trace
from gpumem.trace.kinds import WORKSPACE

# Bound calls of an op that are kept, each for other addresses. Not tuned: a device that follows a plan gives few.
KEPT = 16


class Plays(Protocol):
    """A device as a program sees it; `Adaptive` is one."""

    def malloc(self, size: int, *, kind: str = "") -> int:
        """Return a new block of so many bytes."""

    def free(self, block: int) -> None:
        """Give a block back."""

    def exec(
        self,
        op: str,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        *,
        call: Any,
        duration: int,
        flops: float,
        moved: float,
    ) -> object:
        """Run `call(stream, *arrays)`, with a uint8 array for each block, those read first."""

    def write(self, block: int, data: Bytes) -> None:
        """Give a block bytes."""

    def read(self, block: int) -> Bytes:
        """Return a block's bytes."""


def _zeros(dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.zeros(shape, dtype)


class OverArrays:
    """Views over the arrays that an op is given, and a few arrays that are no blocks.

    Parameters
    ----------
    scratch : callable
        `scratch(dtype, shape)` returns zeros of the kind that ops take: `OnStreams.scratch` on a GPU.

    `arrays` has those of the op that is being bound, by recorded id. An op that is bound again has the scratch arrays
    that it had.
    """

    def __init__(self, scratch: Callable[[DTypeLike, tuple[int, ...]], Any] = _zeros) -> None:
        self.arrays: dict[int, Any] = {}
        self.zeros = scratch
        self._scratches: dict[tuple[Any, ...], Any] = {}  # by the op, and how many it had asked for
        self._op = self._asked = 0

    def bind(self, op: int, arrays: dict[int, Any]) -> None:
        """Serve an op from now on."""
        self.arrays, self._op, self._asked = arrays, op, 0

    def view(self, block: Block, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return an array over the block's first bytes."""
        if block.of == UNKNOWN:
            return self.zeros(dtype, shape)
        whole = self.arrays[block.of]
        return whole[: nbytes(block, dtype, shape)].view(dtype).reshape(shape)

    def scratch(self, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return an array of the op's own, of zeros when it is first asked for."""
        key = self._op, self._asked, np.dtype(dtype), shape
        self._asked += 1
        if key not in self._scratches:
            self._scratches[key] = self.zeros(dtype, shape)
        return self._scratches[key]

    def counter(self, first: int) -> Any:
        """Return a new counter, which begins with 0 here."""
        return self.zeros(np.uint64, (1,))


@strict
def play(
    trace: Trace,
    launch: Launch | None,
    device: Plays,
    iterations: int = 1,
    *,
    state: MutableMapping[int, NDArray[Any]] | None = None,
    state_arrays: OverArrays | None = None,
) -> None:
    """Run a trace on a device as the program that it was recorded from would.

    A buffer is allocated right before the op it starts with and freed right after its last. Ops run in issue order,
    on one stream.

    Parameters
    ----------
    trace : Trace
        As recorded, with ops.
    launch : callable, optional
        `launch(op, views)` as for `gpumem.execute.prepare`. A device's blocks change their addresses, so an op is bound
        when it runs; what is bound is kept for the addresses that it was bound to, on a device whose arrays know them.
    device : Plays
        One with `malloc`, `free`, `exec`, `write` and `read`.
    iterations : int
    state : dict of int to array, optional
        Recorded buffer -> value, for what is alive across the boundary; overwritten with the values at the end.
        What is left out starts as zeros.
    state_arrays : OverArrays, optional
        Where draw counters and scratch arrays come from; by default the host.

    Raises
    ------
    ValueError
        A trace without ops, or with copies or values recomputed; a state for what does not cross the boundary.

    Examples
    --------
    Two ops: `x = w`, then `w = w + x`.

    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.testing import Unmanaged
    >>> ops = Ops.make([[0], [0, 1]], [[1], [0]], name=["copy", "add"])
    >>> trace = Trace(Buffers.make([8, 8], [0, 0], [2, 2], persistent=[True, False]), ops)
    >>> def launch(op, view):
    ...     w, x = view(0, "int64", (1,)), view(1, "int64", (1,))
    ...     return (lambda stream: np.copyto(x, w)) if op.name == "copy" else (lambda stream: np.add(w, x, out=w))
    >>> w, device = np.array([3]), Unmanaged()
    >>> play(trace, launch, device, iterations=4, state={0: w})
    >>> w, device.peak
    (array([48]), 16)
    """
    at_least(1, iterations=iterations)
    player = TracePlayer.of(trace, launch, device, state_arrays)
    player.begin(state or {})
    for _ in range(iterations):
        player.iteration()
    player.end(state or {})


@dataclass(slots=True, repr=False)
class TracePlayer(Shown):
    """A trace that is being played, as by `play`: `begin`, any number of times `iteration`, `end`.

    `live` says which block of the device each live buffer is.
    """

    trace: Trace
    device: Plays
    steps: list[_Step]
    starts: list[list[int]]  # buffers by the op before which they are allocated
    ends: list[list[int]]  # and after which they are freed
    size: list[int]
    live: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, trace: Trace, launch: Launch | None, device: Plays, state_arrays: OverArrays | None = None
    ) -> TracePlayer:
        """Get ready; arguments and errors as of `play`."""
        _check(trace)
        given = OverArrays() if state_arrays is None else state_arrays
        count, buffers = trace.n, trace.buffers
        starts: list[list[int]] = [[] for _ in range(count)]
        ends: list[list[int]] = [[] for _ in range(count)]
        for buffer in np.flatnonzero(~trace.eternal).tolist():
            starts[buffers.start[buffer]].append(buffer)
            ends[(buffers.end[buffer] - 1) % count].append(buffer)
        generators: dict[int, Any] = {}
        steps = [_Step.of(trace, op, launch, given, generators) for op in trace.ops]
        return cls(trace, device, steps, starts=starts, ends=ends, size=buffers.size.tolist())

    def _facts(self) -> Facts:
        return {"trace": self.trace.name, "ops": self.trace.n, "live": len(self.live)}

    def _malloc(self, buffer: int) -> None:
        self.live[buffer] = self.device.malloc(self.size[buffer], kind=self.trace.buffers.kind[buffer])

    def begin(self, state: MutableMapping[int, NDArray[Any]]) -> None:
        """Allocate what crosses the boundary, and give it its values."""
        over = np.flatnonzero(self.trace.crossing).tolist()
        crossing = {self.trace.buffers.of[crossed]: crossed for crossed in over}
        if stray := [of for of in state if of not in crossing]:
            raise ValueError(f"state: recorded buffer {stray[0]} carries no value over the boundary")
        for buffer in over:
            self._malloc(buffer)
        for of, buffer in crossing.items():
            data = np.zeros(self.size[buffer], np.uint8)
            if of in state:
                data[: state[of].nbytes] = np.ascontiguousarray(state[of]).reshape(-1).view(np.uint8)
            self.device.write(self.live[buffer], data)

    def iteration(self) -> None:
        """Run the ops once."""
        device, live = self.device, self.live
        for step, starts, ends in zip(self.steps, self.starts, self.ends):
            for buffer in starts:
                self._malloc(buffer)
            op = step.op
            reads, writes = [live[block] for block in op.reads], [live[block] for block in op.writes]
            device.exec(op.name, reads, writes, call=step, duration=op.duration, flops=step.flops, moved=step.moved)
            for buffer in ends:
                device.free(live.pop(buffer))

    def end(self, state: MutableMapping[int, NDArray[Any]]) -> None:
        """Read the values, and free everything."""
        live = {self.trace.buffers.of[buffer]: buffer for buffer in self.live}
        for of, value in state.items():
            data = np.asarray(self.device.read(self.live[live[of]]))
            value.reshape(-1).view(np.uint8)[...] = data[: value.nbytes]
        for block in self.live.values():
            self.device.free(block)


@dataclass(slots=True)
class _Step:
    """An op, as the device calls it: it is bound to the arrays that it is given."""

    op: Op
    launch: Launch | None
    views: Views
    state_arrays: OverArrays
    row: list[int]  # recorded ids, in the order of the arrays
    flops: float
    moved: float
    bound: dict[tuple[int, ...], Call | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, trace: Trace, op: Op, launch: Launch | None, state_arrays: OverArrays, generators: dict[int, Any]
    ) -> _Step:
        buffers = trace.buffers
        row = list(dict.fromkeys([*op.reads, *op.writes]))
        recorded = {buffer: int(buffers.of[buffer]) for buffer in row}
        size = {buffer: int(buffers.size[buffer]) for buffer in row}
        blocks = {recorded[buffer]: Block(buffer, recorded[buffer], False, 0, size[buffer]) for buffer in row}
        workspaces = (blocks[recorded[buffer]] for buffer in op.writes if buffers.kind[buffer] == WORKSPACE)
        spare = next(workspaces, None)
        written = tuple(recorded[buffer] for buffer in op.writes)
        views = Views(state_arrays, op, blocks, written, spare, generators, 0, op.of)
        cost = float(trace.ops.flops[op.id]), float(trace.ops.moved[op.id])
        return cls(
            op,
            None if op.role == ROLES[SYNC] else launch,
            views,
            state_arrays,
            [recorded[buffer] for buffer in row],
            *cost,
        )

    def __call__(self, stream: Any, *arrays: Any) -> None:
        call = self.call(arrays)
        if call is not None:
            call(stream)

    def call(self, arrays: Sequence[Any]) -> Call | None:
        """Return what starts the op on these arrays."""
        if self.launch is None:
            return None
        key = _addresses(arrays)
        if key is not None and key in self.bound:
            return self.bound[key]
        self.state_arrays.bind(self.op.id, dict(zip(self.row, arrays)))
        call = self.launch(self.op, self.views)
        if key is not None:
            if len(self.bound) == KEPT:
                self.bound.clear()
            self.bound[key] = call
        return call


def _addresses(arrays: Sequence[Any]) -> tuple[int, ...] | None:
    """Where arrays lie on a device; None for those of the host, which would be kept alive by what is bound to them."""
    if any(isinstance(array, np.ndarray) for array in arrays):
        return None
    return tuple(array.__cuda_array_interface__["data"][0] for array in arrays)


def _check(trace: Trace) -> None:
    if not len(trace.ops):
        raise ValueError(f"trace {trace.name!r}: no ops, a bare instance cannot run")
    strange = np.flatnonzero((trace.ops.role != COMPUTE) & (trace.ops.role != SYNC))
    if len(strange) or trace.buffers.host.any():
        raise ValueError(f"trace {trace.name!r}: a plan is in it; a program that knows of none is played as recorded")
