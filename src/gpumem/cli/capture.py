"""`gpumem capture`: a PyTorch training step as a trace."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpumem.base import work
from gpumem.base.names import one_of
from gpumem.cli.common.args import MEASURED, check_file, times_of
from gpumem.cli.common.parser import Command, OneOf, option
from gpumem.cli.common.progress import Progress, complain, tell
from gpumem.cli.common.workloads import (
    ASSUMED,
    CHUNK,
    DEVICE,
    DEVICES,
    WORKLOADS,
    as_script,
    name_of,
    words_of,
    workload_of,
)

if TYPE_CHECKING:
    from gpumem.torch import Captured
    from gpumem.trace import Trace


def run(args: argparse.Namespace) -> int:
    """Record a PyTorch training step; write its last iterations as a trace that every command reads."""
    if args.compare:
        return _compare(args)
    check_file(args.out, (".json", ".json.gz"))
    words = words_of(args)
    times = None if args.measured is None else times_of(args.measured)
    with Progress(), as_script(words):
        work.tell(f"loading {shlex.join(words)}")
        make = workload_of(words, args.device)
        from gpumem.torch import record

        work.tell("recording")
        captured = record(make, args.device, name=name_of(words), **_sizes(args))
    if times is not None:
        captured = captured.timed(times)
    from gpumem import io

    io.write_recording(args.out, captured.recording, captured.bounds[-args.iterations :], name=captured.trace.name)
    for note in captured.notes:
        tell(f"{captured.trace.name}: {note}")
    iterations = min(args.iterations, len(captured.bounds))
    written = _Written(captured, args.out, device=args.device, batch=args.batch, iterations=iterations)
    print(json.dumps(written.row()) if args.json else written.text())
    return 0


def _compare(args: argparse.Namespace) -> int:
    """Record the step on the device and on the host; say where they part."""
    one_of("--device", args.device, [device for device in DEVICES if device != "cpu"])
    words = words_of(args)
    if args.script is not None:
        raise ValueError("--compare: a step is compared, FILE.py:make; a script runs on one device only")
    if args.measured is not None:
        raise ValueError("--compare: it compares ops, and not their times; leave --measured out")
    with Progress(), as_script(words):
        work.tell(f"loading {words[0]}")
        make: Any = workload_of(words, args.device)
        from gpumem.torch import compare

        work.tell("recording twice")
        written = compare(make, device=args.device, name=name_of(words), **_sizes(args))
    for note in written.device.notes:
        tell(f"{written.device.trace.name}: {note}")
    print(json.dumps(written.row()) if args.json else written.report())
    if not written.agrees:
        complain(written.answer())
    return 0 if written.agrees else 3


def _sizes(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("batch", "iterations", "warmup", "chunk", "assume")}


@dataclass(frozen=True, slots=True)
class _Written:
    """What was recorded, of which batch (None: as the workload has it), and where it is written."""

    captured: Captured
    file: str
    device: str
    batch: int | None
    iterations: int

    def row(self) -> dict[str, object]:
        """Return what there is to say about it for JSON, in bytes."""
        from gpumem.pipeline import peak_by_kind

        trace, buffers = self.captured.trace, self.captured.trace.buffers
        return {
            "file": self.file,
            "name": trace.name,
            "device": self.device,
            "batch": self.batch,
            "ops": trace.n,
            "iterations": self.iterations,
            "buffers": len(buffers),
            "peak_live_bytes": trace.peak_live_bytes,
            "peak_by_kind": dict(peak_by_kind(trace)),
            "persistent": int(buffers.size[buffers.persistent].sum()),
            "kept": self.captured.kept,
            "notes": list(self.captured.notes),
            "assumptions": [asdict(one) for one in self.captured.assumptions],
        }

    def text(self) -> str:
        """Say it for people, and what to type next."""
        from gpumem.base.units import human
        from gpumem.pipeline import peak_by_kind

        trace, buffers = self.captured.trace, self.captured.trace.buffers
        kinds = ", ".join(f"{kind} {human(size)}" for kind, size in peak_by_kind(trace))
        batch = "" if self.batch is None else f" at batch {self.batch}"
        iterations = f"{self.iterations} iteration{'s' * (self.iterations > 1)}"
        lines = [
            f"{trace.name}{batch}: {trace.n} ops, {len(buffers)} buffers; {iterations} in {self.file}",
            *(f"  {'' if k else 'assumed':16}{one}" for k, one in enumerate(self.captured.assumptions)),
            f"  {'peak live bytes':16}{human(trace.peak_live_bytes)}: {kinds}",
            f"  {'persistent':16}{human(int(buffers.size[buffers.persistent].sum()))}",
            f"  {'kept':16}{human(self.captured.kept)} more in each iteration",
            f"next: gpumem plan {shlex.quote(self.file)}{_limited(trace)} --machine rtx4090",
        ]
        return "\n".join(lines)


def _limited(trace: Trace) -> str:
    """What to plan for next: 70 % of the peak, more where some op alone holds more; the machine if need be."""
    from gpumem.swap.facts.limits import floor

    needs = floor(trace)[1]
    part = next((part for part in (70, 80, 90) if part * trace.peak_live_bytes >= 100 * needs), 0)
    return f" --limit {part}%" if part else ""


COMMAND = Command(
    "capture",
    run,
    "record a PyTorch training step as a trace",
    options=(
        *WORKLOADS,
        OneOf(
            (
                option("-o", "--out", metavar="FILE", help="the trace to write: .json or .json.gz"),
                option(
                    "--compare",
                    action="store_true",
                    help="write none: record the step on the host for real as well, and say where the two lists of ops "
                    "part",
                ),
            ),
            required=True,
        ),
        DEVICE,
        option("--batch", type=int, metavar="N", help="handed on to make"),
        option("--iterations", type=int, default=2, metavar="N", help="to record (default: %(default)s)"),
        option("--warmup", type=int, default=1, metavar="N", help="to run before those (default: %(default)s)"),
        CHUNK,
        ASSUMED,
        MEASURED,
        option("--json", action="store_true", help="print the summary as one JSON object"),
    ),
    examples=(
        "gpumem capture train.py:make -o trace.json.gz",
        "gpumem capture train.py:make -o trace.json.gz --batch 64 --device cpu",
        "gpumem capture train.py:make --compare --batch 2",
        "gpumem capture -o trace.json.gz --script train.py --epochs 1 --batch-size 64",
    ),
)
