"""Imports point one way, between rooms and between the wings of a room, and `import gpumem` is light."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from gpumem.base.exports import Face

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "gpumem"

# A module may import those of lower lines and of its own; `pool`, `swap` and `execute` never each other.
LAYERS = [
    [
        "units",
        "names",
        "errors",
        "_strict",
        "_show",
        "columns",
        "kinds",
        "arcs",
        "deadline",
        "_jit",
        "_face",
        "_version",
        "kernels",
    ],
    ["trace"],
    ["recording", "recorder", "machine", "period", "hazards", "timeline", "placement", "batch", "workspaces"],
    ["simulate", "_clock", "_hosts", "sharing", "_sharing", "check"],
    ["pool", "swap", "io", "execute"],
    ["models", "testing", "report"],
    ["latency"],
    ["jobs"],
    ["evaluate"],
    ["live", "torch"],
    ["papers"],
    ["commands"],
    ["cli", "__main__"],
]
STRANGERS = [{"pool", "swap", "execute"}]
# The same inside a room; what stands on one line of a list is a wing that imports none of its neighbours.
WINGS = {
    "swap": [
        ["gaps"],
        ["plan"],
        ["windows", "limits", "tasks", "recompute", "linear", "_solver", "judge", "proof", "menu"],
        ["accounts"],
        ["fluid"],
        ["autoswap", "baselines", "bound", "mosos", "snu", "tensile"],
        ["search"],
        ["planners"],
    ],
    "pool": [["_index", "online"], ["smartpool"], ["allocators"], ["runtime", "search"], ["planners"]],
    "jobs": [["job", "outcome"], ["policy", "metrics"], ["planners"], ["runtime", "waterwave"], ["worlds"]],
}
CUDA = {"cuda", "numba_cuda", "cupy"}
CUDA_ROOMS = (
    "execute/cuda/",
    "kernels/",
    "live/cuda/",
    *(
        f"live/{name}"
        for name in ("backing.py", "cupy.py", "emm", "joins.py", "memory.py", "paged.py", "pages.py", "streams.py")
    ),
)


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def inside(path: Path) -> list[str]:
    """The parts of a module's name after `gpumem`."""
    return list(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def imports(path: Path, *, everywhere: bool = True) -> set[str]:
    """Dotted names that a file imports, those for type checking and inside functions too unless told otherwise."""
    tree = ast.parse(text(path))
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def home(name: str) -> str:
    """The module that a dotted name of gpumem comes from; names that a face hands on are followed."""
    room, _, last = name.rpartition(".")
    for path in (SOURCE.parent / Path(*name.split(".")), SOURCE.parent / Path(*room.split("."))):
        if path.with_suffix(".py").exists():
            return ".".join(path.relative_to(SOURCE.parent).parts)
    face = importlib.import_module(room) if (SOURCE.parent / Path(*room.split("."))).is_dir() else None
    if isinstance(face, Face) and last in face._home and face._home[last][0] != room:
        return home(".".join(face._home[last]))
    whole = SOURCE.parent / Path(*name.split("."))
    return name if whole.is_dir() else room  # a room as such, or what its `__init__` defines


def ours(path: Path) -> set[str]:
    """Modules of gpumem that a file imports from."""
    return {home(name) for name in imports(path) if name.startswith("gpumem.")}


def faces() -> list[Path]:
    """`__init__` files that only hand names on."""
    return [path for path in modules() if path.name == "__init__.py" and "face(__name__)" in text(path)]


def check_layers(path: Path, mine: str, others: set[str], layers: list[list[str]]) -> None:
    level = {name: k for k, layer in enumerate(layers) for name in layer}
    assert mine in level, f"{mine} is in no layer: say where it belongs"
    for other in others - {mine}:
        assert level[other] <= level[mine], f"{path.name} ({mine}) imports {other}, which lies above it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    mine = inside(path)[0]
    if path in faces():
        return
    others = {name.split(".")[1] for name in ours(path)}
    check_layers(path, mine, others, LAYERS)
    for strangers in STRANGERS:
        assert len({mine, *others} & strangers) <= 1 or mine not in strangers, f"{mine} must not import {others}"


@pytest.mark.parametrize("path", [p for room in WINGS for p in modules() if inside(p)[0] == room], ids=str)
def test_wings_of_a_room_keep_apart(path: Path) -> None:
    if path in faces():
        return
    room, mine = inside(path)[:2]
    others = {name.split(".")[2] for name in ours(path) if name.startswith(f"gpumem.{room}.")}
    check_layers(path, mine, others, WINGS[room])
    wings = {line for line in others - {mine} if (SOURCE / room / line).is_dir()}
    beside = next(line for line in WINGS[room] if mine in line)
    assert not wings & set(beside), f"{path.name} ({mine}) imports its neighbour {wings & set(beside)}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {
        ".".join(["gpumem", *inside(path)]).removesuffix(".__init__"): ours(path)
        for path in modules()
        if path not in faces()
    }
    assert list(TopologicalSorter({name: others - {name} for name, others in graph.items()}).static_order())


