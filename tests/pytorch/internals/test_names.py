"""Canaries: each private name of PyTorch is there, in the versions that are said to have it."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumem.torch.internals import byte_access, names
from gpumem.torch.internals.names import ATTRIBUTES, FLOOR, NEWEST, OF_CUDA, Private, find, known, later
from gpumem.torch.internals.redirected import TABLE

HERE = Path(names.__file__).parent
OBJECTS = {  # on which an attribute is looked for
    "torch.UntypedStorage": lambda: torch.ones(1).untyped_storage(),
    "torch.Tensor": lambda: torch.ones(1),
    "torch.autograd.graph.Node": lambda: torch.ones(1, requires_grad=True).sum().grad_fn,
}


@pytest.mark.parametrize("row", [*known(), *TABLE.values()], ids=lambda row: row.name)
def test_pytorch_has_it(row: Private) -> None:
    if not row.expected:
        pytest.skip(f"PyTorch {row.since} to {row.until} has it")
    if row in OF_CUDA and not torch.backends.cuda.is_built():
        pytest.skip("PyTorch was built without CUDA")
    found, (owner, _, name) = False, row.name.rpartition(".")
    if row in ATTRIBUTES and owner in OBJECTS:
        found = hasattr(OBJECTS[owner](), name)
    else:
        with suppress(AttributeError):
            find(row.name)
            found = True
    assert found, f"PyTorch {torch.__version__} has no {row.name} any more, needed as {row.why}"


def test_each_has_one_line_that_says_why() -> None:
    rows = [*known(), *TABLE.values()]
    assert all(row.why and "\n" not in row.why for row in rows)
    assert len({row.name for row in known()}) == len(known())
    for row in rows:
        assert later(row.since, FLOOR) and later(row.until, row.since) and later(NEWEST, row.until), row.name


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match=r"has no torch\._C\._gone: _gone is not there"):
        find("torch._C._gone")
    with pytest.raises(AttributeError, match=r"has no torch\.gone\._too: gone is not there"):
        find("torch.gone._too")


@pytest.mark.parametrize(
    ("version", "expected"), [("2.7.1", False), ("2.8.0+cpu", True), ("2.11", True), ("2.12.0a0", False)]
)
def test_what_holds_for_some_versions_is_expected_of_these(
    monkeypatch: pytest.MonkeyPatch, version: str, expected: bool
) -> None:
    monkeypatch.setattr(names, "VERSION", version)
    assert Private("torch.x", "", "2.8", "2.11").expected is expected
    assert Private("torch.x", "", "2.8").expected is (version != "2.7.1")  # of newer ones, too


OWNERS = [*byte_access.WRITERS, *byte_access.FUNCTIONS, (byte_access.FILES[0], byte_access.FILES[1:])]


@pytest.mark.parametrize(("owner", "called"), OWNERS, ids=lambda x: getattr(x, "__name__", None))
def test_what_reads_bytes_is_there(owner: Any, called: tuple[str, ...]) -> None:
    assert [name for name in called if not hasattr(owner, name)] == []


@pytest.mark.parametrize("module", byte_access.NAMED_BY_ADDRESS)
def test_functions_that_take_an_address_for_a_name_are_there(module: str) -> None:
    source = inspect.getsource(import_module(module))
    for name in byte_access.NAMED_BY_ADDRESS[module]:
        assert re.search(rf"def {name}\(", source), f"{module} has no {name} any more"


def test_no_row_is_left_over() -> None:
    """Each last part is a word of the code that uses it, other than in the table."""
    used = "".join(path.read_text() for path in HERE.parent.rglob("*.py") if path.name not in ("names.py",))
    words = set(re.findall(r"\w+", used))
    assert {row.name for row in known() if row.name.rpartition(".")[2] not in words} == set()
