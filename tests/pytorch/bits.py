"""What is compared bit by bit, and the runner by hand: `python -m tests.pytorch.bits programs --count 2000 --seed 0`.

`bits` is what there is to a tensor, `Nothing` a dispatch mode that changes nothing (what differs under it is PyTorch's
own doing), and `at_least` runs something at the least limit that it names.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.runtime.residency.limited_memory import LimitError
from tests.pytorch import managing

T = TypeVar("T")
TRIES, FEW = 60, 5  # limits, one after the other, until the least one is found
LEAST = re.compile(r"least limit .*?\(?(\d+) bytes")


def bits(x: torch.Tensor) -> tuple[Any, ...]:
    """What there is to a tensor: any layout, whatever is yet to be conjugated or negated in it."""
    x = x.detach()
    if x.is_nested:
        return ("nested", *(bits(part) for part in x.unbind()))
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (x.layout, x.shape, *bits(x.crow_indices()), *bits(x.col_indices()), *bits(x.values()))
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return (x.layout, x.shape, *bits(x.ccol_indices()), *bits(x.row_indices()), *bits(x.values()))
    if x.layout is torch.sparse_coo:
        return (x.layout, x.shape, *bits(x._indices()), *bits(x._values()))
    if x.layout is torch._mkldnn:
        return (x.layout, *bits(x.to_dense()))
    flat = torch.empty(x.numel(), dtype=x.dtype).copy_(
        x.reshape(-1)
    )  # of whatever strides, conjugated, negated or void
    marks = x.is_conj(), x.is_neg(), x._is_zerotensor()
    return x.dtype, tuple(x.shape), x.stride(), marks, flat.view(torch.uint8).numpy().tobytes()


class Nothing(TorchDispatchMode):
    """Does nothing but look: `most` is the most bytes of operands and results that one op had."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        touched = managing.flat([args, (kwargs or {}).values(), result])
        strided = [x.untyped_storage() for x in touched if x.layout is torch.strided and not x.is_nested]
        self.most = max(self.most, sum({s._cdata: s.nbytes() for s in strided}.values()))
        return result


def at_least(run: Callable[[int], T], limit: int) -> tuple[T, int]:
    """Run with a limit, and from the start with the least one that each refusal names; return also what did it.

    Where each op needs a little more than the one before, as what cannot move becomes more, the limit soon grows by
    tenths.
    """
    for k in range(TRIES):
        try:
            return run(limit), limit
        except (LimitError, RuntimeError) as error:  # PyTorch may have wrapped it in one of its own
            named = LEAST.search(str(error))
            if named is None and not isinstance(error, LimitError):
                raise
            if named is None or int(named[1]) <= limit:
                raise AssertionError(f"at {limit} bytes no greater limit is named: {error}") from error
            limit = max(int(named[1]), limit + limit // 10 if k > FEW else 0)
    raise AssertionError(f"{TRIES} limits were named, and none did; the last one is {limit} bytes")


# by hand

BATCH = 20  # programs of a child process, which may crash
HANGS = 1800  # seconds


def main(argv: list[str]) -> int:
    """Draw programs and compare them, a child process for each batch."""
    parser = argparse.ArgumentParser(prog="python -m tests.pytorch.bits", description=__doc__)
    parser.add_argument("what", choices=["programs"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no batch after these")
    parser.add_argument("--limits", default="", help="names in `random_programs.LIMITS`, or least; left out, all")
    parser.add_argument("--smaller", action="store_true", help="look for a smaller program that fails, too")
    parser.add_argument("--batch", action="store_true", help="run in this process, as children are told to")
    args = parser.parse_args(argv)
    if args.batch:
        return _batch(args.count, args.seed, [name for name in args.limits.split(",") if name], args.smaller)
    print(f"{platform.platform()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(f"seed {args.seed}: python -m tests.pytorch.bits {' '.join(argv)}", flush=True)
    began, counts = time.monotonic(), {"programs": 0, "illegal": 0, "failed": 0, "crashed": 0}
    more = ["--limits", args.limits, *["--smaller"] * args.smaller]
    for k in range(-(-args.count // BATCH)):
        if time.monotonic() - began > 60 * args.minutes:
            break
        _child(min(BATCH, args.count - k * BATCH), 10**6 * args.seed + k * BATCH, more, counts)
        print(f"{time.monotonic() - began:6.0f} s: {counts}", flush=True)
    return bool(counts["failed"] + counts["crashed"])


def _child(count: int, seed: int, more: list[str], counts: dict[str, int]) -> None:
    """Run a batch in a process of its own; print what failed, and add to the counts."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.pytorch.bits", "programs", "--batch"]
    command += ["--count", str(count), "--seed", str(seed), *more]
    at, ended = "nothing", ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            key, _, rest = line.rstrip().partition(" ")
            if key == "at":
                counts["programs"] += 1
                at = rest
            elif key in ("illegal", "failed", "smaller"):
                counts[key] = counts.get(key, 0) + 1
                print(line.rstrip(), flush=True)
            else:
                ended = f"{ended}\n{line.rstrip()}"[-3000:]
    if child.returncode:
        counts["crashed"] += 1
        print(f"crashed ({child.returncode}) in {at}{ended}", flush=True)


def _batch(count: int, seed: int, limits: list[str], shrinks: bool) -> int:
    """Draw and compare some programs, and print a line of each."""
    import faulthandler

    from tests.pytorch.random_programs import differences, own, program as drawn, ready, run, smaller

    torch.set_num_threads(1)
    ready()
    for k in range(count):
        program = drawn(seed + k)
        faulthandler.dump_traceback_later(HANGS, exit=True)
        print(f"at {program!r}", flush=True)
        try:
            theirs = run(program)
        except Exception as error:
            print(f"illegal {program!r}: {type(error).__name__}: {str(error)[:300]!r}", flush=True)
            continue
        if found := differences(program, *limits, theirs=theirs):
            under = own(program) or "as bare"
            print(f"failed {program!r}: {found}; under a mode that does nothing: {under}", flush=True)
            if shrinks:
                least = smaller(program, next(iter(found)))
                print(f"smaller {least!r}: {differences(least, next(iter(found)))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
