"""Two small networks on a synthetic task, and by which names the command line knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem._strict import strict
from gpumem.models.graph import Graph, Model, Tensor
from gpumem.models.layers import OPTIMISERS, batch_norm, conv2d, dense, dropout, max_pool, relu, softmax_loss
from gpumem.names import choice


@strict
def blobs(shape: tuple[int, ...], classes: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs (float32), noisy points around one centre a class, and labels (int32); `shape[0]` is the batch.

    >>> x, labels = blobs((4, 3), classes=2)
    >>> x.shape, labels.tolist()
    ((4, 3), [0, 1, 0, 1])
    """
    _positive(shape=shape, classes=classes)
    rng = np.random.default_rng(seed)
    labels = (np.arange(shape[0]) % classes).astype(np.int32)
    centres = rng.standard_normal((classes, *shape[1:]))
    return (centres[labels] + 0.5 * rng.standard_normal(shape)).astype(np.float32), labels


@strict
def mlp(
    batch: int = 512,
    features: int = 64,
    hidden: Sequence[int] = (64,) * 8,
    classes: int = 10,
    *,
    optimiser: str = "sgd",
    seed: int = 0,
) -> Model:
    """Return a training step of a multilayer perceptron.

    >>> model = mlp(batch=4, features=8, hidden=[6], classes=3)
    >>> model.trace.n, [name for name in model.names if "." not in name]
    (18, ['x', 'labels', 'loss'])
    """

    _positive(batch=batch, features=features, hidden=hidden, classes=classes)

    def body(graph: Graph, h: Tensor) -> Tensor:
        for i, units in enumerate(hidden):
            h = relu(graph, dense(graph, f"dense{i + 1}", h, units))
        return h

    return _classifier(f"mlp_b{batch}", (batch, features), classes, body, optimiser, seed)


@strict
def cnn(
    batch: int = 16,
    side: int = 16,
    channels: Sequence[int] = (8, 16, 32),
    classes: int = 10,
    *,
    conv: str = "direct",
    norm: bool = False,
    drop: float = 0.0,
    optimiser: str = "sgd",
    seed: int = 0,
) -> Model:
    """Return a training step in the manner of VGG: pairs of 3 x 3 convolutions, each pair followed by pooling.

    `conv` chooses the implementation of the convolutions, `direct` or `im2col`. With `norm` each is followed by batch
    norm, and with `drop` each pooling by dropout with that probability. Rectifiers work in place.

    >>> model = cnn(batch=2, side=4, channels=[2], classes=3)
    >>> [op.name for op in model.trace.ops][:4]
    ['conv2d', 'bias', 'relu', 'conv2d']
    >>> model = cnn(batch=2, side=4, channels=[2], classes=3, norm=True, drop=0.25)
    >>> [op.name for op in model.trace.ops][4:10]
    ['conv2d', 'bias', 'batch_norm', 'relu', 'max_pool', 'dropout']
    """

    _positive(batch=batch, side=side, channels=channels, classes=classes)

    def body(graph: Graph, h: Tensor) -> Tensor:
        for i, depth in enumerate(channels):
            for part in "ab":
                h = conv2d(graph, f"conv{i + 1}{part}", h, depth, kind=conv)
                h = relu(graph, batch_norm(graph, f"norm{i + 1}{part}", h) if norm else h)
            h = max_pool(graph, f"pool{i + 1}", h)
            h = dropout(graph, f"drop{i + 1}", h, drop) if drop else h
        return h

    kind = conv + "_norm" * norm + f"_drop{drop:g}" * bool(drop)
    return _classifier(f"cnn_b{batch}_{kind}", (batch, 3, side, side), classes, body, optimiser, seed)


def _positive(**sizes: int | Sequence[int]) -> None:
    for name, given in sizes.items():
        for size in given if isinstance(given, Iterable) else [given]:
            if not (hasattr(size, "__index__") and size >= 1):
                raise ValueError(f"{name}: {size!r} is no whole number of 1 and more")


def _classifier(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    body: Callable[[Graph, Tensor], Tensor],
    optimiser: str,
    seed: int,
) -> Model:
    """What learns to tell blobs apart: `body`, a dense layer, the loss, the update."""
    update = choice(optimiser, OPTIMISERS, "optimiser")
    graph = Graph(seed)
    x, labels = (graph.constant(what, value) for what, value in zip(("x", "labels"), blobs(shape, classes, seed)))
    softmax_loss(graph, dense(graph, "out", body(graph, x), classes), labels)
    update(graph)
    return graph.model(f"{name}_{optimiser}")


MODELS: dict[str, Callable[..., Model]] = {
    "mlp": mlp,
    "mlp-adam": partial(mlp, optimiser="adam"),
    "cnn": cnn,
    "cnn-adam": partial(cnn, optimiser="adam"),
    "cnn-im2col": partial(cnn, conv="im2col"),
    "cnn-norm": partial(cnn, norm=True, drop=0.25),
}
