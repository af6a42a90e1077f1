"""What a recording keeps of several iterations and threads; what is said where a step cannot be a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpumem import io
from gpumem.torch import WorkloadError, record
from gpumem.torch.capture.captured import Captured
from tests.pytorch.counting import allocator
from tests.pytorch.described import described

Step = Callable[[], object]


def every_second() -> Step:
    net, count = nn.Linear(4, 4), [0]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        count[0] += 1
        net(torch.randn(4, 4)).sum().backward()
        if count[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return step


def longer() -> Step:
    w, count = torch.randn(4, 4), [0]

    def step() -> None:
        count[0] += 1
        torch.randn(count[0], 4) @ w

    return step


def alternating() -> Step:
    w, count = torch.randn(4, 4), [0]

    def step() -> None:
        count[0] += 1
        (w.sin() if count[0] % 2 else w.cos()).sum()

    return step


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (every_second, "10 and 6 ops"),
        (longer, r"op 0, randn.default \(input\), has operands of other sizes"),
        (alternating, r"op 0 is cos.default \(input\) and sin.default \(input\)"),
    ],
)
def test_iterations_that_differ_are_told(make: Callable[[], Step], what: str) -> None:
    with pytest.raises(WorkloadError, match=f"^iterations 1 and 2 differ: {what}; .*warm-up.*iterations=1"):
        record(make, "cpu")
    assert record(longer, "cpu", iterations=1).trace.n == 2


def average() -> Step:
    w, state = torch.randn(4, 4), [torch.zeros(4, 4)]

    def step() -> None:
        state[0] = state[0] * 0.9 + w

    return step


def window() -> Step:
    w, last = torch.randn(4, 4), [torch.zeros(4, 4)] * 3

    def step() -> None:
        last.append(w * 2)
        torch.stack([last[-1], last[-3]]).sum()
        last.pop(0)

    return step


def hidden() -> Step:
    """Backpropagation through time, cut off: the state goes from one batch to the next."""
    cell, state = nn.RNNCell(4, 4), [torch.zeros(2, 4)]

    def step() -> None:
        state[0] = cell(torch.randn(2, 4), state[0].detach())
        state[0].sum().backward()
        cell.zero_grad()

    return step


@pytest.mark.parametrize("make", [average, window, hidden])
def test_what_outlives_an_iteration_is_counted_as_the_allocator_does(make: Callable[[], Step]) -> None:
    captured = record(make, "cpu", warmup=5)
    theirs = [load for name, load in allocator(make, 7)[0] if f"{name[6:]}.".startswith(names(captured))]
    assert captured.trace.live_bytes().tolist() == theirs
    assert captured.kept == 0 and not captured.notes


@pytest.mark.parametrize("make", [average, window, hidden])
def test_a_file_of_it_is_read_as_the_trace(make: Callable[[], Step], tmp_path: Path) -> None:
    captured = record(make, warmup=5)
    io.write_recording(tmp_path / "step.json", captured.recording, captured.bounds[5:], name=captured.trace.name)
    again = io.read(tmp_path / "step.json")
    assert again.live_bytes().tolist() == captured.trace.live_bytes().tolist()
    assert described(again) == described(captured.trace)


def names(captured: Captured) -> tuple[str, ...]:
    return tuple(f"{name.partition('.')[0]}." for name in captured.trace.ops.name)


def logged() -> Step:
    w, log = torch.randn(4, 4, requires_grad=True), []

    def step() -> None:
        loss = (torch.randn(2, 4) @ w).sum()
        loss.backward()
        log.extend([loss.detach(), loss.detach() * 2])
        w.grad = None

    return step


@pytest.mark.parametrize(("iterations", "warmup"), [(1, 0), (1, 1), (2, 1), (4, 3)])
def test_what_is_kept_for_good_ends_with_its_iteration(iterations: int, warmup: int) -> None:
    captured = record(logged, "cpu", iterations=iterations, warmup=warmup)
    whose = "each" if warmup else "the first"  # of one alone, more is not known
    assert captured.kept == 8 and f"{whose} iteration keeps 8 B" in captured.notes[0]
    assert [b.size for b in captured.trace.buffers if b.persistent] == [64]
    last = [b.size for b in captured.trace.buffers if b.end == captured.trace.n and not b.persistent]
    assert last.count(4) == 2 and captured.trace.live_bytes()[-1] == 64 + sum(last)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_gone_before_the_first_op_is_no_buffer(device: str) -> None:
    def make() -> Step:
        w = torch.randn(4, 4).mul(2)  # of two made here one is left, and one that no op ever reads
        unread = torch.zeros(7)
        return lambda: (unread, (w @ w).sum())

    captured = record(make, device, iterations=1, warmup=0)
    assert [b.size for b in captured.trace.buffers if b.persistent] == [64, 28]
    assert captured.recording.size.tolist() == [64, 28, 64, 4] and (captured.recording.free >= 0).all()


def test_what_a_second_thread_makes_is_seen_where_it_is_used() -> None:
    net = nn.Linear(4, 4)

    def step() -> None:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(net(torch.randn(2, 4))))
        thread.start()
        thread.join()
        found[0].sum().backward()
        net.zero_grad()

    trace = record(lambda: step, "cpu").trace
    assert [trace.ops[i].attributes["phase"] for i in range(trace.n)][-1] == "backward"  # type: ignore[index]
    assert trace.ops.name == ("sum.default", "ones_like.default", "mm.default", "sum.dim_IntList")


class Noise(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.randn(4) * i


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_batches_made_by_worker_processes_arrive(device: str) -> None:
    net = nn.Linear(4, 4)
    loader = torch.utils.data.DataLoader(Noise(), batch_size=4, num_workers=1)

    def make() -> Step:
        net.to(device)

        def step() -> None:
            for x in loader:
                net(x.to(device)).sum().backward()
            net.zero_grad()

        return step

    trace = record(make, device).trace
    assert trace.ops.name.count("addmm.default") == 1
    assert 64 in [b.size for b in trace.buffers if not b.persistent]
