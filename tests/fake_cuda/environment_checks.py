"""The transparent device on a GPU's streams: faults at every call, and each wait left out in turn."""

import gc
import sys

import numpy as np
from cuda.bindings import driver
from cuda.core import Device

from fake_cuda import checks, control
from gpumem.kernels import device as kernels
from gpumem.runtime import Adaptive, OnStreams
from gpumem.testing import Mixing, Unmanaged, live_program, perform

LIVE = ("live_device", "live_pinned", "live_streams", "live_events", "device_bytes", "pinned_bytes")
KINDS = ("allocation", "pinned", "copy", "launch", "record", "wait", "event", "stream")


def digest():
    """A word on the device for the ops."""
    from gpumem.kernels.numba_cuda import cuda

    status, address = driver.cuMemAlloc(8)
    assert not status
    interface = {"shape": (1,), "typestr": "<u8", "data": (int(address), False), "version": 3, "strides": None}
    return address, cuda.from_cuda_array_interface(interface, sync=False)


def live():
    gc.collect()
    return {name: control.count(name) for name in LIVE}


def native(seed):
    program, device = live_program(seed, phases=1, iterations=4), Unmanaged()
    seen = [x.tobytes() for x in perform(program.calls, device)]
    return program, seen, max(device.peak * 6 // 10, program.widest)


def played(program, limit, word, environment=OnStreams):
    """What a program saw on a device that is closed by then."""
    mine = environment()
    device = Adaptive(mine, limit, planner="heuristic", wait=True, min_length=8)
    try:
        return [x.tobytes() for x in perform(program.calls, device, Mixing(kernels, word))], device.report()
    finally:
        device.close()


def check_faults_at_every_call():
    """A call that fails once ends the program with its own error, or was recomputed, which the report says."""
    program, right, limit = native(3)
    address, word = digest()
    assert played(program, limit, word)[0] == right  # compiles
    before = live()
    for kind in KINDS:
        n, failed, again = 1, 0, 0
        while True:
            control.fail(kind, n)
            try:
                seen, report = played(program, limit, word)
            except Exception as error:
                failed += 1
                assert kind == "stream" or isinstance(error, (RuntimeError, MemoryError)) or "CUDA" in str(error), error
            else:
                assert seen == right, (kind, n)
                again += any("tried twice" in note for note in report.notes)
            survived = failed + again < n and kind not in ("allocation",)
            control.fail(kind, 0)
            assert live() == before, (kind, n, live())
            if survived or n > 200:
                break
            n = n + 1 if n < 3 else n * 3
        assert failed + again or kind == "allocation", kind
    driver.cuMemFree(address)


class NoSettle(OnStreams):
    def wait_for_copy(self, copy):
        pass


class NoBegin(OnStreams):
    """Copies do not wait for what was computed before."""

    def _copy(self, side, slab, target, source):
        self.card.copy(side, target, source, slab.size)
        slab.done.record(side)


class NoStaging(OnStreams):
    """The program's bytes are put where a copy may still read."""

    def _stage(self, size):
        slab = self._staging
        if slab is None or slab.whole < size:
            return super()._stage(size)
        return slab


def check_each_wait_is_needed():
    """All but the one for a slab that is used again: a device waits for a copy before it gives the slab up."""
    address, word = digest()
    for environment in (NoSettle, NoBegin, NoStaging):
        assert any(differs(seed, word, environment) for seed in range(12)), environment.__name__
    assert not any(differs(seed, word, OnStreams) for seed in range(4))
    driver.cuMemFree(address)


def differs(seed, word, environment):
    program, right, limit = native(seed)
    control.seed(seed)
    try:
        return played(program, limit, word, environment)[0] != right
    except Exception:
        return True
    finally:
        driver.cuCtxSynchronize()


def check_a_plan_moves_bytes_beside_kernels():
    """In planned iterations the host waits for nothing but the program's own reads and writes."""
    address, word = digest()
    environment = OnStreams()
    device = Adaptive(environment, 5 * 4096, planner="heuristic", wait=True, min_length=8)
    mix = Mixing(kernels, word)
    weights = [device.malloc(4096) for _ in range(4)]
    for k, w in enumerate(weights):
        device.write(w, np.full(4096, k, np.uint8))

    def step():
        made = [device.malloc(4096) for _ in weights]
        for w, x in zip(weights, made):
            device.exec("forward", [w], [x], call=mix([w], [x]), duration=10000)
        for w, x in zip(weights[::-1], made[::-1]):
            device.exec("backward", [x, w], [w], call=mix([x, w], [w]), duration=10000)
            device.free(x)

    for _ in range(8):
        step()
    counts = "syncs", "events_created", "host_allocations", "copies"
    for name in counts:
        before = {name: control.count(name) for name in counts}
    step()
    after = {name: control.count(name) - before[name] for name in counts}
    assert after["syncs"] == after["events_created"] == after["host_allocations"] == 0 < after["copies"], after
    device.close()
    rows = device.report().iterations
    assert rows[-2].state == "planned" and rows[-2].misses == 0
    driver.cuMemFree(address)


def check_arrays_are_typed_where_shape_and_dtype_are_told():
    device, seen = Adaptive(OnStreams(), "1MiB"), []
    blocks = [device.malloc(16, **told) for told in ({}, {"dtype": "float32"}, {"shape": (2, 2), "dtype": "float32"})]
    device.exec("look", [], blocks, call=lambda stream, *arrays: seen.extend((a.shape, str(a.dtype)) for a in arrays))
    device.close()
    assert seen == [((16,), "uint8"), ((16,), "uint8"), ((2, 2), "float32")], seen


def check_events_of_timed_ops_serve_again():
    """However often a program deviates, is recorded and goes on, and however often an op raises."""
    device = Adaptive(OnStreams(), 500, planner="heuristic", wait=True, min_length=8)
    weights = [device.malloc(100) for _ in range(4)]

    def step(size):
        made = [device.malloc(size) for _ in weights]
        for w, x in zip(weights, made):
            device.exec("forward", [w], [x], call=lambda stream, w, x: None)
        for w, x in zip(weights[::-1], made[::-1]):
            device.exec("backward", [x, w], [w], call=lambda stream, x, w: None)
            device.free(x)

    def fails(stream, w):
        raise KeyError

    created = []
    for size in 25 * (6 * [100] + [50]):
        step(size)
        try:
            device.exec("fails", weights[:1], call=fails)
        except KeyError:
            created.append(control.count("events_created"))
    device.close()
    assert created[-1] - created[35] < 20, created[::7]


def check_close_gives_all_back_whatever_fails():
    """Also where a copy that is under way cannot be waited for, and where the context is lost."""
    gc.collect()
    before = live()
    for kind in ("wait", "context"):
        device = Adaptive(OnStreams(), 500, planner="heuristic", wait=True, min_length=8)
        blocks = [device.malloc(100) for _ in range(9)]
        for block in blocks:
            device.write(block, b"1")
        for block in blocks[-2:]:
            device._memory.out(device._blocks[block])
        control.fail(kind, 1)
        if kind == "context":
            driver.cuCtxSynchronize()
        raised = False
        try:
            device.close()
        except Exception as error:
            raised = "wait" in str(error) or "CUDA" in str(error)
        control.fail(kind, 0)
        assert raised and live() == before, (kind, raised, before, live())
        control.revive()
        Device(0).set_current()


def main():
    """Run the checks whose names have all of the arguments in them; print what came of each as JSON."""
    Device(0).set_current()
    checks.report(sys.modules[__name__])
