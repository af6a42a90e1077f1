"""Shared by all tests: Hypothesis profiles, where the shared instances are, a small machine."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin, which is slow on a busy machine
if "gpu" not in sys.argv:  # pytest -m gpu
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # Numba's simulator, chosen before the first import

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gpumem.check import RULES
from gpumem.cli import main
from gpumem.errors import CheckError
from gpumem.machine import Link, Machine

_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=_slow_is_fine)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=20)
settings.register_profile("nightly", max_examples=1000, deadline=None, suppress_health_check=_slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(pattern: str) -> list[Path]:
    """Return the shared instances that match, none where there are none."""
    return sorted(SHARED.glob(pattern))


@contextmanager
def objects(rule: str, why: str) -> Iterator[pytest.ExceptionInfo[CheckError]]:
    """Expect that an oracle finds `rule` broken, and says so in one line that matches `why`."""
    with pytest.raises(CheckError, match=why) as found:
        yield found
    assert found.value.rule == rule in RULES
    assert str(found.value) == found.value.reason and "\n" not in found.value.reason


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="pages show what their commands print (tests/shown.py)")


def pytest_collection_finish() -> None:
    """Modules and thousands of tests are no garbage: looking through them again and again takes a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture
def machine() -> Machine:
    """A slow machine whose copies take about as long as the ops of random traces."""
    return tiny_machine()


def tiny_machine(*, duplex: bool = True) -> Machine:
    """Copies take 3 + bytes / 2 ns out and 2 + bytes / 4 ns in."""
    return Machine(
        "tiny", 10**6, Link(3, 0.5), Link(2, 0.25), flops=1e9, bandwidth=1e9, launch_ns=1, duplex=duplex, pinned=10**6
    )


class Ran:
    """What one call of `gpumem` did."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out = status, out
        self.err = err.splitlines()

    @property
    def json(self) -> Any:
        """The one JSON value on stdout, in strict JSON."""
        return json.loads(self.out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


class Cli:
    """Calls `gpumem` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *args: object) -> Ran:
        try:
            status = main([str(a) for a in args])
        except SystemExit as stop:
            assert isinstance(stop.code, int)
            status = stop.code
        out, err = self.capsys.readouterr()
        return Ran(status, out, err)

    def refuses(self, *args: object, status: int = 2) -> str:
        """Expect exactly one line on stderr and nothing on stdout; return that line."""
        ran = self(*args)
        assert (ran.status, ran.out, len(ran.err)) == (status, "", 1), ran.err
        assert ran.err[0].startswith("gpumem")
        return ran.err[0]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """What a command is at is not told, however slow this machine is, nor what it compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpumem._jit.on_first_compile", lambda say: None)
        patch.setattr("gpumem.commands.progress.Progress.__init__.__defaults__", (3600,))
        yield
