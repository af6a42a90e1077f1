"""Does every op of `kernels.device` give what the same op of `kernels.reference` gives, under Numba's simulator?

The simulator is chosen when `numba.cuda` is first imported: `pytest_configure` in `tests/conftest.py` does so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem.kernels import reference
from tests.kernel_cases import CASES, CHANNELS, WINOGRAD, Pick, of_shape
from tests.kernels.comparing import compare, largest, smallest

pytestmark = pytest.mark.jit  # the simulator runs Python anyway

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


@pytest.mark.parametrize("name", CASES)
def test_cases_are_drawn_from_a_seed(name: str) -> None:
    """As on a GPU (test_gpu.py), where sizes and salts are no examples of Hypothesis'."""
    for seed in range(5):
        arguments, again = CASES[name](Pick.seeded(seed)), CASES[name](Pick.seeded(seed))
        assert all(np.array_equal(arguments[k], again[k]) for k in again)
        getattr(reference, name)(None, **arguments)


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


@pytest.mark.parametrize(
    "name", ["embedding_gradient", "layer_norm", "layer_norm_gradient", "softmax", "softmax_gradient"]
)
def test_rows_may_be_longer_than_a_block(device: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.kernels import numba_cuda as _numba

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)  # the least that sums over a block can do with
    monkeypatch.setattr("gpumem.kernels.numba_cuda._BLOCKS", 3)  # and a grid has fewer blocks than there are rows
    monkeypatch.setattr("tests.kernel_cases.LONG", 19)
    compare(device, name, CASES[name](Pick(largest)))


@pytest.mark.parametrize("shape", [(40, 2), (7, 3, 1, 5), (3, 2, 5, 5), (2, 2, 3, 6)])
@pytest.mark.parametrize("name", CHANNELS)
def test_channels_may_be_longer_than_a_block(
    device: ModuleType, name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumem.kernels import numba_cuda as _numba

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)
    compare(device, name, CHANNELS[name](Pick(largest), of_shape(*shape)))


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


def test_an_empty_batch_has_no_gradient(device: ModuleType) -> None:
    x, dy, dw = np.ones((0, 2, 3, 3), np.float32), np.ones((0, 2, 3, 3), np.float32), np.ones((2, 2, 3, 3), np.float32)
    compare(device, "conv2d_weight_gradient_im2col", {"x": x, "dy": dy, "dw": dw, "workspace": np.ones(0, np.float32)})
    assert not dw.any()
    compare(device, "bias_gradient", {"dy": dy, "db": np.ones(2, np.float32)})
    compare(device, "matmul", {"a": x.reshape(2, 0), "b": x.reshape(0, 3), "out": np.ones((2, 3), np.float32)})
