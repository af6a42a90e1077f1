"""Matrix products by tiles in shared memory, one matrix or many.

A block of TILE x TILE threads makes a tile of the result, each thread `share` x `share` numbers of it in registers. Of
TILE steps of the sum after another, the operands are loaded once, into shared memory; while these are multiplied, the
next are on their way from global memory to registers. With a share of 4, a number from shared memory serves four
products, so tiles of 64 x 64 are bound by arithmetic; small results get tiles of 16 x 16, which are more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.numba_cuda import TILE, cuda, device, kernel, spread

_ZERO = np.float32(0)
_ENOUGH = 64  # large tiles that keep a GPU busy: with fewer, small ones on more multiprocessors are faster. Not tuned
_LONGEST = 2**31 - 128  # of a side, since 32 bits say whether an element is inside
_index = np.uint64  # of elements: Numba would ask whether an index with a sign is below 0, to count from the end


@device
def _spots(by_k: Any, side: Any) -> Any:
    """Where in a tile of TILE x side this thread loads first (k, place), and how far its next spot is.

    Neighbouring threads load neighbours along k where that is the contiguous axis, else along the other.
    """
    me = cuda.threadIdx.y * TILE + cuda.threadIdx.x
    return (me % TILE, me // TILE, 0, TILE) if by_k else (me // side, me % side, TILE * TILE // side, 0)


@device
def _fetch(x: Any, at: Any, by_k: Any, by_place: Any, spots: Any, inner: Any, places: Any, into: Any) -> None:
    """Load this thread's part of a tile that begins at x[at]; what is at `inner` or `places` and beyond is 0."""
    k, place, to_k, to_place = spots
    at, hop = at + k * by_k + place * by_place, to_k * by_k + to_place * by_place
    for i in range(len(into)):
        inside = np.int32(k + i * to_k) < np.int32(inner) and np.int32(place + i * to_place) < np.int32(places)
        into[i] = x[_index(at + i * hop)] if inside else _ZERO


@device
def _store(values: Any, spots: Any, tile: Any, at: Any, pitch: Any) -> None:
    """Put what was fetched into the tile that begins at tile[at]."""
    k, place, to_k, to_place = spots
    at, hop = at + k * pitch + place, to_k * pitch + to_place
    for i in range(len(values)):
        tile[_index(at + i * hop)] = values[i]


@device
def _multiply(left: Any, row: Any, right: Any, column: Any, pitch: Any, end: Any, total: Any) -> None:
    """Add the products of TILE steps; rows of both tiles are `pitch` apart."""
    k = _index(0)
    while k < end:  # a range, which Numba counts down, would not be unrolled
        for i in range(len(total)):
            for j in range(len(total)):
                total[i, j] += left[row + k + _index(i)] * right[column + k + _index(j)]
        k += pitch


@device
def _clear(total: Any) -> None:
    for i in range(len(total)):
        for j in range(len(total)):
            total[i, j] = _ZERO


@device
def _write(total: Any, out: Any, batch: Any, row: Any, rows: Any, column: Any, columns: Any) -> None:
    for i in range(len(total)):
        for j in range(len(total)):
            if row + i < rows and column + j < columns:
                out[_index((batch * rows + row + i) * columns + column + j)] = total[i, j]


