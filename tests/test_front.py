"""The front page: what a stranger sees first is short, complete, and of today."""

from __future__ import annotations

import re
from pathlib import Path

import gpumem
from gpumem.base.version import __version__

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_it_is_one_screen_and_no_book() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 500


def test_the_first_screen_has_what_decides_whether_there_is_a_second_minute() -> None:
    screen = "\n".join(README.splitlines()[:42])
    result = "Planned(vgg16_cifar_b100, "  # of the code
    for part in (result, "<picture>", "gpumem plan --limit", "-m pytest", "managed(", "What has run where", "GPU yet"):
        assert part in screen, part


def test_the_picture_is_that_of_the_plan_of_today() -> None:
    """`python docs/_ext/pictures.py` draws it again; what it shows stands in its description."""
    planned = gpumem.plan(gpumem.bundled("vgg16"), "gtx1080ti", pool="70%")
    before, after = planned.before.trace.peak_live_bytes, planned.trace.peak_live_bytes
    loads = f"peak live bytes {before}, planned {after}, limit {planned.pool} bytes"
    for look in ("light", "dark"):
        drawn = (ROOT / "docs" / "_static" / f"load-{look}.svg").read_text()
        assert re.findall("<dc:description>(.*)</dc:description>", drawn) == [loads]
        assert f"docs/_static/load-{look}.svg" in README


def test_the_version_stands_everywhere() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    dated = re.search(
        rf"^## {re.escape(__version__)} \((\d{{4}}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert dated and f"\ndate-released: {dated[1]}\n" in (ROOT / "CITATION.cff").read_text()


def test_hooks_and_workflow_run_what_the_checks_run() -> None:
    """A hook that checks less than `.ci/run` lets through what that refuses."""
    run, hooks = (ROOT / ".ci" / "run").read_text(), (ROOT / ".pre-commit-config.yaml").read_text()
    checks = re.findall(r'^"\$venv/bin/((?:ruff|mypy)\b)"(.*)$', run, re.M)
    assert [name for name, _ in checks] == ["ruff", "ruff", "mypy"]
    assert re.findall("entry: (.*)", hooks) == [f"{name}{arguments}" for name, arguments in checks]
    assert "run: bash .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
