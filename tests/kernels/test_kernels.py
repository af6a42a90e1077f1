"""Kernels against NumPy under Numba's simulator, NumPy against loops, formulas and finite differences; PTX.

The simulator is chosen when `numba.cuda` is first imported: `pytest_configure` in `conftest.py` does so.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem.kernels import reference
from tests.conftest import absent, needs, simulated
from tests.kernel_cases import CASES, CHANNELS, OPERANDS, SHAPED, WINOGRAD, Array, Pick, bias, images, of_shape

pytestmark = pytest.mark.jit  # the simulator runs Python anyway

ROOT = Path(__file__).resolve().parents[2]
MASK = 2**64 - 1
# Barriers cost the simulator up to 50 ms each, so these get few examples beside the smallest and the largest sizes.
BARRIERS = {
    "attention",
    "attention_gradient",
    "batch_norm",
    "batch_norm_gradient",
    "batched_matmul",
    "bias_gradient",
    "checksum",
    "layer_norm",
    "layer_norm_gradient",
    "load_profile",
    "matmul",
    "mean",
    "softmax",
    "softmax_cross_entropy",
    "softmax_gradient",
    "conv2d_weight_gradient",
}
BARRIERS |= {name for name in CASES if name.endswith(("im2col", "winograd"))}


@pytest.fixture(scope="module")
def device() -> Iterator[ModuleType]:
    """The kernels, in the simulator; threads take turns more often, which halves the time at barriers."""
    kernels = simulated()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield kernels
    sys.setswitchinterval(interval)


def smallest(low: int, high: int) -> int:
    return low


def largest(low: int, high: int) -> int:
    return high


def compare(device: ModuleType, name: str, arguments: dict[str, Any]) -> None:
    """Run an op in both libraries: all arguments must agree afterwards, inputs included."""
    from gpumem.kernels.numba_cuda import cuda

    theirs = {k: cuda.to_device(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    getattr(device, name)(0, **theirs)
    assert getattr(reference, name)(None, **arguments) is None
    for k, expected in arguments.items():
        if isinstance(expected, np.ndarray) and not (k == "workspace" and name in WINOGRAD):
            got = theirs[k].copy_to_host()
            exact = expected.dtype != np.float32
            np.testing.assert_allclose(got, expected, *(0, 0) if exact else (1e-4, 1e-5), err_msg=f"{name}: {k}")


@pytest.mark.parametrize("name", CASES)
def test_cases_are_drawn_from_a_seed(name: str) -> None:
    """As on a GPU (test_gpu.py), where sizes and salts are no examples of Hypothesis'."""
    for seed in range(5):
        arguments, again = CASES[name](Pick.seeded(seed)), CASES[name](Pick.seeded(seed))
        assert all(np.array_equal(arguments[k], again[k]) for k in again)
        getattr(reference, name)(None, **arguments)


# The same in both libraries


def test_both_libraries_have_the_same_functions(device: ModuleType) -> None:
    assert device.__all__ == reference.__all__ == sorted([*CASES, "im2col_floats", "winograd_floats"])
    for name in reference.__all__:
        ours, theirs = (inspect.signature(getattr(m, name)).parameters.values() for m in (reference, device))
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]
        assert getattr(device, name).__doc__ and getattr(reference, name).__doc__


ENDS = [(name, smallest) for name in CASES if name not in WINOGRAD]
ENDS += [pytest.param(name, smallest, marks=pytest.mark.thorough) for name in WINOGRAD]  # 16 matrices take seconds
ENDS += [pytest.param(name, largest, marks=pytest.mark.thorough) for name in CASES if name not in WINOGRAD]
ENDS += [pytest.param(name, largest, marks=pytest.mark.slow) for name in WINOGRAD]  # compiled, they are in test_gpu.py


@pytest.mark.parametrize(("name", "sizes"), ENDS)
def test_kernels_agree_with_numpy_at_both_ends(device: ModuleType, name: str, sizes: Callable[[int, int], int]) -> None:
    compare(device, name, CASES[name](Pick(sizes)))


@pytest.mark.parametrize("name", sorted(set(CASES) - BARRIERS))
@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=6)
def test_kernels_agree_with_numpy(device: ModuleType, name: str, data: st.DataObject, seed: int) -> None:
    compare(device, name, CASES[name](Pick(lambda low, high: data.draw(st.integers(low, high)), seed)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(BARRIERS - set(WINOGRAD)))
@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=2)
def test_kernels_with_barriers_agree_with_numpy(device: ModuleType, name: str, data: st.DataObject, seed: int) -> None:
    compare(device, name, CASES[name](Pick(lambda low, high: data.draw(st.integers(low, high)), seed)))


