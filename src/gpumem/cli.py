"""The command line: `gpumem plan`, `swap`, `bound`, `pool`, `jobs`, `run`, `bench`, `info` and `doctor`.

Exit status: 0 done, 1 something failed while running, 2 bad input, 3 infeasible or not reached.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from gpumem._version import __version__
from gpumem.commands import bench, bound, doctor, info, jobs, plan, pool, run, swap
from gpumem.commands.args import Parser, tell
from gpumem.errors import ExecutionError, Infeasible, NotReached


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: the program's arguments); return the exit status."""
    parser = Parser(prog="gpumem", description="GPU memory in deep-learning training: place, swap, simulate.")
    parser.add_argument("--version", action="version", version=f"gpumem {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for command in (plan, swap, bound, pool, jobs, run, bench, info, doctor):
        command.add(commands)
    given = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(given, argparse.Namespace(command=shlex.join(["gpumem", *given])))
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except (Infeasible, NotReached) as stop:
        tell(str(stop))
        return 3
    except (ValueError, MemoryError) as error:
        tell(f"error: {' '.join(str(error).split()) or 'out of memory'}")
        return 2
    except RuntimeError as error:
        kind = "error" if isinstance(error, ExecutionError) else "internal error"
        tell(f"{kind}: {' '.join(str(error).split())}")
        return 1
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
