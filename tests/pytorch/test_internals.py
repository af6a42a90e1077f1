"""No private name of PyTorch outside of `torch/internals`, but for those that its table lets others use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpumem.torch
from gpumem.torch.internals.names import ATTRIBUTES, OPS, known
from gpumem.torch.internals.redirected import TABLE

SOURCE = Path(gpumem.torch.__file__).parent
SEAM = SOURCE / "internals"
FREE = {row.name.rpartition(".")[2] for row in ATTRIBUTES}  # of any object
OPERATORS = {row.name.rpartition(".")[2] for row in OPS}
NAMES = {row.name.rpartition(".")[2] for row in (*known(), *TABLE.values())} - FREE - OPERATORS
OTHERS = {"_getframe", "_WorkItem", "_bootstrap_inner", "_get_mask_from_lengths"}  # Python's, torchaudio's
BY_STRING = {"getattr", "hasattr", "setattr", "delattr", "object"}  # the last is `patch.object`
ROOTS = {"torch": "torch", "C": "torch._C", "_VF": "torch._VF"} | {
    name: f"torch.utils.{name}" for name in ("_device", "_python_dispatch", "_pytree")
}


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def chain(node: ast.AST) -> str:
    """The dotted name of an attribute of a module."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def of_ours(tree: ast.AST) -> Iterator[str]:
    """Attributes that classes of ours define."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def uses(text: str, ours: frozenset[str] = frozenset()) -> set[str]:
    """The private names of PyTorch that a file outside of the seam may not use."""
    tree, found = ast.parse(text), set[str]()
    told = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {"import torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpumem.torch.internals"):
            found |= {alias.name for alias in node.names if private(alias.name) or alias.name in ("C", "find")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found.add("import torch")
        elif isinstance(node, ast.Attribute) and private(node.attr):
            owner = chain(node.value)
            mine = owner in ("self", "cls") or (
                node.attr in ours and node.attr not in NAMES and owner.partition(".")[0] != "torch"
            )
            operator = owner.endswith("aten") and node.attr in OPERATORS
            if not (mine or operator or node.attr in FREE | OTHERS):
                found.add("torch._C" if (owner, node.attr) == ("torch", "_C") else node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            strings = {x.value for x in node.args if isinstance(x, ast.Constant)} if called in BY_STRING else set()
            found |= {x for x in strings if private(x) and x not in FREE | OPERATORS | OTHERS | ours}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            found |= {node.value} & {name for name in NAMES if private(name)}
            found |= set(re.findall(r"torch(?:\.\w+)*\._[A-Za-z]\w*", node.value))
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch._guards", {"import torch"}),
        ("from torch._guards import TracingContext", {"import torch"}),
        ("from gpumem.torch.internals import C, _pop_mode, hidden_from_modes", {"C", "_pop_mode"}),
        ("torch._C._dispatch(x)", {"torch._C", "_dispatch"}),
        ("x._nr, x._cdata, self._mine, other._ours, torch._ours", {"_nr", "_ours"}),
        ("aten._to_copy, aten._other, torch.ops.aten._softmax, x._softmax", {"_other", "_softmax"}),
        ("getattr(x, '_nr'), getattr(x, '_cdata'), patch.object(x, '_new')", {"_nr", "_new"}),
        ("patch.object(*place); name = 'torch.autograd._engine_run_backward'", {"torch.autograd._engine_run_backward"}),
        ("frame.f_code.co_name == '_make_grads'", {"_make_grads"}),
        ("'Of `torch._functorch`.'", set()),
    ],
)
def test_what_the_rule_finds(text: str, found: set[str]) -> None:
    assert uses(text, frozenset({"_ours"})) == found


def test_private_names_of_pytorch_are_in_one_place() -> None:
    files = [path for path in SOURCE.rglob("*.py") if SEAM not in path.parents]
    ours = frozenset(name for path in SOURCE.parent.rglob("*.py") for name in of_ours(ast.parse(path.read_text())))
    found = {str(path.relative_to(SOURCE)): uses(path.read_text(), ours) for path in files}
    assert not {name: what for name, what in found.items() if what}


def test_the_table_has_all_that_is_used_in_there() -> None:
    rows = {row.name for row in (*known(), *TABLE.values())}
    for path in SEAM.glob("*.py"):
        for name in used_within(ast.parse(path.read_text())):
            near = [row for row in rows if row == name or row.startswith(f"{name}.") or name.startswith(f"{row}.")]
            assert near, f"{path.name}: {name} is private, and stands in no table"


def test_what_is_private_of_an_object_stands_in_the_table_too() -> None:
    for path in SEAM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and private(node.attr) and chain(node).partition(".")[0] not in ROOTS:
                assert node.attr in NAMES | FREE, f"{path.name}: {ast.unparse(node)}"


def used_within(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from (f"{node.module}.{x.name}" for x in node.names if re.search(r"\._", f"{node.module}.{x.name}"))
        elif isinstance(node, ast.Attribute):
            root, _, rest = chain(node).partition(".")
            if root in ROOTS and re.search(r"\._(?!_)", name := f"{ROOTS[root]}.{rest}"):
                yield name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            root, _, rest = chain(node.args[0]).partition(".")
            if root in ROOTS and isinstance(node.args[1], ast.Constant):
                yield ".".join(filter(None, [ROOTS[root], rest, str(node.args[1].value)]))
