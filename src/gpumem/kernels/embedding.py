"""Rows of a table by number, and the sums of what comes back for each row."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.numba_cuda import block_each, cuda, kernel

_ZERO, _NAN = np.float32(0), np.float32(np.nan)


@kernel
def _embedding(table: Any, ids: Any, out: Any) -> None:
    rows, columns = table.shape
    for n in range(cuda.blockIdx.x, ids.size, cuda.gridDim.x):
        row = ids[n]
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            out[n, c] = table[row, c] if 0 <= row < rows else _NAN


@kernel
def _embedding_gradient(dy: Any, ids: Any, dtable: Any) -> None:
    rows, columns = dtable.shape
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):  # a block looks for its row among the ids, in their order
        for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            dtable[row, c] = _ZERO
        for n in range(ids.size):
            if ids[n] == row:
                for c in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
                    dtable[row, c] += dy[n, c]


def embedding(stream: object, table: Any, ids: Any, out: Any) -> None:
    """As in `reference`."""
    _shapes.embedding("table", table, ids, "out", out)
    block_each(_embedding, *out.shape, stream, table, ids, out)


def embedding_gradient(stream: object, dy: Any, ids: Any, dtable: Any) -> None:
    """As in `reference`; without atomics, so the order of each sum is that of the ids."""
    _shapes.embedding("dtable", dtable, ids, "dy", dy)
    block_each(_embedding_gradient, *dtable.shape, stream, dy, ids, dtable)
