"""Attention, not fused: the products, the softmax and its gradient one after another, the weights kept in between."""

from __future__ import annotations

from typing import Any

from gpumem.kernels import shapes as _shapes
from gpumem.kernels.batched_matmul import batched_matmul
from gpumem.kernels.device.matmul import flat, product
from gpumem.kernels.device.transformer import rows_gradient, softmax


def attention(stream: object, q: Any, k: Any, v: Any, out: Any, probs: Any, causal: bool = False) -> None:
    """As in `reference`; three kernels."""
    *_, width = _shapes.attention({"q": q, "out": out}, {"k": k, "v": v}, probs)
    batched_matmul(stream, q, k, probs, transpose_b=True)
    softmax(stream, probs, probs, width**-0.5, causal)
    batched_matmul(stream, probs, v, out)


def attention_gradient(
    stream: object, dy: Any, q: Any, k: Any, v: Any, probs: Any, dq: Any, dk: Any, dv: Any, workspace: Any
) -> None:
    """As in `reference`; five kernels."""
    like_q, like_k = {"q": q, "dy": dy, "dq": dq}, {"k": k, "v": v, "dk": dk, "dv": dv}
    groups, rows, columns, width = _shapes.attention(like_q, like_k, probs)
    _shapes.workspace(workspace, _shapes.size(probs))
    batched_matmul(stream, probs, dy, dv, transpose_a=True)
    slopes = workspace, rows * columns  # the gradient by the weights, then by the scores
    left, right = (flat(dy), rows * width, width, 1), (flat(v), columns * width, 1, width)
    product(stream, left, right, workspace, groups, 1, (rows, columns, width))
    rows_gradient(stream, flat(probs), workspace, workspace, columns, width**-0.5)
    right = flat(k), columns * width, width, 1
    product(stream, (*slopes, columns, 1), right, flat(dq), groups, 1, (rows, width, columns))
    right = flat(q), rows * width, width, 1
    product(stream, (*slopes, 1, columns), right, flat(dk), groups, 1, (columns, width, rows))
