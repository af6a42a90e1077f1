"""A small convolutional network in the manner of VGG: pairs of 3 x 3 convolutions, each pair followed by pooling."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.models.graph import Graph, Model
from gpumem.models.layers import OPTIMISERS, conv2d, dense, max_pool, relu, softmax_loss
from gpumem.models.task import blobs


def cnn(
    batch: int = 16,
    side: int = 16,
    channels: Sequence[int] = (8, 16, 32),
    classes: int = 10,
    *,
    conv: str = "direct",
    optimiser: str = "sgd",
    seed: int = 0,
) -> Model:
    """Return a training step of a VGG-like network on a small synthetic task.

    `conv` chooses the implementation of the convolutions, `direct` or `im2col`.

    >>> model = cnn(batch=2, side=4, channels=[2], classes=3)
    >>> [op.name for op in model.trace.ops][:4]
    ['conv2d', 'bias', 'relu', 'conv2d']
    """
    graph = Graph(seed)
    data, answers = blobs((batch, 3, side, side), classes, seed)
    x, labels = graph.constant("x", data), graph.constant("labels", answers)
    h = x
    for i, depth in enumerate(channels):
        for part in "ab":
            h = relu(graph, conv2d(graph, f"conv{i + 1}{part}", h, depth, kind=conv))
        h = max_pool(graph, f"pool{i + 1}", h)
    softmax_loss(graph, dense(graph, "out", h, classes), labels)
    OPTIMISERS[optimiser](graph)
    return graph.model(f"cnn_b{batch}_{conv}_{optimiser}")
