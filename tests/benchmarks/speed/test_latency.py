"""`benchmarks/speed/_latency.py` on the fake device, whose kernels do nothing: what is measured, not how long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import fake_cuda
from tests.conftest import absent, needs

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here


def test_measuring_runs_on_the_fake_device() -> None:
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = """
import json, os, sys
sys.path.insert(0, os.environ["BENCHMARKS"])
from types import SimpleNamespace
from benchmarks.speed import _latency
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from fake_cuda import control
from gpumem.kernels import reference

kernels, one = ObjectCode.from_cubin(b"unknown kernels do nothing"), LaunchConfig(grid=1, block=1)
def of(name):
    return lambda stream, *arrays, **options: launch(stream, one, kernels.get_kernel(name))
device = Device(0)
device.set_current()
library = SimpleNamespace(**{name: of(name) for name in reference.__all__})
rows, missed = _latency.measurements(device, library, quick=True, seed=0, array=lambda array: array)
models = list(_latency.training_steps(True, 0))
alone = [row for row in rows if row.utilisation == 0]
print(json.dumps({
    "alone": [row.sample.name for row in alone], "ops": [op.name for m in models for op in list(m.trace.ops)[1:]],
    "beside": len(rows) - len(alone), "missed": missed, "live": control.count("live_device"),
    "types": [line["type"] for line in _latency.summary(rows)], "least": min(row.ns for row in alone),
    "shapes": all(row.sample.shapes for row in rows), "at": sorted({row.utilisation for row in rows}),
}))
"""
    done = fake_cuda.run(code, BENCHMARKS=str(Path(__file__).parents[3]))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["alone"] == told["ops"] and set(told["types"]) == set(told["ops"])
    assert told["beside"] > 0 and told["at"][:1] == [0] and told["shapes"] and told["least"] >= 1
    assert told["live"] == 0
