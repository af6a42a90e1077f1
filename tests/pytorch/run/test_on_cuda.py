"""A run under a memory limit beside a double of a GPU: every wait of the engine is needed, and none is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes as no_modes

from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Decision, Plan, Recompute, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.torch import WorkloadError, internals, managed, record
from gpumem.torch.internals import SWAPS
from gpumem.torch.run import on_cuda
from gpumem.torch.run.engines import Resized, Swapped
from gpumem.torch.run.managed import Managed
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.on_cuda import Gpu, OnCuda, machine_of
from gpumem.trace import Trace
from tests.pytorch.card import FakeCard, Kernels, Stream, Touch
from tests.pytorch.order import Unordered, check_order
from tests.pytorch.programs import OPTIMIZERS, WHAT, Step

ROOM = 2**30
SWAPPED = pytest.param(Swapped, marks=pytest.mark.skipif(not SWAPS, reason="PyTorch cannot swap pointers here"))


@pytest.fixture(params=[SWAPPED, Resized], autouse=True)
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages lose their memory in each way that there is, whichever the PyTorch that is installed would take."""
    monkeypatch.setattr(FakeCard, "way", request.param)


@contextmanager
def beside(card: FakeCard, run: Managed, engine: type[OnCuda] = OnCuda) -> Iterator[None]:
    """Let a run have a card's memory and copies; the card sees its kernels, those that recomputed as well."""
    run.memory.engine, run.memory.pointers = engine(card), card.pointers
    kernels = Kernels(card)

    @contextmanager
    def but_kernels() -> Iterator[None]:
        with no_modes(), kernels:
            yield

    with kernels, patch.object(internals, "no_modes", but_kernels), run:
        yield


def state(step: Callable[[], None]) -> list[torch.Tensor]:
    """What a step of a program leaves behind."""
    kept = inspect.getclosurevars(step).nonlocals
    weights, optimizer = kept["weights"], kept["optimizer"]
    found = [*weights, *(w.grad for w in weights if w.grad is not None), *kept["losses"], torch.get_rng_state()]
    for w in weights:
        found += [x for x in optimizer.state[w].values() if isinstance(x, torch.Tensor)]
    return [x.detach().clone() for x in found]


@lru_cache(2)
def drawn(seed: int) -> tuple[Step, Trace, list[torch.Tensor]]:
    """A program that can be recorded, its trace, and what six iterations of it leave behind."""
    random = Random(seed)
    while True:
        lines = [(random.choice(sorted(WHAT)), random.randint(0, 1), random.randint(0, 1)) for _ in range(6)]
        optimizer, clears = random.choice(sorted(OPTIMIZERS)), random.choice(["first", "last", "never"])
        program = Step(lines, optimizer, random.random() < 0.2, clears, random.random() < 0.5)
        try:
            trace = record(program, device="cpu", warmup=1).trace
        except WorkloadError:
            continue
        step = program()
        for _ in range(6):
            step()
        return program, trace, state(step)


def some_plan(random: Random, trace: Trace) -> Plan:
    """Swaps and values recomputed, at random."""
    found, chosen = gaps(trace), list[Decision]()
    share, again = random.choice([0.1, 0.3, 1.0]), 0
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        if random.random() > share:
            continue
        if before < trace.n and again < 5 and random.random() < 0.2:
            again += 1
            more: list[Decision] = [*chosen, Recompute(b, after, before, random.randint(after + 1, before))]
            try:
                Plan.of(trace, more).apply(trace)
                chosen = more
                continue
            except ValueError:
                pass  # it cannot be recomputed
        release = random.randint(after + 1, before)
        chosen.append(
            Swap(b, after, before, release, random.randint(release, before), random.randint(after, release - 1))
        )
    return Plan.of(trace, chosen)


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bytes(x.contiguous().numpy()) == bytes(y.contiguous().numpy())


