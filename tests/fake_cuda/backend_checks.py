"""What the tests of `execute/cuda` run on the fake driver: a plan, the library that launches its ops, both runs."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from cuda.bindings import driver as api
from cuda.core import Buffer, Device, LaunchConfig, LegacyPinnedMemoryResource, MemoryResource, ObjectCode, launch
from hypothesis import given, settings, strategies as st

from fake_cuda import control
from gpumem import Machine, Trace, autoswap, best_fit
from gpumem.base.errors import ExecutionError
from gpumem.execute import Emulator, GenericOp, Program, carried, in_issue_order, initial, prepare, run, scaled
from gpumem.execute.cuda import Cuda, DeviceArray, devices, driver, timing as gate
from gpumem.execute.latency.measured import measured, measured_machine
from gpumem.execute.layout import Layout
from gpumem.execute.models import MODELS, mlp
from gpumem.kernels import reference
from gpumem.kernels.ptx import bind
from gpumem.testing import plans as any_plans, steps
from gpumem.trace import Buffers, Ops
from gpumem.trace.placement import Placement
from nets import half_again

ITERATIONS = 3
_code = ObjectCode.from_cubin(b"the fake driver goes by names")
_one = LaunchConfig(grid=1, block=1)
_u64 = np.uint64


def _launch(stream: Any, name: str, *arguments: Any) -> None:
    words = [_u64(a.pointer if isinstance(a, DeviceArray) else a) for a in arguments]
    launch(stream, _one, _code.get_kernel(name), *words)


library = SimpleNamespace(
    advance=lambda stream, counter: _launch(stream, "advance", counter),
    clear=lambda stream, digest: _launch(stream, "clear", digest),
    checksum=lambda stream, x, digest, salt: _launch(stream, "checksum", x, x.nbytes, digest, salt),
    fill=lambda stream, digest, out, salt: _launch(stream, "fill", digest, out, out.nbytes, salt),
)


class Plan(SimpleNamespace):
    """A trace and its plan, shrunk, and what the unswapped run on the emulator leaves."""

    def write(self, program: Program) -> None:
        """Give the program its initial state."""
        over = program.crossing()
        program.write({of: value for of, value in self.state.items() if of in over})

    def right(self, program: Program) -> bool:
        """Whether the program left what the unswapped run on the emulator leaves."""
        return all(np.array_equal(self.want[of], value) for of, value in program.read().items())


@cache
def plan() -> Plan:
    """A small training step at 60 % of its peak live bytes; every byte stands for 256."""
    trace = mlp(batch=64, hidden=(64,) * 4).trace
    limit, options = trace.peak_live_bytes * 60 // 100, {"threshold": 0, "peaks": "all"}
    swapped = autoswap(trace, Machine.named("gtx1080ti"), limit, **options).apply(trace)
    whole, there = scaled(trace, best_fit(trace))
    small, placement = scaled(swapped, best_fit(swapped))
    state = initial(whole, seed=1)
    program = prepare(whole, there, Emulator(in_issue_order), GenericOp(whole, reference))
    program.write(state)
    program.run(ITERATIONS)
    made = {"trace": small, "placement": placement, "host": best_fit(small.host_side(), alignment=1)}
    return Plan(whole=whole, there=there, state=state, want=program.read(), **made)


def ready(p: Plan, backend: Cuda, *, swapped: bool = True) -> Program:
    """The plan's program on a backend, with its initial state."""
    trace, placement, host = (p.trace, p.placement, p.host) if swapped else (p.whole, p.there, None)
    program = prepare(trace, placement, backend, GenericOp(p.whole, library), host=host)
    p.write(program)
    return program


def cuda(**options: Any) -> Cuda:
    """A backend whose views are plain device arrays."""
    return Cuda(array=lambda array: array, **options)