def test_a_circle_would_be_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gpumem").mkdir()
    (tmp_path / "gpumem" / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpumem.b import B"
    )
    (tmp_path / "gpumem" / "b.py").write_text("def f():\n    from gpumem.a import A")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path / "gpumem")
    home.cache_clear()
    with pytest.raises(ValueError, match="cycle"):
        test_no_module_imports_itself_by_way_of_others()
    home.cache_clear()


def test_the_design_page_has_these_layers_and_all_rooms() -> None:
    page = (ROOT / "docs" / "reference" / "design.md").read_text()
    here = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix in ("", ".py") and path.stem not in ("__init__", "__pycache__")
    }
    drawn = re.search(r"^```text\n(units, .*?)^```$", page, re.M | re.S)
    layers = [[name for name in layer if name in here] for layer in LAYERS]
    assert drawn and [line.split(", ") for line in drawn[1].splitlines()] == [layer for layer in layers if layer]
    for room in (SOURCE, SOURCE / "pool", SOURCE / "swap", SOURCE / "jobs"):
        for path in room.iterdir():
            name = f"{path.name}/" if path.is_dir() else path.name
            assert f"`{name}`" in page or name in (
                "__init__.py",
                "__main__.py",
                "_version.py",
                "py.typed",
                "__pycache__/",
            ), path


def test_no_public_class_name_stands_twice() -> None:
    where: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"], ids=lambda p: str(p.name)
)
def test_pages_import_from_faces(page: Path) -> None:
    """From `gpumem`, a face of a room or a wing, or a module of the ground: no other module, nothing private."""
    code = "\n".join(example.source for example in doctest.DocTestParser().get_examples(page.read_text()))
    for node in ast.walk(ast.parse(code)):
        names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
        if isinstance(node, ast.Import):
            assert not {name for name in names if name.startswith("gpumem.")}, f"{page.name}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpumem":
            told, room = f"{page.name}: {ast.unparse(node)}", node.module.split(".")[1:]
            face = importlib.import_module(node.module)
            assert not {name for name in (*room, *names) if name.startswith("_")}, told
            assert names <= set(dir(face)) if isinstance(face, Face) else len(room) == 1, told


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_two_places_touch_cuda_and_one_touches_numba(path: Path) -> None:
    inside = str(path.relative_to(SOURCE))
    roots = {name.split(".")[0] for name in imports(path)}
    assert not (roots & CUDA) or inside.startswith(CUDA_ROOMS)
    assert "numba" not in roots or inside == "_jit.py" or inside.startswith(("kernels/", "live/emm"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_optional_packages_are_imported_where_they_are_used(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path, everywhere=False)}
    assert not roots & {"matplotlib", "pandas", "ortools", "scipy", "sklearn"}
    assert "torch" not in {name.split(".")[0] for name in imports(path)} or path == SOURCE / "torch" / "_torch.py"
    late = inside(path)[0] == "torch" or not any(x.startswith("gpumem.torch.") for x in imports(path, everywhere=False))
    assert late, "what needs PyTorch is imported where it is used"


def test_import_gpumem_is_light() -> None:
    code = "import sys, gpumem; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    environment = {"PYTHONPATH": str(SOURCE.parent)}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"numba", "numpy", "matplotlib", "cuda", "msgspec"} & set(loaded.stdout.split())


@pytest.mark.parametrize("name", __import__("gpumem").__all__)
def test_every_public_name_can_be_imported_and_is_documented(name: str) -> None:
    import gpumem

    assert getattr(gpumem, name).__doc__
    assert name in dir(gpumem)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import gpumem

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gpumem.nonsense
