"""The program as a whole: help, version, what ends it, streams that are full or closed, and our own mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem import swap
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from tests.conftest import Cli


@pytest.mark.parametrize("suite", ["swap", "pool", "tensile"])
def test_help_shows_percent_signs_and_not_the_parser(cli: Cli, suite: str) -> None:
    assert "{" not in cli("bench", suite, "--help").out


def test_help_and_version(cli: Cli) -> None:
    ran = cli("--version")
    assert (ran.status, ran.out.strip(), ran.err) == (0, f"gpumem {gpumem.__version__}", [])
    ran = cli("--help")
    assert (ran.status, ran.err) == (0, [])
    assert all(command in ran.out for command in ("plan", "pool", "info"))
    for command, options in {
        "plan": ["--limit", "--load-limit", "--machine", "--planner", "--score", "--pool", "--out", "--json"],
        "pool": [
            "--planner",
            "--allocator",
            "--effort",
            "--seconds",
            "--seed",
            "--capacity",
            "--alignment",
            "--out",
            "--json",
        ],
        "info": ["--json"],
    }.items():
        ran = cli(command, "--help")
        assert (ran.status, ran.err) == (0, [])
        assert all(option in ran.out for option in options)


def test_memory_that_runs_out_is_one_line(cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def huge(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gpumem.io.load", huge)
    assert cli.refuses("info", net_file) == "gpumem: error: out of memory"


def test_an_interrupt_is_one_line(cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpumem.io.load", interrupted)
    assert cli.refuses("info", net_file, status=130) == "gpumem: interrupted"


def test_the_module_runs_and_its_output_may_be_cut_off(net_file: Path) -> None:
    command = [sys.executable, "-m", "gpumem"]
    env = os.environ | {"PYTHONPATH": str(Path(gpumem.__file__).parents[1])}
    ran = subprocess.run([*command, "info", str(net_file)], capture_output=True, text=True, check=False, env=env)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "peak live bytes" in ran.stdout
    ran = subprocess.run([*command, "info", "/nowhere"], capture_output=True, text=True, check=False, env=env)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "gpumem: error: /nowhere: No such file or directory\n"
    with subprocess.Popen(
        [*command, "info", *[str(net_file)] * 400], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # as `head` does
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_gpumem_alone_prints_the_help(cli: Cli) -> None:
    ran = cli()
    assert (ran.status, ran.err, ran.out) == (0, [], cli("--help").out)
    assert "gpumem plan --limit 70%" in ran.out and "docs/" in ran.out
    assert cli("help").out == ran.out
    assert cli("help", "plan").out == cli("plan", "--help").out
    assert "examples:\n  gpumem plan --limit 70%\n" in cli("plan", "--help").out


@pytest.mark.parametrize("error", [TypeError("trace: a list is no Trace"), KeyError("x"), ZeroDivisionError("by 0")])
@pytest.mark.parametrize("where", ["before", "after"])
def test_what_we_did_wrong_is_one_line_unless_asked_for_more(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    def wrong(trace: Trace, machine: Machine, limit: int) -> Plan:
        raise error

    wrong.__module__ = swap.__name__  # one of ours
    monkeypatch.setitem(swap.PLANNERS, "wrong", wrong)  # type: ignore[arg-type]
    line = ["plan", "mlp3", "--planner", "wrong", "--load-limit", "95%"]
    told = f"gpumem: internal error: {type(error).__name__}: {error}"
    more = "; run it again with --traceback, and report what it says"
    assert cli.refuses(*line, status=1) == told + more
    ran = cli(*(["--traceback", *line] if where == "before" else [*line, "--traceback"]))
    assert (ran.status, ran.out, ran.err[0], ran.err[-1]) == (1, "", "Traceback (most recent call last):", told)


ENV = os.environ | {"PYTHONPATH": str(Path(gpumem.__file__).parents[1])}
ENV.pop("PYTHONUNBUFFERED", None)
FULL = "gpumem: error: output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("info mlp3 >/dev/full", 1, FULL),
        ("--help >/dev/full", 1, FULL),
        ("info mlp3 >&-", 0, ""),
        ("info nosuch 2>&-", 2, ""),
    ],
)
def test_streams_that_are_full_or_closed(line: str, status: int, told: str) -> None:
    shell = ["sh", "-c", f"{sys.executable} -m gpumem {line}"]
    ran = subprocess.run(shell, env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, "", told)
