"""What a compiled loop is made of: whatever is compiled into it from anywhere changes its fingerprint, nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from gpumem.base.fingerprint import fingerprint

LOOP = '''
from __future__ import annotations
from typing import NamedTuple
from package import other
from package.other import STEP, Pair, advance

class State(NamedTuple):
    pair: Pair
    turn: int

def loop(state: State, count: int) -> int:
    """Add up."""
    for _ in range(count):
        count += advance(state.turn) + STEP + other.more(count)
    return below(count)

def below(count: int) -> int:
    return count * 2
'''
OTHER = '''
from __future__ import annotations
from typing import NamedTuple

STEP, PARTS = 3, (1, 2.5, ("x", None))

class Pair(NamedTuple):
    first: int
    second: int

def advance(turn: int) -> int:
    """Go on."""
    return further(turn) + len(PARTS)

def further(turn: int) -> int:
    return (lambda x: x + 1)(turn) if turn in {1, 2} else further(turn - 1)

def more(count: int) -> int:
    return count + 1

def unused(count: int) -> int:
    return count
'''


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The fingerprint of `loop`, where the text of one module is another."""

    def of(was: str = "", now: str = "") -> str:
        for name, text in (("package", ""), ("package.other", OTHER), ("package.loop", LOOP)):
            module = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(text.replace(was, now) if was else text, vars(module))
            if name == "package.other":
                vars(sys.modules["package"])["other"] = module
        return fingerprint(module.loop)

    return of


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("count * 2", "count * 3"),  # of a function below the loop
        ("STEP, PARTS = 3,", "STEP, PARTS = 4,"),
        ('("x", None)', '("x", 7)'),
        ("x + 1", "x + 2"),  # inside of what is called by what is called
        ("{1, 2}", "{1, 3}"),
        ("return count + 1", "return count + 2"),  # named by its module
        ("    first: int\n    second: int", "    second: int\n    first: int"),  # of a record in a record
        ("    turn: int\n", "    turn: int\n    more: int\n"),
        ("further(turn - 1)", "further(turn - 2)"),
    ],
)
def test_what_is_compiled_into_a_loop_changes_its_fingerprint(of: Callable[..., str], was: str, now: str) -> None:
    assert of(was, now) != of()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('"""Add up."""', '"""Add it all up.\n    Twice.\n    """'),
        ('"""Go on."""', "# on\n"),
        ("\n    return count\n", "\n    return -count\n"),  # of `unused`
        ("STEP, PARTS = 3", "\n\nSTEP, PARTS = 3"),
    ],
)
def test_words_lines_and_what_is_not_called_do_not(of: Callable[..., str], was: str, now: str) -> None:
    assert of(was, now) == of()
