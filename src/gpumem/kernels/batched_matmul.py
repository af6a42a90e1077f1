"""Products of many matrices in one op; what is one matrix for all is repeated, what is one result of all is summed."""

from __future__ import annotations

from typing import Any

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.device.matmul import flat, product


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
