"""What nobody has heard of is safe, leaving always restores, and the observer never ends a program."""

from __future__ import annotations

import gc
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import gpumem.torch.run.memory as leaving
import gpumem.torch.step.observing as observing
from gpumem.swap.plan import Plan, Recompute
from gpumem.torch import LimitError, WorkloadError, managed, record
from gpumem.torch.capture.recorder_mode import Watch
from gpumem.torch.run.extensions import extensions
from gpumem.torch.run.managed import Managed
from gpumem.torch.run.storage_access import LOOKS, READS, WRITES, Reach, methods, reach_of
from tests.pytorch.managing import differences, there, world
from tests.pytorch.test_ops import LIBRARY as LIBRARY  # ops of somebody's own

HOW: dict[str, Any] = {"device": "cpu", "wait": True, "planner": "on-demand"}
KIB = 1024


def away(run: Managed, *tensors: torch.Tensor) -> None:
    """Send tensors to the host, as a run does that needs room."""
    for cell in run.memory.of(tensors):
        run.memory.release(cell)
        assert not cell.here


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it: what the observer does wrong is forgotten."""
    monkeypatch.setattr(observing, "STRICT", False)


# ops


@pytest.mark.parametrize("name", ["twice_like", "new_zeros", "count"])
def test_an_op_of_somebodys_own_finds_its_operand_there(name: str) -> None:
    op = getattr(torch.ops.gpumem_tests, name)
    expected = op(torch.ones(256))
    with managed("64KiB", **HOW) as run:
        x = torch.ones(256) * 1
        away(run, x)
        assert op(x) == expected if name == "count" else torch.equal(op(x), expected)


def test_an_assertion_finds_its_operand_there() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 1
        away(run, x)
        torch._assert_async(x[3])


def test_a_formula_that_reads_its_operand_again_finds_it_as_it_was() -> None:
    def gradients() -> list[Any]:
        torch.manual_seed(0)
        h, w = torch.randn(49 * 64, requires_grad=True), torch.randn(49 * 64)
        e = torch.randn(3, 64, requires_grad=True)
        b = h * 2
        b.view(49, 64)[torch.tensor([1, 5, 7])] = e
        (b * w).sum().backward()
        return [h.grad, e.grad]

    bare = gradients()
    with managed("1MiB", **HOW):
        assert all(map(torch.equal, gradients(), bare)) and bare[1].abs().sum() > 0


def test_a_gradient_that_a_hook_keeps_is_not_added_to() -> None:
    def kept() -> Any:
        found: list[torch.Tensor] = []
        x, c = torch.ones(4, requires_grad=True), torch.ones(4)
        y = x * 1
        y.register_hook(lambda g: (found.append(g), g + c)[1])
        (y * 2 + y * 3).sum().backward()
        return found[0]

    bare = kept()
    with managed("1MiB", **HOW):
        assert torch.equal(kept(), bare)


def test_a_run_is_what_it_was_asked_for() -> None:
    """No op runs in another form: a mode below the run sees what one sees without it."""

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def step() -> None:
        torch.manual_seed(0)
        x = torch.randn(8, 8, requires_grad=True)
        y = x.sort(dim=0)[0] + x.gather(0, torch.zeros(1, 8, dtype=torch.int64)) + x[torch.tensor([0, 1, 1])].sum(0)
        (y * y + x * x).sum().backward()

    with Names() as bare:
        step()
    with Names() as within, managed("1MiB", **HOW):
        step()
    assert within.seen == bare.seen


COMPOSITE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "svdvals": torch.linalg.svdvals,
    "eigvalsh": torch.linalg.eigvalsh,
    "cond": torch.linalg.cond,
    "interpolate": lambda x: nn.functional.interpolate(x[None, None], scale_factor=1.7, mode="bilinear"),
    "linear": lambda x: nn.functional.linear(x, x).relu(),
}


@pytest.mark.parametrize("name", COMPOSITE)
def test_an_op_that_arrives_whole_is_made_of_what_it_is_made_of_elsewhere(name: str) -> None:
    """Under inference mode, by kernels in C++; PyTorch has formulas in Python beside some, of other bits."""
    torch.manual_seed(0)
    with torch.inference_mode():
        x = torch.randn(12, 12)
        bare = COMPOSITE[name](x)
        with managed("64KiB", **HOW):
            assert torch.equal(COMPOSITE[name](x), bare)


# storages


def test_every_method_of_a_storage_is_known() -> None:
    """A canary: a method that a new PyTorch adds keeps the storage on the device until somebody has looked at it."""
    kept = {"_resize_with_addr_", "_set_cdata", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_"}
    kept |= {"_swap_data_ptr_", "data_ptr", "share_memory_"}
    new = {name for name, how in methods() if how is Reach.KEEPS} - kept
    assert not new, f"look what these do with a storage's bytes, and put them into LOOKS, READS or WRITES: {new}"


def test_a_method_is_in_one_list() -> None:
    assert not (LOOKS & READS or LOOKS & WRITES or READS & WRITES)
    assert reach_of("of another version") is Reach.KEEPS


WRITTEN: dict[str, Callable[[torch.UntypedStorage], object]] = {
    "byteswap": lambda s: s.byteswap(torch.int32),
    "fill_": lambda s: s.fill_(3),
    "copy_": lambda s: s.copy_(torch.full((s.nbytes(),), 7, dtype=torch.uint8).untyped_storage()),
    "__setitem__": lambda s: s.__setitem__(0, 9),
    "_set_from_file": lambda s: from_file(s),
}


def from_file(storage: torch.UntypedStorage) -> None:
    """Fill a storage from a file, as old checkpoints are read."""
    source = torch.arange(storage.nbytes() // 4, dtype=torch.int32).untyped_storage()
    with os.fdopen(os.memfd_create("bytes"), "w+b") as file:
        source._write_file(file, True, True, 4)
        file.seek(0)
        storage._set_from_file(file, 0, True, 4)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_write_past_the_dispatcher_is_the_one_that_comes_back(name: str) -> None:
    x = torch.arange(64.0)
    WRITTEN[name](x.untyped_storage())
    with managed("64KiB", **HOW) as run:
        y = torch.arange(64.0)
        away(run, y)
        run.memory.ready(run.memory.of([y]), 0, "")  # on the device and on the host
        WRITTEN[name](y.untyped_storage())
        away(run, y)
        assert torch.equal(y + 0, x)


@pytest.mark.parametrize("name", ["tolist", "clone", "__getitem__", "_write_file"])
def test_a_read_past_the_dispatcher_finds_the_bytes_and_lets_them_go_again(name: str) -> None:
    def read(s: torch.UntypedStorage) -> Any:
        if name == "_write_file":
            with os.fdopen(os.memfd_create("bytes"), "w+b") as file:
                s._write_file(file, True, True, 4)
                file.seek(0)
                return file.read()
        found = getattr(s, name)(0) if name == "__getitem__" else getattr(s, name)()
        return found if name in ("tolist", "__getitem__") else found.tolist()

    expected = read(torch.arange(64.0).untyped_storage())
    with managed("64KiB", **HOW) as run:
        y = torch.arange(64.0)
        away(run, y)
        assert read(y.untyped_storage()) == expected
        assert not run.memory.of([y])[0].fixed


def test_a_storage_that_is_resized_is_on_the_books_as_large_as_it_is() -> None:
    with managed("1MiB", **HOW) as run:
        x = torch.ones(2000)
        before = run.memory.held
        x.untyped_storage().resize_(404_000)
        assert run.memory.held == before + 396_000
        del x
        run.memory.bury()
        assert run.memory.held == before - 8000


def test_a_consumer_of_dlpacks_table_of_functions_is_seen() -> None:
    """It finds no table, and asks for a capsule, so that the run knows of it."""
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        assert getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is None
        assert np.from_dlpack(x).tolist() == [3.0] * 64  # type: ignore[arg-type]
        assert run.memory.of([x])[0].fixed


def test_saving_is_a_read() -> None:
    """PyTorch asks for addresses as names there; what moves may have another's, so it gets a number of its own."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    step = torch.zeros(64 * 64, dtype=torch.float16)
    held = {**net.state_dict(), "step": step}
    bare, file = io.BytesIO(), io.BytesIO()
    torch.save(held, bare)
    with managed("17KiB", **HOW, on_exit="host") as run:
        for x in held.values():
            x.add_(0)  # one at a time, as only one fits
        torch.save(held, file)
        assert not any(cell.fixed for cell in run.memory.by_key.values())
    assert file.getvalue() == bare.getvalue()


