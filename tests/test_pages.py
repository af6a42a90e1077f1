"""The pages of the documentation: each public name has its place on one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import gpumem

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("packages", DOCS / "_ext" / "packages.py")
assert spec is not None and spec.loader is not None
api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api)


def test_every_package_is_on_the_index_of_the_api_once():
    index = (DOCS / "reference" / "api" / "index.md").read_text().split()
    assert {package: index.count(package) for package in api.packages()} == dict.fromkeys(api.packages(), 1)


@pytest.mark.parametrize("package", [package for package in api.packages() if package != "gpumem"])
def test_a_page_has_each_public_name_of_its_package(package):
    page = api.page(package)
    for module in (package, *api.subpackages(package)):
        for name in api.names(module):
            assert f"\n   {name}\n" in page or f"autodata:: {module}.{name}\n" in page, name
    described = [line.split()[-1] for line in page.splitlines() if line.startswith(".. auto") and ":: " in line]
    assert all(name in described for name in api.described().values() if name.startswith(f"{package}.")), package


def test_every_name_of_gpumem_leads_to_a_page():
    assert {name for name in gpumem.__all__ if api.definition("gpumem", name) not in api.described()} == {
        "check",
        "plot",
        "workspaces",
        "__version__",
    } & set(gpumem.__all__)
