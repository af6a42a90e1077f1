"""What trains a random program: nets, optimizers, its lines, and what comes between steps; see `random_programs`."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.pytorch.bits import bits
from tests.pytorch.managing import Left
from tests.pytorch.random_lines import MANY, SAVES, VIEWS, WRITES, fit, part
from tests.pytorch.random_writes import LINES

SLOTS, KEPT, TALL = 6, 40, 3


@dataclass(frozen=True)
class Program:
    """A training.

    Parameters
    ----------
    lines : tuple of (str, int, int, int)
        What is done (in `LINES`), with which two tensors, and a number that chooses among variants.
    shape : (int, int)
    seed : int
    steps : int
    optimizer : str
        In `OPTIMIZERS`; `by hand`: parameters are written under `no_grad`; `never`: they are not.
    clears : str
        When gradients are cleared: `first` or `last` in a step, to `none` or `zero`; or `never`.
    batches : int
        Of a step, whose gradients are summed.
    clip : str
        `norm`, `value` or nothing.
    twice : bool
        Whether there are two backward passes through one graph.
    odd : int
        The step that leaves out every other line; -1 for none.
    between : tuple of str
        What comes after each step, in `BETWEEN`.
    inside : bool
        Whether parameters are made within the run, too.
    """

    lines: tuple[tuple[str, int, int, int], ...]
    shape: tuple[int, int] = (49, 64)
    seed: int = 0
    steps: int = 5
    optimizer: str = "sgd"
    clears: str = "first none"
    batches: int = 1
    clip: str = ""
    twice: bool = False
    odd: int = -1
    between: tuple[str, ...] = ()
    inside: bool = False


# what is trained


class Net(nn.Module):
    """What the lines have of modules."""

    average: torch.Tensor
    seen: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear, self.norm, self.batch = nn.Linear(size, size), nn.LayerNorm(size), nn.BatchNorm1d(size)
        self.block = nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, size))
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.register_buffer("average", torch.zeros(size))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x + self.block(self.norm(x))  # type: ignore[no-any-return]


class Counting(torch.optim.Optimizer):
    """A self-written optimizer, whose state has a number of its own beside those of parameters."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        self.state["k"] = 0  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["k"] += 1  # type: ignore[index, operator]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    before = self.state[p].setdefault("before", torch.zeros_like(p))
                    p.add_(p.grad + 0.5 * before, alpha=-group["lr"] / self.state["k"])  # type: ignore[index]
                    before.copy_(p.grad)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.02, momentum=0.9, foreach=False),
    "adam": partial(torch.optim.Adam, lr=1e-2, foreach=False),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, foreach=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, foreach=False),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "counting": Counting,
}


@dataclass
class Memory:
    """What several views share: whether autograd may have kept it, and how much was multiplied to make it."""

    saved: bool = False
    height: int = 0


@dataclass
class Value:
    """A tensor of a program; `whole` where it may be written into."""

    x: torch.Tensor
    memory: Memory
    whole: bool = True


