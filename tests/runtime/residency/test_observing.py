"""What only observes never ends a program; what the program is to hear of is raised."""

from __future__ import annotations

import pytest

from gpumem.runtime.residency import observing
from gpumem.runtime.residency.observing import Refusal, forgets, tolerable


@forgets
def hook(error: Exception | None, *, more: int = 0) -> int:
    """A hook."""
    if error is not None:
        raise error
    return 1 + more


def test_a_hook_that_fails_returns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "STRICT", False)
    assert hook(None) == 1 and hook(None, more=2) == 3 and hook(KeyError("a defect")) is None
    assert hook.__doc__ == "A hook."
    with pytest.raises(Refusal, match="cannot"):
        hook(Refusal("this cannot be done"))
    with pytest.raises(KeyboardInterrupt):
        hook(KeyboardInterrupt())  # type: ignore[arg-type]


def test_in_our_own_tests_a_defect_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "STRICT", True)
    with pytest.raises(KeyError):
        hook(KeyError("a defect"))
    assert tolerable(Refusal("no")) and not tolerable(ValueError("no"))
    monkeypatch.setattr(observing, "STRICT", False)
    assert tolerable(ValueError("no"))
