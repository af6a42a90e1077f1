"""Arguments for every op of `gpumem.kernels`, with sizes picked by the caller: fixed ones or Hypothesis."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpumem.kernels import reference

LONG = 9 if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else 150  # more than a block's threads, where that is quick
Array = np.ndarray[Any, Any]


@dataclass
class Pick:
    """Sizes come from `integer(low, high)`, contents from a seed. Results start as garbage, so gaps show."""

    integer: Callable[[int, int], int]
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @classmethod
    def seeded(cls, seed: int) -> Pick:
        """Sizes from the seed too; whole Python integers, as salts and seeds are wider than any of NumPy's."""
        return cls(random.Random(seed).randint, seed)

    def floats(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def bytes(self, size: int) -> Array:
        return self.rng.integers(0, 256, size).astype(np.uint8)

    def word(self) -> Array:
        return self.rng.integers(0, 2**64, 1, dtype=np.uint64)

    def shape(self) -> tuple[int, ...]:
        return tuple(self.integer(1, 6) for _ in range(self.integer(1, 3)))


Arguments = dict[str, Any]


def checksum(pick: Pick) -> Arguments:
    return {"x": pick.bytes(pick.integer(0, 150)), "digest": pick.word(), "salt": pick.integer(-(2**64), 2**64)}


def fill(pick: Pick) -> Arguments:
    return {"digest": pick.word(), "out": pick.bytes(pick.integer(0, 150)), "salt": pick.integer(-(2**64), 2**64)}


def copy(pick: Pick) -> Arguments:
    x = pick.floats(pick.integer(1, 9), pick.integer(0, 20))
    x = [x, x.view(np.int32), x.astype(np.uint8), x.astype(np.uint64)][pick.integer(0, 3)]
    return {"x": x, "out": np.ones_like(x).reshape(-1)}


def matmul(pick: Pick) -> Arguments:
    rows, columns, inner = pick.integer(1, 18), pick.integer(1, 18), pick.integer(1, 20)
    flip = [bool(pick.integer(0, 1)) for _ in "ab"]
    a, b = pick.floats(*(inner, rows)[:: 1 if flip[0] else -1]), pick.floats(*(inner, columns)[:: -1 if flip[1] else 1])
    return {"a": a, "b": b, "out": pick.floats(rows, columns), "transpose_a": flip[0], "transpose_b": flip[1]}


def batched_matmul(pick: Pick) -> Arguments:
    """One of the arrays, or none, has no batches."""
    case, batches, single = matmul(pick), pick.integer(1, 2), pick.integer(0, 3)
    for k, name in enumerate(("a", "b", "out")):
        if k != single:
            case[name] = pick.floats(batches, *case[name].shape)
    return case


def attention(pick: Pick) -> Arguments:
    groups, rows, columns, width = pick.integer(1, 2), pick.integer(1, LONG), pick.integer(1, LONG), pick.integer(1, 9)
    names = {"q": rows, "k": columns, "v": columns, "out": rows}
    case: Arguments = {name: pick.floats(groups, length, width) for name, length in names.items()}
    return case | {"probs": pick.floats(groups, rows, columns), "causal": bool(pick.integer(0, 1))}


def attention_gradient(pick: Pick) -> Arguments:
    forward = attention(pick)
    dy = forward["out"].copy()
    reference.attention(None, **forward)
    case = {"dy": dy} | {name: forward[name] for name in ("q", "k", "v", "probs")}
    case |= {f"d{name}": pick.floats(*forward[name].shape) for name in "qkv"}
    return case | {"workspace": pick.floats(forward["probs"].size + pick.integer(0, 1))}


def embedding(pick: Pick) -> Arguments:
    table = pick.floats(pick.integer(1, 5), pick.integer(1, LONG))
    ids = pick.rng.integers(-1, len(table) + 1, pick.integer(0, LONG)).astype(np.int32)  # two of them are no row
    return {"table": table, "ids": ids, "out": pick.floats(len(ids), table.shape[1])}


def embedding_gradient(pick: Pick) -> Arguments:
    case = embedding(pick)
    return {"dy": case["out"], "ids": case["ids"], "dtable": case["table"]}


def image(pick: Pick) -> Array:
    shape = pick.integer(1, 3), pick.integer(1, 3), pick.integer(1, 6), pick.integer(1, 6)
    return pick.floats(*shape[: 4 if pick.integer(0, 1) else 2])


def bias(pick: Pick, image: Callable[[Pick], Array] = image) -> Arguments:
    x = image(pick)
    return {"x": x, "b": pick.floats(x.shape[1]), "out": pick.floats(*x.shape)}


def bias_gradient(pick: Pick, image: Callable[[Pick], Array] = image) -> Arguments:
    dy = image(pick)
    return {"dy": dy, "db": pick.floats(dy.shape[1])}


def alike(*names: str) -> Callable[[Pick], Arguments]:
    """Arrays of one shape."""

    def make(pick: Pick) -> Arguments:
        shape = pick.shape()
        return {name: pick.floats(*shape) for name in names}

    return make


OPERANDS = {  # of convolutions: the names of image, weights and output, and the order of the arguments
    "conv2d": ("x", "w", "out", "x w out"),
    "conv2d_input_gradient": ("dx", "w", "dy", "dy w dx"),
    "conv2d_weight_gradient": ("x", "dw", "dy", "x dy dw"),
}


def images(pick: Pick, name: str, x: tuple[int, ...], w: tuple[int, ...], padding: int, stride: int) -> Arguments:
    """Arguments of a convolution of an image (N, C, H, W) and weights (K, C, R, S)."""
    *names, order = OPERANDS[name.removesuffix("_im2col").removesuffix("_winograd")]
    y = x[0], w[0], *((n + 2 * padding - k) // stride + 1 for n, k in zip(x[2:], w[2:]))
    arrays = {name: pick.floats(*shape) for name, shape in zip(names, (x, w, y))}
    case = {name: arrays[name] for name in order.split()}
    if not name.endswith(("conv2d", "gradient")):
        floats = reference.im2col_floats if name.endswith("_im2col") else reference.winograd_floats
        case["workspace"] = pick.floats(floats(x, w, padding, stride) + pick.integer(0, 1))
    return case | {"padding": padding, "stride": stride}


def convolution(name: str) -> Callable[[Pick], Arguments]:
    def make(pick: Pick) -> Arguments:
        padding, stride = pick.integer(0, 2), pick.integer(1, 2)
        height, width, r, s = pick.integer(1, 4), pick.integer(1, 5), pick.integer(1, 3), pick.integer(1, 2)
        height, width = max(height, r - 2 * padding), max(width, s - 2 * padding)
        n, c, k = (pick.integer(1, 2) for _ in "nck")
        return images(pick, name, (n, c, height, width), (k, c, r, s), padding, stride)

    return make


def winograd(name: str) -> Callable[[Pick], Arguments]:
    def make(pick: Pick) -> Arguments:
        padding, n, c, k = pick.integer(0, 2), *(pick.integer(1, 2) for _ in "nck")
        height, width = (max(pick.integer(1, high), 3 - 2 * padding) for high in (4, 5))
        return images(pick, name, (n, c, height, width), (k, c, 3, 3), padding, 1)

    return make


WINOGRAD = ["conv2d_input_gradient_winograd", "conv2d_winograd"]  # these leave anything in the workspace


def batch_norm(pick: Pick, image: Callable[[Pick], Array] = image) -> Arguments:
    x = image(pick)
    columns = {name: pick.floats(x.shape[1]) for name in ("mean", "inverse_std")}
    running = {name: pick.floats(x.shape[1]) for name in ("running_mean", "running_var") if pick.integer(0, 1)}
    gamma, beta = pick.floats(x.shape[1]), pick.floats(x.shape[1])
    case = {"x": x, "gamma": gamma, "beta": beta, "out": pick.floats(*x.shape)} | columns
    return case | (running if len(running) == 2 else {}) | {"momentum": 0.25, "epsilon": 1e-2}


def batch_norm_gradient(pick: Pick, image: Callable[[Pick], Array] = image) -> Arguments:
    forward = batch_norm(pick, image)
    dy = forward["out"].copy()
    reference.batch_norm(None, **forward)
    case = {"dy": dy} | {name: forward[name] for name in ("x", "gamma", "mean", "inverse_std")}
    return case | {"dx": forward["out"], "dgamma": pick.floats(len(forward["beta"])), "dbeta": forward["beta"]}


def layer_norm(pick: Pick) -> Arguments:
    x = pick.floats(pick.integer(1, LONG), pick.integer(1, LONG))
    gamma, beta, saved = pick.floats(x.shape[1]), pick.floats(x.shape[1]), [pick.floats(len(x)) for _ in range(2)]
    case = {"x": x, "gamma": gamma, "beta": beta, "out": pick.floats(*x.shape)}
    return case | dict(zip(("mean", "inverse_std"), saved)) | {"epsilon": 1e-2}


def layer_norm_gradient(pick: Pick) -> Arguments:
    forward = layer_norm(pick)
    dy = forward["out"].copy()
    reference.layer_norm(None, **forward)
    case = {"dy": dy} | {name: forward[name] for name in ("x", "gamma", "mean", "inverse_std")}
    return case | {"dx": forward["out"], "dgamma": pick.floats(len(forward["beta"])), "dbeta": forward["beta"]}


def softmax(pick: Pick) -> Arguments:
    x = pick.floats(pick.integer(1, 2), pick.integer(1, 5), pick.integer(1, LONG)) * [9, 300][pick.integer(0, 1)]
    return {"x": x, "out": pick.floats(*x.shape), "scale": 0.5, "causal": bool(pick.integer(0, 1))}


def softmax_gradient(pick: Pick) -> Arguments:
    case = softmax(pick)
    return {"y": case["x"], "dy": case["out"], "dx": pick.floats(*case["x"].shape), "scale": 0.5}


def dropout(pick: Pick) -> Arguments:
    case: Arguments = alike("x", "out")(pick)
    mask = pick.bytes(case["x"].size).reshape(case["x"].shape)
    p = [0.0, 0.1, 0.5, 0.999][pick.integer(0, 3)]
    return case | {"mask": mask, "counter": pick.word(), "seed": pick.integer(-(2**64), 2**64), "p": p}


def dropout_gradient(pick: Pick) -> Arguments:
    case = dropout(pick)
    return {"dy": case["x"], "mask": case["mask"] & 1, "dx": case["out"], "p": case["p"]}


def max_pool(pick: Pick) -> Arguments:
    size, stride = pick.integer(1, 3), pick.integer(1, 3)
    shape = pick.integer(1, 2), pick.integer(1, 2), pick.integer(size, 7), pick.integer(size, 6)
    places = [(n - size) // stride + 1 for n in shape[2:]]
    x = pick.rng.integers(-2, 2, shape).astype(np.float32)  # many ties: the first one counts
    index = np.full((*shape[:2], *places), -1, np.int32)
    return {"x": x, "out": pick.floats(*index.shape), "index": index, "size": size, "stride": stride}


def max_pool_gradient(pick: Pick) -> Arguments:
    forward = max_pool(pick)
    reference.max_pool(None, **forward)
    dy, index, dx = pick.floats(*forward["out"].shape), forward["index"], pick.floats(*forward["x"].shape)
    return {"dy": dy, "index": index, "dx": dx, "size": forward["size"], "stride": forward["stride"]}


def average_pool(pick: Pick) -> Arguments:
    case = max_pool(pick)
    del case["index"]
    return case


def average_pool_gradient(pick: Pick) -> Arguments:
    case = max_pool(pick)
    return {"dy": case["out"], "dx": case["x"], "size": case["size"], "stride": case["stride"]}


def cross_entropy(pick: Pick) -> Arguments:
    n, c = pick.integer(1, 5), pick.integer(1, 70)
    labels = pick.rng.integers(-1, c + 1, n).astype(np.int32)  # two of them are no class
    return {"logits": pick.floats(n, c) * 40, "labels": labels, "probs": pick.floats(n, c), "loss": pick.floats(n)}


def cross_entropy_gradient(pick: Pick) -> Arguments:
    forward = cross_entropy(pick)
    return {"probs": forward["logits"], "labels": forward["labels"], "dlogits": forward["probs"]}


def lifetimes(pick: Pick, steps: int) -> Arguments:
    """Columns of up to 70 buffers, more than a block has threads; some take no bytes, some wrap."""
    count = pick.integer(0, 70)
    start = pick.rng.integers(0, steps, count)
    return {
        "size": pick.rng.integers(0, 9, count),
        "start": start,
        "end": start + pick.rng.integers(1, steps + 1, count),
    }


def overlap(pick: Pick) -> Arguments:
    steps = pick.integer(1, 40)
    columns = lifetimes(pick, steps)
    offset = pick.rng.integers(-1, 2 ** pick.integer(2, 12), len(columns["size"]))  # crowded, or hardly anybody meets
    return {"offset": offset, **columns, "steps": steps, "pair": pick.rng.integers(-9, 9, 2)}


def load_profile(pick: Pick) -> Arguments:
    steps = pick.integer(1, 150)
    return lifetimes(pick, steps) | {"out": pick.rng.integers(-9, 9, steps)}


def placement(pick: Pick) -> Arguments:
    case = overlap(pick)
    host = case["offset"] < 0  # as it must be, but for one buffer now and then
    if len(host) and pick.integer(0, 3) == 0:
        host[pick.rng.integers(len(host))] ^= True
    limits = {"alignment": 2 ** pick.integer(0, 1), "height": pick.integer(0, 5000)}
    case["offset"] = np.where(host, case["offset"], case["offset"] // limits["alignment"] * limits["alignment"])
    columns = {name: case[name] for name in ("offset", "size", "start", "end")}
    return columns | {"host": host, "steps": case["steps"]} | limits | {"fault": pick.rng.integers(-9, 9, 3)}


def sgd(pick: Pick) -> Arguments:
    return alike("w", "dw", "velocity")(pick) | {"rate": 0.1, "momentum": 0.9, "decay": 0.01}


def adam(pick: Pick) -> Arguments:
    arrays = alike("w", "dw", "m", "v")(pick)
    arrays["v"] = abs(arrays["v"])
    step = np.array([pick.integer(1, 50)], np.float32)
    return arrays | {"step": step, "rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


CHANNELS = {"batch_norm": batch_norm, "batch_norm_gradient": batch_norm_gradient, "bias_gradient": bias_gradient}
CASES: dict[str, Callable[[Pick], Arguments]] = {
    **CHANNELS,
    **{name: convolution(name) for each in OPERANDS for name in (each, f"{each}_im2col")},
    **{name: winograd(name) for name in WINOGRAD},
    "adam": adam,
    "add": alike("a", "b", "out"),
    "advance": lambda pick: {"counter": pick.word()},
    "attention": attention,
    "attention_gradient": attention_gradient,
    "average_pool": average_pool,
    "average_pool_gradient": average_pool_gradient,
    "batched_matmul": batched_matmul,
    "bias": bias,
    "checksum": checksum,
    "clear": lambda pick: {"digest": pick.word()},
    "copy": copy,
    "delay": lambda pick: {"steps": pick.integer(0, 200), "out": pick.word()},
    "dropout": dropout,
    "dropout_gradient": dropout_gradient,
    "embedding": embedding,
    "embedding_gradient": embedding_gradient,
    "fill": fill,
    "gelu": alike("x", "out"),
    "gelu_gradient": alike("x", "dy", "dx"),
    "layer_norm": layer_norm,
    "layer_norm_gradient": layer_norm_gradient,
    "load_profile": load_profile,
    "matmul": matmul,
    "max_pool": max_pool,
    "max_pool_gradient": max_pool_gradient,
    "mean": lambda pick: alike("x")(pick) | {"out": pick.floats(1)},
    "overlap": overlap,
    "placement": placement,
    "relu": alike("x", "out"),
    "relu_gradient": alike("y", "dy", "dx"),
    "sgd": sgd,
    "softmax": softmax,
    "softmax_cross_entropy": cross_entropy,
    "softmax_cross_entropy_gradient": cross_entropy_gradient,
    "softmax_gradient": softmax_gradient,
    "tick": lambda pick: {"step": pick.floats(1)},
}


def zeros(*shape: int, dtype: type = np.float32) -> Array:
    return np.zeros(shape, dtype)


def of_shape(*shape: int) -> Callable[[Pick], Array]:
    return lambda pick: pick.floats(*shape)


SHAPED = ["adam", "add", "dropout", "dropout_gradient", "gelu_gradient", "relu", "sgd"]  # of arrays of `Pick.shape`


def largest(case: Callable[[Pick], Arguments], pick: Pick) -> Arguments:
    return case(Pick(lambda low, high: high, pick.seed))


LONGEST = [
    "attention",
    "attention_gradient",
    "embedding_gradient",
    "layer_norm",
    "layer_norm_gradient",
    "softmax_gradient",
]
# What takes blocks of more threads, or several turns of each: for a device
LARGER: dict[str, Callable[[Pick], Arguments]] = {
    **{name: partial(CHANNELS[name], image=of_shape(3, 2, 27, 29)) for name in CHANNELS},
    **{
        name: partial(images, name=name, x=(3, 6, 29, 30), w=(5, 6, 4, 2), padding=1, stride=1)
        for name in [*OPERANDS, "conv2d_im2col"]
    },
    **{name: partial(largest, CASES[name]) for name in LONGEST},
    **{name: partial(images, name=name, x=(3, 5, 13, 12), w=(6, 5, 3, 3), padding=1, stride=1) for name in WINOGRAD},
    "bias": partial(bias, image=of_shape(7, 5, 50)),
    "mean": lambda pick: {"x": pick.floats(3000), "out": pick.floats(1)},
    "softmax": lambda pick: {"x": pick.floats(2, 3, 1500), "out": pick.floats(2, 3, 1500), "causal": True},
}
