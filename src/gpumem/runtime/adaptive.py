"""The papers' transparent device: a program allocates, runs ops and frees, and knows nothing of plans."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from operator import index
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpumem.base import work
from gpumem.base.arguments import finite, strict
from gpumem.base.names import one_of
from gpumem.base.units import amount, human
from gpumem.pipeline.compare_planners import IN_A_RUN, asking
from gpumem.runtime.block_recorder import PERIOD, WRITES, BlockCall, BlockIterations, OpTimes
from gpumem.runtime.log import LOGGED, LogEntry, Logged
from gpumem.runtime.residency.background_planning import Planning
from gpumem.runtime.residency.environment import Bytes, LiveBlock, LiveCall, LiveEnvironment
from gpumem.runtime.residency.follower import Follower
from gpumem.runtime.residency.hints import Hints, looks
from gpumem.runtime.residency.limited_memory import DEVICE, UNLIMITED, LimitedMemory
from gpumem.runtime.residency.report import ManagedReport
from gpumem.runtime.residency.run_loop import RunLoop
from gpumem.simulator.machine import Machine
from gpumem.swap.planners import planner_of
from gpumem.trace import MAX_BYTES, THE_HOST, UNKNOWN, Trace, dimensions
from gpumem.trace.lifetimes import tails, used
from gpumem.trace.record.recorder import Exec

NEVER_PLANNED = "on-demand"
Hook = Callable[[Exec, int], None]


class Adaptive:
    """A device under a memory limit: call `malloc`, `free` and `exec` as the program does.

    At first nothing moves. Where an op would take more than the limit, the blocks that were unused for longest go to
    the host, and come back when an op touches them. Ops are recorded; when two iterations are alike, the next one is
    planned for beside the program, and the plan is followed from the end of an iteration on. It is made of hints: an
    op that finds a block off the device brings it back. So a program that does something else than planned is slower,
    never wrong, and stays within the limit; it is recorded anew, and planned for when it repeats.

    Parameters
    ----------
    environment : LiveEnvironment
        Where it runs: `InMemory()`, `OnClock(machine)`, or `live.cuda.OnStreams()`.
    limit : int or str
        Bytes that blocks may hold on the device at once, or a text such as `"4GiB"`, or `"70%"` of the peak of the
        iteration that is found; until then there is none.
    planner : str or sequence of str
        Names in `swap.PLANNERS`, or `module:name` of your own; the cheapest plan counts. Left out, two that take no
        time, and `search`. `"on-demand"`: none is made.
        What a plan recomputes goes to the host instead.
    machine : Machine or str, optional
        What plans are made for; the clock's own, an `rtx4090` in other environments.
    detect : str
        `"period"`: an iteration is what repeats, see `gpumem.trace.record.period`. `"writes"`: what lies between two
        writes of an input, as the SNU thesis has it; see `gpumem.trace.record.input_writes`.
    min_length : int
        Fewest events (mallocs, reads, writes, frees) of an iteration, for `"period"`.
    seconds : float
        Of planning, at most, once there is a plan. The first one is followed as soon as it is there, those that are
        better from the end of an iteration on, while the search goes on.
    wait : bool
        Let the program wait for its plan.
    options : mapping
        Of planners, such as `threshold`: each gets those that it has a keyword for.

    Attributes
    ----------
    before, after : list of callable
        Called with each op and its place in the iteration that is followed, -1 where it is in none: `before` when its
        blocks are about to be brought, `after` when it was begun. Append yours.
    log : sequence of LogEntry
        What was done, the last 2^18 entries.
    beside : int
        Bytes within the limit that are no block's, as given to `charge`.

    Raises
    ------
    ValueError
        What is wrong with an argument.
    LimitError
        From `exec`, `write` and `read`: the op alone holds more than the limit. It was not begun, and all is as it was.

    Notes
    -----
    A block takes no memory before the first op that touches it. A thread at a time. The limit is for the bytes of
    blocks; what an allocator rounds up comes on top. Recorded ops cost O(log of those recorded) each; later ones, and
    those of a plan, O(blocks that they touch). Departures from the papers: AutoSwap's device iterates three times
    before it plans, and neither paper says what becomes of an iteration that is not as planned.

    Examples
    --------
    >>> from gpumem.runtime import Adaptive, InMemory
    >>> def twice(stream, x, y):
    ...     y[:] = 2 * x + 1
    >>> def program(device):
    ...     weights = [device.malloc(100) for _ in range(4)]
    ...     for w in weights:
    ...         device.write(w, bytes(range(100)))
    ...     for _ in range(6):
    ...         made = [device.malloc(100) for _ in weights]
    ...         for w, x in zip(weights, made):
    ...             device.exec("make", [w], [x], call=twice)
    ...         for w, x in zip(weights[::-1], made[::-1]):
    ...             device.exec("update", [x], [w], call=twice)
    ...             device.free(x)
    ...     return [device.read(w).tobytes() for w in weights]
    >>> device = Adaptive(InMemory(), 500, planner="heuristic", min_length=8, wait=True)
    >>> program(device) == program(Adaptive(InMemory(), "1MiB"))
    True
    >>> rows = device.report().iterations
    >>> [row.state for row in rows[1:6]], max(row.peak for row in rows)
    (['on demand', 'on demand', 'planned', 'planned', 'planned'], 500)

    References
    ----------
    Zhang et al. 2019, section V (the Device abstraction); J. Lee's thesis, Seoul National University, section 5.
    """

    @strict
    def __init__(  # noqa: PLR0913  public: a keyword for each choice of a run
        self,
        environment: LiveEnvironment,
        limit: int | str,
        *,
        planner: str | Sequence[str] = IN_A_RUN,
        machine: Machine | str | None = None,
        detect: str = PERIOD,
        min_length: int = 32,
        seconds: float = 30.0,
        wait: bool = False,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.planners = [planner] if isinstance(planner, str) else [*planner]
        for name in self.planners or [""]:
            planner_of(name)
        one_of("detect", detect, (PERIOD, WRITES))
        work.check_seconds(seconds)
        if min_length < 1:
            raise ValueError(f"min_length {min_length} is not at least 1")
        own = getattr(environment, "machine", None) or "rtx4090"
        chosen = own if machine is None else machine
        self.machine = Machine.named(chosen) if isinstance(chosen, str) else chosen
        self.environment, self.seconds, self.limit, self.options = environment, seconds, limit, options
        self.log: deque[LogEntry] = deque(maxlen=LOGGED)
        self.before: list[Hook] = []
        self.after: list[Hook] = []
        self._moves = Logged(environment, self.log)
        self._memory: LimitedMemory[LiveBlock] = LimitedMemory(self._moves, self._moves)
        self._blocks: dict[int, LiveBlock] = {}
        self._made = self.beside = 0
        self._closed = False
        self._times, self._detect = OpTimes(environment.lasted), (detect, min_length)
        self._loop: RunLoop[LiveBlock] = RunLoop(
            _Blocks(self, self._memory, self._moves, self._new_iterations), wait=wait, eager=True
        )
        self._loop.start()
        given = amount(limit, 2**40, "limit")  # which refuses what is none, be it a part of what nobody knows yet
        if not (isinstance(limit, str) and "%" in limit):
            self._memory.limit = given

    def __enter__(self) -> Adaptive:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with suppress(Exception) if kind else nullcontext():  # the error that ended the program is the one to raise
            self.close()

    def __repr__(self) -> str:
        limit = self.limit if self._memory.limit == UNLIMITED else human(self._memory.limit)
        return f"Adaptive(limit {limit}, {human(self._memory.held)} held, {self._moves.op} ops)"

    # the program's calls

    def malloc(self, size: int, *, kind: str = "", shape: Sequence[int] | None = None, dtype: str = "") -> int:
        """Return a new block of `size` bytes.

        Ops get it as an array of `shape` and `dtype` where both are given, which take its bytes at most, else of bytes.
        """
        self._open("malloc")
        if not 0 <= index(size) < MAX_BYTES:
            raise ValueError(f"malloc: size {size} is not in [0, 2**62)")
        dims = None if shape is None else dimensions(shape, "malloc: shape")
        if dims is not None and dtype and int(np.prod(dims, dtype=object)) * np.dtype(dtype).itemsize > size:
            raise ValueError(f"malloc: an array of {dtype} {dims} takes more than {size} bytes")
        block = LiveBlock(self._made, index(size), kind, dims, dtype)
        self._made += 1
        self._blocks[block.number] = block
        self._memory.alive += block.size
        return block.number

    def free(self, block: int) -> None:
        """Give a block back; ops that were begun still have it."""
        live = self._live(block, "free")
        if (iterations := self._loop.phase.iterations) is not None:
            assert isinstance(iterations, BlockIterations)
            self._loop.observed(iterations.free, live)
        memory = self._memory
        if live.where is DEVICE:
            memory.wait_for_copy(live)  # its memory may be another's next
            self._moves.empty(live)
        live.alive = False
        del self._blocks[block]
        memory.dead.append(live)
        memory.reap()

    def exec(
        self,
        name: str,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        *,
        call: LiveCall | None = None,
        duration: int = UNKNOWN,
        flops: float = 0,
        moved: float | None = None,
        given: bool = False,
    ) -> None:
        """Run an op.

        Parameters
        ----------
        name : str
            Ops of an iteration are known by their names and by the bytes that they read.
        reads, writes : sequence of int
            Blocks; one that is changed in place belongs to both. What is written and not read is written whole.
        call : callable
            `call(stream, *arrays)` begins it, with an array for each block of `reads` and then of `writes`, each once.
            The arrays are good for this call only. What it raises passes through; the op counts as not there.
        duration, flops, moved
            As in `Recorder.exec`; `moved` is what the op touches where left out.
        given : bool
            It writes the program's own bytes, as `write` does.
        """
        op = self._op(name, reads, writes, duration, flops=flops, moved=moved)
        self._exec(op, call, None, is_known=duration != UNKNOWN, given=given)

    def write(self, block: int, data: ArrayLike | bytes) -> None:
        """Copy the program's bytes into a block, as an op called `write`; the rest of the block becomes zeros."""
        live = self._live(block, "write")
        source = np.frombuffer(data, np.uint8) if isinstance(data, bytes | bytearray) else np.asarray(data)
        if source.dtype.kind not in "biufcV" or source.dtype.hasobject:
            raise TypeError(f"write: {data!r:.60} is no array of numbers, nor bytes")
        given = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        if len(given) > live.size:
            raise ValueError(f"write: {len(given)} bytes for block {block}, which has {live.size}")
        ns = int(self.machine.into.copy_ns(np.array([live.size], np.int64))[0])
        self._exec(self._op("write", [], [block], ns), None, given, given=True)

    def read(self, block: int) -> Bytes:
        """Wait for all ops so far, and return a copy of a block's bytes; an op called `read`."""
        live = self._live(block, "read")
        ns = int(self.machine.out.copy_ns(np.array([live.size], np.int64))[0])
        data: list[Bytes] = []
        self._exec(self._op("read", [block], [], ns), None, data)
        return data[0]

    @strict
    def pin(self, block: int) -> None:
        """Keep a block on the device until it is freed: somebody has its address whose ops are not seen here."""
        live = self._live(block, "pin")
        self._memory.ensure_resident([live], 0, "pin")
        self._memory.pin(live, "pin()")

    @strict
    def charge(self, size: int) -> None:
        """Count bytes of the device that are no block's, or, below 0, no longer; there is room for them from now on."""
        if size > 0:
            self._memory.ensure_resident([], size, "memory beside the blocks")
        self._memory.charge(size)
        self.beside += size

    # what becomes of them

    def _open(self, where: str) -> None:
        if self._closed:
            raise ValueError(f"{where}: the device was closed")

    def _live(self, block: int, where: str) -> LiveBlock:
        if (live := self._blocks.get(block)) is None:
            known = hasattr(block, "__index__") and 0 <= block < self._made
            raise ValueError(f"{where}: block {block!r:.60} was {'already freed' if known else 'never allocated'}")
        return live

    def _op(
        self,
        name: str,
        reads: Sequence[int],
        writes: Sequence[int],
        duration: int,
        *,
        flops: float = 0.0,
        moved: float | None = 0.0,
    ) -> Exec:
        where = f"op {self._moves.op} ({name})"
        if index(duration) < 0 and duration != UNKNOWN:
            raise ValueError(f"{where}: duration {duration} ns is negative")
        self._open(where)
        for row in (reads, writes):
            if not isinstance(row, Iterable):
                raise TypeError(f"{where}: {row!r:.60} is no list of blocks")
        touched = [self._live(block, where).size for block in (*reads, *writes)]
        moves = float(sum(touched)) if moved is None else moved
        finite(where, flops=flops, moved=moves)
        if duration == UNKNOWN:
            duration = int(self.machine.roofline_ns(np.array([flops], float), np.array([moves], float))[0])
        once = list(dict.fromkeys(reads)), list(dict.fromkeys(writes))
        return Exec(name, *once, "compute", duration, flops, moves, False, None, None, "", THE_HOST, False)

    def _exec(
        self, op: Exec, kernel: LiveCall | None, data: Any, *, is_known: bool = True, given: bool = False
    ) -> None:
        """Run an op: call it, write the bytes `data` into its block, or append its bytes to the list `data`."""
        blocks, memory, loop, name = self._blocks, self._memory, self._loop, op.name
        touched = [blocks[number] for number in dict.fromkeys([*op.reads, *op.writes])]
        call = BlockCall(op, looks(name, [blocks[number].size for number in op.reads]), touched, given)
        position = loop.before(call)
        for hook in self.before:
            hook(op, position)
        memory.ensure_resident(touched, 0, name)
        memory.wrote([blocks[number] for number in op.writes])  # also if it fails half-way
        iterations, timer = loop.phase.iterations, None
        if isinstance(data, list):
            data.append(self.environment.get(touched[0]))
        elif data is not None:
            self.environment.put(touched[0], data)
        else:
            timer = self.environment.run(kernel, touched, op.duration, iterations is not None and not is_known)
        self._moves.begun("op", name)
        self._moves.op += 1
        if isinstance(iterations, BlockIterations):
            loop.observed(iterations.record, call, timer)
        loop.after(call)
        for hook in self.after:
            hook(op, position)

    def _new_iterations(self) -> BlockIterations:
        return BlockIterations([*self._blocks.values()], *self._detect, self._times)

    @property
    def held(self) -> int:
        """Bytes on the device now."""
        return self._memory.held

    def report(self) -> ManagedReport:
        """Return what came of it so far."""
        return self._loop.report(open_row=True)

    def close(self) -> None:
        """End the last iteration, wait for what is under way, and give everything back; blocks are gone.

        Planning ends at its next step.
        """
        self._closed = True
        with ExitStack() as last:  # goes on where a step fails, and raises in the end
            last.callback(self.environment.close)
            for block in [*self._blocks.values()][::-1]:
                last.callback(self._free_last, block)
            last.callback(self._loop.close)

    def _free_last(self, block: LiveBlock) -> None:
        """Free a block, also where its copy cannot be waited for: nobody gets its memory next."""
        try:
            self.free(block.number)
        except Exception:
            if block.copy is not None and block.copy.in_flight:
                block.copy.in_flight = False
                self.free(block.number)
            raise


class _Blocks:
    """A device as the environment of its run loop."""

    def __init__(
        self,
        device: Adaptive,
        memory: LimitedMemory[LiveBlock],
        moves: Logged,
        iterations: Callable[[], BlockIterations],
    ) -> None:
        self._device, self.memory, self._moves, self.iterations = device, memory, moves, iterations

    def now(self) -> int:
        return self._device.environment.now()

    def follower(self, hints: Hints) -> Follower[LiveBlock]:
        return Follower(self.memory, hints)

    def on_iteration(self, trace: Trace) -> Planning | None:
        device, memory = self._device, self.memory
        if memory.limit == UNLIMITED:
            memory.limit = amount(device.limit, trace.peak_live_bytes, "limit")
        limit = memory.limit - device.beside
        if trace.peak_live_bytes <= limit or device.planners == [NEVER_PLANNED]:
            return None
        less = used(trace)
        shorter = less if tails(trace, less, limit) else None
        ask = asking(device.machine, limit, device.planners, device.options)
        return Planning(trace, limit, ask, device.seconds, shorter)

    def lasts(self, size: int) -> None:
        """It may be anything: nothing is to come back at the end."""

    def report(self, kind: str, why: str) -> None:
        self._moves.note(kind, why)
