"""What a workload is on the command line: FILE.py:make."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from gpumem.cli.common.parser import Group

if TYPE_CHECKING:
    from gpumem.torch.step.workload import Make

DEVICES = ("meta", "cpu", "cuda")
ASSUME = ("balanced", "worst", "none")
WORKLOAD = "a Python file and in it make(batch=...), which builds a model and returns the step that trains it"


def add_workload(p: Group) -> None:
    """Add the argument that `workload_of` reads."""
    p.add_argument("workload", metavar="FILE.py:make", help=WORKLOAD)


def add_device(p: Group) -> None:
    """Add where the step runs while it is captured, one of `DEVICES`."""
    told = "where the step runs; meta computes nothing and takes no memory (default: %(default)s)"
    p.add_argument("--device", default="meta", metavar="meta|cpu|cuda", help=told)


def add_chunk(p: Group) -> None:
    """Add in what pieces an optimizer's calls run."""
    told = "split calls on all tensors of an optimizer into ops that touch at most so much: bytes, KiB/MiB/GiB"
    p.add_argument("--chunk", metavar="SIZE", help=told)


def add_assume(p: Group) -> None:
    """Add what to assume of values that nobody knows without running, one of `ASSUME`."""
    told = (
        "of sizes that depend on what the net computes: each class as often and half of each mask, or all the same "
        "class and all of each mask; none: assume nothing, and refuse a step that asks for a value that is not known"
    )
    p.add_argument("--assume", metavar="balanced|worst|none", help=told)


@contextmanager
def as_script(text: str) -> Iterator[None]:
    """Let a workload run as a script by itself: it finds no arguments of ours, and what it prints goes to stderr.

    (stdout is for what the command has to say.)
    """
    arguments = sys.argv
    sys.argv = [_parts(text)[0]]
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments


def workload_of(text: str, device: str) -> Make:
    """Return the `make` that the argument names, to run on a device.

    Raises
    ------
    ValueError
        No such file or function, or the file fails; PyTorch is missing.
    """
    try:
        from gpumem.torch import load, record as record  # which needs PyTorch itself
    except ImportError as error:
        raise ValueError(str(error)) from error
    return load(text, device)


def name_of(text: str) -> str:
    """Return what a workload's trace is called: as the file, and as the function where that is not `make`.

    >>> name_of("nets/resnet50.py:make"), name_of("nets.py:small")
    ('resnet50', 'nets.small')
    """
    file, function = _parts(text)
    stem = file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return stem if function == "make" else f"{stem}.{function}"


def _parts(text: str) -> tuple[str, str]:
    file, _, function = text.rpartition(":") if ".py:" in text else (text, "", "make")
    return file, function