# threads


class Prefetcher(threading.Thread):
    """What it runs is its own method, as a loader's is."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work, self.found = work, []  # type: ignore[var-annotated]

    def run(self) -> None:
        try:
            self.found.append(self.work())
        except Exception as error:
            self.found.append(error)


def test_a_thread_with_a_method_of_its_own_is_seen() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        thread = Prefetcher(lambda: x + 1)
        thread.start()
        thread.join()
    assert isinstance(thread.found[0], WorkloadError) and "managed by another thread" in str(thread.found[0])


def test_a_thread_that_outlives_its_run_may_do_what_it_likes() -> None:
    with ThreadPoolExecutor(1) as pool:
        with managed("64KiB", **HOW):
            x = torch.ones(64) * 3
            with pytest.raises(WorkloadError, match="another thread"):
                pool.submit(lambda: x + 1).result()
        assert torch.equal(pool.submit(lambda: x + 1).result(), torch.full((64,), 4.0))


def test_a_thread_may_not_touch_what_is_not_back_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool:

        def touched() -> None:
            with pytest.raises(WorkloadError, match="another thread") as error:
                pool.submit(lambda: x + 1).result()
            found.append(error.value)
            bring(run.memory)

        bring = leaving.restore
        monkeypatch.setattr("gpumem.torch.run.managed.restore", lambda memory: touched())
        with managed("64KiB", **HOW) as run:
            pool.submit(lambda: 1).result()
            x = torch.ones(64) * 3
            away(run, x)
    assert len(found) == 1 and x.sum().item() == 192


def test_a_pool_that_is_older_than_the_run_is_seen_while_it_lasts() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: 1).result() == 1
        with managed("64KiB", **HOW) as run:
            x = torch.ones(64) * 3
            away(run, x)
            with pytest.raises(WorkloadError, match="another thread"):
                pool.submit(lambda: x + 1).result()
        assert torch.equal(pool.submit(lambda: x + 1).result(), torch.full((64,), 4.0))


# processes


class Numbers(Dataset[torch.Tensor]):
    """The plainest there is."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.ones(8) * i


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_with_and_without_workers(workers: int) -> None:
    def sums() -> list[float]:
        return [batch.sum().item() for batch in DataLoader(Numbers(), batch_size=4, num_workers=workers)]

    bare = sums()
    with managed("1MiB", **HOW) as run:
        assert sums() == bare
    assert all(row.peak <= 2**20 for row in run.report().iterations)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_has_all_its_tensors_and_no_run() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        into, out = os.pipe()
        child = os.fork()
        if not child:  # nothing may be raised here: it would run the other tests, too
            modes = torch._C._len_torch_dispatch_stack()
            os.write(out, f"{modes} {x.sum().item()} {x.numpy()[5]}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(into, 100) == b"0 192.0 3.0"
        assert not run.memory.of([x])[0].here
        os.close(into)
        os.close(out)
    assert x.sum().item() == 192


# leaving


class Counting(torch.optim.SGD):
    """Its state has a number, which belongs to no parameter."""

    def step(self, closure: Any = None) -> Any:
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index, call-overload]
        return super().step(closure)


