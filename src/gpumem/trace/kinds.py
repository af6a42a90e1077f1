"""What buffers are for, as recorded traces and models name it, and what follows from that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpumem.trace.csr import Csr
from gpumem.trace.ops import Ops

# Kinds of buffers, as recorded traces and models name them; a trace may have others, or none.
PARAM = "param"  # a weight
STATISTICS = "buffer"  # what a layer keeps from iteration to iteration besides weights
OPT_STATE = "opt_state"  # the same for an optimizer
INPUT = "input"  # the batch
ACTIVATION = "activation"  # made in the forward pass and alive in the backward pass: feature maps
TEMP = "temp"  # made and gone in the forward pass
GRADIENT = "gradient"  # of a weight
ACT_GRAD = "act_grad"  # whatever else the backward pass makes
OPT_TEMP = "opt_temp"  # made while weights are updated
OTHER = "other"  # made before the recording, and nobody knows what for
WORKSPACE = "workspace"  # what one op needs only while it runs
GENERATOR = "generator"  # where a random op was in its stream of numbers, kept on the host for its recomputations
GENERATOR_BYTES = 16  # of a CUDA generator: its seed and its offset, 8 bytes each
PER_SAMPLE = frozenset({INPUT, ACTIVATION, TEMP, ACT_GRAD})  # each sample of a batch has its own


def statistics_by_kind(kind: Sequence[str], ops: Ops) -> Csr:
    """Return the statistics of each op as `Trace.statistics` tells them by kind: of each buffer, in `kind`."""
    kept = np.array([entry == STATISTICS for entry in kind], np.bool_)
    written, count = kept[ops.writes.idx], max(len(kept), 1)
    beside = np.zeros(len(ops), np.bool_)
    result = np.array([entry not in (STATISTICS, WORKSPACE) for entry in kind], np.bool_)
    beside[ops.writes.rows()[result[ops.writes.idx]]] = True
    chosen = (ops.reads, kept[ops.reads.idx]), (ops.writes, written)
    read, write = (rows.rows()[own] * count + rows.idx[own] for rows, own in chosen)
    both = np.intersect1d(read, write)
    op, buffer = np.divmod(both, count)
    return Csr.grouped(op[beside[op]], buffer[beside[op]], len(ops))


def recorded_statistics(given: Sequence[Sequence[int] | None], kind: Sequence[str], ops: Ops) -> Csr | None:
    """Return the statistics of each op: those told of it, else by kind; None where nothing is told of any op."""
    known = len(kind) > max(ops.reads.idx.max(initial=-1), ops.writes.idx.max(initial=-1))  # else refused later
    if all(row is None for row in given) or not known:
        return None
    by_kind = statistics_by_kind(kind, ops).tolist()
    return Csr.of([inferred if row is None else row for row, inferred in zip(given, by_kind)], "ops: statistics")
