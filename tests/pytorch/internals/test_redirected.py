"""What stands in for functions of PyTorch: only what the table has, only where it is there, and then it goes again."""

from __future__ import annotations

import pytest
import torch

from gpumem.torch.internals import names, redirected
from gpumem.torch.internals.names import Private


def test_what_is_missing_is_passed_over_where_it_is_known_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    public, private = Private("torch.not_there", "x"), Private("torch._not_there", "something stands on it", "2.8")
    monkeypatch.setattr(redirected, "TABLE", {row.name: row for row in (public, private)})
    monkeypatch.setattr(names, "VERSION", "2.7.0")
    with redirected.redirected([("torch.not_there", None), ("torch._not_there", None)]):
        assert not hasattr(torch, "not_there") and redirected.original("torch._not_there") is None
    monkeypatch.setattr(names, "VERSION", "2.16.0")
    with redirected.redirected([("torch.not_there", None)]):  # nobody calls it
        pass
    told = r"PyTorch 2\.16\.0 has no torch\._not_there: .*; it is needed as something stands on it"
    with pytest.raises(AttributeError, match=told), redirected.redirected([("torch._not_there", None)]):
        pass


def test_no_function_beside_the_table() -> None:
    with pytest.raises(KeyError, match=r"torch\.nn\.functional\.relu"):
        redirected.original("torch.nn.functional.relu")


def test_what_stood_in_goes_whatever_is_raised() -> None:
    before = torch.compile
    with pytest.raises(ZeroDivisionError), redirected.redirected([("torch.compile", None), ("torch.cuda.graph", None)]):
        assert torch.compile is None and torch.cuda.graph is None  # type: ignore[comparison-overlap]
        raise ZeroDivisionError
    assert torch.compile is before and torch.cuda.graph is not None
