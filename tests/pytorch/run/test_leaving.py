"""Leaving a run restores everything, whatever fails and whenever it is interrupted (`managed`, `memory`)."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.torch import managed
from gpumem.torch.run.managed import Managed
from tests.pytorch.managing import differences, there, world
from tests.pytorch.small_runs import HOW, away, fails


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
    "the recorder": lambda run: (run.loop.phase.iterations, "end"),
    "the run loop": lambda run: (run.loop, "pause"),
    "the engine": lambda run: (run.memory.engine, "rest"),
}


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
    "run/recompute.py",
    "run/limit_mode.py",
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
            assert not run.memory.of([x])[0].pinned
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


def test_the_collector_lists_nothing_of_a_run_that_is_over() -> None:
    def runs() -> Iterator[Managed]:
        return (x for x in gc.get_objects() if isinstance(x, Managed))

    gc.collect()
    before = sum(1 for _ in runs())
    with managed("64KiB", **HOW):
        torch.ones(8)
    gc.collect()
    assert sum(1 for _ in runs()) <= before + 1
