"""Numba's arrays under a limit, on the fake driver: programs of `numba_programs.py` on a device that is too small."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any
from unittest.mock import patch

import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from cuda.core._utils.cuda_utils import CUDAError
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

from fake_cuda import control
from fake_cuda.backend_checks import report
from fake_cuda.live_checks.mapping import raises
from gpumem.execute.cuda.driver_calls import VirtualMemory
from gpumem.runtime import LimitError
from gpumem.runtime.emm import limit as emm_limit, manager as emm
from gpumem.runtime.paged.on_pages import Marks, OnPages
from gpumem.runtime.residency.copy_engine import Beside
from gpumem.runtime.residency.environment import LiveBlock
from tests import numba_programs as programs
from tests.numba_programs import GRID, N, mix, turn

BYTES = 4 * N
LEFT = ("device_bytes", "pinned_bytes", "live_handles", "mapped_bytes", "reserved_addresses")
SEEDS = 4


@contextmanager
def anew(limit: int | str = programs.DEVICE, **options: Any) -> Iterator[list[int]]:
    """A context with a limit of its own, and nothing left afterwards; yields the most bytes that it takes."""
    gc.collect()
    cuda.current_context().reset()
    before, most = left(), [0]
    emm.configure(**{"limit": limit, "wait": True, "swap": "heuristic", **options})
    create = VirtualMemory.create

    def counted(self: VirtualMemory, size: int) -> Any:
        made = create(self, size)
        most[0] = max(most[0], control.count("device_bytes") - before["device_bytes"])
        return made

    with patch.object(VirtualMemory, "create", counted):
        yield most
    gc.collect()
    cuda.current_context().reset()
    assert left() == before, (before, left())
    assert control.report() == ""


def left() -> dict[str, int]:
    cuda.synchronize()
    return {name: control.count(name) for name in LEFT}


def digest(program: Callable[[], bytes]) -> str:
    return sha256(program()).hexdigest()


def array(k: int = 0) -> Any:
    return cuda.to_device(programs.drawn(k))


def check_programs_compute_the_same_within_a_limit() -> None:
    expected = json.loads(os.environ["EXPECTED"])
    for name, program in programs.PROGRAMS.items():
        for seed in range(SEEDS):
            with anew() as most:
                control.seed(seed)
                assert digest(program) == expected[name], (name, seed)
            assert most[0] <= programs.DEVICE, (name, most)
            assert most[0] > programs.DEVICE // 2, (name, most)
            assert control.count("reserved_bytes") == 0, "memory of cuda.core's own pool"


def check_a_steady_program_is_planned_for() -> None:
    with anew():
        programs.steady(12)
        told = emm.report()
    rows = told.iterations[3:-1]
    assert len(rows) > 6 and {row.state for row in rows} == {"planned"}, told
    assert not any(row.misses or row.evictions for row in rows), told
    assert all(row.moved_out and row.moved_in for row in rows), told
    assert told.limit == programs.DEVICE and told.plan is not None


def check_iterations_between_inputs_are_found() -> None:
    def train() -> bytes:
        arrays = [array(k) for k in range(12)]
        for step in range(10):
            arrays[0].copy_to_device(programs.drawn(step))
            for k in (*range(11), *range(10, 0, -1)):
                mix[GRID](arrays[k], arrays[k + 1], np.float32(0.01))
        return programs.all_bytes(arrays)

    with anew("120KiB"):
        expected = train()
    with anew(detect="writes"):
        assert train() == expected
        rows = emm.report().iterations
    assert {row.state for row in rows[4:-1]} == {"planned"} and {row.ops for row in rows[4:-1]} == {22}, rows
    assert not any(row.misses or row.evictions for row in rows[5:-1]), rows


def check_plans_know_of_small_arrays() -> None:
    with anew(programs.DEVICE + BYTES) as most:
        small = [cuda.to_device(np.full(500, k, np.int32)) for k in range(4)]
        programs.steady(12)
        rows = emm.report().iterations[3:-1]
        assert all((x.copy_to_host() == k).all() for k, x in enumerate(small))
    assert len(rows) > 6 and {row.state for row in rows} == {"planned"}, rows
    assert not any(row.misses or row.evictions for row in rows), rows
    assert most[0] <= programs.DEVICE + BYTES


def check_a_program_that_fits_is_left_alone() -> None:
    expected = json.loads(os.environ["EXPECTED"])
    with anew("128KiB"):
        control.reset_counts()
        assert digest(programs.steady) == expected["steady"]
        rows = emm.report().iterations
        assert rows[4].state == "idle" and not any(row.misses or row.moved_out for row in rows), rows
        assert control.count("unmaps") == 0


def check_a_device_may_have_less_than_the_limit() -> None:
    expected = json.loads(os.environ["EXPECTED"])
    status, taken = driver.cuMemAlloc(80 * 1024)
    assert not status
    with anew("1GiB"):
        assert digest(programs.steady) == expected["steady"]
        assert digest(programs.never_repeats) == expected["never_repeats"]
    driver.cuMemFree(taken)


def same(expected: dict[str, str]) -> bool:
    """Whether the programs compute the same for some seeds."""
    for name in ("steady", "views", "two_streams", "never_repeats"):
        for seed in range(SEEDS):
            control.seed(seed)
            try:
                with anew():
                    if digest(programs.PROGRAMS[name]) != expected[name]:
                        return False
            except (AssertionError, Exception):
                control.report()
                gc.collect()
                try:
                    cuda.current_context().reset()
                except Exception:
                    control.revive()
                return False
    return True


def check_each_wait_is_needed() -> None:
    expected = json.loads(os.environ["EXPECTED"])
    assert same(expected)

    def only_ops(self: OnPages, number: int) -> None:
        self.marks.wait(self._used.pop(number, 0))
        self._moved.pop(number, None)

    def no_wait(self: OnPages, copy: Any) -> None:
        Beside.wait_for_copy(self, copy)

    mutations = {
        "the host waits for ops before it unmaps": (Marks, "wait", lambda self, op: None),
        "the host waits for copies before it unmaps": (OnPages, "wait", only_ops),
        "an op waits for the one before, and for copies": (OnPages, "_join", lambda self, stream: None),
        "an op waits for copies": (OnPages, "wait_for_copy", no_wait),
        "copies wait for ops": (OnPages, "follow", lambda self: False),
    }
    for what, (owner, name, wrong) in mutations.items():
        with patch.object(owner, name, wrong):
            assert not same(expected), f"nothing finds that {what}"
    assert same(expected)


def check_an_address_that_was_told_stays_valid() -> None:
    @cuda.jit
    def with_constant(y):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = constant[i]

    for ask in (
        lambda x: x.__cuda_array_interface__["data"][0],
        lambda x: x.device_ctypes_pointer.value,
        lambda x: x[100:].device_ctypes_pointer.value - 400,
    ):
        with anew():
            arrays = [array(k) for k in range(12)]
            address = ask(arrays[0])
            assert (np.frombuffer(control.host(address, BYTES), np.float32) == programs.drawn(0)).all()  # at once
            for k in range(24):
                mix[GRID](arrays[1 + k % 3], arrays[4 + k % 8], np.float32(0.5))
            cuda.synchronize()
            found = np.frombuffer(control.host(address, BYTES), np.float32)
            assert (found == programs.drawn(0)).all()
    with anew():
        constant, arrays = array(50), [array(k) for k in range(12)]
        with_constant[GRID](arrays[0])
        for k in range(24):
            mix[GRID](arrays[1 + k % 11], arrays[1 + (k + 1) % 11], np.float32(0.5))
        with_constant[GRID](arrays[1])
        assert (arrays[1].copy_to_host() == programs.drawn(50)).all()
        assert (arrays[0].copy_to_host() == programs.drawn(50)).all()


def check_what_is_captured_stays() -> None:
    with anew():
        stream = Device(0).create_stream()
        arrays = [array(0), array(1)]
        large = cuda.to_device(programs.drawn(50, 2 * N))  # goes in the capture, which takes pinned memory
        arrays += [array(k) for k in range(2, 10)]  # 0 and 1 go
        mix[(*GRID, stream)](arrays[8], arrays[9], np.float32(0))
        stream.sync()
        builder = stream.create_graph_builder()
        builder.begin_building(mode="global")
        mix[(*GRID, builder)](arrays[0], arrays[1], np.float32(0))
        graph = builder.end_building().complete()
        builder.close()
        for _ in range(3):
            for k in range(2, 9):
                mix[GRID](arrays[k], arrays[k + 1], np.float32(0))
            cuda.synchronize()
            graph.launch(stream)
            stream.sync()
        np.testing.assert_allclose(arrays[1].copy_to_host(), programs.drawn(1) + 3, 1e-5)
        assert (large.copy_to_host() == programs.drawn(50, 2 * N)).all()
        graph.close(), stream.close()


def check_what_ops_read_and_write_is_told() -> None:
    with anew():
        x, y = array(0), cuda.device_array(N, np.float32)
        assert len(y.copy_to_host()) == N  # whatever is in it
        ops: list[tuple[str, int, int]] = []
        (arrays,) = emm_limit._all
        arrays.device.before.append(lambda op, i: ops.append((op.name, len(op.reads), len(op.writes))))
        x.copy_to_device(programs.drawn(1))
        x[5:].copy_to_device(programs.drawn(1)[5:])
        x.gpu_data.memset(0)
        y.copy_to_device(x)
        y[7:].copy_to_device(x[7:])
        mix[GRID](x, y, np.float32(0))
        turn[GRID](x, cuda.device_array(N, np.float32))
        y.copy_to_host()
    assert ops == [
        ("copy in", 0, 1),
        ("copy in", 1, 1),
        ("set", 0, 1),
        ("copy", 1, 1),
        ("copy", 2, 1),
        ("mix", 2, 2),
        ("turn", 1, 2),
        ("copy out", 1, 0),
    ], ops


def check_a_range_that_changes_hands_is_waited_for() -> None:
    """Its last user was freed, and there was no op of the new one, when its granules are needed elsewhere."""
    for seed in range(SEEDS):
        with anew(3 * BYTES):
            control.seed(seed)
            w, x = array(), cuda.device_array(N, np.float32)
            turn[GRID](w, x)
            address = x.gpu_data.device_pointer
            del x
            turn[GRID](w, w)  # carries the release out
            z = cuda.device_array(N, np.float32)
            assert z.gpu_data.device_pointer == address
            others = [cuda.device_array(N, np.float32) for _ in range(2)]
            for other in others:
                turn[GRID](w, other)
            cuda.synchronize()


def check_ranges_wait_for_copies() -> None:
    """Of a block that went while a copy out of it or into it was under way, and of who has its addresses next."""
    unit = 4096
    for inward, handed in ((False, False), (True, False), (False, True), (True, True)):
        for seed in range(SEEDS):
            before = left()
            environment = OnPages(0, 2 * unit)
            control.seed(seed)
            x, y, z, w = blocks = [LiveBlock(k, unit, "", None, "") for k in range(4)]
            for block in (x, y, w):
                environment.reserve(block.number, unit)
            environment.fill(x, unit)
            copy = environment.out(x)
            if inward:
                copy.done.synchronize()
                environment.back(x, copy)
            environment.wait_for_copy(copy)
            environment.empty(x)
            if handed:
                environment.release(x.number)
                assert environment.reserve(z.number, unit).address
            for block in (y, w):
                environment.fill(block, unit)
            cuda.synchronize()
            assert control.report() == ""
            environment.close()
            assert left() == before, blocks


def check_one_launch_that_needs_too_much_is_refused() -> None:
    with anew(3 * BYTES):
        a, b, c, d = (array(k) for k in range(4))
        told = raises(LimitError, programs.several[GRID], (a, b, c), d, saying="several holds 32.00 KiB at once")
        assert "the limit is 24.00 KiB; the least limit that would do for it is 32.00 KiB" in told, told
        mix[GRID](a, b, np.float32(0))
        assert (b.copy_to_host() == programs.drawn(1) + 1).all()
        raises(MemoryError, cuda.device_array, 3 * N + 1, np.float32, saying="can never be on the device")
        raises(NotImplementedError, a.get_ipc_handle, saying="another process")
        free, total = cuda.current_context().get_memory_info()
        assert free <= 3 * BYTES <= total


def check_small_arrays_are_within_the_limit() -> None:
    with anew(8 * BYTES) as most:
        large = [array(k) for k in range(7)]
        small = [cuda.to_device(np.full(100, k, np.int32)) for k in range(40)]
        for k in range(6):
            mix[GRID](large[k], large[k + 1], np.float32(0))
        assert all((x.copy_to_host() == k).all() for k, x in enumerate(small))
        raises(MemoryError, lambda: [cuda.device_array(100) for _ in range(1000)], saying="no room")
    assert most[0] <= 8 * BYTES


def check_arrays_may_go_at_any_moment() -> None:
    """Collections come in the middle of allocations, launches and copies, and in other threads."""

    class Knot:
        def __init__(self, k: int) -> None:
            self.array, self.itself = array(k), self

    before = gc.get_threshold()
    try:
        gc.set_threshold(5)
        with anew():
            y = array(99)
            for k in range(60):
                mix[GRID](Knot(k).array, y, np.float32(0.5))
            found = y.copy_to_host()
    finally:
        gc.set_threshold(*before)
    want = programs.drawn(99)
    for k in range(60):
        want = (want.astype(np.float64) + np.float32(0.5) * programs.drawn(k) + 1).astype(np.float32)
    np.testing.assert_allclose(found, want, 1e-4, 1e-4)


def check_threads_share_a_limit() -> None:
    def work(thread: int, found: dict[int, bytes]) -> None:
        stream = cuda.stream()
        arrays = [array(thread * 10 + k) for k in range(4)]
        for k in range(15):
            mix[(*GRID, stream)](arrays[k % 4], arrays[(k + 1) % 4], np.float32(0.5))
        stream.synchronize()
        found[thread] = programs.all_bytes(arrays)

    together: dict[int, bytes] = {}
    in_turn: dict[int, bytes] = {}
    with anew():
        threads = [threading.Thread(target=work, args=(k, together)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k in range(4):
            work(k, in_turn)
    assert len(together) == 4 and together == in_turn


def check_a_failing_call_leaves_nothing_behind() -> None:
    """Each call of the driver fails once at some position: the program hears of it, and may begin anew."""
    expected, heard = json.loads(os.environ["EXPECTED"])["steady"], 0
    for what in (
        "allocation",
        "pinned",
        "copy",
        "launch",
        "record",
        "wait",
        "event",
        "reserve",
        "create",
        "map",
        "access",
    ):
        for n in (1, 4, 9):
            with anew():
                control.fail(what, n)
                try:
                    assert digest(programs.steady) == expected, (what, n)
                except (RuntimeError, MemoryError, CudaAPIError, CUDAError):
                    heard += 1
                control.fail(what, 0)
    assert heard > 10, heard


def check_streams_may_go() -> None:
    """Each launch on a stream of its own, which is destroyed behind it."""
    found = set()
    for seed in range(SEEDS):
        with anew():
            control.seed(seed)
            arrays = [array(k) for k in range(12)]
            cuda.synchronize()
            last = None
            for k in range(40):
                stream = Device(0).create_stream()
                if last is not None:
                    stream.wait(last)
                mix[(*GRID, stream)](arrays[k % 12], arrays[(k * 5 + 1) % 12], np.float32(0.5))
                last = stream.record()
                stream.close()
            last.sync()
            found.add(programs.all_bytes(arrays))
    want = [programs.drawn(k) for k in range(12)]
    for k in range(40):
        x, y = want[k % 12], want[(k * 5 + 1) % 12]
        y += np.float32(0.5) * x + np.float32(1)
    (ours,) = found
    np.testing.assert_allclose(np.frombuffer(ours, np.float32).reshape(12, N), want, 1e-4, 1e-4)


def check_a_long_run_takes_no_more_events_than_a_short_one() -> None:
    taken = []
    for launches in (1500, 4500):
        with anew():
            arrays = [array(k) for k in range(12)]
            control.reset_counts()
            for k in range(launches):
                mix[GRID](arrays[k % 3], arrays[3 + k % 4], np.float32(0))
            taken.append(control.count("events_created"))
            mix[GRID](arrays[10], arrays[11], np.float32(0))  # sends those away that were used last long ago
            assert (arrays[11].copy_to_host() == programs.drawn(11) + 1).all()
            assert (arrays[7].copy_to_host() == programs.drawn(7)).all()
    assert taken[0] == taken[1] < 2500, taken


def check_bytes_are_set() -> None:
    with anew():
        arrays = [array(k) for k in range(12)]
        stream = cuda.stream()
        for k, x in enumerate(arrays):
            x.gpu_data.memset(k, stream=stream if k % 2 else 0)
            x[100:200].gpu_data.memset(0)
        stream.synchronize()
        for k, x in enumerate(arrays):
            found = x.copy_to_host().view(np.uint8)
            assert (found[:400] == k).all() and (found[400:800] == 0).all() and (found[800:] == k).all(), k


def check_a_reset_is_survived() -> None:
    expected = json.loads(os.environ["EXPECTED"])
    with anew():
        streams = control.count("live_streams")
        kept = [array(k) for k in range(12)]
        cuda.current_context().reset()
        assert digest(programs.steady) == expected["steady"]
        del kept
        raises(RuntimeError, lambda: emm.configure(limit="1MiB"), saying="configure before the first")
        assert len(emm_limit._all) == 1
    assert emm_limit._all == [] and control.count("live_streams") == streams


def ruined() -> None:
    """A context that work has ruined is left behind; in a process of its own, as others' streams go with it."""
    expected = json.loads(os.environ["EXPECTED"])
    for n in (3, 20, 60):
        with anew():
            control.fail("context", n)
            with suppress(RuntimeError, CudaAPIError, CUDAError):
                programs.steady()
                raise AssertionError("it went well")
            gc.collect()
            control.revive()
            cuda.current_context().reset()
            assert digest(programs.steady) == expected["steady"]


def main() -> None:
    """Run all checks."""
    with anew("128KiB"):
        for program in programs.PROGRAMS.values():
            program()  # compiled now
    gc.collect()
    gc.freeze()
    report(globals())
