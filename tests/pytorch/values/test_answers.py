"""What the host is told: what is known; what follows from a loss that is a finite positive number, and that is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.torch import Captured, WorkloadError, record

Body = Callable[[nn.Module], Any]


def recorded(body: Body, device: str = "meta", **how: Any) -> Captured:
    """Record a step that does something with a net."""

    def make(device: str) -> Callable[[], object]:
        net = nn.Linear(300, 300, device=device)
        return lambda: body(net)

    return record(make, device, **how)


def loss_of(net: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = net(torch.randn(128, 300)).square().mean()
    return loss


def told(body: Body) -> tuple[list[Any], tuple[tuple[str, str], ...]]:
    """What a body returns in each iteration, and what of it was assumed."""
    answers = []
    found = recorded(lambda net: answers.append(body(net)))
    return answers, tuple((one.asked, one.answer) for one in found.assumptions)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda x: bool(torch.isfinite(x)), True),
        (lambda x: bool(torch.isnan(x)), False),
        (lambda x: bool(torch.isinf(x).any()), False),
        (lambda x: bool(x > 0.1), True),
        (lambda x: bool(x < math.inf), True),
        (lambda x: math.isfinite(x.item()), True),
        (lambda x: int((x > 0).sum()), 1),
    ],
)
def test_a_loss_is_a_finite_positive_number(ask: Callable[[torch.Tensor], Any], answer: Any) -> None:
    answers, assumed = told(lambda net: ask(loss_of(net)))
    assert answers == [answer] * 3
    assert len(assumed) == 1 and assumed[0][0].startswith("the value of ")


def test_what_is_large_follows_from_its_numbers() -> None:
    def ask(net: nn.Module) -> tuple[Any, ...]:
        loss_of(net).backward()
        grad = net.weight.grad
        assert isinstance(grad, torch.Tensor)
        return bool(torch.isfinite(grad).all()), bool(grad.isnan().any()), int((grad > 0.01).sum())

    answers, assumed = told(ask)
    assert answers == [(True, False, 90_000)] * 3
    assert [answer for _, answer in assumed] == ["True", "False", "90000"]


def test_what_constants_give_is_not_assumed() -> None:
    def ask(net: nn.Module) -> tuple[Any, ...]:
        mask = torch.ones(64, 2048, 9, dtype=torch.int64)  # 9 MiB: one number over and over
        mask[:, 5] = 1
        part = mask[:, -1].float().mean()
        rates = [x.item() for x in torch.linspace(0, 0.1, 3)]
        return bool(mask.all()), bool((mask[:, 0] == 0).any()), int(mask.sum()), part.item(), rates[1:]

    answers, assumed = told(ask)
    assert answers == [(True, False, 64 * 2048 * 9, 1.0, [pytest.approx(0.05), pytest.approx(0.1)])] * 3
    assert not assumed


def test_numbers_seen_as_others_are_not_known() -> None:
    def ask(net: nn.Module) -> int:
        return int(torch.ones(64, 2048, 9).view(torch.int32)[0, 0, :3].sum())

    assert told(ask)[1]


def test_a_number_written_into_a_part_is_another() -> None:
    def ask(net: nn.Module) -> bool:
        mask = torch.ones(64, 2048, 9, dtype=torch.int64)
        mask[:, 5] = 0
        return bool(mask.all())

    answers, assumed = told(ask)
    assert answers == [False] * 3 and assumed  # nobody knows of a large tensor of two numbers


def test_what_is_written_by_something_unknown_is_known_no_longer() -> None:
    def ask(net: nn.Module) -> None:
        x, y = torch.arange(3), torch.randint(9, (10**6,))  # too large
        z = x.unsqueeze(0)
        x[1:].copy_(y[:2])
        z.sum().item()

    assert told(ask)[1] == (("the value of sum.default", "0"),)


def test_what_is_copied_onto_itself_stays_unknown() -> None:
    def ask(net: nn.Module) -> None:
        x = loss_of(net).detach()
        x.copy_(x)
        x.item()

    assert told(ask)[1] == (("the value of copy_.default", "1.0"),)


def test_a_tensor_of_tensors_asks_each() -> None:
    def ask(net: nn.Module) -> list[float]:
        made: list[float] = torch.tensor([loss_of(net), torch.arange(3).sum()]).tolist()
        return made

    answers, assumed = told(ask)
    assert answers == [[1.0, 3.0]] * 3 and [answer for _, answer in assumed] == ["1.0"]


def test_two_that_nobody_knows_differ_and_one_is_itself() -> None:
    def ask(net: nn.Module) -> tuple[bool, ...]:
        x, y = loss_of(net), loss_of(net)
        return torch.equal(x, y), torch.equal(x, x), bool(x == y), bool(x == x), bool((x - x) == 0)

    assert told(ask)[0] == [(False, True, False, True, False)] * 3


def test_what_goes_to_the_host_is_what_is_known() -> None:
    def ask(net: nn.Module) -> Any:
        x, y = torch.arange(4) * 2, torch.zeros(4, dtype=torch.int64, device="cpu")
        y.copy_(x)
        loss_of(net)
        return x.cpu().tolist(), x.tolist(), y.tolist(), net.weight.detach()[:2, 0].cpu().tolist()

    answers, assumed = told(ask)
    assert [a[:3] for a in answers] == [([0, 2, 4, 6],) * 3] * 3
    assert [a[3] for a in answers] == [[1.0, 1.0]] * 3 and assumed == (("a copy on the host", "1.0 each"),)


def test_counters_of_optimizers_and_averages_live_on() -> None:
    """`AveragedModel` averages from its second update on; a counter on the device counts."""
    counts = []

    def make() -> Callable[[], None]:
        net = nn.Linear(3, 3)
        average = torch.optim.swa_utils.AveragedModel(net)
        optimizer = torch.optim.Adam(net.parameters())
        steps = torch.zeros((), dtype=torch.int64)

        def step() -> None:
            net(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(net)
            steps.add_(1)
            counts.append((int(average.n_averaged), int(optimizer.state[net.weight]["step"]), steps.item()))

        return step

    found = record(make)
    assert counts == [(1, 1, 1), (2, 2, 2), (3, 3, 3)] and not found.assumptions
    assert any(name.startswith(("_foreach_lerp", "lerp")) for name in found.trace.ops.name)


def test_draws_are_those_of_the_seed_and_leave_the_hosts_alone() -> None:
    seen = []

    def ask(net: nn.Module) -> None:
        torch.manual_seed(3)
        drawn = [torch.rand(()).item(), torch.randint(0, 1000, (2,)).tolist(), torch.randperm(5).tolist()]
        seen.append((drawn, torch.rand(1, device="cpu").item()))

    recorded(ask)
    torch.manual_seed(3)
    expected = [torch.rand(()).item(), torch.randint(0, 1000, (2,)).tolist(), torch.randperm(5).tolist()]
    torch.manual_seed(3)
    assert seen == [(expected, torch.rand(1).item())] * 3


def test_nothing_is_assumed_where_nothing_may_be() -> None:
    with pytest.raises(WorkloadError, match=r"the value of mean.default in the step, .*test_answers.py, line"):
        recorded(lambda net: loss_of(net).item(), assume="none")
    recorded(lambda net: torch.arange(3).sum().item(), assume="none")
    with pytest.raises(ValueError, match="assume: 'most'"):
        recorded(loss_of, assume="most")


def test_each_assumption_has_its_place_and_is_counted() -> None:
    found = recorded(lambda net: [loss_of(net).item() for _ in range(2)])
    (one,) = found.assumptions
    assert (one.asked, one.answer, one.times) == ("the value of mean.default", "1.0", 6)
    assert one.place.startswith("the step, ") and "test_answers.py, line" in one.place
    assert str(one) == f"the value of mean.default in {one.place}: 1.0"
    assert not recorded(lambda net: loss_of(net).item(), "cpu").assumptions
