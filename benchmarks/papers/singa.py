"""What SINGA's layers keep for their backward pass, where PyTorch's ops keep something else.

SmartPool and AutoSwap were measured in SINGA, our traces were recorded in PyTorch. SINGA's sources
(`src/model/layer/cudnn_*.cc`, version 1) say what differs in what is held from the forward to the backward pass, and
how it sets up CnMem, which the papers' figures are compared with.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.pool import CnMem
from gpumem.trace import UNKNOWN, Csr, Trace
from gpumem.trace.kinds import ACTIVATION

MIB = 2**20
BITS = 8  # of a byte: cuDNN's dropout reserves a bit where PyTorch's mask has a byte
CNMEM_POOL = 256 * MIB  # `CnMemPool(numDevices = 1, init_size = 256, ...)`, in include/singa/core/memory.h


def cnmem() -> CnMem:
    """Return CnMem as SINGA sets it up: a pool of 256 MiB, which grows by blocks that never merge with one another.

    >>> pool = cnmem()
    >>> _ = pool.allocate(300 * MIB)
    >>> pool.statistics.reserved.peak // MIB
    556
    """
    return CnMem(pool=CNMEM_POOL)


@strict
def as_singa(trace: Trace) -> Trace:
    """Rewrite an iteration of PyTorch to hold what SINGA's layers hold.

    A ReLU writes a buffer of its own and keeps its input, which its backward op reads (`cudnn_activation.cc`). Max
    pooling keeps its input and output, and no indices (`cudnn_pooling.cc`). A dropout's mask has a bit an element
    (`cudnn_dropout.cc`, cuDNN's reserve space).

    Parameters
    ----------
    trace : Trace
        Recorded in PyTorch: ops `relu`, `relu_`, `threshold_backward`, `max_pool2d_with_indices`, `native_dropout` and
        their backward ops, at most one ReLU in place a buffer.

    Returns
    -------
    Trace
        The same ops. A ReLU in place has a buffer more; buffers of indices have no bytes.

    Notes
    -----
    SINGA's convolutions also keep their workspace as long as the layer lives, each its own; that is left out.
    O(ops + accesses) a ReLU in place.

    Examples
    --------
    >>> from gpumem import bundled
    >>> before = bundled("vgg16")
    >>> before.peak_live_bytes, as_singa(before).peak_live_bytes
    (484472336, 494507536)
    """
    return _masks_in_bits(_without_indices(_relus_keep_inputs(trace)))


def _named(trace: Trace, *stems: str) -> list[int]:
    return [i for i, name in enumerate(trace.ops.name) if name.partition(".")[0] in stems]


def _relus_keep_inputs(trace: Trace) -> Trace:
    b, ops = trace.buffers, trace.ops
    reads, writes = ops.reads.tolist(), ops.writes.tolist()
    back = {reads[j][1]: j for j in _named(trace, "threshold_backward")}  # by what PyTorch keeps: the output
    kept = {i: back[writes[i][0]] for i in _named(trace, "relu", "relu_") if writes[i][0] in back}
    fresh = {i: len(b) + k for k, i in enumerate(i for i in kept if reads[i][0] == writes[i][0])}
    buffers = b.take(np.append(np.arange(len(b)), np.array([writes[i][0] for i in fresh], np.int64)))
    buffers.of[len(b) :] = UNKNOWN
    end, kind = buffers.end, list(buffers.kind)
    for i, own in fresh.items():
        old, writes[i], buffers.start[own] = writes[i][0], [own], i
        for k in range(i + 1, trace.n):
            reads[k], writes[k] = ([own if j == old else j for j in row] for row in (reads[k], writes[k]))
    last = np.zeros(len(buffers), np.int64)
    for i, j in kept.items():
        kept_input, reads[j] = reads[i][0], [reads[j][0], reads[i][0]]
        end[kept_input], kind[kept_input] = j + 1, ACTIVATION
    for k, row in enumerate(zip(reads, writes)):
        last[[*row[0], *row[1]]] = k
    for i in kept:
        end[writes[i][0]] = last[writes[i][0]] + 1
    changed = replace(ops, reads=Csr.of(reads), writes=Csr.of(writes))
    return Trace(replace(buffers, kind=tuple(kind)), changed, name=trace.name)


def _without_indices(trace: Trace) -> Trace:
    """Max pooling's backward op reads the output where it read the indices."""
    b, reads = trace.buffers, trace.ops.reads.tolist()
    pools = {out[1]: out[0] for out in (trace.ops.writes[i].tolist() for i in _named(trace, "max_pool2d_with_indices"))}
    size, end = b.size.copy(), b.end.copy()
    for j in _named(trace, "max_pool2d_with_indices_backward"):
        indices = next(buffer for buffer in reads[j] if buffer in pools)
        end[pools[indices]] = max(end[pools[indices]], j + 1)
        reads[j] = [*reads[j], pools[indices]]
        size[indices] = 0
    return Trace(replace(b, size=size, end=end), replace(trace.ops, reads=Csr.of(reads)), name=trace.name)


def _masks_in_bits(trace: Trace) -> Trace:
    size = trace.buffers.size.copy()
    for i in _named(trace, "native_dropout"):
        mask = trace.ops.writes[i].tolist()[1]
        size[mask] = -(-size[mask] // BITS)
    return Trace(replace(trace.buffers, size=size), trace.ops, name=trace.name)