class Training:
    """A program as it runs."""

    def __init__(self, program: Program) -> None:
        torch.manual_seed(program.seed)
        self.program, self.shape = program, program.shape
        rows, columns = program.shape
        self.net = Net(columns)
        self.w = nn.Parameter(torch.randn(columns, columns) / columns**0.5)
        self.v, self.b = nn.Parameter(torch.randn(rows, columns) * 0.5), nn.Parameter(torch.ones(columns))
        self.named = {"w": self.w, "v": self.v, "b": self.b, **dict(self.net.named_parameters())}
        make = OPTIMIZERS.get(program.optimizer)
        self.optimizer = make([*self.named.values()]) if make else None
        self.kept: list[torch.Tensor] = []
        self.pool: list[torch.Tensor] = []
        self.said: list[Any] = []
        self.losses: list[torch.Tensor] = []
        self.after: list[Callable[[], object]] = []
        self.slots: list[Value] = []
        self.carried = torch.zeros(program.shape)

    # what lines ask for

    def matrix(self, x: torch.Tensor) -> torch.Tensor:
        return fit(x, self.shape)

    def keep(self, x: torch.Tensor | None) -> None:
        if x is not None and len(self.kept) < KEPT:
            self.kept.append(x)

    def say(self, what: float) -> None:
        self.said.append(float(what).hex())

    def index(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Some rows of a tensor, none of them twice."""
        return torch.randperm(x.shape[0])[:count]

    # lines

    def line(self, what: str, i: int, j: int, n: int) -> None:
        kind, act = LINES[what]
        a, b = self.slots[i % len(self.slots)], self.slots[j % len(self.slots)]
        if kind == WRITES:
            self.write(act, a, b, n)
            return
        made = act(self, a.x, b.x, n)
        if kind in (VIEWS, MANY):
            a.memory.saved |= kind == MANY  # autograd refuses a view of several once its base is written
            self.put(Value(made, a.memory, a.whole and kind == VIEWS))
            return
        for value in (a, b) if kind == SAVES else ():
            value.memory.saved = True
        memory = Memory(kind == SAVES, 1 + max(a.memory.height, b.memory.height, TALL - 1 if kind == SAVES else 0))
        if memory.height > TALL:
            made, memory = made.tanh(), Memory(saved=True)
        self.put(Value(made, memory))

    def write(self, act: Callable[..., Any], a: Value, b: Value, n: int) -> None:
        """Assign something into a tensor, or into a view of it."""
        if a.memory.saved or not a.whole or (a.x.is_leaf and a.x.requires_grad):
            a = Value(a.x * 1, Memory(height=a.memory.height))
            self.put(a)
        y = b.x.clone() if b.memory is a.memory else b.x
        act(self, part(a.x, n // 3), y, n)
        b.memory.saved = True
        a.memory.height = max(a.memory.height, b.memory.height)

    def put(self, value: Value) -> None:
        self.slots.append(value)
        if len(self.slots) > SLOTS:
            del self.slots[0]

    # steps

    def batch(self, k: int) -> None:
        """Forward and backward pass of a batch."""
        x = torch.randn(self.shape)
        saved = ((x, True), (self.v * 1, False), (F.linear(x, self.w), False), (self.carried, True))
        self.slots = [Value(y, Memory(saved=kept)) for y, kept in saved]
        lines = self.program.lines
        for what, i, j, n in lines[::2] if k == self.program.odd else lines:
            self.line(what, i, j, n)
        ends = [value.x.tanh().mean() * (1 + at) for at, value in enumerate(self.slots)]
        loss = torch.stack([*ends, *self.losses, self.w.square().mean()]).sum()
        self.carried = self.matrix(self.slots[-1].x.detach()).tanh()
        self.slots, self.losses = [], []
        loss.backward(retain_graph=self.program.twice)
        if self.program.twice:
            loss.backward()
        after, self.after = self.after, []
        for act in after:
            act()
        self.say(loss.item())

    def step(self, k: int) -> None:
        program, parameters = self.program, [*self.named.values()]
        if program.clears.startswith("first"):
            self.clear()
        for _ in range(program.batches):
            self.batch(k)
        if program.clip == "norm":
            self.say(float(nn.utils.clip_grad_norm_(parameters, 1.0)))
        elif program.clip == "value":
            nn.utils.clip_grad_value_(parameters, 0.1)
        if self.optimizer is not None:
            self.optimizer.step()
        elif program.optimizer == "by hand":
            with torch.no_grad():
                for p in parameters:
                    if p.grad is not None:
                        p -= 0.05 * p.grad
        if program.clears.startswith("last"):
            self.clear()
        for what in program.between:
            BETWEEN[what](self)

    def clear(self) -> None:
        to_none = self.program.clears.endswith("none")
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=to_none)
            return
        for p in self.named.values():
            if to_none or p.grad is None:
                p.grad = None
            else:
                p.grad.zero_()

    def left(self) -> Left:
        """All that is left, as bits."""
        found: dict[str, Any] = {f"parameter {name}": p for name, p in self.named.items()}
        found |= {f"gradient of {name}": p.grad for name, p in self.named.items() if p.grad is not None}
        found |= {f"buffer {name}": x for name, x in self.net.named_buffers()}
        found |= {f"kept {k}": x for k, x in enumerate(self.kept)} | {f"pool {k}": x for k, x in enumerate(self.pool)}
        for k, state in enumerate(self.optimizer.state.values() if self.optimizer is not None else ()):
            of_one = state.items() if isinstance(state, dict) else [("number", state)]
            found |= {f"state {what} of {k}": x for what, x in of_one}
        found |= {"carried": self.carried, "generator": torch.get_rng_state()}
        said = {f"said {k}": (what,) for k, what in enumerate(self.said)}
        return {name: bits(x) if isinstance(x, torch.Tensor) else (repr(x),) for name, x in found.items()} | said


# between steps


def loaded(t: Training) -> None:
    """Load a checkpoint that was just saved."""
    file = io.BytesIO()
    torch.save({"net": t.net.state_dict(), "optimizer": t.optimizer and t.optimizer.state_dict()}, file)
    file.seek(0)
    found = torch.load(file)
    t.net.load_state_dict(found["net"])
    if t.optimizer is not None:
        t.optimizer.load_state_dict(found["optimizer"])


def copied(t: Training) -> None:
    """Load a deep copy of the net into it, and keep something of it."""
    twin = copy.deepcopy(t.net)
    t.keep(twin.linear.weight)
    t.net.load_state_dict(twin.state_dict())


BETWEEN: dict[str, Callable[[Training], object]] = {
    "load": loaded,
    "deepcopy": copied,
    "collect": lambda t: gc.collect(1),
    "print": lambda t: t.said.append(repr(t.v) + repr(t.kept[-1:])),
    "tolist": lambda t: t.said.append(t.b.tolist()),
    "numpy": lambda t: t.said.append(t.b.detach().numpy().tobytes()),
}
