"""The command line: `gpumem fit`, `capture`, `measure`, `plan`, `swap`, `bound`, `pool`, `jobs`, `run`, `info`,
`doctor`.

Exit status: 0 done, 1 something failed while running, 2 bad input, 3 infeasible or not reached; 130 and 143 where it
was interrupted or told to end, 141 where whoever read its output has gone. `gpumem` alone prints the help, and that is
no error (as `cargo` and `gh` do). Modules are imported late, so that an interrupt during an import is one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpumem.cli.common.progress import complain
from gpumem.cli.common.stop import Stop

if TYPE_CHECKING:
    from argparse import Namespace

    from gpumem.cli.common.parser import Parser

EXAMPLES = [
    "gpumem fit train.py:make --largest       will it fit? what would it take? (needs PyTorch)",
    "gpumem info vgg16                        what a trace holds",
    "gpumem plan --limit 70%                  swap and place the bundled VGG16 in 70 % of its peak live bytes",
    "gpumem swap mlp3 --load-limit 80%        compare all swap planners",
    "gpumem pool mine.json.gz --planner all   place without swapping",
    "gpumem run mlp --limit 70%               carry a plan out with real bytes",
    "gpumem help plan                         the options of a command",
]
DOCS = "documentation: docs/ of the source tree; begin with docs/start/tutorial.md"


def main(argv: Sequence[str] | None = None, of: Callable[[], Parser] | None = None) -> int:
    """Run a command line on `argv` (default: the program's): `gpumem`'s, or that of `of`; return its status."""
    stop = Stop(real=argv is None)
    try:
        stop.begin()
        status, wrong = _run(argv, of or parser)
        if wrong and not stop.status:  # an interrupt may come back as another error
            complain(" ".join(wrong.split()))
        stop.end()
        return stop.interrupted() if stop.status else status
    except KeyboardInterrupt as stopped:
        for note in getattr(stopped, "__notes__", ()):  # how far a planner got
            complain(note)
        return stop.interrupted()


def parser() -> Parser:
    """Return the parser of the whole command line."""

    from gpumem.base.version import __version__
    from gpumem.cli import bound, capture, doctor, fit, info, jobs, measure, plan, pool, run, swap
    from gpumem.cli.common.parser import Parser

    about = "GPU memory in deep-learning training: place, swap, simulate."
    whole = Parser(prog="gpumem", description=about, examples=EXAMPLES, after=DOCS)
    whole.add_argument("--version", action="version", version=f"gpumem {__version__}")
    commands = whole.add_subparsers(title="commands", dest="word", metavar="COMMAND", parser_class=Parser)
    commands.required = True
    for command in (fit, capture, measure, plan, swap, bound, pool, jobs, run, info, doctor):
        command.COMMAND.add(commands)
    return whole


def _run(argv: Sequence[str] | None, of: Callable[[], Parser]) -> tuple[int, str]:
    """Run a command line; return its exit status, and in one line what went wrong."""
    import argparse
    import sys

    from gpumem.cli.common.progress import voice

    given = list(sys.argv[1:] if argv is None else argv)
    known = argparse.Namespace(quiet=False, traceback=False)
    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    try:
        return _statement(given or ["--help"], known, of)
    finally:
        voice.quiet = False


def _statement(given: list[str], args: Namespace, of: Callable[[], Parser]) -> tuple[int, str]:
    import shlex
    import sys

    from gpumem.base.errors import ExecutionError, Infeasible, NotReached, failure, own_planner
    from gpumem.cli.common.progress import voice

    try:
        try:
            whole = of()
            args.command = f"{whole.prog} {shlex.join(given)}"
            whole.parse_args(given, args)
            voice.quiet = args.quiet
            return args.run(args), ""
        finally:  # also of a page of help
            if sys.stdout is not None:  # it is where the shell closed it
                sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        return 141, ""
    except Exception as error:
        if args.traceback:
            import traceback

            traceback.print_exc()
        if isinstance(error, (Infeasible, NotReached)):
            return 3, str(error)
        if isinstance(error, (ValueError, MemoryError)):
            return 2, f"error: {str(error) or 'out of memory'}"
        if isinstance(error, OSError) and error.strerror:
            _drop_output()  # as a rule it is what cannot be written, and the interpreter would try once more
            return 1, f"error: {error.filename or 'output'}: {error.strerror}"
        if place := own_planner(error):
            return 1, f"error: {place}: {failure(error)}{'' if args.traceback else '; --traceback shows where'}"
        if isinstance(error, RuntimeError):
            return 1, f"{'error' if isinstance(error, ExecutionError) else 'internal error'}: {error}"
        report = "" if args.traceback else "; run it again with --traceback, and report what it says"
        return 1, f"internal error: {type(error).__name__}: {error}{report}"


def _drop_output() -> None:
    """Let what is still to be written go nowhere."""
    import os
    import sys
    from contextlib import suppress

    with suppress(OSError, AttributeError):  # closed, or no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
