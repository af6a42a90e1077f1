"""A recorded step, and the iteration that is cut out of it as a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpumem.base.display import Facts, Shown
from gpumem.base.units import human
from gpumem.simulator.machine import MeasuredTimes
from gpumem.torch.capture.op_recorder import OpRecorder
from gpumem.torch.step.step_context import ARRIVAL, BACKWARD, OPTIMIZER
from gpumem.torch.step.workload import WorkloadError
from gpumem.torch.values.assumed import Assumption
from gpumem.trace import I64, UNKNOWN, Csr, Trace, first
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, INPUT, OPT_TEMP, OTHER, TEMP
from gpumem.trace.record.recording import BEFORE, NEVER, Recording

ALIKE = (
    "a step must do the same each time; record more warm-up if it settles, or iterations=1 for the last one as it is"
)


# Kinds of buffers by the phase that makes them; of other phases it depends on when the buffer dies.
MADE_IN = {ARRIVAL: INPUT, OPTIMIZER: OPT_TEMP, BACKWARD: ACT_GRAD}


def check_alike(made: Recording, bounds: list[tuple[int, int]], phases: list[str]) -> None:
    """Raise WorkloadError unless the last two iterations run the same ops on operands of the same sizes."""
    (lo, hi), (start, end) = bounds[-2:]
    ops, names = made.ops, made.ops.name
    length = min(hi - lo, end - start)
    differ = np.array([names[lo + position] != names[start + position] for position in range(length)], np.bool_)
    for rows in (ops.reads, ops.writes):
        differ |= _sizes(made, rows, lo, length) != _sizes(made, rows, start, length)
    position = first(differ)
    if position < 0 and hi - lo == end - start:
        return
    which = len(bounds) - 2
    if position < 0:
        what = f"{hi - lo} and {end - start} ops"
    else:
        a, b = (f"{names[op]} ({phases[op]})" for op in (lo + position, start + position))
        what = f"op {position} is {a} and {b}" if a != b else f"op {position}, {a}, has operands of other sizes"
    raise WorkloadError(f"iterations {which} and {which + 1} differ: {what}; {ALIKE}")


def _sizes(made: Recording, rows: Csr, lo: int, length: int) -> I64:
    """One number for each op by its operands' sizes in order: the sum of size + 1, times an odd factor by place."""
    own = rows.take(np.arange(lo, lo + length))
    place = np.arange(len(own.idx)) - np.repeat(own.ptr[:-1], np.diff(own.ptr))
    sums = np.zeros(length, np.int64)
    np.add.at(sums, own.rows(), (made.size[own.idx] + 1) * (2 * place + 1))
    return sums


def carried(alloc: I64, free: I64, lo: int, hi: int) -> I64:
    """Blocks that die in `[lo, hi)` and live longer than an iteration, as a state that each step replaces."""
    return np.flatnonzero((alloc < lo) & (alloc >= 0) & (free >= lo) & (free < hi) & (free - alloc >= hi - lo))


