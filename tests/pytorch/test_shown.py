"""Every command of a page that needs PyTorch runs here, and prints what the page shows (see tests/shown.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import shown
from tests.test_shown import PAGES, ROOT

NEED = [page for page in PAGES if any(c.needs in ("torch", "zoo") for c in shown.commands(page.read_text()))]
KINDS = [pytest.param({"torch"}, id="torch"), pytest.param({"torch", "zoo"}, id="zoo", marks=pytest.mark.slow)]


@pytest.mark.parametrize("needs", KINDS)
@pytest.mark.parametrize("page", NEED, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_show_what_commands_print(
    page: Path, needs: set[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shown.hold(page, needs, tmp_path, request)
