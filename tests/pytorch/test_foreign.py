"""What others' suites are run with tells apart what fails only because it is managed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch import foreign

SUITE = """
import os, signal, unittest
import pytest, torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

def managed():
    return any(type(mode).__name__ == "LimitMode" for mode in _get_current_dispatch_mode_stack())

def test_passes(tmp_path):
    assert torch.ones(3).sum() == 3

class TestUnit(unittest.TestCase):
    def setUp(self):
        assert not managed()

    def test_unit(self):
        self.assertTrue(torch.initial_seed() == 0)

    def test_unit_managed(self):
        self.assertFalse(managed(), "a unit")

    def test_skips(self):
        self.skipTest("not here")

def test_fails_bare():
    raise KeyError("bare")

def test_fails_under_modes():
    assert torch._C._len_torch_dispatch_stack() == 0, "a mode"

@pytest.mark.parametrize("k", range(2))
def test_fails_managed(k):
    assert not managed(), f"it is managed: {k}"

def test_crashes():
    if managed():
        os.kill(os.getpid(), signal.SIGSEGV)

def test_leaves_a_mode():
    if managed():
        TorchDispatchMode().__enter__()

def test_draws():
    torch.randn(4 if managed() else 3)

def test_refused():
    if managed():
        torch.compile(lambda x: x + 1)(torch.ones(3))

def test_hangs():
    while managed():
        pass

def test_large():
    torch.ones(1000).add(1)

def test_ends():
    pass
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite, whose children find the package that this process has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(x for x in sys.path if x))
    (tmp_path / "test_toy.py").write_text(SUITE)
    return tmp_path


def outcomes(out: Path) -> dict[str, Any]:
    """What the records in a folder come to, with tests by their names."""
    found = foreign.judged(*(foreign.read(out / f"{way}.jsonl") for way in foreign.WAYS))
    return {what: x if isinstance(x, int) else [test.split("::")[-1] for test in x] for what, x in found.items()}


@pytest.mark.thorough
def test_three_ways(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each test has its place: crashes, hangs and modes left behind end a child, and those after them still run."""
    foreign.main(["run", "test_toy.py", "--out", "out", "--limit", "5KiB", "--seconds", "5", "--", "-p", "no:xdist"])
    assert outcomes(suite / "out") == {
        "tests": 15,
        "passed bare": 13,
        "and under a mode": 12,
        "of these managed": 12,
        "passed": 5,
        "refused": ["test_refused"],
        "crashed": ["test_crashes"],
        "limit": ["test_large"],
        "failed": ["test_unit_managed", "test_fails_managed[0]", "test_fails_managed[1]", "test_hangs"],
        "other generator states": ["test_draws"],
        "left changed": ["test_leaves_a_mode"],
    }
    told = capsys.readouterr().out
    assert "    2  AssertionError: it is managed: N\n         test_toy.py::test_fails_managed[0]\n" in told
    assert (
        "1  crash: SIGSEGV" in told and "1  TooSlow: more than N seconds" in told and "leave torch.compile out" in told
    )


@pytest.mark.thorough
def test_least_limit(suite: Path) -> None:
    """A test has the bytes of its largest op, and what it asks for beyond."""
    foreign.main(
        ["run", "test_toy.py", "--out", "out", "--limit", "least", "--", "-p", "no:xdist", "-k", "large or ends"]
    )
    found = outcomes(suite / "out")
    assert (found["tests"], found["passed"], found["failed"], found["limit"]) == (2, 2, [], [])
    assert foreign.read(suite / "out" / "counted.jsonl")["test_toy.py::test_large"]["touched"] == 8000


def row(outcome: str, kind: str = "", message: str = "", **more: Any) -> dict[str, Any]:
    """What a record says of a test."""
    error = {"error": {"kind": kind, "message": message, "of": [kind]}} if kind else {}
    return {"outcome": outcome, "generator": "a", **error, **more}


SENTENCE = "add of a Mine: what a tensor subclass runs inside is not recorded"
RUNS = {
    "passes": row("passed"),
    "drew": row("passed", generator="b"),
    "left": row("passed", left=["modes", "threads"]),
    "one": row("failed", "AssertionError", "3 is not 4"),
    "two": row("failed", "AssertionError", "5.5e-3 is not 6"),
    "three": row("failed", "KeyError", "'x'", raised=["LimitError: of 1 byte"]),
    "refused": row("failed", "WorkloadError", SENTENCE, raised=[f"WorkloadError: {SENTENCE}"]),
    "matched": row("failed", "AssertionError", f"no {SENTENCE!r}", raised=[f"WorkloadError: {SENTENCE}"]),
    "caught": row("failed", "AssertionError", "0 is not 1", raised=[f"WorkloadError: {SENTENCE}"]),
    "crashed": row("crashed", "crash", "SIGSEGV"),
    "large": row("limit", "LimitError", "the least limit that would do for it is 7.81 KiB (8000 bytes)"),
    "fails bare": row("failed", "KeyError"),
    "fails in modes": row("failed", "KeyError"),
}
FIT = {test: row("passed", left=["threads"]) for test in RUNS}


def test_judged() -> None:
    """What fails bare, or under a mode, is nobody's fault; refusals, crashes and limits are apart from what fails."""
    mode = {**FIT, "fails in modes": row("failed")}
    assert foreign.judged({**FIT, "fails bare": row("failed")}, mode, RUNS) == {
        "tests": 13,
        "passed bare": 12,
        "and under a mode": 11,
        "of these managed": 11,
        "passed": 3,
        "refused": dict.fromkeys(["refused", "matched"], "... what a tensor subclass runs inside is not recorded"),
        "crashed": ["crashed"],
        "limit": ["large"],
        "failed": ["one", "two", "three", "caught"],
        "other generator states": ["drew"],
        "left changed": {"left": ["modes"]},
    }


def test_compared() -> None:
    """Tests that fail for one reason are together, the most first, with the first of them."""
    told = foreign.compared(FIT, FIT, RUNS)
    assert "failed managed: 6\n    3  AssertionError: N is not N\n         one\n         two\n" in told
    assert "KeyError: 'x'\n         three\n         noted: LimitError: of 1 byte\n" in told
    assert "\nrefused: 2\n    2  ... what a tensor subclass runs inside is not recorded\n" in told


def test_nothing_differs() -> None:
    """A suite that passes has no groups."""
    assert len(foreign.compared(FIT, FIT, FIT).splitlines()) == 11


def test_records(tmp_path: Path) -> None:
    """A test that only began has crashed; the last that is said of one counts."""
    file = tmp_path / "a.jsonl"
    lines = ['{"begin": "a"}', '{"begin": "b"}', '{"test": "a", "outcome": "failed"}', '{"begin": "c"}']
    file.write_text("\n".join([*lines, '{"test": "a", "outcome": "passed"}']))
    assert {test: row["outcome"] for test, row in foreign.read(file).items()} == {
        "a": "passed",
        "b": "crashed",
        "c": "crashed",
    }


def test_limits_that_were_too_low() -> None:
    """A run that is beyond its limit says what would do."""
    assert foreign.asked(RUNS["large"]) == 8000
    assert foreign.asked({**RUNS["large"], "outcome": "failed"}) == foreign.asked(RUNS["passes"]) == 0