def split(made: Recording, blocks: I64, lo: int) -> Recording:
    """Let some blocks end before op `lo`, and others, as large, be there in their stead from it on."""
    count, old = len(made.size), np.arange(len(made.size))
    new = old.copy()
    new[blocks] = count + np.arange(len(blocks))

    def from_then(rows: Csr) -> Csr:
        return Csr(rows.ptr, np.where(rows.rows() >= lo, new[rows.idx], rows.idx))

    ops = made.ops
    pick = [*range(count), *blocks.tolist()]
    free = made.free.copy()
    free[blocks] = lo - 1
    return replace(
        made,
        size=made.size[pick],
        alloc=np.append(made.alloc, np.full(len(blocks), lo)),
        free=np.append(free, made.free[blocks]),
        kind=tuple(made.kind[block] for block in pick),
        name=tuple(made.name[block] for block in pick),
        ops=replace(ops, reads=from_then(ops.reads), writes=from_then(ops.writes)),
        shape=None if made.shape is None else tuple(made.shape[block] for block in pick),
        dtype=None if made.dtype is None else tuple(made.dtype[block] for block in pick),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Captured(Shown):
    """A recorded step.

    Parameters
    ----------
    trace : Trace
        The last iteration.
    recording : Recording
        All iterations, the warm-up included. What lives longer than an iteration and dies in the last one is two
        blocks, of which the second is there from the beginning of that one, as in the trace.
    bounds : tuple of (int, int)
        The ops `[lo, hi)` of each iteration.
    phases : tuple of str
        Of each recorded op: `input`, `forward`, `backward`, `recompute`, `optimizer`.
    kept : int
        Bytes that each iteration leaves behind (losses in a list, still tensors); in the trace they end with it.
    notes : tuple of str
        What a reader of the trace should know: what is kept for good, resized storages.
    assumptions : tuple of Assumption
        What the step asked of values that are not known without running it, and what it was answered.
    """

    trace: Trace
    recording: Recording
    bounds: tuple[tuple[int, int], ...]
    phases: tuple[str, ...]
    kept: int
    notes: tuple[str, ...]
    assumptions: tuple[Assumption, ...] = ()

    def _facts(self) -> Facts:
        return {"": self.trace.name, "ops": self.trace.n, "iterations": len(self.bounds), "kept": human(self.kept)}

    def timed(self, times: MeasuredTimes) -> Captured:
        """Return it with durations where none were measured, as `Machine.timed` does for a trace."""
        ops = self.recording.ops
        ns = times.ops_ns(ops, self.recording.size)
        duration = np.where((ops.duration == UNKNOWN) & ~np.isnan(ns), np.rint(np.nan_to_num(ns)), ops.duration)
        recording = replace(self.recording, ops=replace(ops, duration=duration.astype(np.int64)))
        own = recording.ops.duration[self.trace.ops.of]
        return replace(self, recording=recording, trace=replace(self.trace, ops=replace(self.trace.ops, duration=own)))


def cut(
    recorder: OpRecorder,
    bounds: list[tuple[int, int]],
    name: str,
    *,
    alike: bool = True,
    assumptions: tuple[Assumption, ...] = (),
) -> Captured:
    """Turn what was recorded into a `Captured`, with the last iteration as its trace; `alike`: compare the last two."""
    made = _made(recorder)
    alloc, free = np.array(recorder.maker, np.int64), made.free.copy()
    lo, hi = bounds[-1]
    if alike:
        check_alike(made, bounds, recorder.phase)
    goes_on = carried(alloc, free, lo, hi)
    kept, each = _left_behind(recorder, made, alloc=alloc, free=free, bounds=bounds, goes_on=goes_on)
    for block, begin in kept.items():
        free[block] = next(end for start, end in bounds if begin < end) - 1
    kind, names = _kinds(recorder, alloc, free)
    whole = replace(made, alloc=np.where(alloc < 0, BEFORE, alloc), free=free, kind=kind, name=names)
    recording = split(whole, goes_on, lo).part(0, len(whole.ops))  # without blocks that were freed before the first op
    try:
        trace = recording.iteration(lo, hi, name=name)
    except ValueError as error:
        raise WorkloadError(f"iteration {len(bounds) - 1} cannot be cut out: {error}; {ALIKE}") from error
    notes = _notes(recorder, each, len(bounds) > 1)
    return Captured(
        trace,
        recording,
        bounds=tuple(bounds),
        phases=tuple(recorder.phase),
        kept=each,
        notes=notes,
        assumptions=assumptions,
    )


def cut_alone(
    recorder: OpRecorder, bounds: tuple[int, int], name: str, assumptions: tuple[Assumption, ...] = ()
) -> Captured:
    """Turn one iteration into a trace, whatever the others are like.

    A block that crosses one of its ends lives from the beginning, or until the end, instead.
    """
    made, alloc, (lo, hi) = _made(recorder), np.array(recorder.maker, np.int64), bounds
    kind, names = _kinds(recorder, alloc, made.free)
    whole = replace(made, alloc=np.where(alloc < 0, BEFORE, alloc), kind=kind, name=names)
    part = whole.part(lo, hi)
    comes, goes = part.alloc != BEFORE, part.free != NEVER
    recording = replace(
        part,
        alloc=np.where(goes & ~comes, 0, part.alloc),
        free=np.where(comes & ~goes, hi - lo - 1, part.free),
    )
    trace = recording.iteration(0, hi - lo, name=name)
    notes = _notes(recorder, 0, several=True)
    return Captured(
        trace,
        recording,
        bounds=((0, hi - lo),),
        phases=tuple(recorder.phase[lo:hi]),
        kept=0,
        notes=notes,
        assumptions=assumptions,
    )


def _made(recorder: OpRecorder) -> Recording:
    """The recording of all iterations, with durations where they were measured."""
    recorder.storages.reap()
    made = recorder.recorder.recording()
    made.free[recorder.early] = BEFORE
    return replace(made, ops=replace(made.ops, duration=np.array(recorder.ns, np.int64))) if recorder.ns else made


def _left_behind(
    recorder: OpRecorder, made: Recording, *, alloc: I64, free: I64, bounds: list[tuple[int, int]], goes_on: I64
) -> tuple[dict[int, int], int]:
    """Blocks that the last iteration leaves behind for good, and those like them of earlier ones, with their makers.

    Also how many bytes more there are each time: as many as are made, less what was carried over to end here.
    """
    lo, hi = bounds[-1]
    length = hi - lo
    leaves = np.flatnonzero((alloc >= lo) & (alloc < hi) & (free == NEVER)).tolist()
    short = np.setdiff1d(np.flatnonzero((free >= lo - 1) & (free < hi) & (alloc < lo)), goes_on)
    freed = Counter((int(alloc[block]), int(made.size[block])) for block in short)
    stay: dict[int, int] = {}
    more: Counter[tuple[tuple[int, Any, str], str]] = Counter()
    for block in leaves:
        partner = (int(alloc[block]) - length, int(made.size[block]))
        if freed[partner]:
            freed[partner] -= 1
        else:
            stay[block] = int(alloc[block])
            more[recorder.tensor_of(block), made.ops.name[alloc[block]]] += 1
    more -= Counter((recorder.tensor_of(block), made.ops.name[alloc[block]]) for block in goes_on.tolist())
    touched = {
        block for rows in (made.ops.reads, made.ops.writes) for block in rows.idx[rows.ptr[lo] : rows.ptr[hi]].tolist()
    }
    for block in np.flatnonzero((alloc >= 0) & (alloc < lo) & (free == NEVER)).tolist():
        if block not in touched and more[recorder.tensor_of(block), made.ops.name[alloc[block]]]:
            stay[block] = int(alloc[block])
    return stay, sum(count * tensor[0] for (tensor, _), count in more.items())


def _kinds(recorder: OpRecorder, alloc: I64, free: I64) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What each block is for, and its name where it has one."""
    phase = recorder.phase
    first_backward = _first_backward(phase)
    name = [""] * len(alloc)
    kind = [
        OTHER if begin < 0 else MADE_IN.get(phase[begin]) or (ACTIVATION if end >= first_backward[begin] else TEMP)
        for begin, end in zip(alloc.tolist(), free.tolist())
    ]
    for block, (what, called) in recorder.roles.items():
        kind[block], name[block] = what, called
    return tuple(kind), tuple(name)


def _first_backward(phase: list[str]) -> list[int]:
    """For each op, the first backward op after it."""
    backward = np.where([name == BACKWARD for name in phase], np.arange(len(phase)), len(phase))
    return list(np.minimum.accumulate(backward[::-1])[::-1].tolist())


def _notes(recorder: OpRecorder, kept: int, several: bool) -> tuple[str, ...]:
    notes = []
    if kept:
        each, what = ("each", "tensors in a list") if several else ("the first", "an optimizer's state")
        notes.append(f"{each} iteration keeps {human(kept)} for good ({what}?); in the trace they end with it")
    if recorder.resized:
        notes.append(
            f"storages were resized by {', '.join(dict.fromkeys(recorder.resized))}: each size is a buffer of its own"
        )
    if recorder.unknown:
        notes.append(
            f"flops are not known of {', '.join(recorder.unknown)}: the formula that is registered for it fails"
        )
    return tuple(notes)
