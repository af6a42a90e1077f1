"""Checks of arguments, on the host and before any launch, shared by `reference` and `device`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Protocol

import numpy as np

FINE, ON_HOST, MISPLACED, TOO_HIGH, OVERLAP = (np.int64(code) for code in range(5))  # fault[0] of `placement`


class Shaped(Protocol):
    """Whatever has a shape: a NumPy array or a device array."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def expect(name: str, array: Shaped, shape: tuple[int, ...]) -> None:
    """Raise a ValueError that names the argument and both shapes, unless they agree.

    >>> expect("out", np.zeros((2, 3)), (2, 4))
    Traceback (most recent call last):
    ValueError: out has the shape (2, 3), expected (2, 4)
    """
    if tuple(array.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(array.shape)}, expected {shape}")


def number(name: str, value: float, least: int) -> None:
    """Raise a ValueError that names the argument, unless it is a number that is large enough."""
    if not value >= least:
        raise ValueError(f"{name} is {value}, expected at least {least}")


def axes(name: str, array: Shaped, letters: str) -> tuple[int, ...]:
    """Return the shape of an array that must have one axis for each letter."""
    if len(array.shape) != len(letters):
        raise ValueError(f"{name} has the shape {tuple(array.shape)}, expected ({', '.join(letters)})")
    return tuple(array.shape)


def size(array: Shaped) -> int:
    """Return the number of elements as a Python integer."""
    return prod(array.shape)


def same(**arrays: Shaped) -> int:
    """Check that all arrays have the shape of the first; return its number of elements."""
    first, *others = arrays
    for name in others:
        expect(name, arrays[name], tuple(arrays[first].shape))
    return size(arrays[first])


def one(**arrays: Shaped) -> None:
    """Check that each array holds one number."""
    for name, array in arrays.items():
        expect(name, array, (1,))


def copy(x: Any, out: Any) -> int:
    """Check that two arrays hold as many elements of the same type; return how many."""
    if size(x) != size(out):
        raise ValueError(f"out has the shape {tuple(out.shape)}, expected as many elements as {tuple(x.shape)}")
    if x.dtype != out.dtype:
        raise ValueError(f"out holds {out.dtype}, expected {x.dtype} as in x")
    return size(x)


def delay(steps: int, out: Shaped) -> None:
    """Check that the steps can be counted and there is a word for the result."""
    one(out=out)
    number("steps", steps, 0)


def mean(x: Shaped, out: Shaped) -> int:
    """Return how many elements there are, at least one."""
    one(out=out)
    if not size(x):
        raise ValueError(f"x has the shape {tuple(x.shape)}, expected at least one element")
    return size(x)


def matmul(a: Shaped, b: Shaped, out: Shaped, transpose_a: bool, transpose_b: bool) -> tuple[int, int, int]:
    """Return rows, columns and the length of the inner sum."""
    rows, inner = axes("a", a, "MK")[:: -1 if transpose_a else 1]
    _, columns = axes("b", b, "KN")[:: -1 if transpose_b else 1]
    expect("b", b, (columns, inner) if transpose_b else (inner, columns))
    expect("out", out, (rows, columns))
    return rows, columns, inner


def batched_matmul(
    a: Shaped, b: Shaped, out: Shaped, transpose_a: bool, transpose_b: bool
) -> tuple[int, int, int, int]:
    """Return batches, rows, columns and the length of the inner sum; each array is a matrix, or one for each batch."""
    for name, array in (("a", a), ("b", b), ("out", out)):
        if len(array.shape) not in (2, 3):
            raise ValueError(f"{name} has the shape {tuple(array.shape)}, expected (..., ...) or (G, ..., ...)")
    batches = next((tuple(array.shape)[:1] for array in (a, b) if len(array.shape) == 3), None)
    if batches is None:
        raise ValueError(f"a has the shape {tuple(a.shape)}, expected (G, ..., ...), as b is one matrix too")
    rows, inner = tuple(a.shape)[-2:][:: -1 if transpose_a else 1]
    columns = tuple(b.shape)[-2 if transpose_b else -1]
    wanted = (inner, rows) if transpose_a else (rows, inner), (columns, inner) if transpose_b else (inner, columns)
    for name, array, matrix in (("a", a, wanted[0]), ("b", b, wanted[1]), ("out", out, (rows, columns))):
        expect(name, array, batches + matrix if len(array.shape) == 3 else matrix)
    return batches[0], rows, columns, inner