def test_an_optimizer_may_keep_a_number_in_its_state() -> None:
    def trained(limit: str | None) -> Any:
        torch.manual_seed(0)
        net = nn.Linear(64, 64)
        optimizer = Counting(net.parameters(), lr=0.1)

        def train() -> None:
            for _ in range(6):
                optimizer.zero_grad()
                net(torch.randn(8, 64)).sum().backward()
                optimizer.step()

        if limit is None:
            train()
        else:
            with managed(limit, **HOW) as run:
                train()
            assert run.report().iterations[-1].state in ("planned", "idle", "on demand")
        return net.weight

    assert torch.equal(trained(None), trained("60KiB"))


FAULTS: dict[str, Callable[[Managed], tuple[Any, str]]] = {
    "the recorder": lambda run: (run.course.watch, "end"),
    "the course": lambda run: (run.course, "pause"),
    "the engine": lambda run: (run.memory.engine, "rest"),
}


def fails(*args: Any) -> Any:
    raise OSError("a defect")


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("theirs", [False, True], ids=["left", "thrown out of"])
@pytest.mark.parametrize("what", FAULTS)
def test_leaving_restores_whatever_fails(what: str, theirs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world()
    run = managed("64KiB", **HOW)
    with warnings.catch_warnings(record=True) as said, pytest.raises(OverflowError, match="the program's own"):
        warnings.simplefilter("always")
        with run:
            x = torch.ones(64) * 3
            away(run, x)
            monkeypatch.setattr(*FAULTS[what](run), fails)
            if theirs:
                raise OverflowError("the program's own")
        raise OverflowError("the program's own")
    assert there(x.untyped_storage()) and x.sum().item() == 192
    assert not differences(before, world())
    assert any("a defect" in note for note in run.report().notes)
    assert theirs or any("a defect" in str(warning.message) for warning in said)


def test_what_cannot_come_back_is_a_tensor_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    run = managed("64KiB", **HOW)
    with pytest.warns(UserWarning, match=r"256 B could not come back on leaving, .* no memory left"), run:
        x, y = torch.ones(64) * 3, torch.ones(64) * 4
        away(run, x, y)
        back, stuck = run.memory.bring, run.memory.of([x])[0]

        def bring(cell: Any, keep: Any = ()) -> None:
            if cell is stuck:
                raise MemoryError("no memory left")
            back(cell, keep)

        monkeypatch.setattr(run.memory, "bring", bring)
    assert x.sum().item() == 192 and y.sum().item() == 256 and there(x.untyped_storage())


MOVES = (
    "runtime/residency/limited_memory.py",
    "run/engines.py",
    "run/memory.py",
    "run/again.py",
    "run/mode.py",
    "runtime/residency/follower.py",
)


class Interrupt:
    """Raises, as Ctrl-C does, at a line of the code that moves bytes, counted from when it was armed."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(MOVES):
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def interrupted(at: int, state: list[Any]) -> bool:
    """Train within little memory until a line; return whether it came that far. All that there is goes into `state`."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)], nn.Dropout(0.5))
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    interrupt = Interrupt(at)
    try:
        with managed(18000, **{**HOW, "planner": ("checkpoint", "on-demand-nonblocking")}):
            for k in range(6):
                x = torch.randn(32, 16)
                optimizer.zero_grad()
                loss = net(x).square().mean()
                state[:] = [x, loss, *net.parameters(), *(p.grad for p in net.parameters() if p.grad is not None)]
                if k == 5:
                    sys.settrace(interrupt)
                loss.backward()
                optimizer.step()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_program_may_be_interrupted_at_any_line() -> None:
    at, state = 1, list[Any]()
    while interrupted(at, state):
        assert all(there(x.untyped_storage()) for x in state), at
        assert all(torch.isfinite(x).all() for x in state), at
        at += 1


@pytest.mark.parametrize("on_exit", ["device", "host"])
@pytest.mark.parametrize("move", ["empty", "fill", "out", "back"])
def test_a_program_may_be_interrupted_behind_any_move(move: str, on_exit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.ones(64) * 3, torch.ones(64) * 4
    with pytest.raises(KeyboardInterrupt), managed(300, **HOW, on_exit=on_exit) as run:
        owner = run.memory.pointers if move in ("empty", "fill") else run.memory.engine
        done = getattr(owner, move)

        def and_then(*args: Any) -> None:
            done(*args)
            monkeypatch.undo()
            raise KeyboardInterrupt

        x.sum(), y.sum()  # x has gone by now
        monkeypatch.setattr(owner, move, staticmethod(and_then) if move in ("empty", "fill") else and_then)
        x.sum()
    assert there(x.untyped_storage()) and there(y.untyped_storage())
    assert x.sum().item() == 192 and y.sum().item() == 256


def test_modes_may_be_left_in_any_order() -> None:
    class Nothing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    before, run, other = world(), managed("64KiB", **HOW), Nothing()
    run.__enter__()
    x = torch.ones(64) * 3
    away(run, x)
    other.__enter__()
    run.__exit__(None, None, None)
    assert torch._C._len_torch_dispatch_stack() == 1 and x.sum().item() == 192
    other.__exit__(None, None, None)
    assert not differences(before, world())


def test_tensors_that_the_collector_does_not_list_are_left_on_the_host_too() -> None:
    x = torch.ones(64)
    gc.freeze()
    try:
        with managed("64KiB", **HOW, on_exit="host") as run:
            x.mul_(3)
            device = x.untyped_storage()
            away(run, x)
        assert gc.get_freeze_count() and x.untyped_storage()._cdata != device._cdata
    finally:
        gc.unfreeze()
    assert x.sum().item() == 192


def test_what_was_left_on_the_host_may_be_managed_again() -> None:
    x = torch.ones(64)
    for _ in range(2):
        with managed("64KiB", **HOW, on_exit="host") as run:
            x.mul_(3)
            assert not run.memory.of([x])[0].fixed
    assert x.sum().item() == 64 * 9


def test_a_run_that_was_a_decorator_may_be_a_context() -> None:
    net = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(4, 16)).sum().backward()
        optimizer.step()

    run = managed("64KiB", **HOW, on_exit="host")
    run(step)()
    called = len(run.report().iterations)
    weight = net.weight.untyped_storage()
    with run:
        for _ in range(4):
            step()
    assert len(run.report().iterations) == called + 4
    assert net.weight.untyped_storage()._cdata != weight._cdata  # on_exit counts


def test_the_first_run_of_a_process_may_be_under_inference_mode() -> None:
    with torch.inference_mode(), managed("64KiB", **HOW):
        assert nn.Linear(4, 4)(torch.ones(2, 4)).shape == (2, 4)


# the observer


def test_ops_that_differ_by_name_alone_are_no_iteration() -> None:
    functions = (torch.sin, torch.cos, torch.tanh, torch.exp, torch.relu, torch.abs)

    def values() -> list[float]:
        torch.manual_seed(0)
        x = torch.randn(8, 8)
        return [f(x).sum().item() for _ in range(40) for f in functions]

    bare = values()
    with managed("64KiB", **HOW) as run:
        assert values() == bare
    rows = run.report().iterations
    assert len(rows) < 60 and rows[-1].state == "idle"
    assert {row.ops for row in rows[1:-1]} == {18}


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("method", ["before", "after", "begin", "end", "_note", "_flops"])
def test_a_recorder_that_fails_is_left_out(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, method, fails)
    with warnings.catch_warnings(), managed("64KiB", **HOW) as run:
        warnings.simplefilter("ignore")
        x = torch.ones(64) * 3
        assert (x + 1).sum().item() == 256
    assert any("cannot be recorded: OSError: a defect" in note for note in run.report().notes)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("name", ["_shape", "_metas"])
def test_a_prediction_that_fails_is_a_guess(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"gpumem.torch.run.output_sizes.{name}", fails)
    with managed("64KiB", **HOW):
        assert (torch.ones(64) + 1).sum().item() == 128


def test_our_own_tests_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "_note", fails)
    with pytest.raises(OSError, match="a defect"), managed("64KiB", **HOW):
        torch.ones(64)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(8).to_sparse() @ torch.ones(8, 8),
    "csr": lambda: torch.eye(8).to_sparse_csr() @ torch.ones(8, 8),
    "mkldnn": lambda: (torch.ones(8, 8).to_mkldnn() + torch.ones(8, 8).to_mkldnn()).to_dense(),
    "nested": lambda: (nested([torch.ones(2, 3), torch.ones(4, 3)]) * 2).to_padded_tensor(0.0),
    "nested with gradients": lambda: gradient_through_nested(),
    "an encoder that packs": lambda: encoded(),
}


