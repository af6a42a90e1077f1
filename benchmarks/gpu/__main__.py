"""What a GPU says: the link alone and under load, the executor's own cost, planned against unmanaged, jobs, allocators.

One command, under nine minutes on any GPU: `python -m benchmarks.gpu [--only SECTION] [--json FILE] [--quick]`. Prints
tables; with `--json` writes all figures, after each section. A section has a time within which it does what it can, and
says what it left out. With `--latency FILE` it also measures ops of many sizes, alone and beside another job, and
writes the table that latency prediction learns from. Needs a device (see `gpumem doctor`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cuda.core import Device

from benchmarks.gpu.buffers import TITLE as BUFFERS, allocators
from benchmarks.gpu.issuing import TITLE as ISSUING, overhead
from benchmarks.gpu.link import TITLE as LINK, bandwidth
from benchmarks.gpu.planned import TITLE as PLANNED, jobs, planned
from benchmarks.gpu.shared import SEED, Bench, Row, show
from benchmarks.gpu.steps import TITLE as STEPS, steps
from benchmarks.speed._bench import header
from benchmarks.speed._jobs import TITLE as JOBS
from benchmarks.speed._latency import TITLE as OPS, measurements, summary
from benchmarks.speed._limits import TITLE as LIMITS, limits
from benchmarks.speed._requests import TITLE as REQUESTS, requests
from gpumem.base import work
from gpumem.base.files import replacing
from gpumem.base.names import choice
from gpumem.execute.cuda import devices, driver
from gpumem.execute.latency import LatencyTable, write_table
from gpumem.kernels import device as kernels


@dataclass(frozen=True)
class Section:
    """What is measured: within how many seconds, what stands above its table, the function that returns its rows."""

    seconds: float
    title: str
    run: Callable[[Bench], list[Row]]


def call_costs(bench: Bench) -> list[Row]:
    """What a malloc and its free take."""
    return requests(3 if bench.quick else 21)


def pytorch(bench: Bench) -> list[Row]:
    """A PyTorch step within limits; nothing without PyTorch."""
    if _version("torch") == "absent":
        bench.cut.append("PyTorch is not here")
        return []
    return limits(bench.quick, late=bench.late)


def latency(bench: Bench, path: str) -> list[Row]:
    """Write the table for latency prediction; show it by type of op."""
    rows, missed = measurements(bench.device, kernels, quick=bench.quick, seed=SEED, late=bench.late)
    versions = f"numba-cuda {_version('numba-cuda')}, numba {_version('numba')}"
    where = f"{devices()[0]}, driver {driver()[0]}, {versions}, {' '.join(sys.argv)}"
    write_table(path, LatencyTable(tuple(rows), where))
    print(f"# {len(rows)} measurements in {path}; {missed} runs outlasted the other job and do not count")
    return summary(rows)


SECTIONS = {
    "bandwidth": Section(60, LINK, bandwidth),
    "executor": Section(20, ISSUING, overhead),
    "models": Section(150, PLANNED, planned),
    "jobs": Section(80, JOBS, jobs),
    "allocators": Section(15, BUFFERS, allocators),
    "requests": Section(20, REQUESTS, call_costs),
    "steps": Section(100, STEPS, steps),
    "limits": Section(60, LIMITS, pytorch),
}
WHOLE = 530  # seconds for all of them: where one has taken longer, the last ones have less
LATENCY = 240  # seconds more, for who asks for it


def main(argv: list[str] | None = None) -> int:
    """Print all tables."""
    args = _parsed(argv)
    sections = {name: SECTIONS[name] for name in args.only}
    if args.latency:
        sections["latency"] = Section(LATENCY, OPS, partial(latency, path=args.latency))
    begin = time.perf_counter()
    device = Device(0)
    device.set_current()
    names = ("numba-cuda", "cuda-core", "cuda-bindings", "numba", "numpy", "cupy-cuda12x", "cupy-cuda13x", "torch")
    told = {"device": devices()[0], "driver": driver()[0], "versions": {name: _version(name) for name in names}}
    print(header(SEED))
    print(f"# device: {told['device']}, driver {told['driver']}, {told['versions']}")
    result: dict[str, Any] = told | {"command": " ".join(sys.argv), "seconds": {}, "left out": {}, "failed": {}}
    with work.within(WHOLE + LATENCY * bool(args.latency)):
        for name, section in sections.items():
            with work.within(section.seconds):
                _measured(name, section, Bench(device, args.quick), result)
            if args.json:
                with replacing(args.json) as file:
                    file.write(json.dumps(result, indent=1).encode())
    print(f"\n# took {time.perf_counter() - begin:.0f} s")
    return 1 if result["failed"] else 0


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join(SECTIONS)
    told = f"what to measure, also several with commas or again and again: {names}"
    parser.add_argument("--only", metavar="SECTION", action="append", help=told)
    parser.add_argument("--json", metavar="FILE", help="write all figures there, after each section")
    parser.add_argument(
        "--latency", metavar="FILE", help="measure ops for latency prediction, and write the table there"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    args = parser.parse_args(argv)
    asked = [name for given in args.only or [] for name in given.split(",")]
    try:
        for name in asked:
            choice(name, SECTIONS, "--only")
    except ValueError as wrong:
        parser.error(str(wrong))
    args.only = [name for name in SECTIONS if name in asked or not args.only]
    return args


def _measured(name: str, section: Section, bench: Bench, result: dict[str, Any]) -> None:
    """Measure a section; what goes wrong in one is told, and the next is measured all the same."""
    begin = time.perf_counter()
    try:
        result[name] = section.run(bench)
        show(section.title, result[name])
    except Exception as error:
        traceback.print_exc()
        result["failed"][name] = f"{type(error).__name__}: {error}"
    result["seconds"][name] = round(time.perf_counter() - begin, 1)
    print(f"# {name}: {result['seconds'][name]} s" + (f"; left out: {', '.join(bench.cut)}" if bench.cut else ""))
    if bench.cut:
        result["left out"][name] = bench.cut


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    raise SystemExit(main())