@pytest.mark.thorough
def test_checks_of_a_placement_agree_on_two_buffers(device: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.kernels.numba_cuda.THREADS", 2)  # to launch: the simulator takes its time for each
    rng = np.random.default_rng(0)
    for turn in range(300):
        steps = int(rng.integers(1, 5))
        start = rng.integers(0, steps, 2)
        columns = {"offset": rng.integers(-1, 5, 2), "size": rng.integers(0, 4, 2), "start": start}
        columns["end"] = start + rng.integers(1, steps + 1, 2)
        compare(device, "overlap", columns | {"steps": steps, "pair": np.full(2, -7)})
        if turn % 3:
            continue
        host = (columns["offset"] == -1) ^ (rng.random(2) < 0.1)
        limits = {"steps": steps, "alignment": int(rng.integers(1, 3)), "height": int(rng.integers(4, 9))}
        compare(device, "placement", columns | {"host": host} | limits | {"found": np.full(3, -7)})


def test_load_profiles_agree_wherever_a_lifetime_ends(device: ModuleType) -> None:
    start, length = np.divmod(np.arange(9), 3)  # all arcs of a circle of three steps
    arcs = {"size": 10 ** np.arange(9), "start": start, "end": start + length + 1}
    compare(device, "load_profile", arcs | {"out": np.full(3, -7)})


@pytest.mark.parametrize(
    "name", ["embedding_gradient", "layer_norm", "layer_norm_gradient", "softmax", "softmax_gradient"]
)
def test_rows_may_be_longer_than_a_block(device: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.kernels import numba_cuda as _numba

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)  # the least that sums over a block can do with
    monkeypatch.setattr("gpumem.kernels.numba_cuda._BLOCKS", 3)  # and a grid has fewer blocks than there are rows
    monkeypatch.setattr("tests.kernel_cases.LONG", 19)
    compare(device, name, CASES[name](Pick(largest)))


@pytest.fixture
def two_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of two threads for kernels that look at each element."""
    monkeypatch.setattr("gpumem.kernels.numba_cuda.THREADS", 2)
    monkeypatch.setattr("gpumem.kernels.numba_cuda._WAVES", 2)


MANY = [*((name, n) for name in SHAPED for n in (12, 13, 16, 37)), *((name, 0) for name in ("copy", "fill"))]


@pytest.mark.usefixtures("two_by_two")
@pytest.mark.parametrize(("name", "n"), MANY)
def test_a_thread_may_have_many_elements(
    device: ModuleType, name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pick, "shape", lambda pick: (n,))
    compare(device, name, CASES[name](Pick(largest)))


@pytest.mark.usefixtures("two_by_two")
@pytest.mark.parametrize("shape", [(9, 1), (9, 3), (3, 5, 1, 3), (5, 2, 3, 2), (5, 1, 2, 1), (1, 2, 3, 3)])
def test_biases_of_a_thread_with_many_elements(device: ModuleType, shape: tuple[int, ...]) -> None:
    compare(device, "bias", bias(Pick(largest), of_shape(*shape)))


@pytest.mark.parametrize("shape", [(40, 2), (7, 3, 1, 5), (3, 2, 5, 5), (2, 2, 3, 6)])
@pytest.mark.parametrize("name", CHANNELS)
def test_channels_may_be_longer_than_a_block(
    device: ModuleType, name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumem.kernels import numba_cuda as _numba

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)
    compare(device, name, CHANNELS[name](Pick(largest), of_shape(*shape)))


GEOMETRIES = [(1, 6, 1, 1), (5, 2, 0, 2), (4, 5, 2, 3)]
CONVOLUTIONS = [(name, *numbers) for name in OPERANDS for numbers in GEOMETRIES]
CONVOLUTIONS += [pytest.param(f"{name}_im2col", 1, 1, 0, 1, marks=pytest.mark.thorough) for name in OPERANDS]


@pytest.mark.parametrize(("name", "kernels", "channels", "padding", "stride"), CONVOLUTIONS)
def test_convolutions_of_more_than_a_thread_and_a_block_sum_at_once(
    device: ModuleType,
    name: str,
    kernels: int,
    channels: int,
    padding: int,
    stride: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpumem.kernels import numba_cuda as _numba

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)
    monkeypatch.setattr(_numba, "_WAVES", 3)
    compare(device, name, images(Pick(smallest), name, (3, channels, 5, 7), (kernels, channels, 3, 2), padding, stride))


@pytest.mark.parametrize(("padding", "stride"), [(2, 1), (1, 2), (0, 1)])
def test_im2col_of_more_places_than_a_block_has_threads(
    device: ModuleType, padding: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrices alone: the product after them takes the simulator its time."""
    from gpumem.kernels import numba_cuda as _numba
    from gpumem.kernels.device import im2col

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)
    case = images(Pick(smallest), "conv2d_im2col", (2, 2, 6, 9), (1, 2, 3, 2), padding, stride)
    got = case["workspace"].copy()
    im2col._unfold(0, case["x"], case["w"], case["out"], got, padding, stride)
    reference.conv2d_im2col(None, **case)
    assert np.array_equal(got, case["workspace"])


