"""The public names, frozen: a change that is meant changes `public_names.txt` with it, by `--rewrite`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
KEPT = Path(__file__).with_name("public_names.txt")


def public() -> list[str]:
    """Every name of every public interface, as `gpumem.swap Plan`."""
    found = []
    for path in sorted(SOURCE.glob("gpumem/**/__init__.py")):
        package = ".".join(path.relative_to(SOURCE).parent.parts)
        for block in ast.parse(path.read_text()).body:
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
                imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
                found += [f"{package} {alias.asname or alias.name}" for node in imports for alias in node.names]
    return sorted(found)


def test_public_names_stay(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        KEPT.write_text("\n".join(public()) + "\n")
    kept = KEPT.read_text().splitlines()
    assert public() == kept, f"new: {sorted({*public()} - {*kept})}, gone: {sorted({*kept} - {*public()})}"
