"""A small network for one type of operator: features in, time out. Only training needs scikit-learn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpumem.base.display import Shown
from gpumem.execute.latency.samples import Measurement, Sample
from gpumem.trace import F64
from gpumem.trace.signature import parse

SLACK = 0.25  # how far beyond the measured range of an input a network is trusted, as a share of that range. Not tuned

Group = tuple[float, ...]
Features = Callable[[Sample], list[Group]]
Layers = tuple[tuple[F64, F64], ...]


def sizes(sample: Sample) -> list[Group]:
    """What a trace knows, on a log scale: flops and bytes moved; bytes of each input; bytes of each output.

    >>> [len(group) for group in sizes(Sample("add", (8, 8), (8,)))]
    [2, 2, 1]
    """
    groups = (sample.flops, sample.moved), sample.reads, sample.writes
    return [tuple(map(math.log1p, group)) for group in groups]


def shapes(sample: Sample) -> list[Group]:
    """The paper's inputs: parameters as they are; the dimensions of each input on a log scale, the last axis first.

    >>> shapes(Sample("relu", (24,), (24,), shapes=((6, 1),)))
    [(), (0.0, 1.791759469228055)]
    """
    if sample.shapes is None and sample.signature:
        called = parse(sample.signature)
        return [
            called.numbers,
            *(tuple(math.log(max(count, 1)) for count in reversed(shape.shape)) for shape in called.operands),
        ]
    if sample.shapes is None:
        raise ValueError(f"op {sample.name!r}: its shapes are unknown; a predictor trained with features=sizes will do")
    return [sample.parameters, *(tuple(map(math.log, reversed(shape))) for shape in sample.shapes)]


@dataclass(frozen=True, slots=True)
class Training:
    """How networks are trained: units of the two hidden layers (the output is the third), weight decay, steps, seed."""

    hidden: tuple[int, ...] = (64, 64)
    decay: float = 0.1
    steps: int = 300
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Network(Shown):
    """What was learned of one type of operator.

    Parameters
    ----------
    widths : tuple of int
        How many numbers each group of features may have. What is missing counts as 0: for dimensions, an axis of
        length 1 in front.
    low, high : float64[d]
        The inputs (features, then utilisation) for which it is trusted.
    mean, scale : float64[d]
        What standardises them.
    layers : tuple of (weights, bias)
    target : (float, float)
        Mean and scale of log ns.
    """

    widths: tuple[int, ...]
    low: F64
    high: F64
    mean: F64
    scale: F64
    layers: Layers
    target: tuple[float, float]

    def ns(self, rows: Sequence[list[Group]], utilisation: F64) -> F64:
        """Return the predicted time of each row, NaN where it lies beyond what was measured."""
        fits = np.array([_fits(groups, self.widths) for groups in rows], np.bool_)
        inputs = _matrix([groups if ok else [] for groups, ok in zip(rows, fits)], self.widths, utilisation)
        trusted = fits & ((inputs >= self.low) & (inputs <= self.high)).all(axis=1)
        inputs = (inputs - self.mean) / self.scale
        for weights, bias in self.layers[:-1]:
            inputs = np.tanh(inputs @ weights + bias)
        weights, bias = self.layers[-1]
        mean, scale = self.target
        log = np.where(trusted, (inputs @ weights + bias)[:, 0] * scale + mean, np.nan)
        ns: F64 = np.exp(log)
        return ns


def learn(rows: Sequence[Measurement], features: Features, training: Training) -> Network:
    """Train a network on measurements of one type of operator."""
    groups = [features(row.sample) for row in rows]
    widths = tuple(
        max(len(group[index]) if index < len(group) else 0 for group in groups)
        for index in range(max(map(len, groups)))
    )
    inputs = _matrix(groups, widths, np.array([row.utilisation for row in rows]))
    log_ns = np.log([row.ns for row in rows])
    low, high, mean, scale = inputs.min(axis=0), inputs.max(axis=0), inputs.mean(axis=0), inputs.std(axis=0)
    scale[high == low] = 1  # the same in all rows: it tells nothing
    target = float(log_ns.mean()), float(log_ns.std()) or 1.0
    layers = _train((inputs - mean) / scale, (log_ns - target[0]) / target[1], training)
    slack = SLACK * (high - low) + 1e-9
    return Network(widths, low - slack, high + slack, mean, scale, layers, target)


def _fits(groups: list[Group], widths: tuple[int, ...]) -> bool:
    return len(groups) <= len(widths) and all(len(group) <= width for group, width in zip(groups, widths))


def _matrix(rows: Sequence[list[Group]], widths: tuple[int, ...], utilisation: F64) -> F64:
    """Pad each group with zeros to its width; the utilisation comes last."""
    matrix = np.zeros((len(rows), sum(widths) + 1))
    for row, groups in enumerate(rows):
        at = 0
        for group, width in zip(groups, widths):
            matrix[row, at : at + len(group)] = group
            at += width
    matrix[:, -1] = utilisation
    return matrix


def _train(inputs: F64, targets: F64, training: Training) -> Layers:
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor
        from threadpoolctl import threadpool_limits  # scikit-learn brings it
    except ImportError as error:
        raise ImportError("training a predictor needs scikit-learn: pip install 'gpumem[latency]'") from error
    model: Any = MLPRegressor(
        hidden_layer_sizes=training.hidden,
        activation="tanh",
        solver="lbfgs",  # the tables are small: it needs no learning rate, and is deterministic
        alpha=training.decay,
        max_iter=training.steps,
        random_state=training.seed,
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # products this small are no work to share
        warnings.simplefilter("ignore", ConvergenceWarning)  # the steps are a budget
        model.fit(inputs, targets)
    return tuple(zip(model.coefs_, model.intercepts_))
