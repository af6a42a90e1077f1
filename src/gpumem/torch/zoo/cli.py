"""`python -m gpumem.torch.zoo`: record nets by name, without a GPU and without memory for them; write trace files."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpumem.base.names import meant
from gpumem.base.units import human

if TYPE_CHECKING:
    from gpumem.torch.zoo.recipe import Recipe

PROGRAM = "python -m gpumem.torch.zoo"
NAMES = "NET[_SIZE][_sLENGTH][_bBATCH][_adam][_foreach]..., as resnet50_224_b64_adam; by default the benchmarks' traces"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it on `argv` (default: the program's arguments); return the exit status, as of `gpumem`."""
    try:
        _run(_parser().parse_args(argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, ImportError, MemoryError) as error:
        text = " ".join(str(error).split()) or "out of memory"
        print(f"{PROGRAM}: error: {text}", file=sys.stderr)
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong, in one line."""
        stray = message.removeprefix("unrecognized arguments: ").split()[0]
        options = [option for action in self._actions for option in action.option_strings]
        hint = meant(stray, options) if stray.startswith("--") and stray not in options else ""
        self.exit(2, f"{PROGRAM}: error: {message}{hint} (see --help)\n")


def _parser() -> argparse.ArgumentParser:
    p = _Parser(prog=PROGRAM, description="Record named nets and write trace files.", allow_abbrev=False)
    p.add_argument("names", nargs="*", metavar="NAME", help=NAMES)
    p.add_argument("--out", metavar="DIR", help="where to write NAME.json.gz")
    p.add_argument("--list", action="store_true", help="show the nets that there are")
    p.add_argument("--batch", type=int, metavar="N", help="in place of the names' batch")
    p.add_argument("--size", type=int, metavar="PIXELS", help="in place of the names' size of images")
    p.add_argument("--optimizer", metavar="NAME", help="sgd or adam")
    p.add_argument("--foreach", action="store_true", default=None, help="one op for all parameters, as on a GPU")
    return p


def _run(args: argparse.Namespace) -> None:
    from gpumem.torch.zoo import TRACES, recipe

    if args.list:
        _list()
        return
    options: dict[str, Any] = {what: getattr(args, what) for what in ("batch", "size", "optimizer", "foreach")}
    recipes = [recipe(name, **options) for name in args.names or TRACES]
    if not args.out:
        raise ValueError("--out DIR is missing: where to write the files")
    folder = Path(args.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: {folder}: cannot write here ({error.strerror})") from error
    print(f"{'file':<40} {'ops':>8} {'buffers':>8} {'peak live bytes':>15} {'seconds':>8}")
    for each in recipes:
        _write(folder, each)


def _write(folder: Path, recipe: Recipe) -> None:
    from gpumem import io
    from gpumem.torch.internals import torch

    begin = time.perf_counter()
    captured = recipe.record()
    file = f"{recipe.name}.json.gz"
    text = {"batch": recipe.batch, "optimizer": recipe.optimizer, "device": "meta", "torch": str(torch.__version__)}
    bounds = captured.bounds[recipe.warmup :]
    io.write_recording(folder / file, captured.recording, bounds, name=recipe.name, meta=text)
    trace, seconds = captured.trace, time.perf_counter() - begin
    figures = f"{trace.n:>8} {len(trace.buffers):>8} {human(trace.peak[1]):>15} {seconds:>8.1f}"
    print(f"{file:<40} {figures}", flush=True)
    for note in captured.notes:
        print(f"{recipe.name}: {note}", file=sys.stderr)


def _list() -> None:
    from gpumem.torch.zoo import ZOO

    print(f"{'net':<16} {'batch':>5} {'optimizer':<9} {'library':<13} what")
    for name, family in ZOO.items():
        net, what = family(), getattr(family, "func", family).__doc__ or ""
        print(
            f"{name:<16} {net.batch:>5} {net.optimizer:<5} {', '.join(net.needs) or 'torch':<13} {what.splitlines()[0]}"
        )
    print("and every classifier of torchvision and timm: torchvision:NAME, timm:NAME")
