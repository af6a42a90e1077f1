"""Matrix products by tiles in shared memory, one matrix or many."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import _shapes
from gpumem.kernels._numba import TILE, cuda, device, kernel, launch

_ZERO = np.float32(0)


@device
def _load(x: Any, index: Any, inside: Any) -> Any:
    return x[index] if inside else _ZERO


@kernel
def _product(
    a: Any, a_batch: Any, a_row: Any, a_inner: Any,
    b: Any, b_batch: Any, b_inner: Any, b_column: Any,
    out: Any, batches: Any, sums: Any, rows: Any, columns: Any, inner: Any,
) -> None:  # fmt: skip
    left = cuda.shared.array((TILE, TILE), np.float32)
    right = cuda.shared.array((TILE, TILE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    across = (columns + TILE - 1) // TILE
    tiles = across * ((rows + TILE - 1) // TILE)
    for block in range(cuda.blockIdx.x, batches * tiles, cuda.gridDim.x):  # the same turns for all threads of a block
        batch = block // tiles
        row = block % tiles // across * TILE + y
        column = block % across * TILE + x
        total = _ZERO
        for term in range(batch * sums, batch * sums + sums):
            for k in range(0, inner, TILE):
                at = term * a_batch + row * a_row + (k + x) * a_inner
                left[y, x] = _load(a, at, row < rows and k + x < inner)
                at = term * b_batch + (k + y) * b_inner + column * b_column
                right[y, x] = _load(b, at, k + y < inner and column < columns)
                cuda.syncthreads()
                for i in range(TILE):
                    total += left[y, i] * right[i, x]
                cuda.syncthreads()
        if row < rows and column < columns:
            out[(batch * rows + row) * columns + column] = total


def flat(x: Any) -> Any:
    """Return an array's elements one after another."""
    return x.reshape(_shapes.size(x))


def product(
    stream: object,
    a: tuple[Any, int, int, int],
    b: tuple[Any, int, int, int],
    out: Any,
    batches: int,
    sums: int,
    shape: tuple[int, int, int],
) -> None:
    """Set each of `batches` matrices to the sum of `sums` products of shape (rows, columns, inner).

    Arrays are flat. a comes with its strides from product to product, by row and by inner index; b with those from
    product to product, by inner index and by column. Swapped strides transpose, a first stride of 0 repeats.
    """
    rows, columns, _ = shape
    tiles = batches * -(-rows // TILE) * -(-columns // TILE)
    counts = [np.int64(n) for n in (batches, sums, *shape)]
    left, right = [[flat, *map(np.int64, strides)] for flat, *strides in (a, b)]
    launch(_product, tiles, (TILE, TILE), stream, *left, *right, out, *counts)


def matmul(stream: object, a: Any, b: Any, out: Any, transpose_a: bool = False, transpose_b: bool = False) -> None:
    """Set out (M, N) to op(a) @ op(b), where op(a) is (M, K) and op(b) is (K, N); op transposes or does nothing."""
    rows, columns, inner = _shapes.matmul(a, b, out, transpose_a, transpose_b)
    left = (flat(a), 0, 1, rows) if transpose_a else (flat(a), 0, inner, 1)
    right = (flat(b), 0, 1, inner) if transpose_b else (flat(b), 0, columns, 1)
    product(stream, left, right, flat(out), 1, 1, (rows, columns, inner))
