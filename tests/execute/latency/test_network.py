"""What the networks look at, that they are evaluated as they were trained, and where they do not guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpumem.execute.latency.network import shapes, sizes
from gpumem.execute.latency.predictor import fit
from gpumem.execute.latency.samples import Sample
from gpumem.execute.latency.synthetic import grid, synthetic
from tests.execute.latency.rows import MACHINE, QUICK

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here


def test_what_networks_look_at() -> None:
    op = Sample("conv", (8, 0), (24,), 99, 32, ((2, 3, 4), (5,)), (1, 2))
    log = math.log
    assert sizes(op) == [(log(100), log(33)), (log(9), 0), (log(25),)]
    assert shapes(op) == [(1, 2), (log(4), log(3), log(2)), (log(5),)]
    with pytest.raises(ValueError, match=r"'conv': its shapes are unknown"):
        shapes(replace(op, shapes=None))


def cat(*reads: int) -> Sample:
    return Sample("cat", reads, (sum(reads),), moved=2 * sum(reads))


@pytest.mark.parametrize(
    ("features", "widths", "ops"),
    [
        (shapes, (0, 4), [op for op in grid(30, seed=0) if op.name == "relu"]),  # of rank 2 and 4
        (sizes, (2, 3, 1), [cat(*(2**k for k in range(n, n + m))) for n in range(8, 18) for m in (1, 2, 3)]),
    ],
)
def test_a_network_is_evaluated_as_it_was_trained(
    features: Callable[[Sample], Any], widths: tuple[int, ...], ops: list[Sample]
) -> None:
    rows = synthetic(ops, MACHINE, seed=0)
    (network,) = fit(rows, features=features, training=QUICK).networks.values()
    assert network.widths == widths and len(network.layers) == 3
    error = []
    for row in rows:
        x: list[float] = []
        for group, width in zip(features(row.sample), widths):
            x += [*group, *[0.0] * (width - len(group))]
        h = [(v - m) / s for v, m, s in zip([*x, row.utilisation], network.mean, network.scale)]
        for k, (weights, bias) in enumerate(network.layers):
            h = [sum(h[i] * weights[i, j] for i in range(len(h))) + bias[j] for j in range(len(bias))]
            h = [math.tanh(v) for v in h] if k < 2 else h
        want = math.exp(h[0] * network.target[1] + network.target[0])
        assert network.ns([features(row.sample)], np.array([row.utilisation])) == pytest.approx([want])
        error.append(abs(math.log(want / row.ns)))
    assert np.median(error) < 0.2


def test_what_lies_beyond_the_measurements_is_not_guessed() -> None:
    def relu(rows: int, columns: int, **more: Any) -> Sample:
        size = 4 * rows * columns
        return Sample("relu", (size,), (size,), moved=2.0 * size, shapes=((rows, columns),), **more)

    ops = [relu(2**a, 2**b) for a in range(4, 9) for b in range(4, 9)]
    rows = synthetic(ops, MACHINE, seed=0, utilisations=(0, 0.7))
    for features in (sizes, shapes):
        predictor = fit(rows, features=features, training=QUICK)
        near, far, small = relu(2**8, 2**9), relu(2**14, 2**14), relu(1, 1)
        assert np.isnan(predictor.ns([near, far, small], 0)).tolist() == [False, True, True], features
        assert np.isnan(predictor.ns([near] * 3, [0, 0.85, 1])).tolist() == [False, False, True]
        deep = replace(near, shapes=((2, 2**7, 2**9),), reads=(*near.reads, 4))
        assert np.isnan(predictor.ns([deep, near], 0)).tolist() == [True, False]
        assert not np.isnan(predictor.ns([ops[0]], 0)).any()
        assert np.isnan(predictor.ns([replace(ops[0], name="gelu")], 0)).all()
    two = fit(rows, features=shapes, training=QUICK)
    assert np.isnan(two.ns([relu(16, 16, parameters=(1.0,))], 0)).all()


def test_an_axis_less_is_an_axis_of_length_one_and_an_axis_more_is_unknown() -> None:
    def relu(*shape: int) -> Sample:
        size = 4 * math.prod(shape)
        return Sample("relu", (size,), (size,), moved=2 * size, shapes=(shape,))

    ops = [relu(a, b) for a in (1, 4, 16) for b in (1, 64, 4096)]
    predictor = fit(synthetic(ops, MACHINE, seed=0), features=shapes, least=9, training=QUICK)
    a, b = predictor.ns([relu(1, 64), relu(64)], 0)
    assert a == b > 0
    both = replace(relu(4, 64), shapes=((4, 64), (4, 64)))
    assert np.isnan(predictor.ns([relu(4, 64), relu(1, 4, 64), both], 0)).tolist() == [False, True, True]
