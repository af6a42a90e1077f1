"""The dispatch mode of a memory-limited run: before each op its operands are on the device; a plan only gives hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpumem.runtime.residency.follower import LOST
from gpumem.runtime.residency.hints import LEAVE, looks
from gpumem.runtime.residency.iteration_recorder import IterationRecorder
from gpumem.runtime.residency.limited_memory import UNLIMITED, LimitError
from gpumem.runtime.residency.run_loop import RunLoop
from gpumem.torch.internals import torch
from gpumem.torch.run.environment import StepRecorder
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.nested_ops import NestedOpMode, runs_python
from gpumem.torch.run.on_demand import DtrEvictor
from gpumem.torch.run.output_sizes import OutputSizePredictor
from gpumem.torch.run.recompute import RecomputingFollower
from gpumem.torch.step.op_mode import OpMode
from gpumem.torch.step.ops import IS_ON_DEVICE, Call, Kind, tensors
from gpumem.torch.step.storages import Cell

PACKED = "_pack_padded_sequence.default"  # it returns lengths, too, which recurrent nets read on the host
SEVERAL_STREAMS = "it computes on several streams; under a memory limit each op waits for the one before"


class LimitMode(OpMode):
    """Runs ops under the limit of a memory, and shows each to a run loop, which records it or follows a plan."""

    alone = "a managed run"

    def __init__(self, memory: Memory, loop: RunLoop[Cell], chunk: int | None) -> None:
        super().__init__(memory.device, chunk)
        self.memory, self.loop = memory, loop
        self.is_on_device = IS_ON_DEVICE[memory.device]
        self.predictor = OutputSizePredictor(self.device)
        self.on_demand: DtrEvictor | None = None  # evicts while no plan is followed; None: the least recently used goes

    def other(self, kind: Kind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run what is no op, such as a view; where views need memory, its storages are brought back first."""
        if not self.memory.pointers.views:
            self.memory.ensure_resident(self.memory.of(tensors(args, self.device)), 0, str(func))
        result = func(*args, **kwargs)
        if kind.keeps_operands:  # a nested tensor's sizes: they are asked for where C++ cannot throw, so they stay
            for cell in self.memory.of(tensors((result,), self.device)):
                self.memory.pin(cell, "a nested tensor")
        return result

    def op(self, call: Call) -> Any:
        """Run an op of the device, once the bytes that it touches are on the device."""
        memory, loop = self.memory, self.loop
        # 1. Order: ops of all streams run one after the other. What died since the last op counts no longer.
        if memory.engine.follow() and SEVERAL_STREAMS not in loop.notes:
            loop.note(SEVERAL_STREAMS)
        if memory.dead:
            memory.reap()
        # 2. Operands: the cells that it reads and writes, and the key by which a plan would know it.
        self._find_operands(call)
        # 3. Plan: what is due before this op (prefetches, releases, recomputations); DTR records the call instead.
        index = loop.before(call)
        on_demand = self.on_demand
        pending = None if on_demand is None else on_demand.before(call, self._follows(index))
        # 4. Residency: evict for the results, bring all operands. What would be recomputed from a written operand is
        #    recomputed first, and the host's copy of the operand freed, before the op runs: one that fails half-way has
        #    written a part.
        fresh = self._expected_bytes(index, call)
        if call.writes:
            memory.recompute_dependents(call.writes)
        memory.ensure_resident(call.reads, fresh, call.kind.name)
        if call.writes:
            memory.wrote(call.writes)
        # 5. The op itself, exactly as it was asked for; a recorder writes it down.
        call.result = self._run(call)
        # 6. Results: their storages are counted from now on.
        self._take_results(call)
        if on_demand is not None:
            on_demand.after(call, pending)
        if index == LOST and memory.limit != UNLIMITED:
            self.predictor.learn(sum([cell.size for cell in call.touched[len(call.reads) :]]))
        # 7. Plan: what is due after this op (copies to the host, releases, drops).
        loop.after(call)
        return call.result

    def _follows(self, index: int) -> bool:
        """Whether op `index` is one of a followed plan that has hints; a plan without any only knows the ops."""
        follower = self.loop.phase.follower
        return index != LOST and follower is not None and follower.hints.count > 0

    def _find_operands(self, call: Call) -> None:
        """Set the cells that an op reads and writes, and its key."""
        memory, kind = self.memory, call.kind
        operands = memory.of(call.operands)
        call.writes = written = memory.of(call.written) if call.written else []
        if kind.overwrites:  # in the order of a trace, reads before writes: a plan finds cells by their place in it
            operands = [*dict.fromkeys([*memory.of(call.read), *written])]
        call.reads = operands if kind.reads_values else []
        phase = self.loop.phase
        # Only a recorder and a follower use the key.
        if phase.iterations is not None or phase.followed is not None:
            call.key = looks(kind.plan_name, [cell.size for cell in call.reads])

    def _expected_bytes(self, index: int, call: Call) -> int:
        """The bytes that an op will allocate: as planned, else as predicted from the shapes of its arguments."""
        follower = self.loop.phase.follower
        if index == LOST or follower is None:
            return 0 if self.memory.limit == UNLIMITED else self.predictor(call.func, call.args, call.kwargs)
        assert isinstance(follower, RecomputingFollower)
        return follower.expected(index, call)

    def _run(self, call: Call) -> Any:
        """Run an op as it was asked for, and let a recorder write it down."""
        run, iterations = call.func, self.loop.phase.iterations
        if not call.kind.repeatable and runs_python(run):  # a kernel in Python may use tensors that are no arguments
            run = partial(NestedOpMode(self.memory, [*call.reads, *call.writes]).run, run)
        try:
            if iterations is None:
                return run(*call.args, **call.kwargs)
            return self._recorded(call, run, iterations)
        except BaseException:
            if call.kind.resizes:
                self.memory.resized(call.written)
            raise

    def _recorded(self, call: Call, run: Callable[..., Any], iterations: IterationRecorder[Cell]) -> Any:
        assert isinstance(iterations, StepRecorder)
        observed, timed = self.loop.observed, iterations.ops.timed
        observed(iterations.ops.before, call)
        result = call.result = timed(run, call.args, call.kwargs) if timed else run(*call.args, **call.kwargs)
        if self.loop.phase.iterations is iterations:  # `before` may have failed, which ends the recording
            observed(iterations.ops.after, call)
        return result

    def _take_results(self, call: Call) -> None:
        """Count what an op made, set `call.touched`, and evict if that is more than was expected."""
        memory, kind, result = self.memory, call.kind, call.result
        if isinstance(result, torch.Tensor):
            made = memory.made(result) if getattr(result, self.is_on_device) else []
        elif isinstance(result, (list, tuple)):
            given = kind.name == PACKED
            made = [cell for tensor in tensors(result, self.device) for cell in memory.made(tensor, given)]
        else:
            made = []
        touched = call.reads
        for cell in made:
            if cell not in touched:
                touched = [*touched, cell]
        call.touched = touched
        if kind.resizes:
            memory.resized(call.written)
        if call.keeps:  # sizes, scales, packed weights: later ops read them without naming them, so they stay
            for cell in [*touched, *call.writes]:
                memory.pin(cell, "a nested or quantized tensor")
        memory.note()
        if memory.held > memory.limit:
            with suppress(LimitError):  # the op has run; the next one that needs more is refused, not this one
                memory.evict_for(0, touched)

    def leave(self) -> None:
        """Run the end of a decorated call, as an op that reads all cells that outlive it."""
        with self.lock:
            memory, loop = self.memory, self.loop
            memory.reap()
            end = IterationEnd([*memory.by_key.values()])
            follower, iterations = loop.phase.follower, loop.phase.iterations
            planned = follower is not None and follower.expects(end.key)
            if planned:
                loop.before(end)
            memory.ensure_resident(end.touched, 0, "what lasts when the step returns")
            if isinstance(iterations, StepRecorder):
                storages = [storage for cell in end.touched if (storage := cell.storage) is not None]
                loop.observed(iterations.ops.touched, LEAVE, storages)
            if planned or loop.phase.iterations is not None:
                loop.after(end)
            loop.boundary()


class IterationEnd:
    """The end of a decorated call, as an op that reads what lasts."""

    key, name = looks(LEAVE, []), LEAVE

    def __init__(self, touched: list[Cell]) -> None:
        self.touched = touched
