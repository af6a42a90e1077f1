"""Wall time of `import gpumem`, of the main job and of planners, with an empty and with a filled compiler cache.

`PYTHONPATH` says which gpumem is measured, so that two checkouts can be measured side by side.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.speed._bench import header

IMPORT = [sys.executable, "-c", "import gpumem"]
NOTHING = [sys.executable, "-c", "pass"]
JOB = [sys.executable, "-m", "gpumem", "plan", "--limit", "70%"]
PLANNERS = ("on-demand", "autoswap", "tensile", "search")


def wall(command: list[str], environment: dict[str, str], times: int) -> tuple[float, float, float]:
    """Return minimum, median and maximum seconds."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        seconds.append(time.perf_counter() - begin)
    return min(seconds), statistics.median(seconds), max(seconds)


def main() -> None:
    """Print a line a measurement."""
    print(header())
    print(f"\n{'':36}{'runs':>6}{'min s':>8}{'median':>8}{'max':>8}")
    for planner in PLANNERS:
        swap = [sys.executable, "-m", "gpumem", "swap", "--limit", "70%", "--planner", planner]
        with tempfile.TemporaryDirectory() as cache:
            seconds = wall(swap, {**os.environ, "NUMBA_CACHE_DIR": cache}, 1)
        print(f"{planner + ', the very first time':36}{1:>6}" + "".join(f"{s:>8.2f}" for s in seconds))
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as out:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        for what, command, times in (
            ("python -c pass", NOTHING, 15),
            ("import gpumem", IMPORT, 15),
            ("main job, the very first time", JOB, 1),
            ("main job", JOB, 9),
            ("main job with --out", [*JOB, "--out", out], 5),
        ):
            print(f"{what:36}{times:>6}" + "".join(f"{s:>8.2f}" for s in wall(command, environment, times)))


if __name__ == "__main__":
    main()
