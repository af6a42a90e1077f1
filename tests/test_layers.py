"""Imports point one way, and `import gpumem` is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "gpumem"

# A module may import those of lower layers and its own; `pool`, `swap` and `execute` never each other.
LAYERS = [
    ["errors", "columns", "_jit", "_face", "kernels"],
    ["trace"],
    ["recorder", "machine", "period", "hazards", "timeline", "placement", "batch"],
    ["simulate", "_clock", "check"],
    ["pool", "swap", "io", "execute"],
    ["latency", "jobs", "models", "testing", "torch", "combined"],
    ["plot", "report", "comparison", "knee", "footprint", "call_cost", "commands", "cli", "__main__"],
]
STRANGERS = [{"pool", "swap", "execute"}]
CUDA = {"cuda", "numba_cuda", "cupy"}
CUDA_ROOMS = ("execute/cuda/", "execute/emm.py", "kernels/")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports(path: Path, *, everywhere: bool = True) -> set[str]:
    """Dotted names that a file imports, inside functions too unless told otherwise; type checking aside."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    """Rooms of gpumem that a file imports from."""
    parts = [name.split(".") for name in imports(path) if name.startswith("gpumem.")]
    return {p[1] for p in parts} - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    level = {name: k for k, layer in enumerate(LAYERS) for name in layer}
    mine = room(path)
    if mine in ("__init__", "data"):
        return
    assert mine in level, f"{mine} is in no layer: say where it belongs"
    for other in ours(path) - {mine}:
        assert level[other] <= level[mine], f"{path.name} ({mine}) imports {other}, which lies above it"
        for strangers in STRANGERS:
            assert not {mine, other} <= strangers, f"{mine} and {other} must not import each other"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_two_places_touch_cuda_and_one_touches_numba(path: Path) -> None:
    inside = str(path.relative_to(SOURCE))
    roots = {name.split(".")[0] for name in imports(path)}
    assert not (roots & CUDA) or inside.startswith(CUDA_ROOMS)
    assert "numba" not in roots or inside == "_jit.py" or inside.startswith("kernels/")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_optional_packages_are_imported_where_they_are_used(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path, everywhere=False)}
    assert not roots & {"matplotlib", "torch", "ortools", "scipy", "sklearn"}


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
