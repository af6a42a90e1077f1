"""Convolutions are read from the shapes of a trace's buffers and from the attributes of its ops."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gpumem.simulator.workspaces import Convolution, add, convolutions, offers
from gpumem.simulator.workspaces.shapes import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from gpumem.trace import Trace
from tests.simulator.workspaces.convolutions import VGG, step


def read(*shapes: Sequence[int], **more: Any) -> Convolution:
    """The one forward convolution of `step`, whose gradients must be the same the other ways."""
    found = convolutions(step(*shapes, **more))
    c = found[0][0]
    other = {FORWARD: INPUT_GRADIENT, INPUT_GRADIENT: FORWARD}[c.direction]
    assert found[1] == (replace(c, direction=other), replace(c, direction=WEIGHT_GRADIENT))
    return c


def test_a_plain_convolution_is_read() -> None:
    want = Convolution(FORWARD, 8, 3, 64, (32, 32), (32, 32), (3, 3), (1, 1), (1, 1), (1, 1), 1, 4)
    assert read((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 32, 32)) == want


@pytest.mark.parametrize(
    ("image", "extent", "output", "stride", "padding"),
    [
        ((224, 224), (7, 7), (112, 112), (2, 2), (3, 3)),  # the first layer of a ResNet
        ((56, 56), (1, 1), (28, 28), (2, 2), (0, 0)),  # its shortcuts
        ((299, 299), (3, 3), (149, 149), (2, 2), (0, 0)),  # Inception's
        ((17, 17), (1, 7), (17, 17), (1, 1), (0, 3)),
        ((7, 7), (7, 7), (1, 1), (1, 1), (0, 0)),  # one output, and not a stride of 7
        ((2, 2), (3, 3), (1, 1), (2, 2), (1, 1)),
        ((50,), (5,), (50,), (1,), (2,)),
        ((8, 16, 16), (3, 3, 3), (8, 8, 8), (1, 2, 2), (1, 1, 1)),
    ],
)
def test_stride_and_padding_are_inferred(
    image: tuple[int, ...],
    extent: tuple[int, ...],
    output: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> None:
    c = read((2, 16, *image), (32, 16, *extent), (2, 32, *output))
    assert (c.image, c.filter, c.output, c.stride, c.padding) == (image, extent, output, stride, padding)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 4))
def test_inferred_stride_and_padding_explain_the_output(image: int, extent: int, stride: int, pad: int) -> None:
    pad = min(pad, extent // 2)
    if image + 2 * pad < extent:
        return
    output = (image + 2 * pad - extent) // stride + 1
    c = read((2, 16, image), (32, 16, extent), (2, 32, output))
    reached = {(image + both - extent) // c.stride[0] + 1 for both in (2 * c.padding[0], 2 * c.padding[0] - 1)}
    assert output in reached and c.stride[0] <= stride


def test_groups_depthwise_and_dilation() -> None:
    grouped = read((2, 64, 8, 8), (128, 16, 3, 3), (2, 128, 8, 8))
    assert (grouped.inputs, grouped.outputs, grouped.groups) == (64, 128, 4)
    depthwise = read((2, 42, 9, 9), (42, 1, 5, 5), (2, 42, 9, 9))
    assert (depthwise.groups, depthwise.products) == (42, 2 * 42 * 81 * 25)
    given = {"dilation": [2, 2], "stride": [1], "padding": 2}
    dilated = read((2, 8, 9, 9), (8, 8, 3, 3), (2, 8, 9, 9), given=given)
    assert (dilated.dilation, dilated.stride, dilated.padding) == ((2, 2), (1, 1), (2, 2))
    told = read((2, 8, 9, 9), (8, 8, 3, 3), (2, 8, 9, 9), given={"groups": 1, "transposed": True})
    assert told.direction == INPUT_GRADIENT


def test_a_transposed_convolution_is_the_gradient_of_the_one_it_transposes() -> None:
    c = read((4, 1024, 16, 16), (1024, 512, 2, 2), (4, 512, 32, 32))
    assert c == Convolution(INPUT_GRADIENT, 4, 512, 1024, (32, 32), (16, 16), (2, 2), (2, 2), (0, 0))
    assert read((4, 64, 8, 8), (64, 64, 4, 4), (4, 64, 16, 16)).direction == INPUT_GRADIENT  # channels say nothing
    assert read((4, 64, 8, 8), (64, 64, 4, 4), (4, 64, 9, 9)).direction == FORWARD


@pytest.mark.parametrize(
    ("x", "w", "y", "image", "output"),
    [
        ((32, 50, 512), (512, 512, 5), (32, 512, 50), (50,), (50,)),  # transposed before
        ((2, 128, 7, 7), (32, 128, 3, 3), (2, 1024, 7, 7), (7, 7), (7, 7)),  # a slice of something larger
        ((32, 2, 50), (32, 2, 31), (1600, 32), (50,), (50,)),  # flat
        ((2, 30, 30, 16), (8, 16, 1, 1), (2, 8, 30, 30), (30, 30), (30, 30)),  # channels last
        ((2, 16, 32, 32), (8, 16, 2, 2), (2, 8, 256), (32, 32), (16, 16)),  # in the proportions of the other
    ],
)
def test_views_are_held_against_the_filter(
    x: Sequence[int], w: Sequence[int], y: Sequence[int], image: tuple[int, ...], output: tuple[int, ...]
) -> None:
    c = read(x, w, y)
    assert (c.batch, c.inputs, c.outputs, c.image, c.output) == (x[0], w[1], w[0], image, output)


def test_a_backward_op_goes_by_its_forward_op() -> None:
    """Its gradient may be a slice of another, which alone would pass for two groups."""
    trace = step((4, 1024, 16, 16), (1024, 512, 2, 2), (4, 512, 32, 32))
    shape = (*(trace.buffers.shape or ())[:5], (4, 1024, 32, 32))
    found = convolutions(Trace(replace(trace.buffers, shape=shape), trace.ops))
    assert [c.groups for c in (*found[0], *found[1])] == [1, 1, 1]


def test_gradients_are_those_that_are_written() -> None:
    assert [c.direction for c in convolutions(VGG)[max(convolutions(VGG))]] == [WEIGHT_GRADIENT]
    masked = step((2, 4, 8, 8), (4, 4, 3, 3), (2, 4, 8, 8), given={"output_mask": [True, False, False]})
    assert [c.direction for c in convolutions(masked)[1]] == [INPUT_GRADIENT]


def test_elements_are_as_large_as_their_type() -> None:
    half = read((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 32, 32), dtype="bfloat16")
    assert half.itemsize == 2 and half.image_bytes == 8 * 3 * 32 * 32 * 2


def test_what_fits_no_convolution_is_left_as_it_is() -> None:
    for shapes in [
        ((8, 3), (64, 3), (8, 64)),
        ((8, 5, 9, 9), (64, 3, 3, 3), (7, 63, 9, 9)),
        ((0, 3, 9), (4, 3, 3), (0, 4, 9)),
    ]:
        trace = step(*shapes)
        assert convolutions(trace) == {0: (), 1: ()} and add(trace) is trace and offers(trace, 0) == ()


def test_a_buffer_without_a_shape_is_named() -> None:
    trace = step((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 32, 32))
    for shape in (None, ((8, 3, 32, 32), None, *[(1,)] * 4)):
        bare = Trace(replace(trace.buffers, shape=shape), trace.ops)
        with pytest.raises(ValueError, match=r"op 0 'convolution.default': buffer [01] has no shape"):
            add(bare)
        assert add(bare, rule="none") is bare


ODD: list[tuple[str, Any]] = [
    *[("stride", value) for value in (0, [1, 0], [1, 1, 1], [], "2", [1.5, 1.5], [[1], [1]], math.inf, {"a": 1})],
    *[("padding", value) for value in (-1, "same", math.nan)],
    *[("dilation", value) for value in (0, [], True)],
    *[("groups", value) for value in (0, -1, "x", [1, 1])],
    *[("transposed", "false"), ("transposed", 1), ("output_mask", [1, 1, 0]), ("output_mask", "yes")],
]


@pytest.mark.parametrize(("key", "value"), ODD)
def test_an_attribute_that_is_no_such_thing_is_one_line_that_names_op_and_value(key: str, value: Any) -> None:
    trace = step((2, 4, 9, 9), (8, 4, 3, 3), (2, 8, 9, 9), given={key: value})
    with pytest.raises(ValueError, match=rf"^op 0 'convolution.default': {key} {re.escape(repr(value))} is no "):
        add(trace)


def test_an_attribute_that_is_none_tells_nothing() -> None:
    shapes = (2, 4, 9, 9), (8, 4, 3, 3), (2, 8, 9, 9)
    given = dict.fromkeys(["stride", "padding", "dilation", "groups", "transposed", "output_mask"])
    assert convolutions(step(*shapes, given=given)) == convolutions(step(*shapes))
