"""Layers of transformers. Sequences of one length lie one after another: a row of numbers for each place in each."""

from __future__ import annotations

from math import prod

import numpy as np

from gpumem.execute.models.graph import FLOAT, Graph, Tensor
from gpumem.execute.models.layers import Layer, fork


def embedding(graph: Graph, name: str, ids: Tensor, vocabulary: int, width: int) -> Tensor:
    """Return a row of a learned table for each of the ids, int32 (rows,): (rows, width)."""
    table = graph.parameter(f"{name}.w", (vocabulary, width), fan_in=2)
    y = graph.op("embedding", [table, ids], Tensor(name, (*ids.shape, width)))

    def back(dy: Tensor) -> None:
        graph.learn(table, graph.op("embedding_gradient", [dy, ids], table.gradient()))

    graph.tape.append(back)
    return y


def positions(graph: Graph, name: str, x: Tensor, length: int) -> Tensor:
    """Add learned numbers for each place to sequences of that length, in place."""
    rows, width = x.shape
    flat = rows // length, length * width  # one number for each "channel", as a bias has
    w = graph.parameter(f"{name}.w", (length, width), fan_in=2)
    whole = x.reshape(*flat)
    graph.op("bias", [whole, w.reshape(flat[1])], whole)

    def back(dy: Tensor) -> Tensor:
        dw = w.gradient()
        graph.op("bias_gradient", [dy.reshape(*flat)], dw.reshape(flat[1]))
        graph.learn(w, dw)
        return dy

    graph.tape.append(back)
    return x


def layer_norm(graph: Graph, name: str, x: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return `x`, (rows, width), with each row normalised, then scaled and shifted column by column."""
    rows, width = x.shape
    gamma = graph.constant(f"{name}.gamma", np.ones(width, FLOAT), "parameter")
    beta = graph.parameter(f"{name}.beta", (width,))
    saved = Tensor(f"{name}.mean", (rows,)), Tensor(f"{name}.inverse_std", (rows,))
    y = Tensor(name, x.shape)
    graph.op("layer_norm", [x, gamma, beta], y, *saved, epsilon=epsilon)

    def back(dy: Tensor) -> Tensor | None:
        dx, dgamma, dbeta = x.gradient(), gamma.gradient(), beta.gradient()
        graph.op("layer_norm_gradient", [dy, x, gamma, *saved], dx, dgamma, dbeta)
        graph.learn(gamma, dgamma)
        graph.learn(beta, dbeta)
        return None if x.value is not None else dx

    graph.tape.append(back)
    return y


def gelu(graph: Graph, name: str, x: Tensor) -> Tensor:
    """Return the Gaussian error linear unit of `x`, which is kept: its gradient asks for it."""
    y = graph.op("gelu", [x], Tensor(name, x.shape))
    graph.tape.append(lambda dy: graph.op("gelu_gradient", [x, dy], dy))
    return y


def self_attention(graph: Graph, name: str, x: Tensor, length: int, heads: int, *, causal: bool = True) -> Tensor:
    """Return attention of sequences to themselves, (rows, width), by `heads` heads of `width / heads` numbers each.

    With `causal` no place looks at a later one.
    """
    rows, width = x.shape
    if width % heads or rows % length:
        wanted = f"expected a multiple of length, {length}, by one of heads, {heads}"
        raise ValueError(f"{name}: x has the shape {x.shape}, {wanted}")
    depth, groups = width // heads, heads * rows // length
    apart, whole = (heads, rows, depth), (groups, length, depth)  # the same numbers in the same order
    probs, seen = Tensor(f"{name}.probs", (groups, length, length)), Tensor(f"{name}.seen", apart)
    floats = prod(probs.shape)
    work = 4.0 * depth * floats

    def project(what: str) -> Layer:
        return lambda x: _products(graph, f"{name}.{what}", x, (heads, width, depth), apart)

    ends, tapes = fork(graph, name, x, [project(what) for what in "qkv"])
    read = [end.reshape(*whole) for end in ends]
    into = seen.reshape(*whole)
    graph.op("attention", read, into, probs, flops=work, causal=causal)

    def back(dy: Tensor) -> Tensor | None:
        slopes, workspaces = [t.gradient() for t in read], {"attention_gradient": floats}
        reads = [dy.reshape(*whole), *read, probs]
        graph.op("attention_gradient", reads, *slopes, flops=2 * work, workspaces=workspaces)
        total: Tensor | None = None
        for slope, tape in zip(slopes, tapes):
            dx = graph.backward(slope.reshape(*apart), tape)
            total = dx if total is None or dx is None else graph.op("add", [total, dx], total)
        return total

    graph.tape.append(back)
    return _products(graph, f"{name}.o", seen, (heads, depth, width), x.shape)


def _products(graph: Graph, name: str, x: Tensor, w_shape: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """Return the product with a learned matrix for each head: x or the result has no heads, and so is the same for all
    or the sum of all, on the way back the other way round."""
    w = graph.parameter(f"{name}.w", w_shape, fan_in=w_shape[1])
    work = 2.0 * prod(w_shape) * shape[-2]
    y = graph.op("batched_matmul", [x, w], Tensor(name, shape), flops=work)

    def back(dy: Tensor) -> Tensor | None:
        graph.learn(w, graph.op("batched_matmul", [x, dy], w.gradient(), flops=work, transpose_a=True))
        if x.value is not None:
            return None
        return graph.op("batched_matmul", [dy, w], x.gradient(), flops=work, transpose_b=True)

    graph.tape.append(back)
    return y
