"""The package is as large as it says: statements of `src` against the number in `pyproject.toml`.

To raise the number takes a line under "The budget" in `docs/reference/design.md` that says for what; what is added
finds its place by taking something away.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def statements(text: str) -> int:
    """Statements of a module, imports and docstrings apart."""
    return sum(isinstance(x, ast.stmt) and not _apart(x) for x in ast.walk(ast.parse(text)))


def _apart(x: ast.stmt) -> bool:
    docstring = isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant) and isinstance(x.value.value, str)
    return docstring or isinstance(x, (ast.Import, ast.ImportFrom))


def test_imports_and_docstrings_do_not_count() -> None:
    text = '"""A module."""\nimport os\nx: int = 1\n\ndef f():\n    """It."""\n    if x:\n        return os.sep\n'
    assert statements(text) == 4  # the assignment, the function, its condition, what it returns


def test_the_package_is_within_its_budget() -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["gpumem"]["statements"]
    used = {path: statements(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
    assert sum(used.values()) <= budget, f"{sum(used.values())} statements in src, the budget has {budget}"


def test_each_budget_is_told_of() -> None:
    """The last row of the page's table is the budget of today."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["gpumem"]["statements"]
    page = (ROOT / "docs" / "reference" / "design.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| ", page.split("## The budget")[1], re.M)
    assert rows[-1].replace(",", "") == str(budget)