def test_the_transforms_of_winograd_make_a_correlation(device: ModuleType) -> None:
    """As matrices: y = A^T (G g * B^T d), in whole numbers but for the halves of G."""
    from gpumem.kernels.device import winograd

    g_matrix, b_matrix, a_matrix = (
        np.array([function(*row) for row in np.eye(n, dtype=np.float32)]).T
        for function, n in ((winograd.weights, 3), (winograd.pixels, 4), (winograd.results, 4))
    )
    assert g_matrix.tolist() == [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    for g, d in np.random.default_rng(0).integers(-9, 9, (5, 2, 4)):
        y = a_matrix @ ((g_matrix @ g[:3]) * (b_matrix @ d))
        assert y.tolist() == np.correlate(d, g[:3], "valid").tolist()


def sums_of_products(
    device: ModuleType, turn_a: bool, turn_b: bool, inner: int = 18, enough: int = 2
) -> tuple[Array, Array]:
    """Two sums of two products each, by `matmul.product` and by NumPy; large tiles from `enough` of them on."""
    matmul = import_module("gpumem.kernels.device.matmul")  # the package has a function of that name

    rows, columns, rng = 19, 33, np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 2, rows, inner), (2, 2, inner, columns)))
    out = np.full(2 * rows * columns, np.nan, np.float32)
    left = np.swapaxes(a, 2, 3).flatten() if turn_a else a.reshape(-1)
    right = np.swapaxes(b, 2, 3).flatten() if turn_b else b.reshape(-1)
    left = left, rows * inner, *((1, rows) if turn_a else (inner, 1))
    right = right, inner * columns, *((1, inner) if turn_b else (columns, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "_ENOUGH", enough)
        matmul.product(0, left, right, out, 2, 2, (rows, columns, inner))
    return out, (a @ b).sum(axis=1).reshape(-1)


def test_products_by_large_tiles(device: ModuleType) -> None:
    np.testing.assert_allclose(*sums_of_products(device, False, False, inner=5), 1e-4, 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
def test_products_by_large_tiles_whatever_lies_side_by_side(device: ModuleType, turn_a: bool, turn_b: bool) -> None:
    np.testing.assert_allclose(*sums_of_products(device, turn_a, turn_b), 1e-4, 1e-5)


@pytest.mark.thorough
def test_the_size_of_tiles_changes_no_bit(device: ModuleType) -> None:
    large, small = (sums_of_products(device, False, True, 18, enough)[0] for enough in (2, 3))
    assert np.array_equal(large, small)


@pytest.mark.parametrize(
    ("batches", "rows", "columns", "share"),
    [(1, 512, 512, 4), (1, 448, 512, 1), (64, 17, 17, 4), (64, 16, 32, 1), (9999, 8, 64, 4), (9999, 8, 48, 1)],
)
def test_tiles_are_large_where_they_keep_a_gpu_busy(
    device: ModuleType, batches: int, rows: int, columns: int, share: int
) -> None:
    from gpumem.kernels.device.matmul import _share

    assert _share(batches, rows, columns) == share


def test_a_side_beyond_32_bits_is_refused(device: ModuleType) -> None:
    from gpumem.kernels.device.matmul import product

    with pytest.raises(ValueError, match=r"inner\) = \(1, 2147483648, 1\): no side may be longer than 2147483520"):
        product(0, (None, 0, 0, 0), (None, 0, 0, 0), None, 1, 1, (1, 2**31, 1))


@pytest.mark.parametrize(
    ("name", "result", "source"),
    [
        ("relu", "out", "x"),
        ("relu_gradient", "dx", "dy"),
        ("add", "out", "a"),
        ("add", "out", "b"),
        ("bias", "out", "x"),
        ("batch_norm", "out", "x"),
        ("batch_norm_gradient", "dx", "dy"),
        ("dropout", "out", "x"),
        ("dropout_gradient", "dx", "dy"),
        ("gelu", "out", "x"),
        ("gelu_gradient", "dx", "dy"),
        ("layer_norm", "out", "x"),
        ("layer_norm_gradient", "dx", "dy"),
        ("softmax", "out", "x"),
        ("softmax_gradient", "dx", "dy"),
    ],
)
def test_results_may_replace_arguments(device: ModuleType, name: str, result: str, source: str) -> None:
    for library in (reference, device):
        apart, together = (CASES[name](Pick(largest)) for _ in range(2))
        together[result] = together[source]
        for arguments in (apart, together):
            getattr(library, name)(0, **arguments)
        np.testing.assert_array_equal(apart[result], together[result])


@pytest.mark.parametrize("name", ["adam", "add", "copy", "dropout", "dropout_gradient", "relu", "relu_gradient", "sgd"])
def test_nothing_is_launched_for_empty_arrays(device: ModuleType, name: str) -> None:
    arguments = CASES[name](Pick(smallest))
    for key, value in arguments.items():
        if isinstance(value, np.ndarray) and key not in ("step", "counter"):
            arguments[key] = np.zeros(0, value.dtype)
    compare(device, name, arguments)


def test_an_empty_batch_has_no_gradient(device: ModuleType) -> None:
    x, dy, dw = np.ones((0, 2, 3, 3), np.float32), np.ones((0, 2, 3, 3), np.float32), np.ones((2, 2, 3, 3), np.float32)
    compare(device, "conv2d_weight_gradient_im2col", {"x": x, "dy": dy, "dw": dw, "workspace": np.ones(0, np.float32)})
    assert not dw.any()
    compare(device, "bias_gradient", {"dy": dy, "db": np.ones(2, np.float32)})
    compare(device, "matmul", {"a": x.reshape(2, 0), "b": x.reshape(0, 3), "out": np.ones((2, 3), np.float32)})


def test_nan_stays_visible(device: ModuleType) -> None:
    x = np.array([np.nan, -np.inf, -1, 2], np.float32)
    compare(device, "relu", {"x": x, "out": np.zeros(4, np.float32)})


def test_two_threads_may_launch(device: ModuleType) -> None:
    """The simulator refuses concurrent launches, so this needs the lock."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                compare(device, "add", CASES["add"](Pick(largest)))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# Refusals


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


def zeros(*shape: int, dtype: type = np.float32) -> Array:
    return np.zeros(shape, dtype)


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


# The reference against loops and formulas


def naive_mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


@given(x=st.binary(max_size=40), salt=st.integers(-(2**65), 2**65), before=st.integers(0, MASK))
def test_checksum_and_fill_are_splitmix64(x: bytes, salt: int, before: int) -> None:
    start = naive_mix(salt & MASK)
    weights = [naive_mix((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) | 1 for i in range(len(x))]
    digest, out = np.array([before], np.uint64), np.zeros(len(x), np.uint8)
    reference.checksum(None, np.frombuffer(x, np.uint8), digest, salt)
    assert digest[0] == (before + sum((byte + 1) * weight for byte, weight in zip(x, weights, strict=True))) & MASK
    reference.fill(None, digest, out, salt)
    start = naive_mix(int(digest[0]) ^ start)
    states = [(start + (i + 1) * 0x9E3779B97F4A7C15) & MASK for i in range(len(x))]
    assert out.tolist() == [naive_mix(state) >> 56 for state in states]


def test_long_buffers_are_hashed_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sums = np.arange(100, dtype=np.uint8), set()
    for chunk in (1000, 7):
        monkeypatch.setattr("gpumem.kernels.reference._CHUNK", chunk)
        monkeypatch.setattr("gpumem.kernels.reference.norm._CHUNK", chunk)
        digest, out, y, mask = np.zeros(1, np.uint64), np.zeros(100, np.uint8), zeros(100), np.zeros(100, np.uint8)
        reference.checksum(None, x, digest)
        reference.fill(None, digest, out)
        reference.dropout(None, zeros(100) + 1, y, mask, digest, 3)
        sums.add((int(digest[0]), out.tobytes(), mask.tobytes(), y.tobytes()))
    assert len(sums) == 1


@given(x=st.binary(min_size=2, max_size=40), data=st.data())
def test_a_checksum_sees_bytes_positions_and_salts(x: bytes, data: st.DataObject) -> None:
    def digest(x: bytes, salt: int = 0) -> int:
        out = np.zeros(1, np.uint64)
        reference.checksum(None, np.frombuffer(x, np.uint8), out, salt)
        return int(out[0])

    i, j = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=2, max_size=2, unique=True))
    other = bytearray(x)
    other[i], other[j] = x[j], x[i]
    assert (digest(bytes(other)) == digest(x)) == (x[i] == x[j])
    other = bytearray(x)
    other[i] ^= data.draw(st.integers(1, 255))
    assert digest(bytes(other)) != digest(x) != digest(x + b"\0")
    assert digest(x, 1) != digest(x)


@given(steps=st.integers(0, 500))
def test_delay_is_an_lcg(steps: int) -> None:
    state, out = 0, np.ones(1, np.uint64)
    for _ in range(steps):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
    reference.delay(None, steps, out)
    assert out[0] == state


@given(data=st.data(), seed=st.integers(0, 99))
def test_matmul_is_that_of_numpy(data: st.DataObject, seed: int) -> None:
    case = CASES["matmul"](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    reference.matmul(None, **case)
    a, b = (case[k].T if case[f"transpose_{k}"] else case[k] for k in "ab")
    np.testing.assert_allclose(case["out"], np.matmul(a.astype(float), b.astype(float)), 1e-4, 1e-5)


def naive_conv(x: Array, w: Array, padding: int, stride: int, out: Array) -> None:
    for n, k, p, q in np.ndindex(out.shape):
        out[n, k, p, q] = 0
        for c, r, s in np.ndindex(w.shape[1:]):
            h, v = p * stride + r - padding, q * stride + s - padding
            if 0 <= h < x.shape[2] and 0 <= v < x.shape[3]:
                out[n, k, p, q] += x[n, c, h, v] * w[k, c, r, s]


@pytest.mark.parametrize("name", ["conv2d", "conv2d_im2col"])
@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_convolution_is_that_of_loops(name: str, data: st.DataObject, seed: int) -> None:
    case = CASES[name](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    expected = np.zeros(case["out"].shape)
    naive_conv(case["x"], case["w"], case["padding"], case["stride"], expected)
    getattr(reference, name)(None, **case)
    np.testing.assert_allclose(case["out"], expected, 1e-4, 1e-5)


@given(data=st.data(), seed=st.integers(0, 99))
def test_pooling_is_that_of_loops(data: st.DataObject, seed: int) -> None:
    case = CASES["max_pool"](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    reference.max_pool(None, **case)
    x, size, stride = case["x"], case["size"], case["stride"]
    dy, dx, expected = (
        np.random.default_rng(seed).random(case["out"].shape, np.float32),
        np.ones_like(x),
        np.zeros(x.shape),
    )
    for n, c, p, q in np.ndindex(case["out"].shape):
        window = x[n, c, p * stride : p * stride + size, q * stride : q * stride + size]
        h, v = divmod(int(window.argmax()), size)  # argmax is the first one
        assert case["out"][n, c, p, q] == window[h, v]
        assert case["index"][n, c, p, q] == (p * stride + h) * x.shape[3] + q * stride + v
        expected[n, c, p * stride + h, q * stride + v] += dy[n, c, p, q]
    reference.max_pool_gradient(None, dy, case["index"], dx, size, stride)
    np.testing.assert_allclose(dx, expected, 1e-5)


# Gradients against finite differences, in float64: the references do not care


def slope(function: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """Return the gradient of sum(dy * function(x)) by x."""
    gradient, step = np.zeros_like(x), 1e-5
    for i in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * step
            ends.append(float((dy * function(moved)).sum()))
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def doubles(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize("suffix", ["", "_im2col"])
@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 1), (1, 2), (2, 2), (0, 3)])
def test_gradients_of_convolution(padding: int, stride: int, suffix: str) -> None:
    x, w = doubles(2, 2, 5, 4), doubles(3, 2, 3, 2)
    y = np.zeros((2, 3, (5 + 2 * padding - 3) // stride + 1, (4 + 2 * padding - 2) // stride + 1))
    dy, dx, dw = doubles(*y.shape), np.ones_like(x), np.ones_like(w)
    workspace = [np.ones(reference.im2col_floats(x.shape, w.shape, padding, stride))] if suffix else []

    def forward(x: Array, w: Array) -> Array:
        naive_conv(x, w, padding, stride, y)
        return y

    getattr(reference, f"conv2d_input_gradient{suffix}")(None, dy, w, dx, *workspace, padding, stride)
    getattr(reference, f"conv2d_weight_gradient{suffix}")(None, x, dy, dw, *workspace, padding, stride)
    np.testing.assert_allclose(dx, slope(lambda x: forward(x, w), x, dy), 1e-6, 1e-8)
    np.testing.assert_allclose(dw, slope(lambda w: forward(x, w), w, dy), 1e-6, 1e-8)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 2)])
def test_gradients_of_bias_and_relu(shape: tuple[int, ...]) -> None:
    x, b, y, dy = doubles(*shape), doubles(shape[1]), np.zeros(shape), doubles(*shape, 1)[..., 0]

    def biased(b: Array) -> Array:
        reference.bias(None, x, b, y)
        return y

    def rectified(x: Array) -> Array:
        reference.relu(None, x, y)
        return y

    db, dx = np.ones_like(b), np.ones_like(x)
    reference.bias_gradient(None, dy, db)
    np.testing.assert_allclose(db, slope(biased, b, dy), 1e-6)
    reference.relu_gradient(None, rectified(x), dy, dx)
    np.testing.assert_allclose(dx, slope(rectified, x, dy), 1e-6, 1e-9)


@pytest.mark.parametrize("shape", [(5, 2), (2, 3, 4, 2)])
def test_gradients_of_batch_norm(shape: tuple[int, ...]) -> None:
    x, gamma, beta, dy = doubles(*shape), doubles(shape[1]), doubles(shape[1], 1)[:, 0], doubles(*shape, 1)[..., 0]
    y, mean, inverse_std = np.zeros(shape), np.zeros(shape[1]), np.zeros(shape[1])

    def normed(x: Array, gamma: Array, beta: Array) -> Array:
        reference.batch_norm(None, x, gamma, beta, y, mean, inverse_std, epsilon=0.01)
        return y

    got = [np.ones_like(array) for array in (x, gamma, beta)]
    normed(x, gamma, beta)
    reference.batch_norm_gradient(None, dy, x, gamma, mean, inverse_std, *got)
    for k, gradient in enumerate(got):
        given = [x, gamma, beta]

        def moved(array: Array, k: int = k, given: list[Array] = given) -> Array:
            return normed(*given[:k], array, *given[k + 1 :])

        np.testing.assert_allclose(gradient, slope(moved, given[k], dy), 1e-5, 1e-7)


@pytest.mark.parametrize("shape", [(6, 2), (2, 2, 3, 1)])
def test_batch_norm_follows_its_formula_and_without_statistics_does_the_same(shape: tuple[int, ...]) -> None:
    x, gamma, beta = doubles(*shape), doubles(2), doubles(2, 1)[:, 0]
    rows = np.moveaxis(x, 1, 0).reshape(2, 6)
    outs = [[np.ones(shape), np.ones(2), np.ones(2)] for _ in range(2)]
    running = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    reference.batch_norm(None, x, gamma, beta, *outs[0], *running, 0.25, 0.01)
    reference.batch_norm(None, x, gamma, beta, *outs[1], momentum=0.25, epsilon=0.01)
    assert all(np.array_equal(a, b) for a, b in zip(*outs))
    y, mean, inverse_std = outs[0]
    np.testing.assert_allclose(mean, rows.mean(1))
    np.testing.assert_allclose(inverse_std, (rows.var(1) + 0.01) ** -0.5)
    wanted = ((rows.T - mean) * inverse_std * gamma + beta).T
    np.testing.assert_allclose(np.moveaxis(y, 1, 0).reshape(2, 6), wanted, 1e-6)
    np.testing.assert_allclose(running[0], 0.75 * np.array([1, 2]) + 0.25 * rows.mean(1), 1e-6)
    np.testing.assert_allclose(running[1], 0.75 * np.array([3, 4]) + 0.25 * rows.var(1, ddof=1), 1e-6)


def test_one_sample_has_no_spread() -> None:
    running, out = [np.zeros(1, np.float32), np.ones(1, np.float32)], [zeros(1, 1), zeros(1), zeros(1)]
    reference.batch_norm(None, zeros(1, 1) + 3, zeros(1) + 1, zeros(1) + 5, *out, *running, momentum=0.5)
    assert (out[0][0, 0], *running) == (5, 1.5, 0.5)


@given(size=st.integers(0, 40), seed=st.integers(-(2**65), 2**65), before=st.integers(0, MASK), p=st.floats(0, 0.99))
def test_dropout_goes_by_splitmix64(size: int, seed: int, before: int, p: float) -> None:
    x, counter, mask = np.arange(size, dtype=float) + 1, np.array([before], np.uint64), np.zeros(size, np.uint8)
    y, dx = np.zeros(size), np.zeros(size)
    reference.dropout(None, x, y, mask, counter, seed, p)
    start = naive_mix(before ^ naive_mix(seed & MASK))
    draws = [naive_mix((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) >> 32 for i in range(size)]
    assert mask.tolist() == [draw >= round(p * 2**32) for draw in draws] and counter[0] == before
    np.testing.assert_allclose(y, x * mask / (1 - p), 1e-6)
    reference.dropout_gradient(None, x, mask, dx, p)
    assert np.array_equal(dx, y)  # it is linear


def test_dropout_drops_its_share_and_draws_anew_after_an_advance() -> None:
    x, counter, masks = np.ones(2**16, np.float32), np.zeros(1, np.uint64), []
    for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0)):
        for _ in range(step):
            reference.advance(None, counter)
        masks.append(np.zeros(len(x), np.uint8))
        reference.dropout(None, x, x.copy(), masks[-1], counter, seed, 0.25)
        assert masks[-1].mean() == pytest.approx(0.75, abs=0.01)
    assert np.array_equal(masks[0], masks[1])
    for a, b in ((1, 2), (2, 3)):  # independent: they agree where both keep, or both drop
        assert (masks[a] == masks[b]).mean() == pytest.approx(0.75**2 + 0.25**2, abs=0.01)
    counter[0] = MASK
    reference.advance(None, counter)
    assert counter[0] == 0


def test_gradient_of_cross_entropy() -> None:
    logits, labels, probs, loss = doubles(4, 5), np.array([0, 4, 2, 2], np.int32), np.zeros((4, 5)), np.zeros(4)

    def mean_loss(logits: Array) -> Array:
        mean = np.zeros(1)
        reference.softmax_cross_entropy(None, logits, labels, probs, loss)
        reference.mean(None, loss, mean)
        return mean

    expected, gradient = slope(mean_loss, logits, np.ones(1)), np.ones_like(logits)
    mean_loss(logits)
    np.testing.assert_allclose(loss, [-math.log(probs[i, label]) for i, label in enumerate(labels)])
    np.testing.assert_allclose(probs, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
    reference.softmax_cross_entropy_gradient(None, probs, labels, gradient)
    np.testing.assert_allclose(gradient, expected, 1e-6, 1e-9)


def test_cross_entropy_is_stable_and_refuses_strange_labels() -> None:
    logits, probs, loss = np.array([[1e4, -1e4]] * 3, np.float32), zeros(3, 2), zeros(3)
    reference.softmax_cross_entropy(None, logits, np.array([0, 1, 2], np.int32), probs, loss)
    assert probs.tolist() == [[1, 0]] * 3
    assert loss.tolist()[:2] == [0, 2e4] and math.isnan(loss[2])


def test_optimizers_follow_their_formulas() -> None:
    w, g = 0.5, 0.25
    one = [np.array([value], np.float32) for value in (w, g, 0, 0, 0)]
    m = v = 0.0
    for t in (1, 2, 3):
        reference.tick(None, one[4])
        reference.adam(None, *one, 0.1, 0.9, 0.999, 1e-8)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        assert one[4][0] == t and one[0][0] == pytest.approx(w, rel=1e-5)
    velocity, one[2][:] = 0.0, 0
    for _ in range(3):
        reference.sgd(None, one[0], one[1], one[2], 0.1, 0.9, 0.01)
        velocity = 0.9 * velocity + (g + 0.01 * w)
        w -= 0.1 * velocity
        assert one[0][0] == pytest.approx(w, rel=1e-5)


# Imports and compilation, in processes of their own


def run(code: str) -> str:
    """Run code without the simulator; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    return done.stdout


def test_the_reference_needs_numpy_only() -> None:
    assert run("import sys, gpumem.kernels; print('numpy' in sys.modules)").split() == ["False"]
    assert run("import sys; sys.modules['numba'] = None; import gpumem.kernels.reference; print('ok')").split() == [
        "ok"
    ]


def test_without_numba_cuda_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['numba_cuda'] = None\ntry: import gpumem.kernels.device\n"
    code += "except ImportError as error: print(error)"
    assert "pip install 'gpumem[cu13]'" in run(code)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("numba-cuda-mlir", "gpumem.kernels.device needs numba-cuda-mlir: pip install numba-cuda-mlir"),
        ("nvcc", "GPUMEM_KERNEL_COMPILER: 'nvcc'"),
    ],
)
def test_another_compiler_must_be_known_and_there(compiler: str, message: str) -> None:
    code = "import os, sys; sys.modules['numba_cuda_mlir'] = None\n"
    code += f"os.environ['GPUMEM_KERNEL_COMPILER'] = {compiler!r}\ntry: import gpumem.kernels.device\n"
    code += "except (ImportError, ValueError) as error: print(error)"
    assert message in run(code)


