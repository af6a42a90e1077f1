"""Names out of a table, as an option gives them."""

from __future__ import annotations

import pytest

from gpumem.base.names import choices


def test_choices_are_names_once_each() -> None:
    table = {"a": 1, "b": 2}
    assert choices("all", table, "--x") == ["a", "b"]
    assert choices("b, a,b", table, "--x") == ["b", "a"]
    with pytest.raises(ValueError, match=r"--x: 'c' is unknown; there are a, b"):
        choices("a,c", table, "--x")
