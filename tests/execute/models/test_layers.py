"""Single layers, those of a transformer too: which kernels they take, what they compute, where ways part and meet."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.execute.models import Graph, Tensor, transformer
from gpumem.execute.models.layers import average_pool, conv2d, dense, relu, skip
from gpumem.execute.models.transformer import self_attention
from tests.execute.models.training import train


def test_winograd_is_for_small_windows_that_move_by_one_and_not_for_weights() -> None:
    graph = Graph()
    x = graph.constant("x", np.ones((2, 3, 8, 8), np.float32))
    y = conv2d(graph, "first", x, 4, kind="winograd")
    y = conv2d(graph, "second", y, 4, size=1, kind="winograd")
    y = conv2d(graph, "third", y, 4, stride=2, kind="winograd")
    graph.backward(y)
    model = graph.model("three")
    names = [op.name for op in model.trace.ops if op.name.startswith("conv2d")]
    back = ["conv2d_weight_gradient", "conv2d_input_gradient"]
    assert names == ["conv2d_winograd", "conv2d", "conv2d", *back, *back, "conv2d_weight_gradient"]
    assert [name for op in range(model.trace.n) for name in model.workspaces(op) if "wino" in name] == [
        "conv2d_winograd"
    ]


@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_a_gradient_is_copied_only_where_a_layer_changes_it_in_place(drop: float) -> None:
    ops = transformer(batch=2, length=4, blocks=3, drop=drop).trace.ops
    assert [op.name for op in ops].count("copy") == (6 if drop else 0)


def test_what_takes_two_ways_is_not_changed_in_place() -> None:
    graph = Graph()
    h = dense(graph, "h", graph.constant("x", np.ones((2, 3), np.float32)), 3)
    with pytest.raises(ValueError, match="two: a layer works in place on h, which others take as well"):
        skip(graph, "two", h, lambda h: relu(graph, h))
    with pytest.raises(ValueError, match=r"two: the branch makes \(2, 4\), what it is added to is \(2, 3\)"):
        skip(graph, "two", h, lambda h: dense(graph, "wide", h, 4))
    with pytest.raises(ValueError, match=r"a: x has the shape \(2, 3\), expected a multiple of length, 2, by .* 2"):
        self_attention(graph, "a", h, length=2, heads=2)
    with pytest.raises(ValueError, match="pool: 2 x 3 is not square, so it needs a size"):
        average_pool(graph, "pool", Tensor("image", (1, 1, 2, 3)))


def test_self_attention_is_that_of_each_head_and_sequence() -> None:
    graph, x = Graph(seed=3), np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    y = self_attention(graph, "a", graph.constant("x", x), length=3, heads=2)  # two sequences of three places
    graph.op("copy", [y], graph.constant("kept", np.zeros((6, 4), np.float32)))
    state = train(graph.model("attention"), 1)
    expected = np.zeros((6, 4))
    for head in range(2):
        q, k, v = (x @ state[f"a.{what}.w"][head] for what in "qkv")
        for t in range(6):
            before = slice(t // 3 * 3, t + 1)  # of the same sequence
            weights = np.exp(k[before] @ q[t] / 2**0.5)
            expected[t] += weights @ v[before] / weights.sum() @ state["a.o.w"][head]
    np.testing.assert_allclose(state["kept"], expected, 1e-4, 1e-5)
