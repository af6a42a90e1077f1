"""What `kernels.shapes` checks: both libraries refuse the same arguments in the same words, which name the argument."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpumem.kernels import reference
from tests.kernel_cases import CASES, Pick, zeros
from tests.kernels.comparing import largest

pytestmark = pytest.mark.jit  # the simulator runs Python anyway

ANY_SHAPE = {("copy", "x"), ("copy", "out"), ("mean", "x"), ("bias_gradient", "dy")}
ARRAYS = [(name, k) for name in CASES for k, v in CASES[name](Pick(largest)).items() if isinstance(v, np.ndarray)]


@pytest.mark.parametrize(("name", "argument"), sorted(set(ARRAYS) - ANY_SHAPE))
def test_one_more_axis_is_refused_by_both(device: ModuleType, name: str, argument: str) -> None:
    messages = set()
    for library in (reference, device):
        arguments = CASES[name](Pick(largest))
        arguments[argument] = arguments[argument][..., None]
        with pytest.raises(ValueError, match=r"^\w+ has the shape \(.*\), expected .*\(") as refusal:
            getattr(library, name)(0, **arguments)
        messages.add(str(refusal.value))
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("matmul", (zeros(2, 3), zeros(4, 5), zeros(2, 5)), r"b has the shape \(4, 5\), expected \(3, 5\)"),
        ("matmul", (zeros(2, 3), zeros(5, 4), zeros(2, 5), False, True), r"b .* \(5, 4\), expected \(5, 3\)"),
        ("matmul", (zeros(2, 3), zeros(3, 5), zeros(5, 2)), r"out has the shape \(5, 2\), expected \(2, 5\)"),
        ("bias", (zeros(2, 3), zeros(2), zeros(2, 3)), r"b has the shape \(2,\), expected \(3,\)"),
        ("copy", (zeros(2, 3), zeros(5)), r"out has the shape \(5,\), expected as many elements as \(2, 3\)"),
        ("copy", (zeros(2), zeros(2, dtype=np.int32)), "out holds int32, expected float32"),
        ("mean", (zeros(0), zeros(1)), r"x has the shape \(0,\), expected at least one"),
        ("delay", (-1, zeros(1)), "steps is -1"),
        ("conv2d", (zeros(1, 2, 4, 4), zeros(1, 3, 3, 3), zeros(1, 1, 4, 4)), r"w .* expected \(1, 2, 3, 3\)"),
        ("conv2d", (zeros(1, 1, 1, 9), zeros(1, 1, 3, 3), zeros(1, 1, 1, 7), 0), "height is 1 long"),
        ("conv2d", (zeros(1, 1, 4, 4), zeros(1, 1, 3, 3), zeros(1, 1, 4, 4), 1, 0), "stride >= 1"),
        ("conv2d_im2col", (zeros(1, 1, 4, 4), zeros(1, 1, 3, 3), zeros(1, 1, 4, 4), zeros(143)), r"least \(144,\)"),
        ("conv2d_winograd", (zeros(1, 1, 4, 4), zeros(1, 1, 3, 3), zeros(1, 1, 4, 4), zeros(143)), r"least \(144,\)"),
        (
            "conv2d_winograd",
            (zeros(1, 1, 4, 4), zeros(1, 1, 1, 3), zeros(1, 1, 6, 4), zeros(9)),
            "3 x 3, .* got 1 x 3, 1 and 1",
        ),
        (
            "conv2d_winograd",
            (zeros(1, 1, 3, 3), zeros(1, 1, 3, 3), zeros(1, 1, 2, 2), zeros(9), 1, 2),
            "got 3 x 3, 2 and 1",
        ),
        (
            "conv2d_input_gradient_winograd",
            (zeros(1, 1, 7, 7), zeros(1, 1, 3, 3), zeros(1, 1, 3, 3), zeros(999), 3),
            "1 and 3",
        ),
        ("batch_norm", (zeros(0, 2), *[zeros(2)] * 2, zeros(0, 2), *[zeros(2)] * 2), "at least one element for each"),
        ("batch_norm", (zeros(1, 2), *[zeros(2)] * 2, zeros(1, 2), *[zeros(2)] * 3), "one is given without the other"),
        ("batch_norm", (zeros(1, 2), *[zeros(2)] * 2, zeros(1, 2), *[zeros(2)] * 4, 0, -1), "epsilon is -1"),
        ("layer_norm", (zeros(2, 0), *[zeros(0)] * 2, zeros(2, 0), *[zeros(2)] * 2), "at least one element in a row"),
        ("layer_norm", (zeros(2, 3), *[zeros(2)] * 2, zeros(2, 3), *[zeros(2)] * 2), r"gamma .* expected \(3,\)"),
        ("layer_norm", (zeros(2, 3), *[zeros(3)] * 2, zeros(2, 3), *[zeros(3)] * 2), r"mean .* expected \(2,\)"),
        ("layer_norm", (zeros(2, 3), *[zeros(3)] * 2, zeros(2, 3), *[zeros(2)] * 2, -1), "epsilon is -1"),
        ("softmax", (zeros(2, 0), zeros(2, 0)), "at least one element in a row"),
        ("softmax", (zeros(3), zeros(3), 1, True), r"x has the shape \(3,\), expected \(..., T, S\)"),
        ("batched_matmul", (zeros(2, 3), zeros(3, 5), zeros(4, 2, 5)), r"a .* expected \(G, ..., ...\), as b is one"),
        ("batched_matmul", (zeros(4, 2, 3), zeros(5, 3, 6), zeros(4, 2, 6)), r"b .* expected \(4, 3, 6\)"),
        ("batched_matmul", (zeros(4, 2, 3), zeros(3, 6), zeros(6, 2)), r"out .* expected \(2, 6\)"),
        ("attention", (zeros(1, 2, 3), *[zeros(1, 4, 2)] * 2, zeros(1, 2, 3), zeros(1, 2, 4)), r"k .* \(1, 4, 3\)"),
        ("attention", (zeros(1, 2, 3), *[zeros(1, 0, 3)] * 2, zeros(1, 2, 3), zeros(1, 2, 0)), "at least one place"),
        ("attention_gradient", (*[zeros(2, 2, 2)] * 8, zeros(7)), r"workspace .* at least \(8,\)"),
        ("embedding", (zeros(5, 2), zeros(3), zeros(3, 3)), r"out .* expected \(3, 2\)"),
        ("embedding_gradient", (zeros(3, 3), zeros(3), zeros(5, 2)), r"dy .* expected \(3, 2\)"),
        ("average_pool", (zeros(1, 1, 4, 4), zeros(1, 1, 2, 3)), r"out .* expected \(1, 1, 2, 2\)"),
        ("dropout", (*[zeros(2)] * 3, zeros(1), 0, 1), "p is 1, expected at least 0 and less than 1"),
        ("dropout", (*[zeros(2)] * 3, zeros(2), 0), r"counter has the shape \(2,\), expected \(1,\)"),
        ("max_pool", (zeros(1, 1, 4, 4), zeros(1, 1, 2, 2), zeros(1, 1, 2, 3)), r"index .* expected \(1, 1, 2, 2\)"),
        ("softmax_cross_entropy", (zeros(2, 0), zeros(2), zeros(2, 0), zeros(2)), "at least one class"),
    ],
)
def test_refusals_name_the_argument(device: ModuleType, name: str, arguments: tuple[Any, ...], message: str) -> None:
    for library in (reference, device):
        with pytest.raises(ValueError, match=message):
            getattr(library, name)(0, *arguments)
