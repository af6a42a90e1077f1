"""The paper's own simulator on one of its logs, run from a checkout that the user names; nothing of it is kept here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CLASSES = {
    "dtr": "DTR",
    "eq": "DTREqClass",
    "local": "DTRLocal",
    "lru": "LRU",
    "size": "LargestStorage",
    "msps": "MSPS",
}
STACK = 2**29  # bytes: it calls itself once for each storage of a chain that is made again
# Prints how the run ended, what reruns took and what all ops take, as the paper's evaluation runs it; --collapsed
# leaves views out by the simulator's own rewriting.
RUN = f"""
import json, sys, threading
sys.path.insert(0, sys.argv[1])
sys.setrecursionlimit(10**9)
threading.stack_size({STACK})
from simrd import heuristic, runtime
from simrd.parse import parse_file
from simrd.parse.graph import rewrite_collapse_aliases

def run():
    with open(sys.argv[2]) as lines:
        graph = parse_file(lines, start=True)
    graph = rewrite_collapse_aliases(graph) if sys.argv[6] == "1" else graph
    base = graph.meta["compute"]
    way = getattr(heuristic, sys.argv[4])()
    rt = runtime.RuntimeV2EagerOptimized(int(sys.argv[3]), way, remat_limit=base * float(sys.argv[5]))
    how = "ran"
    try:
        graph.get_closure()(rt)
    except MemoryError:
        how = "no room"
    except runtime.RematExceededError:
        how = "too long"
    print(json.dumps([how, rt.telemetry.summary["remat_compute"], base]))

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def simulated(
    simrd: Path,
    log: Path,
    budget: int,
    heuristic: str,
    *,
    overhead: float = 1.0,
    collapsed: bool = False,
    python: str = sys.executable,
) -> tuple[str, float]:
    """Return how an iteration ends by simrd, and the reruns' time over that of all ops, a fraction.

    Parameters
    ----------
    simrd : Path
        A checkout of github.com/uwsampl/dtr-prototype's `simrd`.
    log : Path
    budget : int
        Bytes.
    heuristic : str
        One of `CLASSES`.
    overhead : float
        It gives up where reruns take more than this; the paper, where they take as long as all ops.
    collapsed : bool
        Whether views are left out, as in our traces.
    python : str
        One that has `attrs`.

    Raises
    ------
    ValueError
        It printed no result; the message has what it said last.
    """
    given = [str(simrd), str(log), str(budget), CLASSES[heuristic], str(overhead), str(int(collapsed))]
    ran = subprocess.run([python, "-c", RUN, *given], capture_output=True, text=True, check=False)
    try:
        how, again, base = json.loads(ran.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = ran.stderr.strip().splitlines()[-1:]
        raise ValueError(f"simrd: {simrd}: no result for {log.name}: {' '.join(said)}") from None
    return how, again / base
