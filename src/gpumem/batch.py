"""Another batch size: what a recorded iteration would hold and take, if nothing but the batch were larger."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np

from gpumem._strict import strict
from gpumem.columns import F64, I64, UNKNOWN, Bool, Buffers, Shape, int_column
from gpumem.kinds import INPUT, PER_SAMPLE
from gpumem.trace import Trace


@strict
def rebatch(trace: Trace, factor: float) -> Trace:
    """Rewrite a trace to a batch `factor` times as large.

    Parameters
    ----------
    trace : Trace
        Its buffers say by their kind whether they depend on the batch: those of `kinds.PER_SAMPLE` do.
    factor : float
        Of the batch size, above 0; 1 changes nothing.

    Returns
    -------
    Trace
        The same ops and lifetimes. Sizes of buffers that depend on the batch are `factor` times as large, rounded
        to whole bytes, and at least 1 where they were. So is the first dimension of their shapes where that is a
        multiple of the batch, which most inputs have first, and stays whole; else the shape is not known any more.

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
    O(B + accesses).

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> [round(rebatch(trace, factor).peak_load / trace.peak_load, 2) for factor in (0.5, 1, 2)]
    [0.67, 1.0, 1.68]
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: {factor} is not positive and finite")
    b, ops = trace.buffers, trace.ops
    grows = np.array([kind in PER_SAMPLE for kind in b.kind], np.bool_)
    if not grows.any():
        raise ValueError(
            f"trace {trace.name!r}: no buffer is of a kind that depends on the batch ({', '.join(sorted(PER_SAMPLE))})"
        )
    buffers = replace(b, size=_times(b.size, factor, grows), shape=_longer(b, factor, grows))
    touched = trace.accesses().op
    row = touched.rows()
    of_batch = np.zeros(len(ops), np.bool_)
    of_batch[touched.idx[grows[row]]] = True
    before, after = (np.bincount(touched.idx, size[row], len(ops)) for size in (b.size, buffers.size))
    rate: F64 = np.divide(after, before, out=np.ones(len(ops)), where=before > 0)
    changed = replace(
        ops,
        flops=np.where(of_batch, ops.flops * factor, ops.flops),
        moved=ops.moved * rate,
        duration=_times(ops.duration, factor, of_batch & (ops.duration != UNKNOWN)),
    )
    return Trace(buffers, changed, trace.n, name=trace.name)


def _longer(b: Buffers, factor: float, which: Bool) -> tuple[Shape | None, ...] | None:
    """Multiply the first dimension of some of the shapes, where it is a multiple of the batch; a scalar stays one."""
    if b.shape is None:
        return None
    found = list(b.shape)
    inputs = Counter(shape[0] for kind, shape in zip(b.kind, b.shape) if kind == INPUT and shape)
    batch = max(inputs, key=inputs.__getitem__, default=0)
    for j in np.flatnonzero(which).tolist():
        if shape := b.shape[j]:
            first = round(shape[0] * factor)
            whole = batch > 0 and shape[0] % batch == 0 and math.isclose(first, shape[0] * factor)
            found[j] = (first, *shape[1:]) if whole else None
    return tuple(found)


def _times(values: I64, factor: float, which: Bool) -> I64:
    """Multiply some of the values exactly and round; what is above 0 stays above 0."""
    exact = Fraction(factor)
    whole = [max(round(v * exact), min(v, 1)) if w else v for v, w in zip(values.tolist(), which.tolist())]
    return int_column(whole, f"{factor} times the batch")
