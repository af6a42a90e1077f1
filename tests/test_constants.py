"""Every number that a module is tuned by says why at its line: the experiment that chose it, or that none did."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src/gpumem").rglob("*.py"))
# Codes, not measures: which number it is says nothing. `FAR` and its like are as large as their type takes.
CODES = (0, 1, -1)


def numbers(path: Path) -> Iterator[tuple[int, str]]:
    """The constants of a module that are numbers, by line, where neither that line nor the one above says why."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        values = [
            part.value
            for part in ast.walk(node.value)
            if isinstance(part, ast.Constant) and type(part.value) in (int, float) and part.value not in CODES
        ]
        only_numbers = all(
            isinstance(part, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.Load))
            for part in ast.walk(node.value)
        )
        many = isinstance(node.value, ast.Tuple) and isinstance(targets[0], ast.Tuple)  # A, B, C = 0, 1, 2
        if values and only_numbers and not many and not _says_why(lines, node.lineno, node.end_lineno or node.lineno):
            yield node.lineno, ast.unparse(targets[0])


def _says_why(lines: list[str], first: int, last: int) -> bool:
    """A comment on the constant's lines or above it, also above a block of constants without an empty line."""
    if any("  # " in line for line in lines[first - 1 : last]):
        return True
    above = first - 2
    while above >= 0 and lines[above].strip() and not lines[above].startswith("#"):
        above -= 1
    return above >= 0 and lines[above].startswith("#")


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[2] for path in SOURCES}))
def test_a_number_says_why_at_its_line(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[2] == folder
        for line, name in numbers(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_number_without_a_reason_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "A = 2.5\n\nB = 3  # not tuned\n# as the paper has it\nC = 7\nD = 1 << 20\n\nE, F = 4, 5\nG = 0\n"
    )
    assert [name for _, name in numbers(module)] == ["A"]