COMPILE = """
import json
import sys
from types import SimpleNamespace
from numba.cuda import dispatcher
from gpumem.kernels import device, numba_cuda
from tests.kernel_cases import CASES, Pick

sys.modules["gpumem.kernels.device.matmul"]._ENOUGH = 1  # both kernels
launched = {}

def note(what, ptx, grid, block, arguments):  # stands in for `ptx.bind`
    kernel, types = what
    name = kernel.py_func.__module__.split(".")[-1] + "." + kernel.py_func.__name__
    launched.setdefault(name, {})[types] = ptx
    return lambda stream: None

numba_cuda.bind = note
dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))  # asked for by device functions
for pick in (lambda low, high: low, lambda low, high: high):
    for name in CASES:
        getattr(device, name)(None, **CASES[name](Pick(pick)))
try:
    print(json.dumps({name: [ptx((9, 0)) for ptx in each.values()] for name, each in launched.items()}))
except Exception as error:
    if type(error).__name__ not in ("DynamicLibNotFoundError", "NvvmSupportError"):
        raise
    print(json.dumps({"missing": str(error)}))
"""


@pytest.fixture(scope="module")
def ptx() -> dict[str, list[str]]:
    """The PTX of every kernel for compute capability 9.0, for each list of types that its launcher passes."""
    needs(absent("numba_cuda"))
    found = json.loads(run(COMPILE).splitlines()[-1])
    if "missing" in found:
        needs(f"no compiler for PTX, pip install 'numba-cuda[cu13]': {found['missing']}")
    return dict(found)


