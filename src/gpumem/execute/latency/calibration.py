"""A machine's roofline, corrected by measurements: how long any op takes there, whatever its type.

The correction is one regression for all types of ops. Of a type that was measured it knows the median correction; a
type that nobody measured has that of all, and what its shapes say. Settings were chosen on nets among those to learn
from, five folds by net (`docs/guides/latency.md`): a forest for each type, with a common one for rare types, is as good
and takes ten times as long; without the roofline to start from R^2 is 0.04 lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.execute.latency.samples import LatencyTable, Measurement, Sample, by_type, samples_of
from gpumem.simulator.machine import Machine
from gpumem.trace import F64, I64, Ops
from gpumem.trace.signature import Operand, parse

OPERANDS, AXES, NUMBERS = 4, 4, 12  # of a signature that are looked at; not tuned
ABSENT = -99.0  # of operands and numbers that a call has not: less than almost any that are there
TREES = 300  # 100 and 600 do as well (R^2 0.918, 0.920 and 0.920 on nets held out of those to learn from)
BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "bool": 1, "uint8": 1, "int8": 1}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Calibration(Shown):
    """What was learned of a machine; `Machine.measured` takes it.

    Parameters
    ----------
    machine : Machine
        Whose roofline is corrected: the one that was measured.
    factors : dict of str to float
        Of each measured type of op, the median of log(time / roofline).
    model : object
        Predicts log(time / roofline) from `features`.
    """

    machine: Machine
    factors: Mapping[str, float]
    model: Any
    usual: float
    _known: dict[Sample, float] = field(default_factory=dict)

    def ns(self, ops: Sequence[Sample]) -> F64:
        """Return how long ops take, in ns, not rounded.

        Notes
        -----
        O(ops); about 20 us for each that it has not been asked before.
        """
        fresh = [op for op in dict.fromkeys(ops) if op not in self._known]
        if fresh:
            predicted = np.exp(self._corrections(fresh)) * rooflines(self.machine, fresh)
            self._known.update(zip(fresh, predicted.tolist()))
        return np.array([self._known[op] for op in ops], np.float64)

    def ops_ns(self, ops: Ops, size: I64) -> F64:
        """Return how long the ops of a trace take, given the bytes of all buffers, in ns, not rounded."""
        return self.ns(samples_of(ops, size))

    def _corrections(self, ops: Sequence[Sample]) -> F64:
        corrections: F64 = self.model.predict(_matrix(self.machine, ops, self.factors, self.usual))
        return corrections


@strict
def calibrate(table: LatencyTable, *, seed: int = 0) -> Calibration:
    """Correct the roofline of the machine on which a table was measured by what was measured.

    Parameters
    ----------
    table : LatencyTable
        As `gpumem measure --ops` writes one. Rows beside other jobs do not count.
    seed : int

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        The table does not say on which machine it was measured, or has no row of an op alone.
    ImportError
        scikit-learn is missing: it is the extra `latency`.

    Notes
    -----
    A second for 10,000 rows. Each row weighs by the root of its time in an iteration: few ops take most of the time,
    and the many small ones are most of what there is to learn from.

    Examples
    --------
    >>> from gpumem.execute.latency import grid, synthetic
    >>> v100 = Machine.named("v100")
    >>> rows = synthetic(grid(20, seed=0), v100, seed=0, noise=0)
    >>> calibration = calibrate(LatencyTable(tuple(rows), machine=v100))
    >>> relu = next(row for row in rows if row.sample.name == "relu" and row.utilisation == 0)
    >>> bool(abs(calibration.ns([relu.sample])[0] / relu.ns - 1) < 0.3)
    True
    """
    rows = [row for row in table.rows if row.utilisation == 0]
    if table.machine is None:
        raise ValueError("table: it does not say which machine it was measured on; gpumem measure --ops writes one")
    if not rows:
        raise ValueError(f"table: none of its {len(table.rows)} rows is of an op alone (utilisation 0)")
    ops = [row.sample for row in rows]
    corrections = np.log([row.ns for row in rows]) - np.log(rooflines(table.machine, ops))
    of = {id(row): correction for row, correction in zip(rows, corrections.tolist())}
    factors = {name: float(np.median([of[id(row)] for row in group])) for name, group in by_type(rows).items()}
    usual = float(np.median(corrections))
    inputs = _matrix(table.machine, ops, factors, usual)
    return Calibration(table.machine, factors, _trained(inputs, corrections, _weights(rows), seed), usual)


def rooflines(machine: Machine, ops: Sequence[Sample]) -> F64:
    """Return what a machine's roofline says of ops, in ns, 1 at least."""
    flops, moved = (np.array([getattr(op, what) for op in ops], np.float64) for what in ("flops", "moved"))
    return np.maximum(machine.roofline_ns(flops, moved), 1.0)


def features(op: Sample) -> list[float]:
    """Return what the correction looks at, of each op equally many numbers: work, bytes, shapes, strides, arguments.

    >>> op = Sample("relu", (24,), (24,), moved=48, signature="float32[2,3]@1,2 (1 1)")
    >>> len(features(op)) == len(features(Sample("relu", (), ())))
    True
    """
    called = parse(op.signature)
    amounts = (op.flops, op.moved, sum(op.reads), sum(op.writes))
    operands = called.operands[:OPERANDS]
    numbers = called.numbers[:NUMBERS]
    rows = [value for operand in operands for value in _operand(operand)]
    rows += [ABSENT] * ((OPERANDS - len(operands)) * (AXES + 6))
    return [*map(math.log1p, amounts), len(called.operands), *rows, *numbers, *[ABSENT] * (NUMBERS - len(numbers))]


def _operand(operand: Operand) -> list[float]:
    """Elements, axes, bytes of one, how it lies in memory; the last axes from behind, the first two."""
    logs = [math.log(max(count, 1)) for count in operand.shape]
    behind = [*logs[::-1][:AXES], *[0.0] * (AXES - len(logs))]
    return [sum(logs), len(logs), BYTES.get(operand.dtype, 4), _layout(operand), *behind, *[*logs[:2], 0.0, 0.0][:2]]


def _layout(operand: Operand) -> int:
    """0: contiguous; 1: expanded; 2: its last axis is not the innermost, as where it is transposed; 3: with gaps."""
    if operand.strides is None:
        return 0
    return 1 if 0 in operand.strides else 2 if operand.strides[-1] != 1 else 3


def _matrix(machine: Machine, ops: Sequence[Sample], factors: Mapping[str, float], usual: float) -> F64:
    roofline = np.log(rooflines(machine, ops))
    rows = [[factors.get(op.name, usual), base, *features(op)] for op, base in zip(ops, roofline.tolist())]
    return np.array(rows, np.float64)


def _weights(rows: Sequence[Measurement]) -> F64:
    return np.sqrt(np.array([row.ns * row.count for row in rows], np.float64))


def _trained(x: F64, y: F64, weights: F64, seed: int) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits  # scikit-learn brings it
    except ImportError as error:
        raise ImportError("op times from measurements need scikit-learn: pip install 'gpumem[latency]'") from error
    with threadpool_limits(1):  # sums of several threads differ in the last bits
        return HistGradientBoostingRegressor(max_iter=TREES, random_state=seed).fit(x, y, sample_weight=weights)
