"""Another batch size: what a recorded iteration would hold and take, and the largest at which something holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from gpumem.base.arguments import at_least, strict
from gpumem.trace.buffers import Buffers, Shape
from gpumem.trace.columns import F64, I64, UNKNOWN, Bool, int_column
from gpumem.trace.kinds import INPUT, PER_SAMPLE
from gpumem.trace.trace import Trace

# Batches of one octave of the grid, beyond the first that are exact: steps of at most 3 %. Not tuned.
FINE = 32
MOST = 2**20  # the largest batch that is looked at: so that a search ends where nothing grows


@strict
def rebatch(trace: Trace, factor: float, *, batch: int | None = None) -> Trace:
    """Rewrite a trace to a batch `factor` times as large.

    Parameters
    ----------
    trace : Trace
        Its buffers say by their kind whether they depend on the batch: those of `kinds.PER_SAMPLE` do.
    factor : float
        Of the batch size, above 0; 1 changes nothing.
    batch : int, optional
        The batch size that the trace was recorded with. Where it is given, shapes have the last word: of the buffers of
        these kinds, those grow that have a dimension which is a multiple of it; a loss, a mask, positions, the
        statistics of a channel do not.

    Returns
    -------
    Trace
        The same ops and lifetimes. Sizes of buffers that depend on the batch are `factor` times as large, rounded
        to whole bytes, and at least 1 where they were. So is one dimension of their shapes, where it stays whole: the
        first that is the batch (that which most inputs have first, where it is not given), or else the first that is a
        multiple of it; a shape without one is not known any more.

    Raises
    ------
    ValueError
        A factor that is not positive and finite, a trace in which nothing depends on the batch; one that grows
        beyond what a trace may hold.

    Notes
    -----
    A model, not a recording. An op that touches what depends on the batch does `factor` times the flops, and takes
    `factor` times as long where its duration was measured, launch included. The bytes that it moves grow as the buffers
    that it touches do, so weights are read as before. Other ops, as those of an optimizer, stay as they are. What a
    framework decides by size (an algorithm, an accuracy) is not in it: give a trace its workspaces afterwards.

    With `batch`, it equals the recording at the other batch size in ops, lifetimes, sizes, shapes and flops, if no
    other dimension is a multiple of the batch (record with a prime one), none grows with its square, and the step does
    the same at both. Bytes moved are near: an op may read a part of a buffer, or twice. Without it, what does not grow
    is taken too large; most of that is small.
    O(B + accesses).

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> [round(rebatch(trace, factor).peak_live_bytes / trace.peak_live_bytes, 2) for factor in (0.5, 1, 2)]
    [0.67, 1.0, 1.68]
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: {factor} is not positive and finite")
    at_least(1, batch=batch)
    old, ops = trace.buffers, trace.ops
    if not any(kind in PER_SAMPLE for kind in old.kind):
        raise ValueError(
            f"trace {trace.name!r}: no buffer is of a kind that depends on the batch ({', '.join(sorted(PER_SAMPLE))})"
        )
    grows, shape = _growth(old, factor, batch)
    buffers = replace(old, size=_times(old.size, factor, grows), shape=shape)
    touched = trace.accesses().op
    row = touched.rows()
    of_batch = np.zeros(len(ops), np.bool_)
    of_batch[touched.idx[grows[row]]] = True
    before, after = (np.bincount(touched.idx, size[row], len(ops)) for size in (old.size, buffers.size))
    rate: F64 = np.divide(after, before, out=np.ones(len(ops)), where=before > 0)
    changed = replace(
        ops,
        flops=np.where(of_batch, ops.flops * factor, ops.flops),
        moved=ops.moved * rate,
        duration=_times(ops.duration, factor, of_batch & (ops.duration != UNKNOWN)),
    )
    return Trace(buffers, changed, trace.n, name=trace.name)


def _growth(buffers: Buffers, factor: float, batch: int | None) -> tuple[Bool, tuple[Shape | None, ...] | None]:
    """Which buffers grow, and the shapes that come of it."""
    grows = np.array([kind in PER_SAMPLE for kind in buffers.kind], np.bool_)
    if buffers.shape is None:
        return grows, None
    shape_ = list(buffers.shape)
    one = batch or _first_of_inputs(buffers)
    for buffer in np.flatnonzero(grows).tolist():
        if shape := buffers.shape[buffer]:
            at = _dimension(shape, one)
            grows[buffer] = batch is None or at is not None
            shape_[buffer] = _longer(shape, factor, at) if grows[buffer] else shape
        elif shape == ():
            grows[buffer] = batch is None
    return grows, tuple(shape_)


