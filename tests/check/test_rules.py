"""Rules: some test breaks each of them, and the documentation names each."""

from __future__ import annotations

import ast
from pathlib import Path

from gpumem import check


def test_every_rule_is_broken_by_some_test() -> None:
    """`objects` and the tables of event logs (`Cases`) name a rule with each broken thing."""
    named = {"overlap", "height", "alignment"}
    folder = Path(__file__).parents[1]
    for path in (*folder.glob("check/**/test_*.py"), *folder.glob("jobs/**/test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            rules: list[ast.expr] = []
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "objects":
                rules = node.args[:1]
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Cases":
                assert isinstance(node.value, ast.List)
                rules = [row.elts[0] for row in node.value.elts if isinstance(row, ast.Tuple)]
            named |= {rule.value for rule in rules if isinstance(rule, ast.Constant)}
    assert named >= set(check.RULES)


def test_every_rule_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "testing.md").read_text()
    for rule, line in check.RULES.items():
        assert f"| `{rule}` | {line} |" in page
