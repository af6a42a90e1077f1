"""What is known of a tensor without a device is what the host has, over random programs on small tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gpumem.torch import WorkloadError
from gpumem.torch.capture.capture import _environment
from gpumem.torch.values.known_values import KnownValues

Tensor = torch.Tensor
Step = Callable[[list[Tensor]], Any]
DTYPES = (torch.float32, torch.int64, torch.bool, torch.float64, torch.int32, torch.bfloat16)


def factories(draw: st.DrawFn) -> Step:
    dtype, n, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 6)), draw(st.integers(-3, 3))
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    numbers = draw(st.lists(st.integers(0, 4), max_size=5))
    return draw(
        st.sampled_from(
            (
                lambda _: torch.arange(n),
                lambda _: torch.linspace(0, seed, n),
                lambda _: torch.full(shape, seed, dtype=dtype),
                lambda _: torch.zeros(shape, dtype=dtype),
                lambda _: torch.ones(shape, dtype=dtype),
                lambda _: torch.tensor(numbers, dtype=dtype),
                lambda _: torch.as_tensor(numbers),
                lambda _: torch.eye(n),
                lambda _: torch.randint(0, 4, shape),
                lambda _: torch.rand(shape),
                lambda _: torch.randperm(n),
                lambda _: torch.empty(shape).fill_(seed),
                lambda _: torch.tril_indices(n, n),
            )
        )
    )


def ops(draw: st.DrawFn) -> Step:
    i, j, k = (draw(st.integers(0, 20)) for _ in range(3))
    at, value = draw(st.integers(-2, 2)), draw(st.integers(-2, 3))

    def a(x: list[Tensor]) -> Tensor:
        return x[i % len(x)]

    def b(x: list[Tensor]) -> Tensor:
        return x[j % len(x)]

    def c(x: list[Tensor]) -> Tensor:
        return x[k % len(x)]

    def put(x: list[Tensor]) -> None:
        a(x)[at] = value

    def put_where(x: list[Tensor]) -> None:
        a(x)[b(x) > 0] = value

    def put_rest(x: list[Tensor]) -> None:
        a(x)[1:] = b(x)

    return draw(
        st.sampled_from(
            (
                # made of others
                *(lambda x: -a(x), lambda x: a(x).abs(), lambda x: a(x).float(), lambda x: a(x).long()),
                *(lambda x: a(x).bool(), lambda x: a(x) + b(x), lambda x: a(x) * value, lambda x: a(x) - b(x)),
                *(lambda x: a(x) == b(x), lambda x: a(x) < value, lambda x: torch.isfinite(a(x))),
                *(lambda x: torch.where(a(x) > 0, b(x), c(x)), lambda x: torch.cat([a(x), b(x)])),
                *(lambda x: torch.stack([a(x), b(x)]), lambda x: a(x) @ b(x), lambda x: a(x).cumsum(0)),
                *(lambda x: a(x).sort().values, lambda x: a(x).clone(), lambda x: a(x).flip(0)),
                *(
                    lambda x: torch.zeros_like(a(x)),
                    lambda x: torch.rand_like(a(x)),
                    lambda x: a(x).new_full([2], value),
                ),
                *(lambda x: a(x).new_tensor([1, 2]), lambda x: a(x).repeat(2, 1), lambda x: a(x)[b(x)]),
                # reduced
                *(lambda x: a(x).sum(), lambda x: a(x).all(), lambda x: a(x).any(-1), lambda x: a(x).max()),
                *(lambda x: a(x).argmax(), lambda x: a(x).mean(), lambda x: a(x).prod(), lambda x: a(x).sum(0)),
                *(lambda x: a(x).count_nonzero(), lambda x: a(x).norm(), lambda x: a(x).amin(0)),
                # views
                *(lambda x: a(x)[at], lambda x: a(x)[1:], lambda x: a(x)[::2], lambda x: a(x).reshape(-1)),
                *(lambda x: a(x).transpose(0, -1), lambda x: a(x).unsqueeze(0), lambda x: a(x).squeeze()),
                *(lambda x: a(x).expand(2, *a(x).shape), lambda x: a(x).diagonal(), lambda x: a(x).detach()),
                *(lambda x: a(x).view(torch.int32), lambda x: a(x).unbind(0)[0]),
                # written
                *(put, put_where, put_rest, lambda x: a(x).add_(value), lambda x: a(x).mul_(b(x))),
                *(lambda x: a(x).copy_(b(x)), lambda x: a(x).zero_(), lambda x: a(x).fill_(value)),
                *(
                    lambda x: a(x).clamp_(0, 2),
                    lambda x: a(x).logical_not_(),
                    lambda x: a(x).masked_fill_(b(x) > 0, value),
                ),
                *(lambda x: a(x).index_fill_(0, b(x), value), lambda x: a(x).t_(), lambda x: a(x).uniform_()),
                *(
                    lambda x: a(x).set_(b(x)),
                    lambda x: torch.add(a(x), 1, out=torch.empty_like(a(x))),
                    lambda x: a(x).resize_(3),
                ),
                # of sizes that depend on values
                *(lambda x: a(x).nonzero(), lambda x: a(x)[a(x) > 0], lambda x: a(x).masked_select(b(x) > 0)),
                *(lambda x: a(x).unique(), lambda x: torch.bincount(a(x)), lambda x: a(x).repeat_interleave(b(x))),
                *(lambda x: torch.unique_consecutive(a(x)), lambda x: torch.argwhere(a(x))),
                # learned
                *(lambda x: a(x) * x[0], lambda x: a(x).copy_(x[0] * 2), lambda x: a(x).add_(x[0].sum())),
                lambda x: torch.nn.functional.one_hot(a(x)),
            )
        )
    )


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    first = [factories(draw) for _ in range(draw(st.integers(2, 4)))]
    return [
        *first,
        *(factories(draw) if draw(st.integers(0, 9)) == 0 else ops(draw) for _ in range(draw(st.integers(1, 12)))),
    ]


def ran(program: list[Step], k: int, tensors: list[Tensor]) -> Any:
    try:
        return program[k](tensors)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        return error


def same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(x.double()), torch.nan_to_num(y.double()))


def on_host(program: list[Step]) -> list[tuple[Any, list[Tensor]]]:
    """What each step makes on the host, and copies of all tensors after it."""
    torch.manual_seed(5)
    tensors, found = [torch.nn.Parameter(torch.ones(3)).detach()], []
    for k in range(len(program)):
        before = [x.clone() for x in tensors]
        made = ran(program, k, tensors)
        if isinstance(made, Exception) and not all(x.shape == y.shape and same(x, y) for x, y in zip(before, tensors)):
            return found  # it failed after it had written something
        if isinstance(made, Tensor):
            tensors.append(made)
        found.append((made, [x.clone() for x in tensors]))
    return found


def holds(values: KnownValues, x: Tensor, host: Tensor) -> bool:
    assert x.shape == host.shape
    if not values.sure(x):
        return True
    mine = values.read(x)
    return mine is not None and same(mine, host)


def check(program: list[Step]) -> int:
    """Run a program on the host and without a device; return of how many tensors the values are known at the end."""
    hosts = on_host(program)
    with _environment("meta", None, None, False) as mode, mode:
        torch.manual_seed(5)
        tensors = [torch.nn.Parameter(torch.ones(3).fill_(1)).detach()]
        assert mode.values is not None
        mode.values.end(tensors)  # as an optimizer's step would
        for k, (expected, after) in enumerate(hosts):
            if isinstance(expected, Exception):
                continue
            made = ran(program, k, tensors)
            if isinstance(made, Exception):
                assert isinstance(made, WorkloadError) and "depends on what the net computes" in str(made), made
                return 0
            if isinstance(made, Tensor):
                tensors.append(made)
            for x, y in zip(tensors, after, strict=True):
                assert holds(mode.values, x, y), (k, x.shape, mode.values.read(x), y)
        return sum(map(mode.values.sure, tensors))


@given(programs())
def test_what_is_known_is_what_the_host_has(program: list[Step]) -> None:
    check(program)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(programs())
def test_ten_thousand_programs(program: list[Step]) -> None:
    check(program)