@pytest.mark.thorough
def test_every_kernel_compiles_to_ptx_with_one_signature(ptx: dict[str, list[str]]) -> None:
    source = ROOT / "src" / "gpumem" / "kernels"
    found = re.compile(r"^@(?:kernel|unary|binary)\ndef (\w+)", re.MULTILINE)
    decorated = {f"{p.stem}.{name}" for p in source.glob("device/*.py") for name in found.findall(p.read_text())}
    assert set(ptx) == decorated | {"matmul._product_16", "matmul._product_64"}
    assert all(len(codes) == 1 for name, codes in ptx.items() if name != "elementwise._copy")
    assert all(".visible .entry" in code for codes in ptx.values() for code in codes)


ATOMICS = {"words._checksum", "placement._changes", "placement._overlap", "placement._alone"}


@pytest.mark.thorough
def test_kernels_use_no_doubles_and_no_atomics_on_floats(ptx: dict[str, list[str]]) -> None:
    for name, codes in ptx.items():
        for line in "\n".join(codes).splitlines():
            assert ".f64" not in line, f"{name}: {line}"
            if line.strip().startswith(("atom.", "red.")):
                assert name in ATOMICS and (".u64" in line or ".s64" in line), f"{name}: {line}"


@pytest.mark.thorough
def test_large_products_run_in_registers(ptx: dict[str, list[str]]) -> None:
    (code,) = ptx["matmul._product_64"]
    assert code.count("ld.shared") == code.count("ld.shared.v4.f32") == code.count("fma.rn.f32") / 8


