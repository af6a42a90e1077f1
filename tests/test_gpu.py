"""The same contracts on a real device: `python -m pytest -m gpu`. Nothing here runs without one.

Or emulated, a sample: `python -m tests.fake_cuda python -m pytest -m "gpu and not slow" tests/test_gpu.py`. The header
of the run says which of the two it was. Emulated, 3 iterations run: enough to capture a graph and replay it.
"""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from gpumem import autoswap, best_fit, bundled
from gpumem.base.errors import ExecutionError
from gpumem.cli.doctor import why_no_cuda
from gpumem.execute import Emulator, GenericOp, in_issue_order, initial, prepare, scaled
from gpumem.execute.latency import measured
from gpumem.execute.models import MODELS, Model
from gpumem.jobs import Job, Outcome, Policy, run_jobs, separately
from gpumem.jobs.waterwave import co_schedule, partition, pipeline, run_together
from gpumem.kernels import reference
from gpumem.simulator.machine import Machine
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import emulated, needs
from tests.kernel_cases import CASES, LARGER, SHAPED, WINOGRAD, Pick
from tests.nets import lowest

pytestmark = [pytest.mark.gpu]
slow = pytest.mark.slow  # for an emulated device
SAMPLE = ("mlp", "cnn", "cnn-norm", "residual", "transformer")  # the other models are slow
SEEDS = [0, *(pytest.param(seed, marks=slow) for seed in range(1, 5))]


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    """Skip where there is no device, or where Numba's simulator stands in for it."""
    needs(why_no_cuda())
    from gpumem.kernels import numba_cuda as _numba

    needs("NUMBA_ENABLE_CUDASIM is set: run with -m gpu, or with NUMBA_ENABLE_CUDASIM=0" if _numba.SIMULATOR else "")


def backend(**options: Any) -> Any:
    from gpumem.execute.cuda import Cuda

    return Cuda(**options)


def times(iterations: int) -> int:
    """So many iterations, or a few where the device is emulated."""
    return min(iterations, 3) if emulated() else iterations


def of_size(name: str) -> Model:
    """A model, of a few samples where the device is emulated."""
    return MODELS[name](**({"batch": 2} if emulated() else {}))