def rehearse(seed: int, card: FakeCard, engine: type[OnCuda] = OnCuda) -> bool:
    """Run two iterations as they are, then four by a random plan; return whether every bit is as without it."""
    random = Random(seed)
    program, trace, expected = drawn(seed // 4)
    plan = some_plan(random, trace)
    limit = random.choice([plan.apply(trace).peak_live_bytes, ROOM])
    step = program()
    for _ in range(2):
        step()
    with beside(card, managed(limit, (trace, plan), device="cpu", chunk=ROOM), engine):
        for _ in range(4):
            step()
    return all(map(same, state(step), expected))


FEW, MANY = range(60), range(100, 1100)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def test_any_plan_keeps_the_order_and_the_bits(seeds: range) -> None:
    copies = 0
    for seed in seeds:
        card = FakeCard(seed)
        right = rehearse(seed, card)
        check_order(card.log)
        assert right, f"seed {seed}: other bits"
        assert not card.strays, f"seed {seed}: a copy into memory of somebody else"
        copies += sum(isinstance(x, Touch) and x.what.startswith("copy") for x in card.log)
    assert copies > 20 * len(seeds)


LATE = [("wait", "compute", "d2h"), ("wait", "compute", "h2d"), ("record", "d2h"), ("record", "h2d")]
EARLY = [("wait", "d2h", "compute"), ("wait", "h2d", "compute"), ("record", "compute")]


@pytest.mark.parametrize("broken", LATE + EARLY, ids=" ".join)
def test_each_wait_is_needed(broken: tuple[str, ...]) -> None:
    """The log shows what is missing; the bytes do as well, where it is a copy that comes too late."""
    unordered = spoilt = False
    for seed in range(40):
        card, right = FakeCard(seed, broken), False
        with suppress(Exception):  # nonsense may do anything
            right = rehearse(seed, card)
        spoilt = spoilt or not right or card.strays > 0
        unordered = unordered or disordered(card)
        if unordered and (spoilt or broken in EARLY):
            return
    pytest.fail("nobody noticed")


def disordered(card: FakeCard) -> bool:
    try:
        check_order(card.log)
    except Unordered:
        return True
    return False


class Hasty(OnCuda):
    """Has memory allocated for what comes back after the event that the copy waits for."""

    def back(self, storage: torch.UntypedStorage, copy: Any) -> None:
        self.h2d.wait_event(copy.begun)
        self.card.copy(self.h2d, storage, copy.memory, copy.size)
        copy.done.record(self.h2d)


class Sideways(FakeCard):
    """Allocates on the stream of copies."""

    def see(self, storage: torch.UntypedStorage) -> Any:
        with self.on(self.sides[1]) if storage._cdata in self.watched else nullcontext():
            return super().see(storage)


def test_memory_is_allocated_before_the_event() -> None:
    card = FakeCard(0)
    rehearse(0, card, Hasty)
    with pytest.raises(Unordered, match="copy in on h2d does not wait"):
        check_order(card.log)


def test_memory_is_never_allocated_on_a_side_stream() -> None:
    card = Sideways(0)
    rehearse(0, card)
    with pytest.raises(Unordered, match="memory is allocated on h2d"):
        check_order(card.log)


@pytest.mark.parametrize("settled", [True, False])
def test_what_dies_while_it_comes_back_is_waited_for(settled: bool) -> None:
    card = FakeCard(0)
    card.patience = 1000
    memory = Memory("cpu", OnCuda(card), card.pointers)
    if not settled:
        memory.dying = lambda cell: None  # type: ignore[method-assign]
    x = torch.ones(16)
    card.touch("a kernel", [], [x.untyped_storage()])
    (cell,) = memory.of([x])
    memory.release(cell)
    memory.bring(cell)
    del x
    card.touch("a kernel", [], [torch.UntypedStorage(64)])
    assert disordered(card) is not settled
    memory.reap()
    assert memory.held == 0 and len(memory.engine.free[64]) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("broken", [(), ("wait", "d2h", "h2d")], ids=["whole", "broken"])
def test_a_slab_is_used_again_after_its_copy(broken: tuple[str, ...]) -> None:
    card = FakeCard(0, broken)
    engine, (x, y) = OnCuda(card), (torch.UntypedStorage(60) for _ in range(2))
    card.touch("a kernel", [], [x, y])
    slab = engine.out(x)
    engine.wait_for_copy(slab)
    card.pointers.empty(x)
    card.pointers.fill(x, 60)
    engine.back(x, slab)
    engine.drop(slab)  # under way
    assert engine.out(y) is slab
    engine.wait_for_copy(slab)
    engine.rest()
    assert disordered(card) is bool(broken)
    z = torch.UntypedStorage(65)  # of another size
    assert engine.out(z) is not slab


class Restless(OnCuda):
    """Leaves other streams to themselves."""

    def rest(self) -> None:
        pass


@pytest.mark.parametrize("wrong", ["nothing", "join", "rest"])
def test_streams_that_compute_are_joined(wrong: str) -> None:
    """Two chains of ops on streams that never wait for each other, and need not."""
    card = FakeCard(0, ("wait", "compute", "compute") if wrong == "join" else ())
    streams, turns = [Stream(card, "left"), Stream(card, "right")], [1] + [0] * 19

    def run(managing: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights, made = torch.randn(2, 16).unbind(), ([], [])
        weights = [w.clone() for w in weights]
        with managing:
            for _ in range(2):
                for k in turns:
                    with card.on(streams[k]):
                        made[k].append((weights[k] * 2).tanh())
                for k in turns:
                    with card.on(streams[k]):
                        weights[k] += made[k].pop()
        return weights

    expected = run(nullcontext())
    managing = managed(600, device="cpu", boundary="told")
    found = run(beside(card, managing, Restless if wrong == "rest" else OnCuda))
    report = managing.report()
    assert disordered(card) is (wrong != "nothing")
    assert sum("several streams" in note for note in report.notes) == 1
    assert report.held <= 600 and all(map(same, found, expected))


def test_the_host_waits_for_what_it_keeps() -> None:
    card = FakeCard(0)
    card.patience = 1000
    x = torch.arange(16.0)
    want = x.clone()
    run = managed(ROOM, device="cpu", on_exit="host")
    with beside(card, run):
        x += 1
        run.memory.release(run.memory.of([x])[0])
        before = x.untyped_storage()._cdata
    assert same(x, want + 1)
    assert x.untyped_storage()._cdata != before and not run.loop.notes  # its home is the host's ordinary memory


def test_other_devices_are_refused() -> None:
    card = FakeCard(0)
    memory = Memory("cpu", OnCuda(card), card.pointers)
    memory.engine.place = torch.device("cuda", 1)
    with pytest.raises(WorkloadError, match="a tensor on cpu: cuda:1 is managed, and one device at a time"):
        memory.of([torch.ones(2)])
    assert not memory.held and not memory.by_key
    if not torch.cuda.is_available():
        with pytest.raises(WorkloadError, match="'cuda': PyTorch sees no CUDA device here"):
            managed(1, device="cuda")


class Clock:
    """Plays `torch.cuda` for a link of 10 us and 25 GB/s: streams, events, copies."""

    now = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = -1.0

    def record(self, stream: Any) -> None:
        self.at = Clock.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Clock) -> float:
        return other.at - self.at


NAMES = {
    "NVIDIA GeForce GTX 1080 Ti": "gtx1080ti",
    "NVIDIA H100 80GB HBM3": "h100",
    "Tesla V100-SXM2-32GB": "v100",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA GH200 480GB": "",
    "NVIDIA GeForce RTX 3080": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_by_the_name_of_the_card(name: str) -> None:
    with ExitStack() as world:
        for what, answer in {
            "current_device": lambda: 0,
            "current_stream": lambda place: place,
            "Event": Clock,
            "get_device_name": lambda place: name,
            "get_device_properties": lambda place: SimpleNamespace(total_memory=10 * 2**30),
        }.items():
            world.enter_context(patch.object(torch.cuda, what, answer))
        world.enter_context(patch.object(on_cuda, "cuda_stream_key", lambda index: (1, 0, 1)))
        world.enter_context(patch.object(torch, "UntypedStorage", lambda size, device: size))
        world.enter_context(patch.object(Gpu, "pinned", lambda self, size: size))
        gpu = Gpu()
        gpu.copy = lambda stream, target, source, size: setattr(  # type: ignore[method-assign, assignment]
            Clock, "now", Clock.now + 0.01 + size / 25e6
        )
        found = machine_of(gpu)
    if NAMES[name]:
        assert found is Machine.named(NAMES[name])
    else:
        assert found.name == name and found.capacity == 10 * 2**30
        for link in (found.out, found.into):
            assert abs(link.latency_ns - 10_000) < 1 and abs(link.ns_per_byte - 0.04) < 1e-6


def test_bytes_are_copied_unseen() -> None:
    """The card's own copy, on the host: no mode sees it, whatever is on."""
    x, y = (torch.arange(k, k + 8, dtype=torch.uint8).untyped_storage() for k in (0, 50))
    seen: list[str] = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Eavesdropper(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with patch.object(torch.cuda, "stream", nullcontext):
        for around in (nullcontext(), torch.inference_mode(), torch.device("meta")):
            with around, Spy(), Eavesdropper():
                Gpu.copy(Gpu.__new__(Gpu), None, x, y, 5)
    assert x.tolist() == [50, 51, 52, 53, 54, 5, 6, 7] and not seen


@pytest.fixture
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device here")


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("share", ["90%", "70%", "50%"])
def test_a_step_on_a_device(gpu: None, share: str, optimizer: str) -> None:
    """The same bits as without a limit, and the allocator's own peak is within it, but for what kernels take."""
    torch.backends.cudnn.deterministic = True
    own = 96 * 2**20  # workspaces, and what the allocator rounds up

    def run(managing: Any, steps: int = 8) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())])
        net = net.cuda()
        step_of = OPTIMIZERS[optimizer](net.parameters())
        peak = 0
        with managing:
            for k in range(steps):
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                net(torch.randn(8192, 1024, device="cuda")).square().mean().backward()
                step_of.step()
                step_of.zero_grad()
                torch.cuda.synchronize()
                peak = torch.cuda.max_memory_allocated() if k == steps - 1 else peak
        return [p.detach().cpu() for p in net.parameters()], peak

    expected, before = run(nullcontext())
    managing = managed(share, wait=True, boundary=None)
    found, peak = run(managing)
    report = managing.report()
    print(report)
    print(f"allocator's peak {peak}, without a limit {before}")
    assert all(map(same, found, expected))
    assert report.iterations[-1].state == "planned" and not report.iterations[-1].misses
    assert report.iterations[-1].peak == report.planned_peak <= report.limit
    assert peak <= report.limit + own