@pytest.mark.thorough
def test_arrays_of_a_thread_are_in_registers(ptx: dict[str, list[str]]) -> None:
    for name, codes in ptx.items():
        for code in codes:
            assert not re.search(r"\.local\b", code), name  # that would be memory


def assembled(code: str) -> str:
    """What the assembler says that a kernel needs on a device of compute capability 9.0; no GPU takes part."""
    from cuda.bindings import nvjitlink

    linker, told = nvjitlink.create(2, ["-arch=sm_90", "-verbose"]), code.encode()
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, told, len(told), "kernel")
        nvjitlink.complete(linker)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
    finally:
        nvjitlink.destroy(linker)
    return log.decode()


@pytest.mark.thorough
def test_blocks_of_512_threads_have_registers_and_shared_memory_enough(ptx: dict[str, list[str]]) -> None:
    needs(absent("cuda.bindings"))
    for name, codes in ptx.items():
        for code in codes:
            found = re.search(r"used (\d+) registers, .*?(\d+) stack(?:, (\d+) bytes smem)?", assembled(code))
            assert found, name
            registers, stack, shared = (int(n or 0) for n in found.groups())
            assert registers <= 65536 // 512 and stack == 0 and shared <= 48 << 10, (name, found[0])


def innermost(code: str) -> Iterator[list[str]]:
    """The instructions of each loop of PTX that has no other inside."""
    lines = [line.strip() for line in code.splitlines()]
    places = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    jumps = [(places.get(line.rstrip(";").split()[-1], len(lines)), i) for i, line in enumerate(lines) if "bra" in line]
    loops = sorted({(start, end) for start, end in jumps if start < end})
    for start, end in loops:
        if not any(start <= other[0] and other[1] <= end for other in loops if other != (start, end)):
            yield lines[start : end + 1]


# Small ones, and those that divide once for 9 or 16 numbers, in loops that are unrolled
DIVIDING = {"loss._cross_entropy_gradient", "placement._alone"}
DIVIDING |= {f"winograd.{name}" for name in ("_weights", "_pixels", "_results")}


@pytest.mark.thorough
def test_no_inner_loop_divides_integers(ptx: dict[str, list[str]]) -> None:
    division = re.compile(r"\b(div|rem)\.[su]\d+")
    loops = [(name, "".join(loop)) for name, codes in ptx.items() for code in codes for loop in innermost(code)]
    assert {name for name, loop in loops if division.search(loop)} == DIVIDING
