"""Is what is captured what runs? Nets without a device beside the same nets on the host, op by op; a line a net.

`python -m benchmarks.captures [--only PART[,PART]] [--net TEXT] [--json FILE]`; the parts are text nets x masks, all of
torchvision, 60 of timm, odd programs. `--constructors` compares counts and bytes of parameters instead, of every net
that the libraries have. Needs the `zoo` extra, diffusers, MONAI and peft; what is missing is told in its line.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.speed._bench import header
from gpumem.torch import CaptureComparison, WorkloadError, compare, record

PARTS = ("text", "torchvision", "timm", "odd")
DRAWS = ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_")
DRAWS += ("xavier_normal_", "orthogonal_")
LONGEST = 120  # seconds of one constructor, of which some draw for hours
MOST = 2**30  # bytes of parameters that are made on the host: of more, some libraries draw for minutes
Case = tuple[str, Callable[..., Any]]


def main() -> None:
    """Compare, print a line a net, and the sums."""
    args = arguments()
    print(header(0))
    print(f"# torch {torch.__version__}\n")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    rows = []
    for part in args.only.split(","):
        for name, make in cases(part, args.constructors):
            if args.net in name:
                rows.append(row_of(part, name, make, parameters if args.constructors else ops))
                print(line(rows[-1]), flush=True)
    print("\n" + "\n".join(sums(rows)))
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.captures", description=__doc__)
    p.add_argument("--only", default=",".join(PARTS), metavar="PART[,PART]", help="default: %(default)s")
    p.add_argument("--net", default="", metavar="TEXT", help="nets with this in their names")
    p.add_argument("--constructors", action="store_true", help="compare parameters, and run nothing")
    p.add_argument("--json", metavar="FILE", help="write all rows there")
    return p.parse_args()


def cases(part: str, constructors: bool) -> Iterator[Case]:
    """The nets of a part: what trains each, or what builds it."""
    folder, of = ("vision", (part,)) if part in ("torchvision", "timm") else (part, ())
    module = import_module(f"benchmarks.captures.{folder}")
    yield from getattr(module, "constructors" if constructors else "cases", lambda: ())(*of)


def row_of(part: str, name: str, make: Callable[..., Any], found: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """One net's row; whatever it raises is its verdict."""
    begin = time.perf_counter()
    try:
        row = found(make, name)
    except WorkloadError as error:
        row = {"verdict": "refused", "why": str(error)}
    except Exception as error:  # a library that is missing, or fails for itself
        row = {"verdict": "fails", "why": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    gc.collect()
    return {"part": part, "net": name, **row, "seconds": time.perf_counter() - begin}


def ops(make: Callable[..., Any], name: str) -> dict[str, Any]:
    """Train without a device and on the host; compare the last iterations."""
    found = compare(make, name=name)
    verdict = "parts" if not found.agrees else "by backend" if found.by_backend else "equal"
    return {"verdict": verdict, "why": why(found), **found.row(), "verdict_told": found.verdict} | {"verdict": verdict}


def why(found: CaptureComparison) -> str:
    """Where a net parts and in which ops; else by which rows of the table."""
    if found.agrees:
        return ", ".join(row.what for row in found.by_backend)
    names = [
        f"{sign}{name}"
        for p in found.partings
        for sign, side in (("-", p.device), ("+", p.host), ("~", p.sizes))
        for name in side
    ]
    return f"{found.verdict}: {' '.join([*dict.fromkeys(names)][:8])}"


def parameters(build: Callable[[], Any], name: str) -> dict[str, Any]:
    """Build a net without a device and on the host; compare its parameters."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST)
    try:
        return _parameters(build)
    finally:
        signal.alarm(0)


def _too_long(*args: Any) -> None:
    raise TimeoutError(f"not built within {LONGEST} s")


def _parameters(build: Callable[[], Any]) -> dict[str, Any]:
    counts = [_built(build, "meta")]
    if counts[0][1] > MOST:
        return {"verdict": "too large", "why": f"{counts[0][1]} bytes on the host", "counts": counts}
    counts.append(_built(build, "cpu"))
    verdict = "equal" if counts[0] == counts[1] else "parts"
    return {"verdict": verdict, "why": "" if verdict == "equal" else f"{counts[0]} and {counts[1]}", "counts": counts}


def _built(build: Callable[[], Any], device: str) -> tuple[int, int]:
    """How many parameters a net has, and their bytes."""
    found: list[tuple[int, int]] = []

    def make() -> Callable[[], object]:
        with _undrawn(device):
            net = build()
        found.append((len([*net.parameters()]), sum(p.nbytes for p in net.parameters())))
        return lambda: (net, torch.zeros(2).add_(1))  # it holds the net, or that would be freed in the recording

    record(make, device, iterations=1, warmup=0)
    return found[0]


@contextmanager
def _undrawn(device: str) -> Iterator[None]:
    """Draw no weights on the host, whose memory is never touched then."""
    if device != "cpu":
        yield
        return
    leave = [patch.object(torch.nn.init, name, lambda x, *args, **how: x) for name in DRAWS]
    leave += [
        patch.object(torch.Tensor, name, lambda x, *args, **how: x) for name in ("normal_", "uniform_", "erfinv_")
    ]
    for each in leave:
        each.start()
    try:
        yield
    finally:
        for each in leave:
            each.stop()


def line(row: dict[str, Any]) -> str:
    """One net's line."""
    peaks = [row[side]["peak_live_bytes"] for side in ("device", "host") if isinstance(row.get(side), dict)]
    peak = f"{peaks[0] / peaks[1] - 1:+.1%}" if len(peaks) == 2 and peaks[1] else ""
    return f"{row['part']:12}{row['net']:40}{row['seconds']:6.1f} s {peak:>8}  {row['verdict']}: {row['why']:.240}"


def sums(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How many of each verdict in each part, and what parts by cause."""
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = Counter(row["verdict"] for row in rows if row["part"] == part)
        yield f"{part:12}{', '.join(f'{count} {verdict}' for verdict, count in mine.most_common())}"
    causes: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["verdict"] in ("parts", "refused", "fails"):
            causes[row["why"].partition(": ")[2][:100]].append(row["net"])
    for cause, nets in sorted(causes.items(), key=lambda item: -len(item[1])):
        yield f"{len(nets):4}  {cause}: {', '.join(nets[:12])}{' ...' if len(nets) > 12 else ''}"


if __name__ == "__main__":
    main()
