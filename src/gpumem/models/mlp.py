"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.models.graph import Graph, Model
from gpumem.models.layers import OPTIMISERS, dense, relu, softmax_loss
from gpumem.models.task import blobs


def mlp(
    batch: int = 512,
    features: int = 64,
    hidden: Sequence[int] = (64,) * 8,
    classes: int = 10,
    *,
    optimiser: str = "sgd",
    seed: int = 0,
) -> Model:
    """Return a training step of a multilayer perceptron on a small synthetic task.

    >>> model = mlp(batch=4, features=8, hidden=[6], classes=3)
    >>> model.trace.n, [name for name in model.names if "." not in name]
    (18, ['x', 'labels', 'loss'])
    """
    graph = Graph(seed)
    data, answers = blobs((batch, features), classes, seed)
    x, labels = graph.constant("x", data), graph.constant("labels", answers)
    h = x
    for i, units in enumerate(hidden):
        h = relu(graph, dense(graph, f"dense{i + 1}", h, units))
    softmax_loss(graph, dense(graph, "out", h, classes), labels)
    OPTIMISERS[optimiser](graph)
    return graph.model(f"mlp_b{batch}_{optimiser}")
