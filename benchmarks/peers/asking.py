"""Processes that call a planner: started, given a problem, judged; whatever does not end is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gpumem
from benchmarks.peers.instances import Instance
from benchmarks.peers.table import Planner
from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.trace.placement import Placement

ROOT = Path(__file__).resolve().parents[2]
STARTING = 300.0  # seconds for imports, and for loops that are compiled for the first time
PLACED, INVALID, LATE, FAILED = "placed", "invalid", "late", "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a planner said: a height if it `placed`, why not if it is `invalid`, `late` or `failed`."""

    status: str
    seconds: float = 0.0
    height: int = 0
    why: str = ""


def grace(seconds: float) -> float:
    """Seconds that an answer may be late.

    >>> grace(1.0), grace(10.0)
    (1.05, 1.5)
    """
    return 1 + 0.05 * seconds


def installed(planners: Iterable[Planner], python: str) -> Mapping[str, str | None]:
    """Return the version of each distribution that some planners need, None where it is not there."""
    names = list(dict.fromkeys(name for planner in planners for name in planner.needs))
    if not names:
        return {}
    command = [python, "-m", "benchmarks.peers.worker", "--versions", *names]
    try:
        ran = subprocess.run(command, cwd=ROOT, env=_environment(False), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"--python: {python!r} does not run: {getattr(error, 'stderr', '') or error}") from None
    found: dict[str, str | None] = json.loads(ran.stdout)
    return found


def ask(planner: Planner, instance: Instance, seconds: float, *, python: str, threads: int = 1) -> Answer:
    """Let a planner place an instance in a process of its own, and judge what it says."""
    b = instance.trace.buffers
    problem = {"size": b.size.tolist(), "start": b.start.tolist(), "end": b.end.tolist()}
    problem |= {"seconds": seconds, "threads": threads}
    request = {"adapter": planner.adapter, "end": seconds + grace(seconds), "problem": problem}
    with TemporaryDirectory() as folder:
        said = _answer(Path(folder), request, sys.executable if planner.ours else python, planner.ours)
    if "offset" not in said:
        return Answer(LATE) if said.get("late") else Answer(FAILED, why=said["failed"])
    return judged(instance, said["offset"], said["seconds"])


def judged(instance: Instance, offset: list[int], seconds: float) -> Answer:
    """Hold offsets against the naive checker."""
    try:
        placed = Placement.at(instance.trace, offset, alignment=1)
        check.placement(instance.trace, placed)
    except (CheckError, ValueError) as error:
        return Answer(INVALID, seconds, why=str(error)[:200])
    return Answer(PLACED, seconds, placed.height)


def _answer(folder: Path, request: dict[str, Any], python: str, ours: bool) -> dict[str, Any]:
    (folder / "request.json").write_text(json.dumps(request))
    command = [python, "-m", "benchmarks.peers.worker", str(folder)]
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(ours),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=STARTING + request["end"],
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"did not begin within {STARTING:.0f} s"}
    answer = folder / "answer.json"
    if ran.returncode == 0 and answer.exists():
        found: dict[str, Any] = json.loads(answer.read_text())
        return found
    if ran.returncode == -signal.SIGALRM:  # the time was over
        return {"late": True}
    last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return {"failed": f"exit status {ran.returncode}{': ' + last[0][:160] if last else ''}"}


def _environment(ours: bool) -> dict[str, str]:
    """The checkout, and for our own planners the gpumem that runs here, can be imported."""
    paths = [str(ROOT), *([str(Path(gpumem.__file__).parents[1])] if ours else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