def attention(like_q: Mapping[str, Shaped], like_k: Mapping[str, Shaped], probs: Shaped) -> tuple[int, int, int, int]:
    """Check arrays (G, T, D) and (G, S, D), and probs (G, T, S); return G, T, S and D."""
    groups, rows, width = axes("q", like_q["q"], "GTD")
    _, columns, _ = axes("k", like_k["k"], "GSD")
    expect("k", like_k["k"], (groups, columns, width))
    if not columns * width:
        raise ValueError(f"k has the shape {(groups, columns, width)}, expected at least one place and one number")
    same(**like_q)
    same(**like_k)
    expect("probs", probs, (groups, rows, columns))
    return groups, rows, columns, width


def embedding(name: str, table: Shaped, ids: Shaped, y: str, out: Shaped) -> None:
    """Check a table (V, D), ids (N,) and a row for each, (N, D); `name` and `y` are the caller's names."""
    _, columns = axes(name, table, "VD")
    (rows,) = axes("ids", ids, "N")
    expect(y, out, (rows, columns))


def channels(name: str, x: Shaped) -> tuple[int, int, int]:
    """Return (outer, channels, inner) of (N, C, ...)."""
    if len(x.shape) < 2:
        raise ValueError(f"{name} has the shape {tuple(x.shape)}, expected (N, C, ...)")
    return x.shape[0], x.shape[1], prod(x.shape[2:])


def batch_norm(
    images: Mapping[str, Shaped], columns: Mapping[str, Shaped | None], epsilon: float = 0
) -> tuple[int, int, int]:
    """Check arrays (N, C, ...) of one shape and numbers for each channel (C,); return (outer, channels, inner)."""
    number("epsilon", epsilon, 0)
    same(**images)
    name, x = next(iter(images.items()))
    shape = channels(name, x)
    if not shape[0] * shape[2]:
        raise ValueError(f"{name} has the shape {tuple(x.shape)}, expected at least one element for each channel")
    for column, array in columns.items():
        if array is not None:
            expect(column, array, shape[1:2])
    if (columns.get("running_mean") is None) != (columns.get("running_var") is None):
        raise ValueError("running_mean and running_var: one is given without the other")
    return shape


def layer_norm(
    rows: Mapping[str, Shaped], columns: Mapping[str, Shaped], saved: Mapping[str, Shaped], epsilon: float = 0
) -> tuple[int, int]:
    """Check arrays (N, D) of one shape, numbers for each column (D,) and for each row (N,); return (N, D)."""
    number("epsilon", epsilon, 0)
    name, x = next(iter(rows.items()))
    shape = axes(name, x, "ND")
    if not shape[1]:
        raise ValueError(f"{name} has the shape {shape}, expected at least one element in a row")
    same(**rows)
    for length, arrays in ((shape[1:], columns), (shape[:1], saved)):
        for name, array in arrays.items():
            expect(name, array, length)
    return shape[0], shape[1]


def dropout(p: float, counter: Shaped | None = None, **arrays: Shaped) -> int:
    """Check that p is a share below 1, and all else as `same` does; return the number of elements."""
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}, expected at least 0 and less than 1")
    if counter is not None:
        one(counter=counter)
    return same(**arrays)


def windows(name: str, length: int, window: int, padding: int, stride: int) -> int:
    """Return how many windows of a size fit next to each other into a padded axis."""
    if window < 1 or stride < 1 or padding < 0:
        raise ValueError(f"{name} needs a window >= 1, stride >= 1, padding >= 0, got {window}, {stride}, {padding}")
    if window > length + 2 * padding:
        raise ValueError(f"{name} is {length} long, less than its window of {window} with padding {padding}")
    return (length + 2 * padding - window) // stride + 1


def conv_output(x: tuple[int, ...], w: tuple[int, ...], padding: int, stride: int) -> tuple[int, ...]:
    """Return the shape of what windows (K, C, R, S) make of x (N, C, H, W): (N, K, P, Q)."""
    rows = windows("the image's height", x[2], w[2], padding, stride)
    return x[0], w[0], rows, windows("the image's width", x[3], w[3], padding, stride)


def im2col_floats(x_shape: tuple[int, ...], w_shape: tuple[int, ...], padding: int = 1, stride: int = 1) -> int:
    """Return the floats of workspace for x (N, C, H, W) and w (K, C, R, S): one (C*R*S, P*Q) matrix for each image.

    >>> im2col_floats((2, 3, 8, 8), (4, 3, 3, 3))  # 2 images of 27 rows and 64 columns
    3456
    """
    images, _, rows, columns = conv_output(x_shape, w_shape, padding, stride)
    return images * x_shape[1] * w_shape[2] * w_shape[3] * rows * columns


