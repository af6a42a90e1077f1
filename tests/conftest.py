"""Shared by all tests: Hypothesis profiles, simulator or device, where the shared instances are, a small machine."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin, which is slow on a busy machine

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from hypothesis import HealthCheck, Phase, settings

from gpumem.base.errors import CheckError
from gpumem.check import RULES
from gpumem.cli.common.parser import Parser
from gpumem.cli.main import main
from gpumem.simulator.machine import Link, Machine

_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=_slow_is_fine)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=20)
settings.register_profile("mutants", parent=settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate])
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


def pytest_configure(config: pytest.Config) -> None:
    """Take Numba's simulator, but for runs that ask for a GPU: before `numba.cuda` is imported, which looks once."""
    if not asks_for_gpu(config.option.markexpr):
        os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")


def asks_for_gpu(markexpr: str) -> bool:
    """Return whether `-m markexpr` selects tests for the mark `gpu`: beside some other marks, only with it."""
    try:
        chosen = Expression.compile(markexpr)
    except Exception:  # empty, which selects all; or malformed, which pytest says itself
        return False

    def selects(marks: set[str]) -> bool:
        return chosen.evaluate(lambda name, /, **_: name in marks)

    others = sorted(set(re.findall(r"\w+", markexpr)) - {"gpu", "and", "or", "not"})
    held = ({name for name, there in zip(others, row) if there} for row in product((0, 1), repeat=len(others)))
    return any(selects(marks | {"gpu"}) and not selects(marks) for marks in held)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what tests of a GPU run on: a fake driver is no GPU."""
    if not asks_for_gpu(config.option.markexpr):
        return []
    from gpumem.cli.doctor import why_no_cuda

    if missing := why_no_cuda():
        return [f"gpu: none: {missing}"]
    from gpumem.execute.cuda import devices

    return [f"gpu: {devices()[0]}" + (", emulated by tests/fake_cuda: no GPU" if emulated() else "")]


def emulated() -> bool:
    """Return whether the device is the fake driver's."""
    from gpumem.execute.cuda import devices

    return devices()[0].startswith("Fake GPU")


def needs(missing: str) -> None:
    """Skip a test that lacks a device, a compiler or a package; fail it where GPUMEM_REQUIRE_GPU=1 says all are there.

    `missing` says what is not there, in a few words; nothing happens if it is empty.
    """
    if missing and os.environ.get("GPUMEM_REQUIRE_GPU", "") not in ("", "0"):
        pytest.fail(f"GPUMEM_REQUIRE_GPU is set: {missing}", pytrace=False)
    if missing:
        pytest.skip(missing)


def absent(*modules: str) -> str:
    """Return what installs the first of these modules that is not there, or nothing: an argument of `needs`."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its parent is not there
            found = None
        if found is None:
            return f"no {name}: pip install 'gpumem[test]'"
    return ""


def simulated() -> ModuleType:
    """Return the kernels under Numba's simulator; skip where that is not what runs them."""
    needs(absent("numba_cuda"))
    from gpumem.kernels import device, numba_cuda as _numba

    if not _numba.SIMULATOR:
        pytest.skip("this run asks for a GPU: `-m` says so, or NUMBA_ENABLE_CUDASIM=0")
    return device


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


def _suites() -> Parser:
    """Import the suites late: what they import must not choose what kernels run on before `pytest_configure` does."""
    from benchmarks.suites import parser

    return parser()


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
    """Calls `gpumem` in this process; what begins with `bench` is for `python -m benchmarks`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *args: object) -> Ran:
        try:
            given = [str(a) for a in args]
            status = main(given[1:], of=_suites) if given[:1] == ["bench"] else main(given)
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
        patch.setattr("gpumem.base.jit.on_first_compile", lambda say: None)
        patch.setattr("gpumem.cli.common.progress.Progress.__init__.__defaults__", (3600,))
        yield