def nested(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(parts)


def gradient_through_nested() -> torch.Tensor:
    x = torch.ones(2, 3, requires_grad=True)
    nested([x, x * 2]).to_padded_tensor(0.0).sum().backward()
    assert x.grad is not None
    return x.grad


def encoded() -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder, hidden = nn.TransformerEncoder(layer, 2).eval(), torch.zeros(4, 6, dtype=torch.bool)
    hidden[1, 4:] = True
    with torch.no_grad():
        found: torch.Tensor = encoder(torch.randn(4, 6, 16), src_key_padding_mask=hidden)
    return found


@pytest.mark.filterwarnings("ignore:.*prototype stage", "ignore:.*beta state")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_other_layouts_are_not_recorded_and_right(layout: str) -> None:
    bare = LAYOUTS[layout]()
    with warnings.catch_warnings(), managed("32KiB", **HOW) as run:
        warnings.filterwarnings("ignore", "runs on demand")
        for _ in range(3):
            assert torch.equal(LAYOUTS[layout](), bare)
    assert any("which has no storage of its own" in note for note in run.report().notes)


@pytest.mark.filterwarnings("ignore:.*prototype stage")
def test_what_a_nested_tensor_knows_its_sizes_by_stays() -> None:
    with managed("64KiB", **HOW) as run:
        x = nested([torch.ones(2, 3), torch.ones(4, 3)])
        sizes = x._nested_tensor_size()  # type: ignore[attr-defined]
        assert run.memory.of([sizes])[0].fixed
    with (
        warnings.catch_warnings(),
        managed(300, **HOW, on_exit="host"),
    ):  # within less than that there is nothing to throw
        warnings.filterwarnings("ignore", "runs on demand")
        parts = [torch.ones(2, 3, requires_grad=True)]
        nested(parts)


def test_a_profilers_mark_is_an_object() -> None:
    with managed("64KiB", **HOW) as run:
        mark = torch.ops.profiler._record_function_enter("a part", None)
        assert run.memory.of([mark])[0].fixed
        torch.ops.profiler._record_function_exit(mark)


def test_parameters_that_are_not_there_yet() -> None:
    with managed("64KiB", **HOW):
        layer = nn.LazyLinear(4).half()
        layer.load_state_dict(nn.Linear(8, 4).half().state_dict())
        assert layer.float()(torch.ones(2, 8)).shape == (2, 4)


def test_tensors_of_no_device_are_not_held() -> None:
    with managed("64KiB", **HOW) as run:
        there = torch.empty(2**20, 2**20, device="meta")
        assert (there + 1).is_meta and nn.Linear(8, 8).to("meta").weight.is_meta
        assert run.memory.held < 4096


def predictions(run: Managed) -> int:
    return len(run.mode.predicted.fresh)


def test_predictions_are_remembered_by_shapes_and_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(8)
    with managed("64KiB", **HOW) as run:
        for k in range(30):
            torch.full((k + 1,), 1.0)
            x.mul(1.0 + k)
        whole = predictions(run)
        for k in range(30):
            x.mul(2.5 + k)
        assert predictions(run) == whole
        torch.full((3,), 1)
        torch.full((3,), True)
        assert predictions(run) == whole + 2
        monkeypatch.setattr("gpumem.torch.run.output_sizes.KNOWN", 10)
        for k in range(40):
            torch.full((100 + k,), 1.0)
        assert predictions(run) <= whole + 3


def test_nothing_that_a_program_drops_lives_on() -> None:
    storage = torch.UntypedStorage(64)
    dead = weakref.ref(storage)
    with managed("64KiB", **HOW):
        x = torch.empty(0, dtype=torch.uint8).set_(storage)
        del storage, x
        assert dead() is None


class Sized(torch.Tensor):
    """A subclass that is asked for its sizes, from where C++ cannot throw."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Sized:
        found: Sized = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), dtype=inner.dtype, dispatch_sizes_strides_policy="sizes"
        )
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*[x.inner if isinstance(x, Sized) else x for x in args], **(kwargs or {}))


def test_a_question_about_a_subclass_is_answered_and_an_op_of_it_refused() -> None:
    x = Sized(torch.ones(2, 3))
    with managed("64KiB", **HOW):
        assert x.size() == (2, 3)
        with pytest.raises(WorkloadError, match="of a Sized"):
            torch.add(x, 1)


def test_a_limit_that_cannot_be_kept_is_said_by_the_op() -> None:
    with pytest.raises(LimitError, match=r"mm.default holds 768 B at once"), managed(700, **HOW, on_exit="host"):
        torch.ones(8, 8) @ torch.ones(8, 8)


def test_the_collector_lists_nothing_of_a_run_that_is_over() -> None:
    def runs() -> Iterator[Managed]:
        return (x for x in gc.get_objects() if isinstance(x, Managed))

    gc.collect()
    before = sum(1 for _ in runs())
    with managed("64KiB", **HOW):
        torch.ones(8)
    gc.collect()
    assert sum(1 for _ in runs()) <= before + 1


HOST_READS: dict[str, Callable[..., Any]] = {
    "tensor": lambda s, n, i, big: torch.tensor([s, s]),
    "as_tensor": lambda s, n, i, big: torch.as_tensor([s, s]),
    "FloatTensor": lambda s, n, i, big: torch.FloatTensor([s, s]),
    "tensor_split": lambda s, n, i, big: torch.cat([part.flip(0) for part in torch.tensor_split(big, i)]),
    "pad_packed": lambda s, n, i, big: torch._VF._pad_packed_sequence(big[:15].view(5, 3), n, False, 0.0, 3)[0],  # type: ignore[attr-defined]
}


def host_operands() -> list[torch.Tensor]:
    return [torch.tensor(2.0), torch.tensor([2, 2, 1]), torch.tensor([3, 5]), torch.arange(20.0)]


@pytest.mark.parametrize("name", HOST_READS)
def test_what_is_read_on_the_host_before_an_op_is_called_stays_there(name: str) -> None:
    bare = HOST_READS[name](*host_operands())
    with managed(8192, **HOW, on_exit="host") as run:
        given = host_operands()
        run.memory.of(given)
        torch.ones(900).add(1)  # all that can go is away by now
        given[-1].add_(0)
        assert torch.equal(HOST_READS[name](*given), bare)


def test_a_generators_state_stays_on_the_host() -> None:
    state = torch.get_rng_state()
    bare = torch.rand(4)
    with managed(10_200, **HOW, on_exit="host"):
        state.clone()
        torch.ones(1000)  # all that can go is away by now
        torch.Generator().set_state(state)
        torch.set_rng_state(state)
        assert torch.equal(torch.rand(4), bare)


LOOPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "apply_": lambda x: x.clone().apply_(lambda y: y + 1),
    "map_": lambda x: x.map_(x * 2, lambda y, z: y + z),
    "map2_": lambda x: x.map2_(x * 2, x, lambda w, y, z: w + y + z),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_elements_find_them_there(name: str) -> None:
    bare = LOOPS[name](torch.arange(20.0))
    with managed("64KiB", **HOW) as run:
        x = torch.arange(20.0)
        away(run, x)
        assert torch.equal(LOOPS[name](x), bare)


def test_a_part_of_a_storage_is_there_as_long_as_it_is_wanted() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.arange(64, dtype=torch.uint8).float()
        part = x.untyped_storage()[8:16]
        assert run.memory.of([x])[0].fixed
        assert torch.empty(0).set_(part).tolist() == [2.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_module_is_saved_with_its_values() -> None:
    module, bare, file = torch.jit.script(nn.Linear(8, 8)), io.BytesIO(), io.BytesIO()
    torch.jit.save(module, bare)
    with managed("64KiB", **HOW) as run:
        module(torch.ones(1, 8))
        away(run, *module.parameters())
        torch.jit.save(module, file)
    file.seek(0)
    assert all(map(torch.equal, torch.jit.load(file).parameters(), module.parameters()))


class Attributes(nn.Module):
    """It has tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [torch.ones(300) * 5]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*TorchScript")
def test_what_a_file_is_written_of_from_c_is_all_there() -> None:
    module, file = torch.jit.script(Attributes()), io.BytesIO()
    with managed(4000, **HOW, on_exit="host") as run:
        module(torch.ones(300))
        torch.ones(700).add_(1)  # all that can go is away by now
        torch.jit.save(module, file)
        assert run.memory.limit == 4000 and run.memory.held <= 4000
    file.seek(0)
    assert torch.jit.load(file)(torch.zeros(300)).tolist() == [5.0] * 300


to_dlpack = torch.utils.dlpack.to_dlpack  # as a bridge has it, before there is a run


def test_a_capsule_that_was_imported_by_name_keeps_its_tensor() -> None:
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        assert torch.utils.dlpack.from_dlpack(to_dlpack(x)).tolist() == [3.0] * 64
        assert run.memory.of([x])[0].fixed


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_is_within_objects_and_quantized_tensors_stays() -> None:
    def convolved() -> Any:
        weight = torch.quantize_per_channel(
            torch.ones(2, 3, 3, 3), torch.tensor([0.1, 0.2]), torch.zeros(2, dtype=torch.int64), 0, torch.qint8
        )
        packed = torch.ops.quantized.conv2d_prepack(weight, torch.ones(2) + 1, [1, 1], [0, 0], [1, 1], 1)
        x = torch.quantize_per_tensor(torch.ones(1, 3, 3, 3), 0.1, 0, torch.quint8)
        torch.ones(900).add(1)
        return torch.ops.quantized.conv2d(x, packed, 1.0, 0).dequantize(), weight.dequantize()

    bare = convolved()
    with managed(10_000, **HOW, on_exit="host"):
        assert all(map(torch.equal, convolved(), bare))


def test_transforms_print_and_split() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        str(x)
        return x.tensor_split(2)[0] * x.new_tensor(2.0)

    x = torch.arange(12.0).view(3, 4)
    bare = torch.vmap(inside)(x)
    with managed("64KiB", **HOW):
        assert torch.equal(torch.vmap(inside)(x), bare)


def scripted(x: torch.Tensor) -> list[torch.Tensor]:
    return torch.tensor_split(x + torch.tensor([1.0, 2.0]), 2)


@pytest.mark.parametrize("made", [lambda v: torch.tensor([v[0], v[5]]), lambda v: v.new_tensor([v[1]])])
def test_parts_of_what_is_away_may_make_a_tensor(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with managed("64KiB", **HOW) as run:
        v = torch.arange(64.0) * 2
        away(run, v)
        assert torch.equal(made(v), made(torch.arange(64.0) * 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_functions_are_those_that_a_compiler_of_scripts_knows() -> None:
    bare = torch.jit.script(scripted)(torch.ones(2))
    with managed("64KiB", **HOW):
        assert all(map(torch.equal, torch.jit.script(scripted)(torch.ones(2)), bare))
    assert all(map(torch.equal, torch.jit.script(scripted)(torch.ones(2)), bare))


def test_a_script_may_be_the_first_of_its_process() -> None:
    """The table of builtins is made within the run then."""
    code = """
import torch
from gpumem.torch import managed
def f(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor_split(x, 2)[0] + torch.tensor([1.0])
with managed("64KiB", device="cpu"):
    torch.jit.script(f)(torch.ones(2))
def g(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor_split(x, 2)[1] + torch.tensor([1.0])
print(torch.jit.script(g)(torch.ones(2)).item())
"""
    file = pathlib.Path(tempfile.mkdtemp()) / "script.py"  # a script's source is read from its file
    file.write_text(code)
    done = subprocess.run([sys.executable, "-W", "ignore", str(file)], capture_output=True, text=True, check=False)
    assert done.stdout == "2.0\n", done.stderr


def extension(name: str) -> Any:
    """A module as one that is loaded from a shared library, whose functions only Python knows to be its own."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, ExtensionFileLoader(name, f"{name}.so"))
    return module


def test_functions_of_extensions_are_known_by_their_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours, user = extension("kernels"), extension("torch.kernels"), ModuleType("user")
    monkeypatch.setattr("gpumem.torch.run.extensions.BuiltinFunctionType", FunctionType)

    def fused(x: Any) -> Any: ...

    def plain(x: Any) -> Any: ...

    fused.__doc__, plain.__doc__ = "fused(arg0: torch.Tensor) -> None", "plain(arg0: int) -> torch.Tensor"
    for module in (theirs, ours, user):
        module.fused, module.plain = fused, plain
    for module in (theirs, ours, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert {(m.__name__, name) for m, name in extensions() if "dlpack" not in name} == {
        ("kernels", "fused"),
        ("torch.kernels", "fused"),  # the same function by another name
        ("user", "fused"),
    }
    monkeypatch.delitem(sys.modules, "kernels")
    assert theirs not in [module for module, _ in extensions()]
    monkeypatch.setattr("gpumem.torch.run.extensions._made", lambda: 1)
    assert (theirs, "fused") in extensions()  # as `load_inline` leaves it


@pytest.mark.slow  # needs ninja and a compiler, and half a minute
def test_a_kernel_that_is_bound_past_the_dispatcher_finds_its_tensor_and_its_write_counts() -> None:
    from torch.utils.cpp_extension import load_inline

    source = "void set7(torch::Tensor x) { x.data_ptr<float>()[0] = 7; }"
    kernels = load_inline("gpumem_tests_kernels", source, functions=["set7"])
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 3
        away(run, x)
        x.sum()  # it is back, and the host has a copy
        kernels.set7(x)
        away(run, x)
        kernels.set7(x)
        assert x[0].item() == 7


CALLED = [0]
NOISY = torch.library.Library("gpumem_noise", "DEF")  # it draws from a generator that nobody knows of
NOISY.define("noise(Tensor x) -> Tensor")
NOISY.impl("noise", lambda x: (CALLED.__setitem__(0, CALLED[0] + 1), x * CALLED[0])[1], "CPU")


def test_an_op_of_somebodys_own_is_never_called_again() -> None:
    """A plan may want its value made once more; it goes to the host instead."""
    weight = torch.ones(64, 64)

    def step() -> torch.Tensor:
        x = torch.ops.gpumem_noise.noise(weight)
        total = x.sum()
        weight.sin().cos()
        return (x * total).sum()

    trace = record(lambda: step, "cpu").trace
    (value,) = trace.ops.writes.tolist()[0]
    uses = trace.accesses().op.tolist()[value]
    plan = Plan([Recompute(value, after=uses[1], before=uses[2], at=uses[2])])
    CALLED[0] = 0
    bare = [step().item() for _ in range(3)]
    CALLED[0] = 0
    with managed("1MiB", device="cpu", plan=(trace, plan)) as run:
        assert [step().item() for _ in range(3)] == bare
    assert {row.again for row in run.report().iterations} == {0}


def test_what_is_copied_when_it_is_written_is_not_copied_before() -> None:
    """A run never asks for an address that it does not need: that of a lazy clone makes the copy."""
    x = torch.ones(64)
    with managed("64KiB", **HOW):
        lazy = x._lazy_clone()  # type: ignore[attr-defined]
        assert (lazy + 1).sum().item() == 128
        assert torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]
    assert torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]


# where a run's mode is off

TABLE = torch.arange(64.0)
LIBRARY.define("looked_up(Tensor x) -> Tensor")
LIBRARY.impl("looked_up", lambda x: (TABLE.add_(1), x + TABLE)[1], "CompositeExplicitAutograd")


def test_an_op_of_somebodys_own_may_use_what_is_no_argument_of_it() -> None:
    bare = torch.ops.gpumem_tests.looked_up(torch.ones(64))
    TABLE.sub_(1)
    with managed("64KiB", **HOW) as run:
        x = torch.ones(64) * 1
        away(run, x, TABLE)
        TABLE.sum()  # here again, with a copy on the host
        assert torch.equal(torch.ops.gpumem_tests.looked_up(x), bare)
        away(run, x, TABLE)  # what the op has written must not be lost
        assert torch.equal(x + TABLE, bare)
    TABLE.sub_(1)


def test_what_such_an_op_touches_may_not_push_its_operands_out() -> None:
    with managed(850, **HOW, on_exit="host"):
        x = torch.ones(64) * 1
        assert torch.equal(torch.ops.gpumem_tests.looked_up(x), 1 + TABLE)
    TABLE.sub_(1)


def test_tensors_of_other_layouts_are_printed() -> None:
    bare = repr(torch.eye(16).to_sparse())
    with managed("64KiB", **HOW) as run, warnings.catch_warnings():
        x = torch.eye(16).to_sparse()
        away(run, x._indices(), x._values())
        assert repr(x) == bare


def test_a_zero_that_has_a_size_and_no_bytes_is_not_held() -> None:
    with managed("64KiB", **HOW) as run:
        zero = torch._efficientzerotensor((64,))
        before = run.memory.held
        assert (zero + torch.ones(64)).sum().item() == 64
        assert zero.untyped_storage()._cdata not in run.memory.by_key and before < 600