def held() -> dict[str, int]:
    """What is alive on the fake device."""
    return {
        what: control.count(f"live_{what}") for what in ("device", "pinned", "streams", "events", "graphs", "execs")
    }


def raised(kind: type[Exception], call: Callable[[], object]) -> str:
    """What a call raises says, having checked that it raises this kind."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def check_any_legal_order_gives_the_unswapped_bytes() -> None:
    p = plan()
    for options in ({}, {"graph": True}, {"timing": True}):
        with cuda(**options) as backend:
            program = ready(p, backend)
            for seed in range(25):
                control.seed(seed)
                p.write(program)
                program.run(ITERATIONS)
                assert p.right(program), (options, seed)
    assert not any(held().values()), held()


def check_a_missing_wait_shows() -> None:
    p = plan()
    edges = [(y, x) for x, row in enumerate(prepare(p.trace, p.placement, Emulator()).after) for y in row]
    shown = 0
    with cuda() as backend:
        for y, x in edges:
            program = ready(p, backend)
            program.after[x].remove(y)
            for seed in range(40):
                control.seed(seed)
                p.write(program)
                program.run(ITERATIONS)
                if not p.right(program):
                    shown += 1
                    break
    assert shown > len(edges) // 2, f"{shown} of {len(edges)}"  # random orders; the emulator looks for each one


def check_runs_use_their_events_again() -> None:
    p = plan()
    for options in ({}, {"graph": True}, {"timing": True}):
        with cuda(**options) as backend:
            program = ready(p, backend)
            program.run(ITERATIONS)
            first = held()
            for _ in range(3):
                program.run(ITERATIONS)
            assert held() == first, (options, first, held())


def check_no_more_events_than_hazards_and_no_host_synchronisation() -> None:
    p = plan()
    with cuda() as backend:
        program = ready(p, backend)
        program.run(1)
        works, after = program.works, program.after
        backend.begin(works, 2)
        control.reset_counts()
        tokens = program._issue(program._issue([]))
        counts = {what: control.count(what) for what in ("allocations", "syncs", "records", "waits", "copies")}
        for work, token in zip(works, tokens):
            program._wait(work, token)
    signalling = {y % p.trace.n for row in after for y in row}
    last = {work.stream: work.op for work in works}.values()
    first = sum(y >= 0 for row in after for y in row)
    copies = sum(op.role.startswith("copy") for op in p.trace.ops)
    assert counts == {
        "allocations": 0,
        "syncs": 0,
        "records": 2 * len(signalling | set(last)),
        "waits": first + sum(map(len, after)),
        "copies": 2 * copies,
    }, counts


@contextmanager
def made_inside() -> Iterator[list[list[int]]]:
    """What each iteration that is issued meanwhile makes, loads or waits for: a row of counts."""
    kinds = ("allocations", "syncs", "events_created", "streams_created", "loads", "translations", "live_graphs")
    issue, inside = Program._issue, []

    def counted(self: Program, before: Any, runs: Any = None) -> Any:
        told = [control.count(kind) for kind in kinds]
        tokens = issue(self, before, runs)
        inside.append([control.count(kind) - n for kind, n in zip(kinds, told)])
        return tokens

    with patch.object(Program, "_issue", counted):
        yield inside


def check_nothing_is_made_and_nothing_waited_for_inside_an_iteration() -> None:
    p = plan()
    with made_inside() as inside:
        for options in ({}, {"timing": True}, {"graph": True}):
            with cuda(**options) as backend:
                ready(p, backend).run(200)
    assert len(inside) == 200 + 200 + 2 and not np.any(inside), np.max(inside, axis=0)


def check_a_long_timed_run_has_the_events_of_two_iterations() -> None:
    p = plan()
    with cuda(timing=True) as backend:
        program = ready(p, backend)
        program.run(2)
        there = control.count("live_events")
        line = program.run(300)
        assert control.count("live_events") == there <= 5 * p.trace.n + 1, (there, p.trace.n)
        assert (line.end > line.start).all() and line.first == 299


def check_a_failure_long_ago_names_an_op() -> None:
    p = plan()
    for options in ({}, {"timing": True}, {"graph": True}):
        with cuda(**options) as backend:
            program = ready(p, backend)
            program.run(2)
            control.fail("execution", 20)
            text = raised(ExecutionError, lambda program=program: program.run(200))
            assert re.match(r"op \d+ \(\w+\): did not end, it or an op before it: ", text), text
            program.run(2)


def check_the_next_program_has_the_slabs_of_the_one_before() -> None:
    p = plan()
    with cuda() as backend:
        ready(p, backend)
        made = []
        for swapped in (True, True, False, True):
            control.reset_counts()
            program = ready(p, backend, swapped=swapped)
            made.append(control.count("allocations"))
            program.run(ITERATIONS)
            assert p.right(program)
    assert made == [0, 0, 1, 1], made  # the device's slab where it is of another size
    assert not any(held().values()), held()


def check_a_program_without_memory_does_not_run() -> None:
    p = plan()
    with cuda() as backend:
        first, second = ready(p, backend), ready(p, backend)
        for use in (first.run, first.read, lambda: first.write({})):
            assert "has no memory" in raised(ValueError, use)
        second.run(ITERATIONS)
        assert p.right(second)
    assert "has no memory" in raised(ValueError, second.run)


def check_what_is_closed_is_there_for_others() -> None:
    p, free = plan(), lambda: api.cuMemGetInfo()[1]
    with cuda() as backend:
        before = free()
        ready(p, backend).run(1)
        assert free() < before - p.placement.height + 1
        backend.close()
        assert free() == before


def check_hosts_and_what_blocks_change_no_call() -> None:
    p = plan()
    ops = replace(p.trace.ops, blocking=p.trace.ops.copies, host=np.arange(p.trace.n) % 2, hosts=("a", "b"))
    blocking = Plan(**vars(p) | {"trace": replace(p.trace, ops=ops)})
    counts = []
    for each in (p, blocking):
        with cuda() as backend:
            program = ready(each, backend)
            control.reset_counts()
            program.run(ITERATIONS)
            counts.append(
                {what: control.count(what) for what in ("allocations", "syncs", "records", "waits", "copies")}
            )
            assert each.right(program)
    assert counts[0] == counts[1], counts


def check_a_fault_at_every_position_names_the_op_and_leaks_nothing() -> None:
    for options in ({}, {"timing": True}):
        faults_at_every_position(plan(), options)
    assert not any(held().values()), held()


def faults_at_every_position(p: Plan, options: dict[str, bool]) -> None:
    """Let each call of an iteration fail, one by one, and recomputed each time."""
    with cuda(**options) as backend:
        program = ready(p, backend)
        for kind, message in {"copy": "copy", "launch": ".", "record": ".", "wait": "."}.items():
            control.reset_counts()
            program.run(1)
            position = {"copy": "copies", "launch": "launches", "record": "records", "wait": "waits"}[kind]
            total = control.count(position)
            begin = 1 if kind == "record" else 0  # the first record is the start of the run, which belongs to no op
            assert total > 10
            for n in range(1 + begin, total + 1):
                control.fail(kind, n)
                text = raised(ExecutionError, lambda: program.run(1))
                assert re.match(r"op \d+ \(\w+\): could not be started: .*CUDA_ERROR", text), text
                assert re.search(message, text), text
                program.run(1)
        p.write(program)
        program.run(ITERATIONS)
        assert p.right(program)
    assert not any(held().values()), held()


def check_a_fault_at_the_very_start_of_a_run() -> None:
    p = plan()
    with cuda() as backend:
        program = ready(p, backend)
        control.fail("record", 1)
        assert "CUDA_ERROR" in raised(Exception, lambda: program.run(1))
        p.write(program)
        program.run(ITERATIONS)
        assert p.right(program)


def check_work_that_fails_on_the_device_is_reported_and_the_next_run_works() -> None:
    p = plan()
    with cuda() as backend:
        program = ready(p, backend)
        control.reset_counts()
        program.run(1)
        total = control.count("executed_copies") + control.count("executed_launches")
        for n in range(1, total + 1, 7):
            control.fail("execution", n)
            text = raised(ExecutionError, lambda: program.run(1))
            assert "did not end, it or an op before it" in text, text
            p.write(program)
            program.run(ITERATIONS)
            assert p.right(program)
    assert not any(held().values()), held()


def check_what_cannot_be_allocated_is_said_and_nothing_stays() -> None:
    p = plan()
    for kind, n, text in (
        ("allocation", 1, f"{p.placement.height} bytes of device memory: .*OUT_OF_MEMORY"),
        ("pinned", 1, f"{p.host.height} bytes of pinned memory: .*OUT_OF_MEMORY"),
        ("pinned", 2, "bytes of pinned memory: .*OUT_OF_MEMORY"),
        ("allocation", 2, "bytes of device memory: .*OUT_OF_MEMORY"),
    ):
        with cuda() as backend:
            control.fail(kind, n)
            found = raised(MemoryError, lambda b=backend: ready(p, b))
            assert re.search(text, found), found
            assert not any(held().values()), (kind, n, held())
            program = ready(p, backend)
            program.run(ITERATIONS)
            assert p.right(program)
    for kind, most in (("stream", 3), ("event", 5)):
        for n in range(1, most + 1):
            with cuda() as backend:
                control.fail(kind, n)
                raised(Exception, lambda b=backend: ready(p, b).run(1))
                control.fail(kind, 0)
                program = ready(p, backend)
                program.run(ITERATIONS)
                assert p.right(program)
            assert not any(held().values()), (kind, n, held())


def check_memory_is_given_back_where_other_work_fails_while_it_is_taken() -> None:
    with cuda() as backend:
        p = plan()
        backend.open(Layout.of(p.trace, p.placement, p.host))
        there = backend.scratch(np.uint64, (1,))
        _launch(backend.streams[0], "clear", there)
        control.fail("execution", 1)
        failed = None
        try:
            backend.scratch(np.uint8, (2**20,))
        except Exception as error:
            failed = error  # and all frames that it went through
        assert "CUDA_ERROR_LAUNCH_FAILED" in str(failed) and "bytes of device memory" not in str(failed), failed
    assert not any(held().values()), held()


def check_a_capture_that_fails_leaves_the_streams_usable() -> None:
    p, named = plan(), 0
    for kind in ("launch", "copy", "wait", "record", "event", "graph"):
        n, failed = 0, True
        while failed:  # at each call, until a fault comes too late
            n += 1
            with cuda(graph=True) as backend:
                program = ready(p, backend)
                program.run(1)
                control.fail(kind, n)
                try:
                    program.run(1)
                    failed = False
                except Exception as error:
                    assert "CUDA" in str(error) and "CAPTURE" not in str(error), (kind, n, error)
                    named += bool(re.match(r"op \d+ \(\w+\): could not be started: ", str(error)))
                control.fail(kind, 0)
                p.write(program)
                program.run(ITERATIONS)
                assert p.right(program), (kind, n)
            assert not any(held().values()), (kind, n, held())
        assert n > 2, kind
    assert named > p.trace.n, named


def check_pageable_memory_is_refused() -> None:
    class Pageable(MemoryResource):
        is_device_accessible, is_host_accessible, device_id = False, True, -1

        def allocate(self, size: int, *, stream: Any) -> Buffer:
            self.kept = np.zeros(size, np.uint8)
            return Buffer.from_handle(self.kept.ctypes.data, size, mr=self)

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            self.kept = None

    class Boastful(Pageable):
        is_device_accessible = True

    p = plan()
    for resource in (Pageable(), Boastful()):
        with cuda(pinned=resource) as backend:
            text = raised(ValueError, lambda backend=backend: ready(p, backend))
        assert "is pageable: asynchronous copies need pinned memory" in text, text
        assert not any(held().values()), held()


def check_timing_shows_every_op() -> None:
    p = plan()
    with cuda(timing=True) as backend:
        line = ready(p, backend).run(4)
    assert (line.start >= 0).all() and (line.end >= line.start).all()
    assert line.makespan > 0 and line.wait.min() >= 0
    for s in range(3):
        mine = np.flatnonzero(p.trace.ops.stream == s)
        assert (line.start[mine][1:] >= line.end[mine][:-1]).all()
    with cuda() as backend:
        short = ready(p, backend).run(4)
    assert (short.start == -1).all() and short.makespan > 0
    assert "timing or graph" in raised(ValueError, lambda: cuda(timing=True, graph=True))


def check_durations_are_the_device_s_where_the_host_is_the_slower() -> None:
    p, told = plan(), []
    for host_ns, held_ops in ((0, gate.HELD), (20_000, gate.HELD), (20_000, 7)):
        control.eager(host_ns)
        with cuda(timing=True) as backend, patch.object(gate, "HELD", held_ops):
            told.append(
                measured(p.whole, backend, GenericOp(p.whole, library), place=best_fit, state=p.state).ops.duration
            )
    control.eager(0)
    assert p.whole.n > 2 * 7 and all(np.array_equal(told[0], other) for other in told[1:]), told


def check_a_kernel_is_loaded_when_it_is_bound() -> None:
    """A first launch that loads it may wait for the whole device, and so for a gate that opens after it."""
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry clear(.param .u64 x)\n{\nret;\n}\n"
    with cuda() as backend:
        backend.open(Layout.of(plan().trace, plan().placement, plan().host))
        digest = backend.scratch(np.uint64, (1,))
        control.reset_counts()
        start = bind("what", lambda capability: ptx, 1, 1, (digest.pointer,))
        assert control.count("loads") == 1
        start(backend.streams[0])
        assert (control.count("loads"), control.count("late_loads")) == (1, 0)


def check_a_launch_that_loads_at_its_first_call_is_not_behind_a_gate() -> None:
    p, codes = plan(), {}

    def late(stream: Any, name: str, *arguments: Any) -> None:
        """Launch a kernel of which nobody knew before."""
        code = codes.setdefault((name, *arguments), ObjectCode.from_cubin(b"the fake driver goes by names"))
        launch(stream, _one, code.get_kernel(name), *[_u64(getattr(a, "pointer", a)) for a in arguments])

    mine = SimpleNamespace(
        advance=lambda stream, counter: late(stream, "advance", counter),
        clear=lambda stream, digest: late(stream, "clear", digest),
        checksum=lambda stream, x, digest, salt: late(stream, "checksum", x, x.nbytes, digest, salt),
        fill=lambda stream, digest, out, salt: late(stream, "fill", digest, out, out.nbytes, salt),
    )
    control.reset_counts()
    with cuda(timing=True) as backend:
        program = prepare(p.trace, p.placement, backend, GenericOp(p.whole, mine), host=p.host)
        p.write(program)
        program.run(ITERATIONS)
        assert p.right(program)
    assert control.count("late_loads") == len(codes) > 10


def check_a_gate_is_no_place_to_hang() -> None:
    p = plan()
    control.queue(1000)  # entries of a stream, as on hardware: then the host waits
    with cuda(timing=True) as backend:
        program = ready(p, backend)
        program.run(5)
        control.fail("launch", 7)
        raised(ExecutionError, lambda: program.run(5))
        p.write(program)
        program.run(ITERATIONS)
        assert p.right(program)
    control.queue(0)


def check_a_gate_opens_for_an_op_that_does_not_come_to_its_end() -> None:
    """One that has more launches than a stream has room for; or each of whose launches waits for the device."""
    trace = Trace(Buffers.make([8], [0], [2], persistent=[True]), Ops.make([[0], [0]], [[0], [0]]))

    def launch_many(op: Any, views: Any) -> Callable[[Any], None]:
        counter = views(0, _u64, (1,))

        def call(stream: Any) -> None:
            for _ in range(30):
                library.advance(stream, counter)

        return call

    control.queue(20)
    try:
        with cuda(timing=True) as backend:
            program = prepare(trace, Placement.at(trace, [0]), backend, launch_many)
            program.write({})
            program.run(3)
            assert program.read()[0].view(_u64)[0] == 2 * 3 * 30
    finally:
        control.queue(0)
    assert threading.active_count() == 1


def check_a_gate_that_cannot_be_shut_on_every_stream_is_open() -> None:
    p, wait, calls = plan(), api.cuStreamWaitValue32, []

    def refused(*arguments: Any) -> Any:
        calls.append(arguments)
        return (api.CUresult.CUDA_ERROR_UNKNOWN,) if len(calls) == 2 else wait(*arguments)

    with cuda(timing=True) as backend:
        program = ready(p, backend)
        program.run(1)
        with patch.object(api, "cuStreamWaitValue32", refused):
            assert "CUDA_ERROR_UNKNOWN" in raised(Exception, lambda: program.run(1))
        p.write(program)
        program.run(ITERATIONS)
        assert p.right(program)
    assert len(calls) == 2 and not any(held().values()), (calls, held())


def check_launches_of_kernels_that_are_there_wait_for_nobody_who_loads_one() -> None:
    """Loading may wait for the device, which waits for a gate, behind which another thread is to launch."""
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry clear(.param .u64 x)\n{\nret;\n}\n"
    loading, bound, alone = threading.Event(), threading.Event(), []

    def slow(capability: Any) -> str:
        loading.set()
        alone.append(not bound.wait(2))
        return ptx

    def load() -> None:
        Device(0).set_current()
        bind("slow", slow, 1, 1, (0,))

    with cuda():
        bind("there", lambda capability: ptx, 1, 1, (0,))
        other = threading.Thread(target=load)
        other.start()
        assert loading.wait(5)
        bind("there", slow, 1, 1, (0,))
        bound.set()
        other.join()
    assert alone == [False]


def check_two_threads_that_wait_for_one_op_give_its_events_back_once() -> None:
    p = plan()
    with cuda(timing=True) as backend:
        program = ready(p, backend)
        program.run(1)
        backend.begin(program.works, 1)
        token = program._issue([])[0]
        span, both = backend._span, threading.Barrier(2)

        def late(token: Any) -> Any:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            return span(token)

        def wait() -> None:
            Device(0).set_current()
            backend.wait(token)

        with patch.object(backend, "_span", late):
            threads = [threading.Thread(target=wait) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        free = [id(event) for event in backend.clocks.free]
        assert token.span is not None and len(free) == len(set(free)), "an event twice"


def check_a_pinned_slab_of_ones_own_outlives_the_stream_it_came_on() -> None:
    p = plan()
    before = held()
    with cuda(pinned=LegacyPinnedMemoryResource()) as backend:
        for _ in range(3):
            program = ready(p, backend)
            program.run(ITERATIONS)
            assert p.right(program)
    assert held() == before, held()


def check_a_context_that_is_ruined_is_told_of_with_an_op_and_nothing_leaks() -> None:
    p = plan()
    for options in ({}, {"timing": True}, {"graph": True}):
        for n in (*range(1, 100, 3), 300, 1000):
            with cuda(**options) as backend:
                program = ready(p, backend)
                control.fail("context", n)
                text = raised(ExecutionError, lambda program=program: program.run(20))
                assert re.match(
                    r"op \d+ \(\w+\): (could not be started|did not end).*CUDA_ERROR_LAUNCH_FAILED", text
                ), text
                for again in (program.run, lambda backend=backend: ready(p, backend)):
                    assert "CUDA" in raised(Exception, again)
            assert not any(held().values()), (options, n, held())
            control.revive()
            with cuda(**options) as backend:
                program = ready(p, backend)
                program.run(ITERATIONS)
                assert p.right(program)


def check_measured_durations() -> None:
    p = plan()
    with cuda(timing=True) as backend:
        trace = measured(p.whole, backend, GenericOp(p.whole, library), place=best_fit, state=p.state)
        machine = measured_machine(Machine.named("h200"), backend, large=2**20)
    assert (trace.ops.duration > 0).all()
    assert abs(machine.into.ns_per_byte - 1 / 16) < 1e-3, machine.into  # the fake driver's clock


def check_the_unswapped_trace_needs_no_pinned_slab() -> None:
    p = plan()
    with cuda() as backend:
        program = ready(p, backend, swapped=False)
        assert program.layout.host == 0
        program.run(ITERATIONS)
        assert p.right(program)


def check_random_ops_draw_anew_in_each_replay_and_the_same_when_run_again() -> None:
    names, reads = ["draw", "sum", "draw", "sum"], [[], [0, 1], [], [0, 2]]
    ops = Ops.make(reads, [[0], [1], [0], [2]], name=names, role=[0, 0, 3, 0], of=[0, 1, 0, 3])
    trace = Trace(Buffers.make([64, 8, 8], [0] * 3, [4] * 3, persistent=[False, True, True]), ops)

    def left(backend: Any, kernels: Any, runs: tuple[int, ...]) -> dict[int, Any]:
        def launch(op: Any, views: Any) -> Callable[[Any], None]:
            if op.name == "sum":
                digest, x = views(op.id // 2 + 1, _u64, (1,)), views.bytes(0)
                return lambda stream: kernels.checksum(stream, x, digest, 0)
            counter, out = views.generator(), views.bytes(0)

            def draw(stream: Any) -> None:
                if op.role != "recompute":
                    kernels.advance(stream, counter)
                kernels.fill(stream, counter, out, 0)

            return draw

        program = prepare(trace, Placement.at(trace, [16, 0, 8]), backend, launch)
        program.write({})
        for iterations in runs:
            program.run(iterations)
        return program.read()

    drawn = left(Emulator(), reference, (1, 4, 3))
    assert np.array_equal(drawn[1], drawn[2])
    assert (drawn[1].view(_u64) != 8 * left(Emulator(), reference, (1,))[1].view(_u64)).all()
    for options in ({}, {"graph": True}, {"timing": True}):
        with cuda(**options) as backend:
            found = left(backend, library, (1, 4, 3))
            assert all(np.array_equal(drawn[of], value) for of, value in found.items()), options


def check_a_net_with_half_its_activations_made_again_gives_the_bytes_of_the_emulator() -> None:
    model = MODELS["cnn-norm"](batch=4)
    again = half_again(model)
    whole, there = scaled(model.trace, best_fit(model.trace))
    small, placement = scaled(again, best_fit(again))
    state, host = initial(whole), best_fit(small.host_side(), alignment=1)
    unswapped = prepare(whole, there, Emulator(in_issue_order), GenericOp(whole, reference))
    unswapped.write(state)
    unswapped.run(ITERATIONS)
    want = unswapped.read()
    for options in ({}, {"graph": True}):
        for seed in range(5):
            control.seed(seed)
            with cuda(**options) as backend:
                program = prepare(small, placement, backend, GenericOp(whole, library), host=host)
                program.write({of: value for of, value in state.items() if of in program.crossing()})
                program.run(ITERATIONS)
                assert all(np.array_equal(want[of], value) for of, value in program.read().items()), (options, seed)


def check_values_made_again_in_random_steps_give_the_bytes_of_the_emulator() -> None:
    @settings(max_examples=12, derandomize=True, database=None, deadline=None)
    @given(st.data())
    def right(data: st.DataObject) -> None:
        whole = data.draw(steps(max_layers=8))
        again = data.draw(any_plans(whole)).apply(whole)
        seed, graph = data.draw(st.integers(0, 99)), data.draw(st.booleans())

        def left(trace: Trace, backend: Any, kernels: Any) -> dict[int, Any]:
            program = prepare(trace, best_fit(trace), backend, GenericOp(whole, kernels))
            program.write({of: x for of, x in initial(whole).items() if of in program.crossing()})
            program.run(ITERATIONS)
            return {of: x for of, x in program.read().items() if of in carried(whole)}

        want = left(whole, Emulator(in_issue_order), reference)
        control.seed(seed)
        with cuda(graph=graph) as backend:
            assert all(np.array_equal(want[of], x) for of, x in left(again, backend, library).items())

    right()


def check_random_ops_go_on_from_the_iterations_before() -> None:
    trace = Trace(Buffers.make([8], [0], [1], persistent=[True]), Ops.make([[]], [[0]], rng=[True]))

    def left(backend: Any, kernels: Any, first: int, iterations: int) -> Any:
        program = prepare(trace, Placement.at(trace, [0]), backend, GenericOp(trace, kernels), first=first)
        program.run(iterations)
        return program.read()[0]

    want = left(Emulator(), reference, 0, 300)
    assert np.array_equal(left(Emulator(), reference, 298, 2), want)
    with cuda() as backend:
        assert np.array_equal(left(backend, library, 298, 2), want)


def check_buffers_of_no_bytes() -> None:
    ops = Ops.make([[0], [1], [2]], [[1], [2], [1]], role=[0, 1, 2], stream=[0, 1, 2], streams=["c", "d2h", "h2d"])
    flags = {"persistent": [True, False, False], "host": [False, False, True]}
    trace = Trace(Buffers.make([4, 0, 0], [0, 0, 1], [3, 3, 3], **flags), ops)
    state = {0: np.arange(4, dtype=np.uint8)}
    with cuda() as backend:
        run(trace, Placement(np.array([0, 0, -1]), 4), backend, GenericOp(trace, library), 2, state=state)
    assert state[0].tolist() == [0, 1, 2, 3]


def check_leaving_by_an_exception_gives_everything_back() -> None:
    p = plan()

    def go() -> None:
        with cuda() as backend:
            program = ready(p, backend)
            backend.begin(program.works, 1)
            program._issue([])
            raise KeyError("mine")

    assert "mine" in raised(KeyError, go)
    assert not any(held().values()), held()


def check_views_for_numba() -> None:
    trace = Trace(Buffers.make([24], [0], [1]), Ops.make([[]], [[0]]))
    seen = []
    with Cuda() as backend:
        prepare(trace, Placement.at(trace, [0]), backend, lambda op, views: seen.append(views(0, "float32", (2, 3))))
        assert (seen[0].shape, seen[0].dtype, seen[0].is_c_contiguous()) == ((2, 3), np.float32, True)
        assert seen[0].device_ctypes_pointer.value == int(backend.slabs[0].handle)


def check_the_driver_is_described() -> None:
    assert driver() == ("CUDA 13.0", "")
    assert devices() == ["Fake GPU (9.0, 1.0 GiB)"]


def report(checks: dict[str, Any]) -> None:
    """Run the checks among some names; print what came of each as JSON: nothing, or a traceback."""
    outcome = {}
    for name, check in checks.items():
        if name.startswith("check_"):
            control.seed(0)  # what came before makes no difference
            try:
                check()
                outcome[name] = None
            except Exception:
                outcome[name] = traceback.format_exc()
    print(json.dumps(outcome))


def main() -> None:
    """Run all checks."""
    report(globals())
