"""Workspaces: shapes by hand, bytes by a naive second account, traces with them through planners and oracles."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.suites import parser as suites
from gpumem import check, io, pool, swap
from gpumem.base.errors import NotReached
from gpumem.cli.main import main
from gpumem.pool import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.workspaces import TABLE, Algorithm, Convolution, add, convolutions, offers
from gpumem.simulator.workspaces.shapes import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import WORKSPACE
from tests.conftest import shared
from tests.runs import outcome, same
from tests.swap.test_planners import judged, quick

WAYS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
BY_NAME = {algorithm.name: algorithm for algorithm in TABLE}
VGG = io.bundled("vgg16")
GTX = Machine.named("gtx1080ti")


def plane(
    way: str, n: int, c: int, k: int, side: int, r: int = 3, *, pad: int | None = None, **more: Any
) -> Convolution:
    """A 2-d convolution of stride 1 over square images."""
    pad = r // 2 if pad is None else pad
    out = side + 2 * pad - r + 1
    return Convolution(way, n, c, k, (side, side), (out, out), (r, r), (1, 1), (pad, pad), **more)


def step(
    x: Sequence[int], w: Sequence[int], y: Sequence[int], *, dtype: str = "float32", given: dict[str, Any] | None = None
) -> Trace:
    """A trace of one convolution and its gradients, with these shapes of image, filter and output."""
    shapes = [tuple(s) for s in (x, w, y)] * 2
    item = {"float32": 4, "bfloat16": 2}[dtype]
    size = [math.prod(shape) * item for shape in shapes]
    table = Buffers.make(size, [0] * 6, [2] * 6, shape=shapes, dtype=[dtype] * 6)
    names = ["convolution.default", "convolution_backward.default"]
    attributes = None if given is None else [given, given]
    return Trace(table, Ops.make([[0, 1], [5, 0, 1]], [[2], [3, 4]], name=names, attributes=attributes))


def read(*shapes: Sequence[int], **more: Any) -> Convolution:
    """The one forward convolution of `step`, whose gradients must be the same the other ways."""
    found = convolutions(step(*shapes, **more))
    c = found[0][0]
    other = {FORWARD: INPUT_GRADIENT, INPUT_GRADIENT: FORWARD}[c.direction]
    assert found[1] == (replace(c, direction=other), replace(c, direction=WEIGHT_GRADIENT))
    return c


# Shapes ---------------------------------------------------------------------------------------------------------------


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


# The table ------------------------------------------------------------------------------------------------------------


def naive(name: str, c: Convolution) -> int:
    """The bytes of a 2-d convolution's workspace, numbers counted one array after the other."""
    (h, w), (p, q), (r, s) = c.image, c.output, c.filter
    pairs = c.outputs * c.inputs // c.groups
    numbers = 0
    if name == "gemm":
        numbers = len(range(c.inputs * r * s)) * len(range(c.batch * p * q))
    if name == "winograd":
        numbers = (2 + r - 1) * (2 + s - 1) * pairs
    if name in ("winograd-nonfused", "fft-tiling", "fft"):
        height, width = (h, w) if c.direction == INPUT_GRADIENT else (p, q)
        step, tile = {"winograd-nonfused": (4, (r + 3) * (s + 3)), "fft-tiling": (33 - r, 32 * 17 * 2), "fft": (0, 0)}[
            name
        ]
        tiles = c.batch
        if name == "fft":
            rows, columns = (
                next(2**k for k in range(9) if 2**k >= side + 2 * pad) for side, pad in zip(c.image, c.padding)
            )
            tile = rows * (columns // 2 + 1) * 2
        else:
            tiles *= len(range(0, height, step)) * len(range(0, width, step))
        numbers = tile * (tiles * c.inputs + tiles * c.outputs + pairs)
    return numbers * c.itemsize


PLANES = st.builds(
    plane,
    st.sampled_from(WAYS),
    st.integers(1, 5),
    st.sampled_from([4, 8, 12]),
    st.sampled_from([4, 16]),
    st.integers(8, 40),
    st.sampled_from([1, 3, 5, 7]),
    groups=st.sampled_from([1, 4]),
    itemsize=st.sampled_from([2, 4]),
)


@given(PLANES)
def test_bytes_agree_with_a_naive_account(c: Convolution) -> None:
    fitting = [algorithm for algorithm in TABLE if algorithm.fits(c)]
    assert fitting and "implicit-gemm" in [algorithm.name for algorithm in fitting]
    for algorithm in fitting:
        assert algorithm.workspace(c) == naive(algorithm.name, c) >= 0
        assert algorithm.time(c) > 0


@given(PLANES, st.integers(2, 4))
def test_a_larger_batch_needs_no_less_of_anything(c: Convolution, factor: int) -> None:
    larger = replace(c, batch=c.batch * factor)
    for algorithm in TABLE:
        assert algorithm.fits(larger) == algorithm.fits(c)
        if algorithm.fits(c):
            assert algorithm.workspace(larger) >= algorithm.workspace(c)
            assert algorithm.time(larger) >= algorithm.time(c)


def test_figures_that_others_have_published() -> None:
    fused = BY_NAME["winograd"].workspace
    assert fused(plane(FORWARD, 256, 64, 64, 56)) == 256 * 2**10  # ResNet50's res2a_branch2b: LBANN, pull request 437
    assert fused(plane(FORWARD, 64, 512, 512, 14)) == 16 * 2**20  # VGG's largest: Lavin and Gray, section 6
    lowered = BY_NAME["gemm"].workspace
    assert lowered(plane(FORWARD, 1, 64, 64, 56)) == 9 * 64 * 56 * 56 * 4  # nine times the image: Chetlur et al.


def test_products_fall_as_the_papers_say() -> None:
    """Many channels make transforms cheap: 2.25 and 4 times fewer products, Lavin and Gray, sections 4.2 and 4.3."""
    c = plane(FORWARD, 64, 4096, 4096, 64)
    direct = BY_NAME["implicit-gemm"].time(c)
    assert direct / BY_NAME["winograd"].time(c) == pytest.approx(2.25, rel=0.02)
    assert direct / BY_NAME["winograd-nonfused"].time(c) == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("c", "names"),
    [
        (plane(FORWARD, 2, 8, 8, 16), {"gemm", "winograd", "winograd-nonfused", "fft", "fft-tiling"}),
        (plane(WEIGHT_GRADIENT, 2, 8, 8, 16), {"gemm", "winograd-nonfused", "fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 5), {"gemm", "winograd-nonfused", "fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 7), {"gemm", "fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 255), {"gemm", "winograd", "winograd-nonfused", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 1), {"fft", "fft-tiling"}),
        (plane(FORWARD, 2, 8, 8, 16, 3, pad=3), {"gemm", "winograd", "winograd-nonfused"}),
        (plane(FORWARD, 2, 8, 8, 60, 33), {"gemm", "fft"}),
        (replace(plane(FORWARD, 2, 8, 8, 16), stride=(2, 2), output=(8, 8)), {"gemm"}),
        (replace(plane(FORWARD, 2, 8, 8, 16), dilation=(2, 2), output=(14, 14)), {"gemm"}),
        (Convolution(FORWARD, 2, 8, 8, (16,), (16,), (3,), (1,), (1,), (1,)), {"gemm"}),
        (Convolution(FORWARD, 2, 8, 8, (4,) * 3, (4,) * 3, (3,) * 3, (1,) * 3, (1,) * 3, (1,) * 3), {"gemm"}),
    ],
)
def test_who_can_do_what(c: Convolution, names: set[str]) -> None:
    assert {algorithm.name for algorithm in TABLE if algorithm.fits(c)} == names | {"implicit-gemm"}


# Choosing and adding --------------------------------------------------------------------------------------------------


def by_hand(*rows: tuple[str, float, int]) -> list[Algorithm]:
    return [Algorithm(name, lambda c: True, lambda c, b=b: b, lambda c, t=t: t) for name, t, b in rows]  # type: ignore[misc]


SMALL = step((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 32, 32))


def test_offers_are_those_that_nothing_beats() -> None:
    table = by_hand(("slow", 4, 0), ("never", 5, 10), ("fast", 1, 100), ("middle", 2, 50))
    assert [(o.name, o.time, o.workspace) for o in offers(SMALL, 0, table)] == [
        ("fast", 1.0, 100),
        ("middle", 2.0, 50),
        ("slow", 4.0, 0),
    ]
    assert [(o.name, o.time, o.workspace) for o in offers(SMALL, 1, table)] == [
        ("fast + fast", 1.0, 100),  # one after the other: the larger workspace, both times
        ("middle + middle", 2.0, 50),
        ("slow + slow", 4.0, 0),
    ]


def columns(trace: Trace) -> dict[str, object]:
    """Every column of a trace, to compare."""
    table = {f"{type(t).__name__}.{name}": getattr(t, name) for t in (trace.buffers, trace.ops) for name in t.__slots__}
    return {name: column.tolist() if hasattr(column, "tolist") else column for name, column in table.items()}


def test_added_are_buffers_that_live_for_their_op() -> None:
    found = add(VGG)
    old, count = len(VGG.buffers), len(found.buffers) - len(VGG.buffers)
    done = convolutions(VGG)
    assert 0 < count <= len(done) and found.n == VGG.n and found.name == VGG.name
    for b in list(found.buffers)[old:]:
        assert (b.kind, b.space, b.persistent, b.of) == (WORKSPACE, "device", False, -1)
        assert b.end == b.start + 1 and found.ops.writes[b.start].tolist()[-1] == b.id and b.start in done
        assert b.size == offers(VGG, b.start)[0].workspace and b.name == offers(VGG, b.start)[0].name
    before, after = columns(VGG), columns(found)
    writes = [[j for j in row if j < old] for row in found.ops.writes.tolist()]
    assert writes == before.pop("Ops.writes") and after.pop("Ops.writes") is not None
    for name, column in before.items():
        mine = after[name]
        assert (mine[:old] if name.startswith("Buffers") and isinstance(mine, (list, tuple)) else mine) == column, name
    assert (found.load() >= VGG.load()).all() and found.statistics.tolist() == VGG.statistics.tolist()


def test_the_rule_none_and_a_trace_without_convolutions_change_nothing() -> None:
    assert add(VGG, rule="none") is VGG
    mlp = io.bundled("mlp3")
    assert add(mlp) is mlp and convolutions(mlp) == {}


@pytest.mark.parametrize("rule", ["fastest", 2**26, 2**20, 0])
def test_adding_twice_is_adding_once(rule: str | int) -> None:
    once = add(VGG, rule=rule)
    for again in ("fastest", rule, 0, "none"):
        assert (again == 0 and rule == "fastest") or add(once, rule=again) is once


def test_a_recorded_workspace_stays() -> None:
    own = add(SMALL, by_hand(("mine", 1, 77)))
    assert own.buffers.size[-2:].tolist() == [77, 77]
    assert add(own, rule=0) is own


@given(st.integers(0, 2**27))
def test_a_budget_is_kept_and_costs_time(budget: int) -> None:
    found = add(VGG, rule=budget)
    added = found.buffers.size[len(VGG.buffers) :]
    assert added.max(initial=0) <= budget
    assert (found.ops.flops >= VGG.ops.flops).all() and (found.ops.moved >= VGG.ops.moved).all()
    least = add(VGG, rule=0)
    assert (found.ops.flops <= least.ops.flops).all() and found.peak_load <= add(VGG).peak_load
    assert found.peak_load >= VGG.peak_load


def test_a_slower_choice_takes_longer_by_the_ratio_of_the_times() -> None:
    ops = replace(SMALL.ops, duration=np.array([1000, -1]), flops=np.array([8.0, 16.0]), moved=np.array([4.0, 2.0]))
    trace = Trace(SMALL.buffers, ops)
    table = by_hand(("fast", 2, 100), ("slow", 5, 10))
    slower = add(trace, table, rule=99)
    assert slower.ops.duration.tolist() == [2500, -1]
    assert slower.ops.flops.tolist() == [20.0, 40.0] and slower.ops.moved.tolist() == [10.0, 5.0]
    assert columns(add(trace, table))["Ops.duration"] == [1000, -1]


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


@pytest.mark.parametrize(
    ("what", "value"),
    [("time", v) for v in (math.nan, -1.0, math.inf, "1", None)]
    + [("workspace", v) for v in (-5, 12.5, 2**70, None, True)],
)
def test_what_an_algorithm_says_is_looked_at(what: str, value: Any) -> None:
    trace = step((2, 4, 9, 9), (8, 4, 3, 3), (2, 8, 9, 9))
    odd = {"time": 1.0, "workspace": 1} | {what: value}
    with pytest.raises((ValueError, TypeError), match=rf"^op 0 .* \(buffers 0, 1 to 2\): odd: {what}: "):
        add(trace, by_hand(("odd", odd["time"], odd["workspace"])))


def test_what_is_no_table_or_no_op_of_the_trace_is_said_so() -> None:
    trace: Any = step((2, 4, 9, 9), (8, 4, 3, 3), (2, 8, 9, 9))
    with pytest.raises(TypeError, match=r"table: .* must be a list of Algorithm"):
        add(trace, [3])  # type: ignore[list-item]
    with pytest.raises(IndexError, match=r"op 2: there are 2$"):
        offers(trace, 2)
    assert offers(trace, -1) == offers(trace, 1)


@pytest.mark.parametrize("rule", ["fast", "", "64MiB", -1, 0.5, True])
def test_a_rule_that_is_none_is_refused(rule: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="rule"):
        add(VGG, rule=rule)


def test_a_table_without_an_algorithm_is_one_line_that_names_op_buffers_and_shape() -> None:
    only = [BY_NAME["winograd"]]
    strided = step((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 16, 16))
    with pytest.raises(ValueError) as error:
        add(strided, only)
    told = "op 0 'convolution.default' (buffers 0, 1 to 2): the table has no algorithm for forward of 8x3x32x32"
    assert str(error.value) == f"{told} by 64x3x3x3, stride 2x2"
    with pytest.raises(ValueError, match=r"op 0 .*no algorithm of the table does with 9 B, the least is 10 B"):
        add(SMALL, by_hand(("a", 1, 10)), rule=9)


LARGER = add(VGG)


def net(layers: int = 5, x: tuple[int, ...] = (8, 64, 16, 16)) -> Trace:
    """A chain of convolutions, forward and backward: filters, then activations, then gradients."""
    w = (x[1], x[1], 3, 3)
    n, kinds = 2 * layers, [("param", w, layers), ("activation", x, layers + 1), ("act_grad", x, layers + 1)]
    start = [*[0] * layers, *[0, *range(layers)], *[layers, *range(layers, n)]]
    end = [
        *[n] * layers,
        *[n - k for k in range(layers)],
        layers + 1,
        *[layers + 1 + k + (k == 0) for k in range(layers + 1)],
    ]
    shape = [s for _, s, count in kinds for _ in range(count)]
    table = Buffers.make(
        [4 * math.prod(s) for s in shape],
        start,
        [min(stop, n) for stop in end],
        persistent=[k < layers for k in range(len(shape))],
        kind=[kind for kind, _, count in kinds for _ in range(count)],
        shape=shape,
        dtype=["float32"] * len(shape),
    )
    a, g = layers, 2 * layers + 1
    reads = [[a + k, k] for k in range(layers)] + [[g + k, a + layers - 1 - k, layers - 1 - k] for k in range(layers)]
    writes = [[a + k + 1] for k in range(layers)] + [[g + k + 1] for k in range(layers)]
    names = ["convolution.default"] * layers + ["convolution_backward.default"] * layers
    return Trace(table, Ops.make(reads, writes, name=names, duration=[1_000_000] * n))


@pytest.mark.parametrize("name", sorted(pool.PLANNERS))
def test_pool_planners_place_them(name: str) -> None:
    options = {"search": {"effort": 0.01}, "exact": {"seconds": 1}}.get(name, {})
    for trace in (LARGER, add(net())):
        check.placement(trace, pool.PLANNERS[name](trace, **options))


@pytest.mark.parametrize("name", sorted(swap.PLANNERS))
def test_swap_planners_plan_around_them(name: str) -> None:
    trace = add(net())
    assert trace.peak_load > net().peak_load
    for percent in (95, 85, 75):
        limit = trace.peak_load * percent // 100
        try:
            plan = quick(name)(trace, GTX, limit)
        except NotReached as stop:
            assert stop.reached > limit
            continue
        judged(trace, GTX, plan, limit)


def test_the_emulator_reads_the_same_with_them() -> None:
    larger = add(net(4, (1, 2, 4, 4)), by_hand(("mine", 1, 64)))
    plan = swap.PLANNERS["heuristic"](larger, GTX, larger.peak_load * 8 // 10)
    moved = plan.apply(larger)
    assert plan.swaps and (larger.buffers.size[-8:] == 64).all()
    want = outcome(larger, larger, best_fit(larger), 0)
    assert same(want, outcome(larger, moved, best_fit(moved), 3, host=best_fit(moved.host_side())))


def test_files_keep_them(tmp_path: Any) -> None:
    path = tmp_path / "trace.json.gz"
    larger = add(net())
    io.write(path, larger)
    again = io.read(path)
    named = replace(again.buffers, name=larger.buffers.name)  # the format keeps no names of buffers
    assert columns(Trace(named, again.ops)) == columns(larger) and add(again) is again


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_all_shared_traces(path: Any) -> None:
    trace = io.read(path)
    done = convolutions(trace)
    assert all(done.values()), "a convolution was not read"
    for op, found in done.items():  # flops by PyTorch's formula, which forgets the groups of a weight gradient
        counted = sum(2 * c.products * (c.groups if c.direction == WEIGHT_GRADIENT else 1) for c in found)
        assert counted == pytest.approx(trace.ops.flops[op])
    larger = add(trace)
    check.placement(larger, pool.best_fit(larger))
    assert larger.peak_load >= trace.peak_load and (larger is trace) == (len(larger.buffers) == len(trace.buffers))


# The command line -----------------------------------------------------------------------------------------------------


def test_commands_add_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for rule in ("none", "fastest", "10%"):
        assert main(["pool", "vgg16", "--workspaces", rule, "--json"]) == 0
        told = capsys.readouterr()
        rows[rule] = json.loads(told.out)[0]["peak_load"]
        assert ("workspaces of 25 ops, the largest" in told.err) == (rule != "none")
    assert rows == {
        "none": VGG.peak_load,
        "fastest": LARGER.peak_load,
        "10%": add(VGG, rule=VGG.peak_load // 10).peak_load,
    }
    assert main(["pool", "mlp3", "--workspaces", "fastest"]) == 0
    assert "mlp3_b128_sgd: no workspaces" in capsys.readouterr().err
    assert main(["plan", "vgg16", "--load-limit", "80%", "--workspaces", "64MiB", "--no-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_load"] == add(VGG, rule=2**26).peak_load


def test_a_rule_that_is_named_twice_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(of=suites, argv=["pool", "mlp3", "--what", "table1", "--workspaces", "none,none", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["table1"]) == 1


@pytest.mark.parametrize(
    "command", ["pool vgg16", "plan", "swap --limit 70%", "bound", "bench pool", "bench swap", "bench tensile"]
)
def test_bad_values_are_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value, why in (
        ("fast", "did you mean 'fastest'?"),
        ("64MB", "did you mean '64MiB'?"),
        ("-1", "nor bytes"),
        ("", "''"),
    ):
        first, *rest = command.split()
        given = [*rest, f"--workspaces={value}"]
        assert (main(given, of=suites) if first == "bench" else main([first, *given])) == 2
        error = capsys.readouterr().err.strip()
        assert "--workspaces" in error and why in error and error.count("\n") == 0
