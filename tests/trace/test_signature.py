"""Signatures: what is written of a call is read back, and contiguous means what NumPy takes it to mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.trace.signature import Operand, Signature, contiguous, parse

pytestmark = pytest.mark.jit  # nothing is compiled

dims = st.lists(st.integers(0, 10**6), max_size=5).map(tuple)
operands = dims.flatmap(
    lambda shape: st.builds(
        Operand,
        st.sampled_from(["float32", "bfloat16", "int64", "bool", "float8_e4m3fn"]),
        st.just(shape),
        st.none() | st.just(tuple(range(len(shape)))) if shape else st.none(),
    )
)
numbers = st.integers(-(10**9), 10**9).map(float) | st.floats(-1e30, 1e30).map(float)
others = st.sampled_from(["-", "tanh", "float32", "cpu", "nan", "inf", "strided"])


def spelled(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e9 else repr(number)


@given(words=st.lists(operands | numbers | others), nested=st.booleans(), named=st.booleans())
def test_what_is_written_is_read_back(words: list[Operand | float | str], nested: bool, named: bool) -> None:
    each = [spelled(word) if isinstance(word, float) else str(word) for word in words]
    text = f"({' '.join(each)})" if nested else " ".join(f"x1={word}" if named else word for word in each)
    found = parse(text)
    assert found.operands == tuple(word for word in words if isinstance(word, Operand))
    assert found.numbers == tuple(word for word in words if isinstance(word, float))


def test_nothing_says_nothing() -> None:
    assert parse("") == Signature((), ()) == parse("- (-) approximate=none")


@given(shape=st.lists(st.integers(1, 4), max_size=4), order=st.randoms(use_true_random=False), step=st.integers(1, 2))
def test_contiguous_is_what_numpy_says(shape: list[int], order, step: int) -> None:  # type: ignore[no-untyped-def]
    axes = list(range(len(shape)))
    order.shuffle(axes)
    x = np.zeros([2 * n for n in shape], np.int8)[tuple(slice(0, step * n, step) for n in shape)]
    for view in (x, x.copy().transpose(axes), np.broadcast_to(np.int8(0), shape)):
        assert contiguous(view.shape, view.strides) == view.flags.c_contiguous
