"""What `growth.py` measures: one row on one prepared step, in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

MACHINE, PERCENT = "rtx4090", 60
PROGRAMS = ("ilp", "mosos", "checkmate", "checkmate-auto", "str", "str-auto", "zero_stall_limit", "least_stall")

Run = Callable[[], object]


def planner(name: str, seconds: float | None) -> Callable[[Any], Run]:
    """A planner; what it returns is judged by the capacity clock, outside of the measurement."""

    def prepared(known: dict[str, Any]) -> Run:
        from gpumem.swap import PLANNERS

        options = {} if seconds is None else {"seconds": seconds}
        return lambda: PLANNERS[name](known["trace"], known["machine"], known["limit"], **options)

    return prepared


def bound(name: str, seconds: float | None) -> Callable[[Any], Run]:
    """A certified bound."""

    def prepared(known: dict[str, Any]) -> Run:
        from gpumem import swap

        limits = [known["limit"]] if name == "least_stall" else []
        return lambda: getattr(swap, name)(known["trace"], known["machine"], *limits, seconds=seconds)

    return prepared


def clock(what: str) -> Callable[[Any], Run]:
    """The simulator, and what it stands on."""

    def prepared(known: dict[str, Any]) -> Run:
        from gpumem.pool import best_fit
        from gpumem.simulator import hazards, simulate

        swapped, machine, placement = known["swapped"], known["machine"], known["placement"]
        return {
            "apply": lambda: known["plan"].apply(known["trace"]),
            "best_fit": lambda: best_fit(swapped),
            "capacity clock": lambda: simulate(swapped, machine, capacity=known["limit"]),
            "placed clock": lambda: simulate(swapped, machine, placement),
            "hazards": lambda: hazards(swapped, placement),
        }[what]

    return prepared


def oracle(what: str) -> Callable[[Any], Run]:
    """A check of what `heuristic` plans."""

    def prepared(known: dict[str, Any]) -> Run:
        from gpumem import check

        swapped, durations, limit = known["swapped"], known["machine"].durations(known["swapped"]), known["limit"]
        return {
            "check.placement": lambda: check.placement(swapped, known["placement"]),
            "check.data_flow": lambda: check.data_flow(known["trace"], swapped),
            "check.budget": lambda: check.budget(swapped, limit, host=known["machine"].pinned),
            "check.timeline, capacity": lambda: check.timeline(swapped, known["line"], durations, capacity=limit),
            "check.timeline, placed": lambda: check.timeline(
                swapped, known["placed"], durations, placement=known["placement"]
            ),
        }[what]

    return prepared


def file(what: str) -> Callable[[Any], Run]:
    """Writing and reading, and capturing in PyTorch."""

    def prepared(known: dict[str, Any]) -> Run:
        path = f"{known['path']}.{os.getpid()}.json.gz"
        if what == "capture":
            return _capture(known["ops"])
        from gpumem.io import read, write

        def wrote() -> object:
            return write(path, known["trace"])

        if what == "write":
            return wrote
        wrote()
        return lambda: read(path)

    return prepared


def _capture(ops: int) -> Run:
    """Capture the net that `blocks` restates."""
    from benchmarks.speed._blocks import make
    from benchmarks.speed._growing import BLOCK_OPS
    from gpumem.torch import record

    return lambda: record(lambda: make(max(ops // BLOCK_OPS, 1)))


def rows(seconds: float) -> dict[str, Callable[[Any], Run]]:
    """What is measured, by name."""
    from gpumem.swap import PLANNERS

    def cap(name: str) -> float | None:
        return seconds if name in PROGRAMS else None

    found = {name: planner(name, cap(name)) for name in PLANNERS}
    found |= {name: bound(name, cap(name)) for name in ("least_stall", "zero_stall_limit")}
    found |= {name: clock(name) for name in ("apply", "best_fit", "capacity clock", "placed clock", "hazards")}
    checks = ("placement", "data_flow", "budget", "timeline, capacity", "timeline, placed")
    found |= {f"check.{name}": oracle(f"check.{name}") for name in checks}
    return found | {name: file(name) for name in ("write", "read", "capture")}


def prepare(kind: str, ops: int, seed: int, path: Path) -> int:
    """Write down a step and what `heuristic` plans for it, so that no measurement pays for them; return its ops."""
    from benchmarks.speed._growing import MAKERS
    from gpumem.io import read
    from gpumem.pool import best_fit
    from gpumem.simulator import Machine, simulate
    from gpumem.swap import heuristic

    trace, machine = MAKERS[kind](ops, seed) if kind in MAKERS else read(kind), Machine.named(MACHINE)
    known: dict[str, Any] = {"trace": trace, "machine": machine, "limit": trace.peak_live_bytes * PERCENT // 100}
    known |= {"ops": ops, "path": str(path), "plan": heuristic(trace, machine, known["limit"])}
    known["swapped"] = known["plan"].apply(trace)
    known["placement"] = best_fit(known["swapped"])
    known["line"] = simulate(known["swapped"], machine, capacity=known["limit"])
    known["placed"] = simulate(known["swapped"], machine, known["placement"])
    path.write_bytes(pickle.dumps(known))
    return trace.n


def measure(name: str, seconds: float, cap: int, path: Path, small: Path) -> None:
    """Run one row, for `cap` seconds of the processor at most; print seconds, MiB, and what came out.

    A plan is judged in as much time again: one with millions of reruns may not be.
    """
    row = rows(seconds)[name]
    _outcome(row(pickle.loads(small.read_bytes())))  # compiled, or loaded
    known = pickle.loads(path.read_bytes())
    run, before, began = row(known), _resident(), _processor()
    resource.setrlimit(resource.RLIMIT_CPU, (int(began) + cap, -1))
    found = _outcome(run)
    taken, most = _processor() - began, _resident("VmHWM")
    solver = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    figures = {"seconds": taken, "mib": most - before + solver}
    print(json.dumps(figures | {"says": "not judged"}), flush=True)
    resource.setrlimit(resource.RLIMIT_CPU, (int(_processor()) + cap, -1))
    print(json.dumps(figures | {"says": found if isinstance(found, str) else _judged(known, found)}))


def _outcome(run: Run) -> object:
    """What a run returns, or how it ended in words."""
    from gpumem.base.errors import Infeasible, NotReached

    try:
        return run()
    except (Infeasible, NotReached):
        return "not reached"


def _judged(known: dict[str, Any], found: object) -> str:
    """The overhead of a plan."""
    from gpumem.simulator import simulate
    from gpumem.swap import Plan

    if not isinstance(found, Plan):
        return ""
    line = simulate(found.apply(known["trace"]), known["machine"], capacity=known["limit"])
    return f"{100 * line.overhead(simulate(known['trace'], known['machine'])):.2f} %"


def _processor() -> float:
    """Seconds of the processor so far, of this process and of what it waited for."""
    return sum(os.times()[:4])


def _resident(what: str = "VmRSS") -> float:
    """MiB that are resident; reading them begins a new maximum."""
    lines = Path("/proc/self/status").read_text().splitlines()
    if what == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def main() -> None:
    """Prepare a step, or measure a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepare", nargs=3, metavar=("KIND", "OPS", "PATH"))
    parser.add_argument("--row", nargs=3, metavar=("ROW", "PATH", "SMALL"))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--cap", type=int, default=600)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (args.gib << 30, args.gib << 30))
    if args.prepare:
        kind, ops, path = args.prepare
        print(json.dumps({"ops": prepare(kind, int(ops), args.seed, Path(path))}))
    else:
        name, path, small = args.row
        measure(name, args.seconds, args.cap, Path(path), Path(small))


if __name__ == "__main__":
    main()