def agree(name: str, arguments: dict[str, Any]) -> None:
    from gpumem.kernels import device
    from gpumem.kernels.numba_cuda import cuda

    theirs = {k: cuda.to_device(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    getattr(device, name)(0, **theirs)
    getattr(reference, name)(None, **arguments)
    for k, expected in arguments.items():
        if isinstance(expected, np.ndarray) and not (k == "workspace" and name in WINOGRAD):
            got = theirs[k].copy_to_host()
            exact = expected.dtype != np.float32
            np.testing.assert_allclose(got, expected, *(0, 0) if exact else (1e-3, 1e-4), err_msg=f"{name}: {k}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_numpy(name: str, seed: int) -> None:
    agree(name, CASES[name](Pick.seeded(seed)))


@pytest.mark.parametrize("name", LARGER)
def test_larger_kernels_agree_with_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.kernels.numba_cuda._WAVES", 2)  # so threads have several elements
    agree(name, LARGER[name](Pick.seeded(0)))


@pytest.mark.parametrize("name", SHAPED)
def test_threads_with_several_elements_agree_with_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.kernels.numba_cuda._WAVES", 2)
    monkeypatch.setattr(Pick, "shape", lambda pick: (2900,))
    agree(name, CASES[name](Pick.seeded(0)))


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_by_large_tiles(transpose_a: bool, transpose_b: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 rows and columns; with small ones the result has the same bits."""
    from gpumem.kernels import device

    matmul = import_module("gpumem.kernels.device.matmul")  # the package has a function of that name
    from gpumem.kernels.numba_cuda import cuda

    rng, (rows, columns, inner) = np.random.default_rng(0), (97, 131, 50)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    arrays = [
        cuda.to_device(np.ascontiguousarray(x.T if flip else x)) for x, flip in ((a, transpose_a), (b, transpose_b))
    ]
    outs = []
    for enough in (1, 10**9):
        monkeypatch.setattr(matmul, "_ENOUGH", enough)
        out = cuda.to_device(np.full((rows, columns), np.nan, np.float32))
        device.matmul(0, *arrays, out, transpose_a, transpose_b)
        outs.append(out.copy_to_host())
    np.testing.assert_allclose(outs[0], a @ b, 1e-4, 1e-4)
    assert np.array_equal(*outs)


def train(model: Model, iterations: int, trace: Trace | None = None, **options: Any) -> dict[int, np.ndarray]:
    from gpumem.kernels import device

    trace = trace or model.trace
    with backend(**options) as cuda:
        program = prepare(trace, best_fit(trace), cuda, model.launch(device), host=best_fit(trace.host_side()))
        program.write(model.initial)
        program.run(iterations)
        return program.read()


@pytest.mark.parametrize("name", [name if name in SAMPLE else pytest.param(name, marks=slow) for name in MODELS])
def test_training_at_the_lowest_limit_is_bit_identical(name: str) -> None:
    model = MODELS[name]()
    swapped, want = lowest(model), train(model, times(20))
    for options in ({}, {"graph": True}, {"timing": True}):
        got = train(model, times(20), swapped, **options)
        assert all(np.array_equal(want[i], got[i]) for i in model.initial), options
    loss = model.names["loss"]
    assert want[loss].view(np.float32)[0] < train(model, 1)[loss].view(np.float32)[0]


@pytest.mark.parametrize("options", [{}, {"graph": True}])
def test_a_real_plan_gives_the_bytes_of_the_emulator(options: dict[str, bool]) -> None:
    from gpumem.kernels import device

    trace = bundled("vgg16")
    swapped = autoswap(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 70 // 100).apply(trace)
    whole, there = scaled(trace, best_fit(trace))
    small, placement = scaled(swapped, best_fit(swapped))
    state = initial(whole)
    want = prepare(whole, there, Emulator(in_issue_order), GenericOp(whole, reference))
    want.write(state)
    want.run(3)
    with backend(**options) as cuda:
        program = prepare(small, placement, cuda, GenericOp(whole, device))
        program.write({of: value for of, value in state.items() if of in program.crossing()})
        program.run(3)
        left = want.read()
        assert all(np.array_equal(left[of], value) for of, value in program.read().items())


def test_every_op_is_measured() -> None:
    from gpumem.kernels import device

    with backend(timing=True) as cuda:
        model = MODELS["cnn"]()
        assert (
            measured(model.trace, cuda, model.launch(device), place=best_fit, state=model.initial).ops.duration > 0
        ).all()


def test_a_slab_that_does_not_fit_is_refused_and_nothing_stays() -> None:
    trace = bundled("mlp3")
    placement = best_fit(trace)
    with backend() as cuda:
        for _ in range(3):
            with pytest.raises(MemoryError, match="bytes of device memory"):
                prepare(trace, Placement(placement.offset, 2**50), cuda)
        prepare(trace, placement, cuda).run()


def side_by_side(library: Any, iterations: int, **options: Any) -> tuple[Outcome, dict[str, dict[int, np.ndarray]]]:
    """Two training steps at three quarters of their peaks, the second comes while the first is running."""
    from cuda.core import Device

    models = {name: of_size(name) for name in ("mlp", "cnn")}
    jobs = [Job(name, model.trace, k * 5 * 10**7, iterations) for k, (name, model) in enumerate(models.items())]
    small = sum(model.trace.peak_live_bytes for model in models.values()) * 3 // 4
    alone = separately(partial(autoswap, threshold=0, peaks="all"))
    state = {name: model.state() for name, model in models.items()}
    ran = run_jobs(
        jobs,
        Machine.named("gtx1080ti"),
        2 * small,
        partial(backend, **options),
        lambda job: models[job.name].launch(library),
        Policy(lambda tasks, machine, capacity: alone(tasks, machine, small)),
        place=best_fit,
        state=state,
        enter=lambda: Device().set_current(),
    )
    return ran, state


@pytest.mark.parametrize("options", [{}, pytest.param({"timing": True}, marks=slow)])
def test_jobs_side_by_side_are_bit_identical_to_each_alone(options: dict[str, bool]) -> None:
    from gpumem.kernels import device

    ran, state = side_by_side(device, 30, **options)
    for job in ran.jobs:
        want = train(of_size(job.name), 30)
        assert job.out > 0 and len(job.end) == 30
        assert all(np.array_equal(want[of], value.reshape(-1).view(np.uint8)) for of, value in state[job.name].items())


def test_a_launch_that_fails_ends_all_jobs() -> None:
    from types import SimpleNamespace

    from gpumem.kernels import device

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("the disk is full")

    before = threading.active_count()
    broken = SimpleNamespace(**vars(device) | {"max_pool": fail})  # the second job's
    with pytest.raises(ExecutionError, match=r"\(max_pool\): could not be started: the disk is full") as caught:
        side_by_side(broken, 10**6)
    assert caught.value.__notes__ == ["job 'cnn'"]
    assert threading.active_count() == before
    assert train(of_size("mlp"), 1)


@pytest.mark.parametrize("options", [{}, {"graph": True}, {"timing": True}], ids=["plain", "graph", "timing"])
def test_models_together_on_two_streams_end_with_the_bytes_of_each_alone(options: dict[str, bool]) -> None:
    from gpumem.kernels import device

    machine, names = Machine.named("v100"), ("mlp-adam", "cnn-norm")
    models = [of_size(name) for name in names]
    parts = [partition(model.trace, machine, model.trace.peak_live_bytes // 8) for model in models]
    least = sum(part.rest for part in parts) + max(part.peak - part.rest for part in parts)
    for limit in (least, None):
        both = co_schedule(pipeline(parts, limit), machine)
        states, launches = [model.state() for model in models], [model.launch(device) for model in models]
        with backend(**options) as cuda:
            run_together(both, best_fit(both.trace), cuda, launches, times(10), state=states)
        for model, name, state in zip(models, names, states):
            want = train(model, times(10))
            for of, value in state.items():
                assert value.tobytes() == want[of].tobytes()[: value.nbytes], (name, of, limit)