def _tiled(share: int) -> Any:
    """Return a kernel with tiles of share * TILE rows and columns. Sums have the same order whatever the share."""
    side = share * TILE
    pitch = side + 4  # threads that store down a column meet in a bank by twos only, and rows begin at 16 bytes
    size = TILE * pitch
    both = 2 * size  # one tile is read while the next is stored
    part, step, end = _index(share), _index(pitch), _index(size)

    def product(
        a: Any, a_batch: Any, a_row: Any, a_inner: Any,
        b: Any, b_batch: Any, b_inner: Any, b_column: Any,
        out: Any, batches: Any, sums: Any, rows: Any, columns: Any, inner: Any,
    ) -> None:  # fmt: skip
        left = cuda.shared.array(both, np.float32, alignment=16)
        right = cuda.shared.array(both, np.float32, alignment=16)
        next_a = cuda.local.array(share, np.float32)
        next_b = cuda.local.array(share, np.float32)
        total = cuda.local.array((share, share), np.float32)
        a_spots, b_spots = _spots(a_inner < a_row, side), _spots(b_inner < b_column, side)
        x, y = _index(cuda.threadIdx.x) * part, _index(cuda.threadIdx.y) * part
        across = (columns + side - 1) // side
        tiles = across * ((rows + side - 1) // side)
        steps = sums * ((inner + TILE - 1) // TILE)
        for block in range(cuda.blockIdx.x, batches * tiles, cuda.gridDim.x):  # the same turns for a block's threads
            batch, row, column = block // tiles, block % tiles // across * side, block % across * side
            a_at, b_at = batch * sums * a_batch + row * a_row, batch * sums * b_batch + column * b_column
            _clear(total)
            k, half = 0, 0
            for turn in range(steps + 1):
                if turn < steps:
                    _fetch(a, a_at + k * a_inner, a_inner, a_row, a_spots, inner - k, rows - row, next_a)
                    _fetch(b, b_at + k * b_inner, b_inner, b_column, b_spots, inner - k, columns - column, next_b)
                    k += TILE
                    if k >= inner:
                        k, a_at, b_at = 0, a_at + a_batch, b_at + b_batch
                if turn > 0:
                    other = _index(size - half)
                    _multiply(left, other + y, right, other + x, step, end, total)
                if turn < steps:
                    _store(next_a, a_spots, left, half, pitch)
                    _store(next_b, b_spots, right, half, pitch)
                half = size - half
                cuda.syncthreads()
            _write(total, out, batch, row + np.int64(y), rows, column + np.int64(x), columns)

    product.__name__ = product.__qualname__ = f"_product_{side}"
    return kernel(product)


_PRODUCTS = {share: _tiled(share) for share in (1, 4)}


def share_of(batches: int, rows: int, columns: int) -> int:
    """Return 4 for large tiles where these are enough, and no more than a quarter as many as small ones; else 1.

    >>> share_of(1, 512, 512), share_of(1, 512, 64), share_of(1000, 8, 8), share_of(1000, 17, 17)
    (4, 1, 1, 4)
    """
    large, small = (batches * -(-rows // side) * -(-columns // side) for side in (4 * TILE, TILE))
    return 4 if large >= _ENOUGH and 4 * large <= small else 1


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
    if max(shape) > _LONGEST:
        raise ValueError(f"a product of (rows, columns, inner) = {shape}: no side may be longer than {_LONGEST}")
    share = share_of(batches, rows, columns)
    tiles = batches * -(-rows // (share * TILE)) * -(-columns // (share * TILE))
    counts = [np.int64(n) for n in (batches, sums, *shape)]
    left, right = [[flat, *map(np.int64, strides)] for flat, *strides in (a, b)]
    spread(_PRODUCTS[share], tiles, (TILE, TILE), stream, *left, *right, out, *counts)


def matmul(stream: object, a: Any, b: Any, out: Any, transpose_a: bool = False, transpose_b: bool = False) -> None:
    """Set out (M, N) to op(a) @ op(b), where op(a) is (M, K) and op(b) is (K, N); op transposes or does nothing."""
    rows, columns, inner = _shapes.matmul(a, b, out, transpose_a, transpose_b)
    left = (flat(a), 0, 1, rows) if transpose_a else (flat(a), 0, inner, 1)
    right = (flat(b), 0, 1, inner) if transpose_b else (flat(b), 0, columns, 1)
    product(stream, left, right, flat(out), 1, 1, (rows, columns, inner))


def batched_matmul(
    stream: object, a: Any, b: Any, out: Any, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """As in `reference`."""
    batches, rows, columns, inner = _shapes.batched_matmul(a, b, out, transpose_a, transpose_b)
    stride_a, stride_b = (size if len(x.shape) == 3 else 0 for x, size in ((a, rows * inner), (b, inner * columns)))
    left = (flat(a), stride_a, 1, rows) if transpose_a else (flat(a), stride_a, inner, 1)
    right = (flat(b), stride_b, 1, inner) if transpose_b else (flat(b), stride_b, columns, 1)
    results, sums = (batches, 1) if len(out.shape) == 3 else (1, batches)
    product(stream, left, right, flat(out), results, sums, (rows, columns, inner))