def winograd_floats(x_shape: tuple[int, ...], w_shape: tuple[int, ...], padding: int = 1, stride: int = 1) -> int:
    """Return the floats of workspace for x (N, C, H, W) and w (K, C, 3, 3), there and back: 16 of each matrix.

    >>> winograd_floats((2, 3, 8, 8), (4, 3, 3, 3))  # 4 x 3 weights, 3 channels and 4 kernels of 32 tiles
    3776
    """
    images, kernels, rows, columns = conv_output(x_shape, w_shape, padding, stride)
    if (*w_shape[2:], stride) != (3, 3, 1) or padding > 2:
        given = f"{w_shape[2]} x {w_shape[3]}, {stride} and {padding}"
        raise ValueError(f"winograd takes windows of 3 x 3, stride 1 and padding of at most 2, got {given}")
    tiles = images * -(-max(rows, x_shape[2]) // 2) * -(-max(columns, x_shape[3]) // 2)
    return 16 * (kernels * x_shape[1] + (kernels + x_shape[1]) * tiles)


def conv2d(x: Shaped, w: Shaped, y: Shaped, padding: int, stride: int, names: tuple[str, str, str]) -> None:
    """Check x (N, C, H, W), w (K, C, R, S) and y (N, K, P, Q), which the caller calls `names`."""
    image, kernel = axes(names[0], x, "NCHW"), axes(names[1], w, "KCRS")
    expect(names[1], w, (kernel[0], image[1], *kernel[2:]))
    expect(names[2], y, conv_output(image, kernel, padding, stride))


def average_pool(name: str, x: Shaped, y: str, out: Shaped, window: int, stride: int) -> None:
    """Check x (N, C, H, W) and an array with one element for each window; `name` and `y` are the caller's names."""
    image = axes(name, x, "NCHW")
    expect(y, out, conv_output(image, (image[1], 1, window, window), 0, stride))


def max_pool(name: str, x: Shaped, y: str, out: Shaped, index: Shaped, window: int, stride: int) -> None:
    """Check x (N, C, H, W) and two arrays with one element for each window; `name` and `y` are the caller's names."""
    average_pool(name, x, y, out, window, stride)
    expect("index", index, tuple(out.shape))


def softmax(causal: bool = False, **arrays: Shaped) -> tuple[int, int]:
    """Check arrays (..., S) of one shape; return how many rows they have, and of what length, at least one."""
    name, x = next(iter(arrays.items()))
    shape = tuple(x.shape)
    if len(shape) < 1 + causal or not shape[-1]:
        wanted = "(..., T, S)" if causal else "(..., S)"
        raise ValueError(f"{name} has the shape {shape}, expected {wanted} with at least one element in a row")
    return same(**arrays) // shape[-1], shape[-1]


def cross_entropy(logits: Shaped, labels: Shaped, probs: Shaped, loss: Shaped) -> tuple[int, int]:
    """Return rows and classes."""
    rows, classes = axes("logits", logits, "NC")
    if not classes:
        raise ValueError(f"logits has the shape {(rows, classes)}, expected at least one class")
    expect("probs", probs, (rows, classes))
    expect("labels", labels, (rows,))
    expect("loss", loss, (rows,))
    return rows, classes


def workspace(array: Shaped, floats: int) -> None:
    """Check that a workspace is flat and large enough."""
    if len(array.shape) != 1 or array.shape[0] < floats:
        raise ValueError(f"workspace has the shape {tuple(array.shape)}, expected at least ({floats},)")


def im2col(array: Shaped, x: Shaped, w: Shaped, padding: int, stride: int) -> int:
    """Check the workspace of a convolution; return the floats that it needs."""
    floats = im2col_floats(x.shape, w.shape, padding, stride)
    workspace(array, floats)
    return floats


def buffers(steps: int, offset: Any, **columns: Any) -> int:
    """Check that there is a step and that all columns are flat and of one length; return that."""
    number("steps", steps, 1)
    axes("offset", offset, "B")
    return same(offset=offset, **columns)


def overlap(offset: Any, size: Any, start: Any, end: Any, steps: int, pair: Any) -> int:
    """Return the number of buffers."""
    expect("pair", pair, (2,))
    return buffers(steps, offset, size=size, start=start, end=end)


def load_profile(size: Any, start: Any, end: Any, out: Any) -> tuple[int, int]:
    """Return the number of buffers and of steps, at least one."""
    (steps,) = axes("out", out, "n")
    axes("size", size, "B")
    if steps < 1:
        raise ValueError(f"out has the shape ({steps},), expected at least one step")
    return same(size=size, start=start, end=end), steps


def placement(steps: int, alignment: int, height: int, fault: Any, **columns: Any) -> int:
    """Return the number of buffers."""
    number("alignment", alignment, 1)
    number("height", height, 0)
    expect("fault", fault, (3,))
    return buffers(steps, **columns)
