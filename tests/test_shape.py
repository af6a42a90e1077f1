"""How the code looks to a stranger, counted: names of one letter, calls by position, long functions.

Limits are those of well-kept libraries beside ours (PyVRP, trio, diffrax, optax: 3 to 9 % of names, 6 to 16 calls in
1,000).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/gpumem"
MODULES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def symbols() -> list[tuple[tuple[str, ...], str]]:
    """Modules, by the beginnings of their paths, and the letters that are fixed there: the table of the design."""
    text = (ROOT / "docs/reference/design.md").read_text()
    section = text.partition("\n## Symbols\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    table = [
        (tuple(re.findall(r"`([a-z_0-9/.]+)`", where)), "".join(re.findall(r"`(\w)`", which))) for where, which in rows
    ]
    return [(modules, letters) for modules, letters in table if modules]


def names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_at_most_7_percent_of_names_are_one_letter_that_no_paper_fixes() -> None:
    table = symbols()
    assert len(table) > 5
    every = single = 0
    for path, tree in MODULES.items():
        fixed = "".join(letters for modules, letters in table if path.startswith(modules))
        for name in names(tree):
            every += 1
            single += len(name) == 1 and name != "_" and name not in fixed
    assert single <= 0.07 * every, f"{single} of {every}, {single / every:.1%}"


def test_symbols_stand_where_the_table_says() -> None:
    for modules, letters in symbols():
        used = {name for path, tree in MODULES.items() if path.startswith(modules) for name in names(tree)}
        assert used, f"{modules}: no such module"
        assert not set(letters) - used, f"{modules}: nobody uses {sorted(set(letters) - used)}"


def test_at_most_12_calls_in_1000_pass_five_arguments_by_position() -> None:
    calls = [node for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    many = sum(len([a for a in call.args if not isinstance(a, ast.Starred)]) >= 5 for call in calls)
    assert many <= 0.012 * len(calls), f"{many} of {len(calls)}"


def test_no_function_is_longer_than_60_lines_but_kernels() -> None:
    long = {
        f"{path}: {node.name}"
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and lines(node) > 60
    }
    assert not {name for name in long if not name.startswith("kernels/device/")}


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without the docstring."""
    first = function.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    begin, end = function.lineno, function.end_lineno or 0
    return end - begin + 1 - ((first.end_lineno or 0) - first.lineno + 1 if text else 0)


def documented(text: str) -> list[str]:
    """The names under `Parameters` of a docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: :.*)?$", section[1] if section else "", re.MULTILINE)
    return [name.strip("* ") for line in lines for name in line.split(",")]


def parameters(node: ast.AST) -> set[str]:
    """What a function takes, or what a class is made of: by its constructor and by its fields."""
    if isinstance(node, ast.ClassDef):
        fields = {
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        made = (
            part for part in node.body if isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__new__")
        )
        return fields.union(*map(parameters, made))
    return {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}  # type: ignore[attr-defined]


def test_parameters_that_docstrings_explain_are_there() -> None:
    assert documented(
        "A.\n\nParameters\n----------\na, *b : int\n    See `c`.\nd\n    D.\n\nNotes\n-----\ne : f\n"
    ) == ["a", "b", "d"]
    wrong, seen = [], 0
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and parameters(node):
                names_ = documented(ast.get_docstring(node) or "")
                seen += len(names_)
                wrong += [f"{path}: {node.name} has no {name}" for name in names_ if name not in parameters(node)]
    assert seen > 500 and not wrong, "\n".join(wrong)
