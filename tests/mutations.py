"""Mutants of the package, run by hand: does a test go red when a line of the code is wrong?

    python -m tests.mutations [--seed 42] [--count 60] [--package runtime/residency ...]

Draws one-line changes with a fixed seed (a relational operator, a constant by one, a statement removed, two arguments
swapped), applies each in a copy of the checkout, and runs the tests of the package until one fails. Prints each, killed
or survived, with its place and its line; the exit status is the number of survivors. A survivor is a test that is
missing, or a change that changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from math import inf
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpumem"
TESTS = {
    "runtime/residency": ["tests/runtime/residency", "tests/runtime/test_adaptive.py", "tests/runtime/devices"],
    "swap/plan": ["tests/swap/plan"],
    "simulator": ["tests/simulator"],
    "torch/run": ["tests/pytorch/run"],
}
OTHER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OTHER |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
PATIENCE = 3  # times as long as without a mutant the tests may take; one that hangs is killed by that


def mutants(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Each node that can be changed, and the text that takes its place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OTHER:
            yield node, ast.unparse(ast.Compare(node.left, [OTHER[type(node.ops[0])]()], node.comparators))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, str(node.value + 1)
        elif isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            yield node, ast.unparse(ast.Call(node.func, node.args[::-1], []))
        elif isinstance(node, ast.Expr | ast.AugAssign) and not isinstance(getattr(node, "value", None), ast.Constant):
            yield node, "pass"


def places(package: str) -> list[tuple[Path, ast.AST, str]]:
    """All changes of one line in a package."""
    found = []
    for path in sorted((SOURCE / package).glob("*.py")):
        for node, text in mutants(ast.parse(path.read_text())):
            if node.lineno == node.end_lineno:  # type: ignore[attr-defined]
                found.append((path, node, text))
    return found


def changed(text: str, node: ast.AST, new: str) -> tuple[str, str]:
    """The source with one node replaced, and the line as it is then."""
    lines = text.splitlines(keepends=True)
    k, line = node.lineno - 1, lines[node.lineno - 1].encode()  # type: ignore[attr-defined]
    lo, hi = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    lines[k] = (line[:lo] + new.encode() + line[hi:]).decode()
    return "".join(lines), lines[k].strip()


def survives(checkout: Path, package: str, seconds: float) -> bool:
    """Whether the tests of the package pass in a checkout, within so many seconds."""
    environment = os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}", "HYPOTHESIS_PROFILE": "mutants"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
    try:
        done = subprocess.run(
            [*command, *TESTS[package]],
            cwd=checkout,
            env=environment,
            capture_output=True,
            timeout=None if seconds == inf else seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def unchanged(checkout: Path, package: str) -> float:
    """How many seconds the tests take without a mutant; they pass twice, first with all to be compiled."""
    for _ in range(2):
        begin = perf_counter()
        if not survives(checkout, package, inf):
            sys.exit(f"the tests of {package} fail without a mutant")
    return perf_counter() - begin


def main() -> None:
    """Draw, run and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--package", nargs="*", default=[*TESTS], choices=[*TESTS])
    asked = parser.parse_args()
    draw, survivors = random.Random(asked.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", "__pycache__", "*.nbi", "*.nbc")
        shutil.copytree(ROOT, checkout, ignore=ignored)
        shared = ROOT.parent / "shared"
        if shared.is_dir():
            (Path(folder) / "shared").symlink_to(shared)
        all_of = {package: places(package) for package in asked.package}
        seconds = {package: unchanged(checkout, package) for package in asked.package}
        for k in range(asked.count):
            package = asked.package[k % len(asked.package)]
            path, node, new = draw.choice(all_of[package])
            target = checkout / path.relative_to(ROOT)
            text = target.read_text()
            mutant, line = changed(text, node, new)
            target.write_text(mutant)
            alive = survives(checkout, package, PATIENCE * seconds[package])
            target.write_text(text)
            survivors += alive
            where = f"{path.relative_to(SOURCE)}:{node.lineno}"  # type: ignore[attr-defined]
            print(f"{'survived' if alive else 'killed':9} {where}  {line}", flush=True)
    print(f"{asked.count - survivors} of {asked.count} killed, seed {asked.seed}")
    sys.exit(min(survivors, 125))


if __name__ == "__main__":
    main()
