"""The pages of the documentation: each public name has its place on one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import gpumem

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("rooms", DOCS / "_ext" / "rooms.py")
assert spec is not None and spec.loader is not None
rooms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rooms)


def test_every_room_is_on_the_index_of_the_api_once():
    index = (DOCS / "reference" / "api" / "index.md").read_text().split()
    assert {room: index.count(room) for room in rooms.rooms()} == dict.fromkeys(rooms.rooms(), 1)


@pytest.mark.parametrize("room", [room for room in rooms.rooms() if room != "gpumem"])
def test_a_page_has_each_public_name_of_its_room(room):
    page = rooms.page(room)
    for module in (room, *rooms.wings(room)):
        for name in rooms.names(module):
            assert f"\n   {name}\n" in page or f"autodata:: {module}.{name}\n" in page, name
    described = [line.split()[-1] for line in page.splitlines() if line.startswith(".. auto") and ":: " in line]
    assert all(name in described for name in rooms.described().values() if name.startswith(f"{room}.")), room


def test_every_name_of_gpumem_leads_to_a_page():
    assert {name for name in gpumem.__all__ if rooms.definition("gpumem", name) not in rooms.described()} == {
        "check",
        "plot",
        "workspaces",
        "__version__",
    } & set(gpumem.__all__)
