"""`python -m benchmarks.peers.worker FOLDER`: one planner, one problem; the process ends if that takes too long.

It reads `request.json`, and writes `answer.json` with `offset` and `seconds`, or with what `failed`; no answer means
that it was ended. `--versions NAME ...` prints what is installed here.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.problem import Adapter, OutOfTime, Problem

BYTES = 6 * 2**30  # that a planner may hold
DEEP = 100_000  # Python's frames: some planners recurse once a buffer


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Call the planner that a request names; the alarm ends the process, whatever it is doing."""
    module, _, name = request["adapter"].partition(":")
    adapter: Adapter = getattr(import_module(module), name)
    call = adapter(Problem(**request["problem"]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, request["end"])
    try:
        placed = call.place()
    except OutOfTime:
        return {"late": True}
    seconds = time.perf_counter() - begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"offset": [int(at) for at in call.offsets(placed)], "seconds": seconds}


def main(folder: Path) -> None:
    """Answer the request in a folder."""
    request = json.loads((folder / "request.json").read_text())
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    sys.setrecursionlimit(DEEP)
    try:
        found = answer(request)
    except Exception as error:  # whatever a peer raises is a row of the table
        signal.setitimer(signal.ITIMER_REAL, 0)
        found = {"failed": f"{type(error).__name__}: {error}"[:200]}
    (folder / "answer.json").write_text(json.dumps(found))


def versions(names: list[str]) -> dict[str, str | None]:
    """Return the version of each distribution, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--versions":
        print(json.dumps(versions(sys.argv[2:])))
    else:
        main(Path(sys.argv[1]))
