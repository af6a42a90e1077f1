"""What a workload is on the command line: FILE.py:make, or --script FILE.py with its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from gpumem.cli.common.parser import option, word

if TYPE_CHECKING:
    from gpumem.torch import TrainingScript
    from gpumem.torch.step.workload import Make

DEVICES = ("meta", "cpu", "cuda")
WORKLOAD = "a Python file and in it make(batch=...), which builds a model and returns the step that trains it"


WORKLOADS = (
    option("workload", nargs="?", metavar="FILE.py:make", help=WORKLOAD),
    option(
        "--script",
        nargs=argparse.REMAINDER,
        metavar="FILE.py",
        help="instead: a whole training script and its arguments, all that follow; it runs as by itself, on a GPU that "
        "is not there, until three iterations are through",
    ),
)  # what `words_of` reads
DEVICE = option(
    "--device",
    read=word(DEVICES),
    default="meta",
    metavar="meta|cpu|cuda",
    help="where the step runs; meta computes nothing and takes no memory (default: %(default)s)",
)
CHUNK = option(
    "--chunk",
    metavar="SIZE",
    help="split calls on all tensors of an optimizer into ops that touch at most so much: bytes, KiB/MiB/GiB",
)
ASSUMED = option(
    "--assume",
    read=word(("balanced", "worst", "none")),
    metavar="balanced|worst|none",
    help="of sizes that depend on what the net computes: each class as often and half of each mask, or all the same "
    "class and all of each mask; none: assume nothing, and refuse a step that asks for a value that is not known",
)


def words_of(args: argparse.Namespace) -> list[str]:
    """Return the words by which a command line says what to capture.

    Raises
    ------
    ValueError
        It says nothing, or two things.
    """
    if args.script is None:
        if args.workload is None:
            raise ValueError(f"FILE.py:make is missing: {WORKLOAD}; or --script FILE.py for a whole script")
        return [args.workload]
    if not args.script:
        raise ValueError("--script: a file must follow, and then its arguments")
    if args.workload is not None:
        raise ValueError(f"{args.workload!r:.60} and --script {args.script[0]}: one of the two")
    return ["--script", *args.script]


@contextmanager
def as_script(words: Sequence[str]) -> Iterator[None]:
    """Let a workload run as a script by itself: it finds no arguments of ours, and what it prints goes to stderr.

    (stdout is for what the command has to say.)
    """
    arguments = sys.argv
    sys.argv = [_parts(words)[0]]
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments


def workload_of(words: Sequence[str], device: str) -> Make | TrainingScript:
    """Return the `make` that the words name, to run on a device, or the script.

    Raises
    ------
    ValueError
        No such file or function, or the file fails; PyTorch is missing.
    """
    try:
        from gpumem.torch import TrainingScript, load, record as record  # which needs PyTorch itself
    except ImportError as error:
        raise ValueError(str(error)) from error
    return TrainingScript(words[1], words[2:]) if words[0] == "--script" else load(words[0], device)


def name_of(words: Sequence[str]) -> str:
    """Return what a workload's trace is called: as the file, and as the function where that is not `make`.

    >>> name_of(["nets/resnet50.py:make"]), name_of(["nets.py:small"]), name_of(["--script", "train.py", "--lr", "1"])
    ('resnet50', 'nets.small', 'train')
    """
    file, function = _parts(words)
    stem = file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return stem if function == "make" else f"{stem}.{function}"


def _parts(words: Sequence[str]) -> tuple[str, str]:
    text = words[1] if words[0] == "--script" else words[0]
    file, _, function = text.rpartition(":") if ".py:" in text else (text, "", "make")
    return file, function
