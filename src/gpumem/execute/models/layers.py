"""Layers, a loss, optimisers: a few ops forward, and on the tape a few for the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from gpumem.base.names import one_of
from gpumem.execute.models.graph import FLOAT, Backward, Graph, Tensor
from gpumem.kernels.shapes import conv_output, im2col_floats, winograd_floats
from gpumem.trace.kinds import STATISTICS

KINDS = "direct", "im2col", "winograd"
Layer = Callable[[Tensor], Tensor]


def dense(graph: Graph, name: str, x: Tensor, units: int) -> Tensor:
    """Return `x @ w + b`, (N, units); `x` counts as (N, features) whatever its shape."""
    rows = x.shape[0]
    flat = x.reshape(rows, x.nbytes // FLOAT.itemsize // rows)
    w = graph.parameter(f"{name}.w", (flat.shape[1], units), fan_in=flat.shape[1])
    b = graph.parameter(f"{name}.b", (units,))
    work = 2.0 * rows * flat.shape[1] * units
    y = graph.op("matmul", [flat, w], Tensor(name, (rows, units)), flops=work)
    graph.op("bias", [y, b], y)

    def back(dy: Tensor) -> Tensor | None:
        graph.learn(b, graph.op("bias_gradient", [dy], b.gradient()))
        graph.learn(w, graph.op("matmul", [flat, dy], w.gradient(), flops=work, transpose_a=True))
        if x.value is not None:  # nobody asks for the gradient of the input
            return None
        dx = x.gradient()
        graph.op("matmul", [dy, w], dx.reshape(*flat.shape), flops=work, transpose_b=True)
        return dx

    graph.tape.append(back)
    return y


def relu(graph: Graph, x: Tensor) -> Tensor:
    """Rectify `x` in place."""
    graph.op("relu", [x], x)
    graph.tape.append(lambda dy: graph.op("relu_gradient", [x, dy], dy))
    return x


def conv2d(
    graph: Graph,
    name: str,
    x: Tensor,
    channels: int,
    *,
    size: int = 3,
    stride: int = 1,
    bias: bool = True,
    kind: str = "direct",
) -> Tensor:
    """Return a convolution, plus a bias if wanted: (N, channels, H, W), or H and W by the stride, rounded up.

    `kind` is `direct` (no workspace), `im2col` (a matrix product with much) or `winograd` (sixteen of them, for windows
    of 3 x 3 and stride 1; others and the gradient by the weights are then direct). A plan may change it op by op.
    """
    one_of("kind", kind, KINDS)
    depth, padding = x.shape[1], size // 2
    w = graph.parameter(f"{name}.w", (channels, depth, size, size), fan_in=depth * size * size)
    b = graph.parameter(f"{name}.b", (channels,)) if bias else None
    shape = conv_output(x.shape, w.shape, padding, stride)
    work = 2.0 * prod(shape) * depth * size * size

    def conv(function: str, reads: list[Tensor], out: Tensor) -> Tensor:
        menu = {function: 0, f"{function}_im2col": im2col_floats(x.shape, w.shape, padding, stride)}
        if (size, stride) == (3, 1) and function != "conv2d_weight_gradient":
            menu[f"{function}_winograd"] = winograd_floats(x.shape, w.shape, padding, stride)
        chosen = f"{function}_{kind}" if f"{function}_{kind}" in menu else function
        return graph.op(chosen, reads, out, flops=work, workspaces=menu, padding=padding, stride=stride)

    y = conv("conv2d", [x, w], Tensor(name, shape))
    if b is not None:
        graph.op("bias", [y, b], y)

    def back(dy: Tensor) -> Tensor | None:
        if b is not None:
            graph.learn(b, graph.op("bias_gradient", [dy], b.gradient()))
        graph.learn(w, conv("conv2d_weight_gradient", [x, dy], w.gradient()))
        return None if x.value is not None else conv("conv2d_input_gradient", [dy, w], x.gradient())

    graph.tape.append(back)
    return y


def batch_norm(graph: Graph, name: str, x: Tensor, momentum: float = 0.1, epsilon: float = 1e-5) -> Tensor:
    """Return `x`, (N, C) or (N, C, H, W), with each channel normalised over the batch, then scaled and shifted.

    Its running mean and variance are kept in buffers of kind `STATISTICS`, for whoever evaluates the model.
    """
    c = x.shape[1]
    gamma = graph.constant(f"{name}.gamma", np.ones(c, FLOAT), "parameter")
    beta = graph.parameter(f"{name}.beta", (c,))
    running_mean = graph.constant(f"{name}.running_mean", np.zeros(c, FLOAT), STATISTICS)
    running_var = graph.constant(f"{name}.running_var", np.ones(c, FLOAT), STATISTICS)
    running = running_mean, running_var
    y, mean, inverse_std = Tensor(name, x.shape), Tensor(f"{name}.mean", (c,)), Tensor(f"{name}.inverse_std", (c,))
    reads, saved = [x, gamma, beta], [y, mean, inverse_std]
    order = [*reads, *saved, *running]
    reads += running
    graph.op("batch_norm", reads, *saved, *running, arrays=order, momentum=momentum, epsilon=epsilon)

    def back(dy: Tensor) -> Tensor | None:
        dx, dgamma, dbeta = x.gradient(), gamma.gradient(), beta.gradient()
        graph.op("batch_norm_gradient", [dy, x, gamma, mean, inverse_std], dx, dgamma, dbeta)
        graph.learn(gamma, dgamma)
        graph.learn(beta, dbeta)
        return None if x.value is not None else dx

    graph.tape.append(back)
    return y


def dropout(graph: Graph, name: str, x: Tensor, p: float = 0.5) -> Tensor:
    """Return `x` with elements set to 0 with probability `p`, others in each iteration, and the rest made larger."""
    y, mask = Tensor(name, x.shape), Tensor(f"{name}.mask", x.shape, np.dtype(np.uint8))
    graph.op("dropout", [x], y, mask, rng=True, p=p)
    graph.tape.append(lambda dy: graph.op("dropout_gradient", [dy, mask], dy, p=p))
    return y


def max_pool(graph: Graph, name: str, x: Tensor, size: int = 2) -> Tensor:
    """Return the maxima of windows of `size` x `size`."""
    images, depth, height, width = x.shape
    shape = (images, depth, height // size, width // size)
    y, index = Tensor(name, shape), Tensor(f"{name}.index", shape, np.dtype(np.int32), "index")
    graph.op("max_pool", [x], y, index, size=size, stride=size)
    graph.tape.append(lambda dy: graph.op("max_pool_gradient", [dy, index], x.gradient(), size=size, stride=size))
    return y


def average_pool(graph: Graph, name: str, x: Tensor, size: int = 0) -> Tensor:
    """Return the means of windows of `size` x `size`; without a size, of the whole image, which must be square."""
    images, depth, height, width = x.shape
    if not size and height != width:
        raise ValueError(f"{name}: {height} x {width} is not square, so it needs a size")
    size = size or height
    y = Tensor(name, (images, depth, height // size, width // size))
    graph.op("average_pool", [x], y, size=size, stride=size)
    graph.tape.append(lambda dy: graph.op("average_pool_gradient", [dy], x.gradient(), size=size, stride=size))
    return y


def fork(graph: Graph, name: str, x: Tensor, layers: Sequence[Layer]) -> tuple[list[Tensor], list[list[Backward]]]:
    """Return what several layers make of the same `x`, and for each its own way back."""
    before, begin = graph.tape, len(graph.steps)
    ends, tapes = [], []
    for layer in layers:
        graph.tape = []
        ends.append(layer(x))
        tapes.append(graph.tape)
    graph.tape = before
    if any(x.root in step.writes for step in graph.steps[begin:]):
        raise ValueError(f"{name}: a layer works in place on {x.name}, which others take as well")
    return ends, tapes


def skip(graph: Graph, name: str, x: Tensor, branch: Layer, shortcut: Layer | None = None) -> Tensor:
    """Return `branch(x) + shortcut(x)`, by default `branch(x) + x`; on the way back the gradient takes both ways."""
    ends, tapes = fork(graph, name, x, [branch, shortcut or (lambda x: x)])
    if ends[0].shape != ends[1].shape:
        raise ValueError(f"{name}: the branch makes {ends[0].shape}, what it is added to is {ends[1].shape}")

    def back(dy: Tensor) -> Tensor | None:
        begin = len(graph.steps)
        along = graph.backward(dy, tapes[0])
        if any(dy.root in step.writes for step in graph.steps[begin:]):  # so the other way starts from a copy
            dy = graph.op("copy", [dy], ends[1].gradient())
            graph.steps.insert(begin, graph.steps.pop())
        beside = graph.backward(dy, tapes[1])
        return None if along is None or beside is None else graph.op("add", [along, beside], along)

    graph.tape.append(back)
    return graph.op("add", ends, Tensor(name, ends[0].shape))


def softmax_loss(graph: Graph, logits: Tensor, labels: Tensor) -> None:
    """Compute the mean cross-entropy into the persistent tensor `loss`, then unwind the tape."""
    rows = logits.shape[0]
    probs, each = Tensor("probs", logits.shape), Tensor("losses", (rows,))
    loss = graph.constant("loss", np.zeros(1, FLOAT), "loss")
    graph.op("softmax_cross_entropy", [logits, labels], probs, each)
    graph.op("mean", [each], loss)
    graph.backward(graph.op("softmax_cross_entropy_gradient", [probs, labels], logits.gradient()))


def sgd(graph: Graph, rate: float = 0.01, momentum: float = 0.9, decay: float = 0.0) -> None:
    """Update every parameter by stochastic gradient descent with momentum and weight decay."""
    for w, dw in graph.gradients:
        velocity = graph.state(w, "velocity")
        reads = [w, dw, velocity]
        graph.op("sgd", reads, w, velocity, arrays=reads, rate=rate, momentum=momentum, decay=decay)


def adam(graph: Graph, rate: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
    """Update every parameter by Adam; the step counter is memory, so that a captured launch can be replayed."""
    step = graph.constant("step", np.zeros(1, FLOAT), "state")
    graph.op("tick", [step], step, arrays=[step])
    for w, dw in graph.gradients:
        m, v = graph.state(w, "m"), graph.state(w, "v")
        reads = [w, dw, m, v, step]
        graph.op("adam", reads, w, m, v, arrays=reads, rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon)


OPTIMISERS: dict[str, Callable[[Graph], None]] = {"sgd": sgd, "adam": adam}
