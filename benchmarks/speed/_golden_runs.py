"""Rows of `golden.py` for what runs: jobs, programs within a limit, MO-SOS, the command line's tables."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import astuple, replace
from hashlib import sha256
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from gpumem import Machine, bundled
from gpumem.cli.main import main as command_line
from gpumem.execute.models import cnn, mlp
from gpumem.jobs import Job, Policy, separately, simulate_jobs
from gpumem.jobs.waterwave import co_schedule, halves, partition, pipeline
from gpumem.runtime import Adaptive, ManagedReport, OnClock, play
from gpumem.simulator import workspaces
from gpumem.swap import PLANNERS
from gpumem.swap.mosos import solve_mosos
from gpumem.trace.batch import rebatch

COMMANDS = (
    "info mlp3",
    "pool mlp3 resnet18 --planner all",
    "pool mlp3 resnet18 --allocator all",
    "swap mlp3 --load-limit 95% --planner heuristic,tensile,autoswap,capuchin,on-demand,vdnn-all",
    "swap vgg16 --load-limit 70% --planner heuristic,tensile,autoswap,capuchin,on-demand,vdnn-all",
    "plan vgg16 --limit 70%",
    "plan mlp3 --limit 95% --planner tensile",
    "bound vgg16 --load-limit 60%",
    "jobs mlp3 resnet18 --limit 90%",
    "run mlp --live --limit 85% --planner autoswap",  # not `run mlp`: its plan follows from durations that it measures
)
TIMED = ("iteration, ", "copies overlapped", "seconds ")  # lines that a clock of the host measures


def digest(text: str) -> str:
    """Short enough to read, long enough to trust."""
    return sha256(text.encode()).hexdigest()[:16]


def said(command: str) -> str:
    """What a command prints, without what a clock of the host measures: the column `seconds`, some lines of `run`."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line([*command.split()])
    kept, end = [f"exit {code}", err.getvalue() if code else ""], -1  # else it is how far something has got
    for line in out.getvalue().splitlines():
        end = line.index("seconds") + len("seconds") if "  seconds" in line else end
        if not line.startswith(TIMED):
            words = ("" if word.end() == end else word[0] for word in re.finditer(r"\s+|\S+", line))
            kept.append("".join(words))
    return "\n".join(kept)


def tables() -> Iterator[str]:
    """What commands print."""
    for command in COMMANDS:
        yield f"{digest(said(command))} gpumem {command}"


def of_report(report: ManagedReport) -> str:
    """A run within a limit, without its times."""
    rows = [astuple(replace(row, seconds=0.0)) for row in report.iterations]
    return repr((report.limit, report.plan and report.plan.to_json(), report.planned_peak, rows, report.notes))


def adaptive(traces: tuple[str, ...]) -> Iterator[str]:
    """Logs of programs on the transparent device, by the clock."""
    for name in traces:
        for planner in ("heuristic", "tensile"):
            trace = bundled(name)
            limit = trace.peak_live_bytes * (95 if name == "mlp3" else 70) // 100
            with Adaptive(OnClock(Machine.named("gtx1080ti")), limit, planner=planner, wait=True) as device:
                play(trace, None, device, iterations=6)
                log, told = [*map(repr, device.log)], device.report()
            took = [round(row.seconds * 1e9) for row in told.iterations]
            yield f"{digest(repr((log, of_report(told), took)))} {name} adaptive {planner} {took[-2]}"


def jobs() -> Iterator[str]:
    """Logs of jobs under TENSILE, under a planner each for itself, and under Waterwave."""
    machine, traces = Machine.named("rtx2080ti"), (bundled("mlp3"), bundled("resnet18"))
    policies = {"tensile": Policy(), "separately": Policy(separately(PLANNERS["heuristic"]))}
    for name, policy in policies.items():
        both = [Job("a", traces[0], iterations=4), Job("b", traces[1], arrival=10**7, iterations=3)]
        ran = simulate_jobs(both, machine, sum(t.peak_live_bytes for t in traces) * 9 // 10, policy, slowdown=1)
        yield f"{digest(repr([*map(repr, ran.log)]))} mlp3+resnet18 jobs {name} {ran.peak}"
    card = Machine.named("v100")
    for name in ("vgg16", "resnet18"):
        job = rebatch(bundled(name), 8)
        parts = [partition(job, card, split=job.peak_live_bytes // 2)] * 2
        for how, line in {"groups": pipeline(parts), "halves": halves([job, job], card)[0]}.items():
            both = co_schedule(line, card)
            ops = both.trace.ops.name, both.trace.buffers.size.tolist()
            yield f"{digest(repr(ops))} {name} waterwave {how} {both.trace.peak_live_bytes}"


def mosos() -> Iterator[str]:
    """Schedules of MO-SOS of small nets: the integer program and its rounding."""
    for model in (mlp(batch=8, hidden=(16,) * 3), cnn(batch=2, side=4, channels=(2, 4))):
        trace = workspaces.add(model.trace)
        for percent in (90, 80):
            limit, named = trace.peak_live_bytes * percent // 100, f"{trace.name or trace.n} mosos {percent}%"
            try:
                found = solve_mosos(trace, Machine.named("p40"), limit)
            except (ValueError, ArithmeticError) as error:
                yield f"{digest(repr(error))} {named} refused"
                continue
            yield f"{digest(found.plan.to_json())} {named} {len(found.plan.decisions)}"


def managed() -> Iterator[str]:
    """A PyTorch step within limits, on a host that plays the GPU; left out where PyTorch is absent.

    Processors round otherwise, so what is trained is no row: only whether a bare step trains the same.
    """
    if not find_spec("torch"):
        return
    from gpumem.torch import managed

    right, _ = trained(nullcontext(), lambda: "")
    for limit in ("1500KiB", "75%"):
        for planner in ("heuristic", "on-demand"):
            run = managed(limit, device="cpu", planner=planner, wait=True)
            found, told = trained(run, lambda run=run: of_report(run.report()))  # type: ignore[misc]
            yield f"{digest(told)} managed {limit} {planner} {'as-bare' if found == right else 'not-as-bare'}"


def trained(within: Any, report: Callable[[], str]) -> tuple[list[Any], str]:
    """The parameters of a net after some steps, and what is reported then."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(64, 64), torch.nn.Tanh())))
    sgd, x = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), torch.randn(512, 64)
    with within:
        for _ in range(8):
            sgd.zero_grad()
            net(x).square().mean().backward()
            sgd.step()
        told = report()
    return [p.tolist() for p in net.parameters()], told


def runs(quick: bool) -> Iterator[str]:
    """All rows; with `quick` those of one trace."""
    with patch("sys.argv", ["gpumem"]):
        sources: list[Callable[[], Iterator[str]]] = [jobs, mosos, managed, tables]
        yield from adaptive(("vgg16",) if quick else ("mlp3", "vgg16", "resnet18"))
        for source in sources:
            yield from source()
