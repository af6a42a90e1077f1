"""Random PyTorch programs: a `Program` is plain data, `run` trains it, bare or managed, and returns all that it left.

A failing program's repr can be pasted: `differences(Program(...), "least")` says what differs. Programs are legal
wherever their lines stand: what autograd may have kept is copied before it is written into.
"""

from __future__ import annotations

import gc
import random
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from gpumem.torch import managed
from tests.pytorch.bits import Nothing, at_least
from tests.pytorch.managing import Left, Manage
from tests.pytorch.random_lines import KINDS, SHARES
from tests.pytorch.random_training import BETWEEN, LINES, OPTIMIZERS, Program, Training

PLANS = ("tensile", "checkpoint", "on-demand-nonblocking")
HOST: dict[str, Any] = {"on_exit": "host"}
LIMITS: dict[str, tuple[str, dict[str, Any]]] = {  # what a program is run within, beside its least limit
    "unlimited": ("64GiB", {"planner": "on-demand"}),
    "80%": ("80%", {"planner": PLANS, **HOST}),
    "60%": ("60%", {"planner": PLANS, **HOST}),
    "60% on demand": ("60%", {"planner": "on-demand", **HOST}),
    "70% searched": ("70%", {"planner": "search", "seconds": 2, **HOST}),
}
LEAST = "least"
PLAIN: dict[str, Any] = {  # what a failing program is tried with
    "shape": (4, 4), "steps": 2, "optimizer": "never", "clears": "first none", "batches": 1, "clip": "", "twice": False,
    "odd": -1, "between": (), "inside": False, "seed": 0,
}  # fmt: skip


# draws

CHOICES: dict[str, list[Any]] = {  # what a program is made of, beside its lines
    "shape": [(49, 64), (64, 49), (4, 4), (12, 8), (33, 16)],
    "seed": [*range(10)],
    "steps": [4, 5, 6],
    "optimizer": [*OPTIMIZERS, "by hand", "never"],
    "clears": ["first none", "first zero", "last none", "last zero", "never"],
    "batches": [1, 1, 1, 2],
    "clip": ["", "", "norm", "value"],
    "twice": [False, False, False, True],
    "odd": [-1, -1, -1, 2, 3],
    "between": [(), (), *((name,) for name in BETWEEN)],
    "inside": [False, False, True],
}
SIZES, VARIANTS = ((1, 10), (10, 20), (20, 40), (40, 80)), 60
BY_KIND = [sorted(name for name in LINES if LINES[name][0] == kind) for kind in KINDS for _ in range(SHARES[kind])]


def program(seed: int) -> Program:
    """Draw a program, the same for the same seed."""
    draws = random.Random(seed)
    lines = []
    for _ in range(draws.randint(*draws.choice(SIZES))):
        lines.append((draws.choice(draws.choice(BY_KIND)), *(draws.randrange(VARIANTS) for _ in range(3))))
    return Program(tuple(lines), **{name: draws.choice(options) for name, options in CHOICES.items()})


PROGRAMS = st.integers(0, 2**60).map(program)  # any two are unlike, as examples next to each other would not be


# runs and comparisons


def run(program: Program, manage: Manage = nullcontext) -> Left:
    """Train a program, and return all that it left."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "index_reduce")  # which is in beta
        training = None if program.inside else Training(program)
        with manage():
            training = training or Training(program)
            for k in range(program.steps):
                training.step(k)
    return training.left()


def within(program: Program, limit: int | str, **how: Any) -> tuple[Left, int]:
    """Train a program under a memory limit, or within the least one that it names; return also which it was."""
    given: dict[str, Any] = {"device": "cpu", "wait": True, **how}
    least = limit if isinstance(limit, int) else 0
    return at_least(lambda size: run(program, lambda: managed(size or limit, **given)), least)


def differences(program: Program, *names: str, theirs: Left | None = None) -> dict[str, list[str]]:
    """What differs from the bare run within each limit of these names: of `LIMITS`, or `least`."""
    theirs, found = run(program) if theirs is None else theirs, {}
    for name in names or (*LIMITS, LEAST):
        limit, how = LIMITS.get(name, (most(program) if name == LEAST else "", {"planner": "on-demand", **HOST}))
        try:
            mine, _ = within(program, limit, **how)
        except Exception as error:
            found[name] = [f"{type(error).__name__}: {str(error)[:300]}"]
            continue
        if differs := unlike(theirs, mine):
            found[name] = differs
    return found


def most(program: Program) -> int:
    """The most bytes that one op has for operands and results."""
    mode = Nothing()
    run(program, lambda: mode)
    return mode.most


def own(program: Program) -> list[str]:
    """What differs under a mode that does nothing, which is PyTorch's doing."""
    return unlike(run(program), run(program, Nothing))


def unlike(theirs: Left, mine: Left) -> list[str]:
    return [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]


def smaller(program: Program, *names: str, seconds: float = 120.0) -> Program:
    """A program that fails within these limits, too, with fewer lines and plainer options, as found in time."""
    end, size = time.monotonic() + seconds, max(len(program.lines) // 2, 1)
    while time.monotonic() < end:
        at, before = 0, program
        while at < len(program.lines) and time.monotonic() < end:
            fewer = replace(program, lines=program.lines[:at] + program.lines[at + size :])
            program, at = (fewer, at) if fails(fewer, *names) else (program, at + size)
        if program == before and size == 1:
            break
        size = max(size // 2, 1)
    for name, plain in PLAIN.items():
        plainer = replace(program, **{name: plain})
        program = plainer if plainer != program and fails(plainer, *names) else program
    return program


def fails(program: Program, *names: str) -> bool:
    """Whether a program is one, and differs."""
    try:
        theirs = run(program)
    except Exception:
        return False
    return bool(differences(program, *names, theirs=theirs))


def ready() -> None:
    """Import what is imported late, and let none of that be looked through for garbage."""
    run(Program((("linear", 0, 0, 0),), steps=1, optimizer="adamw", between=("load",)))
    with managed("1MiB", device="cpu"):
        torch.ones(3).sum().item()
    gc.collect()
    gc.freeze()