@strict
def recorded_batch(trace: Trace) -> int:
    """Return the batch size that a trace was recorded with: the first dimension of most inputs.

    Raises a ValueError where no input has a shape.

    >>> from gpumem.io import bundled
    >>> recorded_batch(bundled("vgg16"))
    100
    """
    if not (batch := _first_of_inputs(trace.buffers)):
        raise ValueError(f"trace {trace.name!r:.60}: no input has a shape that says the batch")
    return batch


def _first_of_inputs(buffers: Buffers) -> int:
    """The first dimension of most inputs; 0 where there are none."""
    inputs = Counter(shape[0] for kind, shape in zip(buffers.kind, buffers.shape or ()) if kind == INPUT and shape)
    return max(inputs, key=inputs.__getitem__, default=0)


def _dimension(shape: Shape, batch: int) -> int | None:
    """The first dimension that is the batch, or else the first that is a multiple of it."""
    if not batch:
        return None
    shape_ = [axis for axis, extent in enumerate(shape) if extent == batch] or [
        axis for axis, extent in enumerate(shape) if extent and extent % batch == 0
    ]
    return shape_[0] if shape_ else None


def _longer(shape: Shape, factor: float, at: int | None) -> Shape | None:
    """Multiply a dimension; None where there is none, or it does not stay whole."""
    if at is None or not math.isclose(round(shape[at] * factor), shape[at] * factor):
        return None
    return (*shape[:at], round(shape[at] * factor), *shape[at + 1 :])


def _times(values: I64, factor: float, which: Bool) -> I64:
    """Multiply some of the values exactly and round; what is above 0 stays above 0."""
    exact = Fraction(factor)
    whole = [
        max(round(value * exact), min(value, 1)) if grows else value
        for value, grows in zip(values.tolist(), which.tolist())
    ]
    return int_column(whole, f"{factor} times the batch")


def batch_of(place: int) -> int:
    """Return the k-th batch of the grid: all to 64, then 32 between a power of two and the next.

    >>> [batch_of(k) for k in (1, 63, 64, 65, 96, 97)]
    [1, 63, 64, 66, 128, 132]
    """
    octave = max(place // FINE - 1, 0)
    return (place - octave * FINE) << octave


def place_of(batch: int) -> int:
    """Return the last place of the grid whose batch is at most `batch`.

    >>> [batch_of(place_of(b)) for b in (1, 63, 65, 131)]
    [1, 63, 64, 128]
    """
    octave = step_at(batch).bit_length() - 1
    return (batch >> octave) + octave * FINE


def step_at(batch: int) -> int:
    """Return how far apart batches of the grid are at `batch`.

    >>> step_at(63), step_at(64), step_at(130)
    (1, 2, 4)
    """
    return 1 << max(batch.bit_length() - FINE.bit_length(), 0)


def largest(holds: Callable[[int], bool], start: int, *, exact: bool = False) -> int:
    """Return the largest batch of the grid that holds, 0 where not even 1 does, `MOST` at most.

    With `exact` the largest of all batches. That whatever holds at a batch holds at smaller ones is assumed; O(log)
    calls, by octaves from `start` on and then by halves.

    >>> [largest(lambda batch: batch <= most, 32) for most in (0, 1, 31, 100, 101, 10**9)]
    [0, 1, 31, 100, 100, 1048576]
    >>> largest(lambda batch: batch <= 101, 32, exact=True)
    101
    """
    low, high = place_of(min(max(start, 1), MOST)), 0
    while low and not holds(batch_of(low)):
        low, high = max(low - FINE, 0), low
    while not high:
        if low == place_of(MOST):
            return MOST
        above = min(low + FINE, place_of(MOST))
        low, high = (above, 0) if holds(batch_of(above)) else (low, above)
    shape_ = batch_of(_last(lambda place: holds(batch_of(place)), low, high))
    return _last(holds, shape_, shape_ + step_at(shape_)) if exact and shape_ else shape_


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number at which something holds that does at `low` and not at `high`, by halves."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
