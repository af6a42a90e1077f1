"""Random steps: a few tensors of 4 by 4, and what a step may do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.pytorch.nets import OPTIMIZERS

N = 4
Program = list[tuple[str, int, int]]


class Cube(torch.autograd.Function):
    """Keeps its input; its backward makes two tensors on the way."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def _cycle(x: Any, y: Any, w: Any) -> Any:
    """Memory that only the garbage collector frees."""
    ring: list[Any] = [x * 2]
    ring.append(ring)
    return x


def _hooked(x: Any, y: Any, w: Any) -> Any:
    z = x + y
    if z.requires_grad:
        z.register_hook(lambda grad: grad * 2)
    return z


def _slope(x: Any, y: Any, w: Any) -> Any:
    """The gradient of a gradient."""
    (grad,) = torch.autograd.grad((x @ w).tanh().sum(), w, create_graph=True)
    return x + grad


def _evaluated(guard: Callable[[], Any]) -> Callable[[Any, Any, Any], Any]:
    def evaluate(x: Any, y: Any, w: Any) -> Any:
        with guard():
            score = F.linear(x, w).relu() + y
            float(score.sum())
        return x

    return evaluate


def _resized(x: Any, y: Any, w: Any) -> Any:
    room = torch.ones(N)
    room.resize_(N, N).copy_(x.detach())
    return x * room


def _set(x: Any, y: Any, w: Any) -> Any:
    other = torch.zeros(2 * N)
    other.set_(x.detach() + 1)
    return y * other


WHAT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "linear": lambda x, y, w: F.linear(x, w),
    "tanh": lambda x, y, w: x.tanh(),
    "mul": lambda x, y, w: x * y,
    "add": lambda x, y, w: x + y,
    "view": lambda x, y, w: x.t().reshape(-1).view(N, N),
    "in place": lambda x, y, w: (x + y).add_(1),
    "in place of a view": lambda x, y, w: (z := x + y, z[1:].mul_(2))[0],
    "detach": lambda x, y, w: x.detach() * y,
    "chunks": lambda x, y, w: torch.cat([part.relu() for part in x.chunk(2)]),
    "rows": lambda x, y, w: torch.stack([a + b for a, b in zip(x.unbind(), y.unbind())]),
    "sort": lambda x, y, w: x.sort(dim=1)[0],
    "max": lambda x, y, w: x.max(dim=0, keepdim=True)[0] + y,
    "dropout": lambda x, y, w: F.dropout(x, 0.5),
    "cube": lambda x, y, w: Cube.apply(x),
    "item": lambda x, y, w: (x.sum().item(), x)[1],  # what depends on it would differ from one iteration to the next
    "layer norm": lambda x, y, w: F.layer_norm(x, (N,), w[0]),
    "softmax": lambda x, y, w: x.softmax(1),
    "cycle": _cycle,
    "hook": _hooked,
    "slope": _slope,
    "no grad": _evaluated(torch.no_grad),
    "inference": _evaluated(lambda: torch.inference_mode()),
    "resize_": _resized,
    "set_": _set,
}


class Step:
    """A workload made of a program: each of its lines takes two of the tensors and puts its result in place of one."""

    def __init__(self, program: Program, optimizer: str, twice: bool, clears: str, keeps: bool) -> None:
        self.program, self.optimizer, self.twice, self.clears, self.keeps = program, optimizer, twice, clears, keeps

    def __repr__(self) -> str:
        return f"Step({self.program}, {self.optimizer!r}, {self.twice}, {self.clears!r}, {self.keeps})"

    def __call__(self) -> Callable[[], None]:
        torch.manual_seed(0)
        weights = [torch.randn(N, N, requires_grad=True) for _ in range(2)]
        optimizer = OPTIMIZERS[self.optimizer](weights)
        losses: list[torch.Tensor] = []

        def step() -> None:
            if self.clears == "first":
                optimizer.zero_grad()
            x = [torch.randn(N, N), weights[0] * 1]
            for k, (what, i, j) in enumerate(self.program):
                x[i] = WHAT[what](x[i], x[j], weights[k % 2])
            loss = (x[0] * weights[1] + x[1]).sum()
            del x
            loss.backward(retain_graph=self.twice)
            if self.twice:
                loss.backward()
            optimizer.step()
            if self.keeps:
                losses.append(loss.detach())
            if self.clears == "last":
                optimizer.zero_grad()

        return step


SLOT = st.integers(0, 1)
LINE = st.tuples(st.sampled_from(sorted(WHAT)), SLOT, SLOT)
STEPS = st.builds(
    Step,
    st.lists(LINE, min_size=1, max_size=8),
    st.sampled_from(sorted(OPTIMIZERS)),
    st.booleans(),
    st.sampled_from(["first", "last", "never"]),
    st.booleans(),
)
