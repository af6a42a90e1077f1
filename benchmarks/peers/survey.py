"""Every planner asked about every instance: a row is one answer at one time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.asking import LATE, PLACED, Answer, grace
from benchmarks.peers.instances import Instance
from benchmarks.peers.table import Planner
from gpumem import io
from gpumem.base.files import read_bytes

Row = dict[str, Any]
Ask = Callable[[Planner, Instance, float], Answer]
Known = dict[str, Row]
KNOWN = Path(__file__).resolve().parents[1] / "results" / "best_known.json"


def rows_of(
    instance: Instance, planners: Mapping[str, Planner], seconds: Sequence[float], ask: Ask, known: Known
) -> list[Row]:
    """Ask all planners about an instance.

    Returns
    -------
    list of dict
        `given`: the seconds; `status`, `height`, `seconds` and `why` of the `Answer`; `ratio`: height over `load`, the
        peak live bytes; `ours`: of gpumem; `best`: the least height that is known, of this run or before.
    """
    trace = instance.trace
    load = trace.peak_live_bytes
    head = {"instance": trace.name, "family": instance.family, "buffers": len(trace.buffers), "load": load}
    rows: list[Row] = []
    for name, planner in planners.items():
        for given, answer in _answers(planner, instance, sorted(seconds), ask):
            row = {"planner": name, "ours": planner.ours, "given": given, "status": answer.status}
            found = {"height": answer.height, "ratio": answer.height / load} if answer.status == PLACED else {}
            told = {"height": None, "ratio": None} | found
            rows.append(head | row | told | {"seconds": answer.seconds, "why": answer.why})
    best: list[int] = [row["height"] for row in rows if row["height"] is not None]
    best += [known[trace.name]["height"]] if _same(known.get(trace.name), instance) else []
    return [row | {"best": min(best, default=None)} for row in rows]


def _answers(
    planner: Planner, instance: Instance, seconds: Sequence[float], ask: Ask
) -> Iterator[tuple[float, Answer]]:
    """Yield an answer for each time.

    A planner that knows no time is asked once, one whose answer nothing can beat no more. What it had by a shorter time
    counts where it is late, or higher.
    """
    answer = None
    for given in seconds:
        before = answer
        if answer is None or (planner.timed and answer.height != instance.trace.peak_live_bytes):
            answer = ask(planner, instance, given if planner.timed else seconds[-1])
        if before is not None and before.status == PLACED and _no_better(answer, before):
            answer = before
        late = answer.status != LATE and answer.seconds > given + grace(given)
        yield given, Answer(LATE) if late else answer


def _no_better(answer: Answer, before: Answer) -> bool:
    return answer.status == LATE or (answer.status == PLACED and answer.height > before.height)


def read_known(path: Path) -> Known:
    """Read the file of the lowest heights known; nothing where there is none."""
    if not path.exists():
        return {}
    try:
        found: Known = json.loads(read_bytes(path))
        if all(row["height"] > 0 and row["digest"] for row in found.values()):
            return found
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ValueError(f"{path}: holds no heights of instances")


def keep_known(path: Path, known: Known, instances: Sequence[Instance], rows: Sequence[Row]) -> Known:
    """Write the file anew with what some rows got lower, and return what it holds."""
    kept = dict(known)
    for instance in instances:
        name = instance.trace.name
        mine = [row for row in rows if row["instance"] == name and row["height"] is not None]
        lowest = min(mine, key=_lowest, default=None)
        if lowest is None or (_same(known.get(name), instance) and known[name]["height"] <= lowest["height"]):
            continue
        kept[name] = {name: lowest[name] for name in ("buffers", "load", "height", "planner", "given")}
        kept[name]["digest"] = instance.digest
    io.write_text(path, json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    return kept


def _lowest(row: Row) -> tuple[int, float]:
    return row["height"], row["given"]


def _same(known: Row | None, instance: Instance) -> bool:
    return known is not None and known["digest"] == instance.digest
