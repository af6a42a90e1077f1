"""Small networks on synthetic tasks, and by which names the command line knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.arguments import strict
from gpumem.base.names import choice
from gpumem.execute.models.graph import Graph, Model, Tensor
from gpumem.execute.models.layers import (
    OPTIMISERS,
    Layer,
    average_pool,
    batch_norm,
    conv2d,
    dense,
    dropout,
    max_pool,
    relu,
    skip,
    softmax_loss,
)
from gpumem.execute.models.transformer import embedding, gelu, layer_norm, positions, self_attention


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

    return _classifier(f"mlp_b{batch}", (batch, features), classes, body, optimiser=optimiser, seed=seed)


@strict
def cnn(  # noqa: PLR0913  public: a keyword for each thing that a net varies in
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

    `conv` chooses the implementation of the convolutions, `direct`, `im2col` or `winograd`. With `norm` each goes
    through batch norm, and with `drop` each pooling through dropout with that probability. Rectifiers work in place.

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
    return _classifier(f"cnn_b{batch}_{kind}", (batch, 3, side, side), classes, body, optimiser=optimiser, seed=seed)


@strict
def residual(
    batch: int = 16,
    side: int = 16,
    channels: Sequence[int] = (8, 16, 32),
    classes: int = 10,
    *,
    optimiser: str = "sgd",
    seed: int = 0,
) -> Model:
    """Return a training step in the manner of ResNet: a convolution, a block for each of `channels`, the images' means.

    A block adds two convolutions with batch norm to its input. All but the first halve height and width, and there a
    convolution of 1 x 1 brings the input to the same shape.

    >>> model = residual(batch=2, side=4, channels=[2], classes=3)
    >>> [op.name for op in model.trace.ops][3:10]
    ['conv2d', 'batch_norm', 'relu', 'conv2d', 'batch_norm', 'add', 'relu']
    """
    _positive(batch=batch, side=side, channels=channels, classes=classes)

    def body(graph: Graph, h: Tensor) -> Tensor:
        h = relu(graph, _normed(graph, "0", h, channels[0]))
        for i, depth in enumerate(channels):
            h = _residual_block(graph, f"{i + 1}", h, depth, stride=2 if i else 1)
        return average_pool(graph, "pool", h)

    return _classifier(f"residual_b{batch}", (batch, 3, side, side), classes, body, optimiser=optimiser, seed=seed)


def _normed(graph: Graph, name: str, x: Tensor, depth: int, *, size: int = 3, stride: int = 1) -> Tensor:
    """A convolution with batch norm."""
    y = conv2d(graph, f"conv{name}", x, depth, size=size, stride=stride, bias=False)
    return batch_norm(graph, f"norm{name}", y)


def _residual_block(graph: Graph, name: str, x: Tensor, depth: int, stride: int) -> Tensor:
    def branch(x: Tensor) -> Tensor:
        return _normed(graph, f"{name}b", relu(graph, _normed(graph, f"{name}a", x, depth, stride=stride)), depth)

    def shortcut(x: Tensor) -> Tensor:
        same = stride == 1 and x.shape[1] == depth
        return x if same else _normed(graph, f"{name}c", x, depth, size=1, stride=stride)

    return relu(graph, skip(graph, f"block{name}", x, branch, shortcut))


@strict
def patterns(batch: int, length: int, vocabulary: int, period: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return tokens, and the tokens that come next, both int32 (batch * length,): each sequence repeats its pattern.

    >>> tokens, following = patterns(batch=2, length=6, vocabulary=9, period=3)
    >>> rows = tokens.reshape(2, 6)
    >>> np.array_equal(rows[:, 3:], rows[:, :3]), np.array_equal(following.reshape(2, 6)[:, :-1], rows[:, 1:])
    (True, True)
    """
    _positive(batch=batch, length=length, vocabulary=vocabulary, period=period)
    pattern = np.random.default_rng(seed).integers(vocabulary, size=(batch, period)).astype(np.int32)
    tokens = pattern[:, np.arange(length + 1) % period]
    return tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)


@strict
def transformer(  # noqa: PLR0913  public: a keyword for each thing that a net varies in
    batch: int = 16,
    length: int = 32,
    width: int = 32,
    heads: int = 4,
    blocks: int = 2,
    *,
    vocabulary: int = 16,
    period: int = 4,
    drop: float = 0.0,
    optimiser: str = "sgd",
    seed: int = 0,
) -> Model:
    """Return a training step of a transformer that learns which token comes next, in sequences that repeat a pattern.

    Tokens and places have learned rows. A block adds causal self-attention of their layer norm to them, then two dense
    layers of that with a GELU in between; with `drop` each goes through dropout with that probability first.

    >>> model = transformer(batch=2, length=4, width=6, heads=2, blocks=1, vocabulary=5)
    >>> [op.name for op in model.trace.ops][6:16]  # doctest: +NORMALIZE_WHITESPACE
    ['attention', 'batched_matmul', 'add',
     'layer_norm', 'matmul', 'bias', 'gelu', 'matmul', 'bias', 'add']
    """
    _positive(batch=batch, length=length, width=width, heads=heads, blocks=blocks, vocabulary=vocabulary, period=period)
    update = choice(optimiser, OPTIMISERS, "optimiser")
    graph = Graph(seed)
    data = patterns(batch, length, vocabulary, period, seed)
    x, labels = (graph.constant(what, value) for what, value in zip(("x", "labels"), data))
    h = positions(graph, "places", embedding(graph, "tokens", x, vocabulary, width), length)
    for i in range(blocks):
        h = _transformer_block(graph, f"block{i + 1}", h, length=length, heads=heads, drop=drop)
    softmax_loss(graph, dense(graph, "out", layer_norm(graph, "norm", h), vocabulary), labels)
    update(graph)
    return graph.model(f"transformer_b{batch}" + f"_drop{drop:g}" * bool(drop) + f"_{optimiser}")


def _transformer_block(graph: Graph, name: str, x: Tensor, *, length: int, heads: int, drop: float) -> Tensor:
    width = x.shape[1]

    def attention(x: Tensor) -> Tensor:
        return self_attention(graph, f"{name}.attention", layer_norm(graph, f"{name}.norm1", x), length, heads)

    def mlp(x: Tensor) -> Tensor:
        h = dense(graph, f"{name}.dense1", layer_norm(graph, f"{name}.norm2", x), 4 * width)
        return dense(graph, f"{name}.dense2", gelu(graph, f"{name}.gelu", h), width)

    def dropped(layer: Layer) -> Layer:
        return lambda x: dropout(graph, f"{name}.drop", layer(x), drop) if drop else layer(x)

    x = skip(graph, f"{name}.sum1", x, dropped(attention))
    return skip(graph, f"{name}.sum2", x, dropped(mlp))


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
    *,
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
    "cnn-winograd": partial(cnn, conv="winograd"),
    "cnn-norm": partial(cnn, norm=True, drop=0.25),
    "residual": residual,
    "transformer": transformer,
    "transformer-adam": partial(transformer, optimiser="adam"),
}
