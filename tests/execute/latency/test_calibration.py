"""A roofline that is corrected by measurements: what it learns, of which ops it says what, and what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import gpumem
from gpumem.execute.latency.calibration import Calibration, calibrate, features, rooflines
from gpumem.execute.latency.samples import LatencyTable, Measurement, Sample, read_table, samples, write_table
from gpumem.simulator.machine import Machine

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

MACHINE = Machine.named("v100").with_(launch_ns=1000, flops_efficiency=1, bandwidth_efficiency=1)


def copy(n: int, *, transposed: bool, name: str = "copy") -> Sample:
    """Transposed or not, it moves the same bytes: only its signature tells."""
    called = f"float32[{n},{n}]" + f"@1,{n}" * transposed
    return Sample(name, (4 * n * n,), (4 * n * n,), moved=8 * n * n, signature=called)


def law(op: Sample) -> int:
    """Three times the roofline, or twelve times where it is transposed; a tenth of both for another type."""
    factor = (12 if "@" in op.signature else 3) * (0.1 if op.name == "quick" else 1)
    return max(round(float(rooflines(MACHINE, [op])[0]) * factor), 1)


def measured(sizes: range) -> list[Measurement]:
    ops = [copy(n, transposed=t, name=name) for n in sizes for t in (False, True) for name in ("copy", "quick")]
    return [Measurement(op, 0, law(op)) for op in ops]


@cache
def learned() -> Calibration:
    return calibrate(LatencyTable(tuple(measured(range(100, 3000, 50))), machine=MACHINE))


def test_sizes_that_were_not_measured_follow_the_law() -> None:
    rows = measured(range(325, 2800, 175))
    ratio = learned().ns([row.sample for row in rows]) / [row.ns for row in rows]
    assert np.abs(ratio - 1).max() < 0.1
    base = rooflines(MACHINE, [row.sample for row in rows]) / [row.ns for row in rows]
    assert np.median(np.abs(np.log(base))) > 1  # which the roofline does not


def test_a_type_that_nobody_measured_is_corrected_as_most_are() -> None:
    fresh = copy(1000, transposed=False, name="unheard of")
    factor = float(learned().ns([fresh])[0] / rooflines(MACHINE, [fresh])[0])
    assert 0.3 < factor < 12
    assert learned().factors.keys() == {"copy", "quick"}


def test_an_op_without_a_signature_is_predicted_as_well() -> None:
    trace = gpumem.bundled("resnet18")
    ns = learned().ops_ns(trace.ops, trace.buffers.size)
    assert np.isfinite(ns).all() and (ns > 0).all()
    assert (ns == learned().ns(samples(trace))).all()


def test_it_says_the_same_again_in_any_order_and_after_a_pickle() -> None:
    ops = [row.sample for row in measured(range(200, 900, 77))]
    first = learned().ns(ops)
    again = pickle.loads(pickle.dumps(learned()))
    assert (again.ns(ops[::-1])[::-1] == first).all()
    other = calibrate(LatencyTable(tuple(measured(range(100, 3000, 50))), machine=MACHINE), seed=0)
    assert (other.ns(ops) == first).all()


def test_each_op_has_as_many_features() -> None:
    odd = "(float32[2,3] float32[4]@0 int64[]) 1 2 3 4 5 6 7 8 9 10 11 12 13 14 a=1 b=tanh - float16[1,2,3,4,5,6]"
    ops = [Sample("x", (), ()), Sample("x", (1,), (2,), 3, 4, signature=odd), copy(0, transposed=True)]
    assert len({len(features(op)) for op in ops}) == 1


def test_rows_beside_other_jobs_do_not_count() -> None:
    rows = measured(range(100, 900, 50))
    busy = [replace(row, utilisation=1.0, ns=row.ns * 50) for row in rows]
    ops = [row.sample for row in rows]
    alone, both = (calibrate(LatencyTable(tuple(r), machine=MACHINE)).ns(ops) for r in (rows, rows + busy))
    assert (alone == both).all()
    with pytest.raises(ValueError, match="none of its 32 rows is of an op alone"):
        calibrate(LatencyTable(tuple(busy[:32]), machine=MACHINE))


def test_a_table_that_names_no_machine_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    write_table(tmp_path / "t.jsonl", LatencyTable(tuple(measured(range(9, 12)))))
    with pytest.raises(ValueError, match="does not say which machine"):
        calibrate(read_table(tmp_path / "t.jsonl"))


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["sklearn.ensemble"] = None
from gpumem.execute.latency import LatencyTable, Measurement, Sample, calibrate
from gpumem import Machine
try:
    calibrate(LatencyTable((Measurement(Sample("x", (), ()), 0, 1),), machine=Machine.named("v100")))
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'gpumem[latency]'")
