"""Packages import what one table says, and so does what is inside them; `import gpumem` is light."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from gpumem.base.exports import LazyPackage

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "gpumem"
pytestmark = pytest.mark.jit  # nothing is compiled

# What each package may import, from the ground up: those named here, itself, and no other.
PACKAGES = {
    "base": [],
    "trace": ["base"],
    "kernels": ["base"],
    "simulator": ["base", "trace"],
    "io": ["base", "trace", "simulator"],
    "check": ["base", "trace", "simulator"],
    "swap": ["base", "trace", "simulator"],
    "pool": ["base", "trace", "check"],
    "execute": ["base", "trace", "kernels", "simulator", "io"],
    "testing": ["base", "trace", "kernels", "simulator", "check", "swap", "pool"],
    "jobs": ["base", "trace", "simulator", "check", "swap", "execute"],
    "pipeline": ["base", "trace", "simulator", "io", "check", "swap", "pool", "execute"],
    "runtime": ["base", "trace", "simulator", "swap", "pool", "execute", "pipeline"],
    "torch": ["base", "trace", "simulator", "io", "swap", "pipeline", "runtime"],
    "cli": [
        *("base", "trace", "kernels", "simulator", "io", "check", "swap", "pool", "execute", "jobs", "pipeline"),
        *("runtime", "torch"),
    ],
}
# The same inside a package, for its folders and loose files; what is not named here may import nothing beside it.
PLAN = ["plan", "facts", "planner", "fluid", "linear_programs", "incumbent", "tasks"]
INSIDE = {
    "swap": {
        "plan": [],
        "tasks": ["plan"],
        "facts": ["plan"],
        "planner": ["plan", "facts"],
        "own_planner": ["plan", "planner"],
        "_solver_process": [],
        "linear_programs": ["_solver_process", "plan", "facts"],
        "incumbent": ["plan", "facts", "planner", "linear_programs"],
        "fluid": ["plan", "facts", "linear_programs"],
        "bound": ["plan", "facts", "fluid", "linear_programs"],
        **dict.fromkeys(("autoswap", "baselines", "mosos", "snu", "tensile"), PLAN),
        "dtr": ["plan", "facts", "planner"],
        "search": [*PLAN, "autoswap", "baselines", "bound", "dtr", "mosos", "snu", "tensile"],
        "planners": [
            *(*PLAN, "own_planner", "autoswap", "baselines", "bound", "dtr", "mosos", "search", "snu", "tensile"),
        ],
    },
    "runtime": {
        "residency": [],
        "log": ["residency"],
        "devices": ["residency"],
        "pooled": ["residency"],
        "block_recorder": ["residency"],
        "adaptive": ["residency", "devices", "log", "block_recorder"],
        "trace_player": ["residency", "devices", "log", "adaptive"],
        "paged": ["residency", "devices", "log", "adaptive"],
        "emm": ["residency", "devices", "log", "block_recorder", "adaptive", "pooled", "paged"],
        "cuda_core": ["pooled"],
        "cupy": ["pooled", "cuda_core"],
    },
    "jobs": {
        "job": [],
        "outcome": ["job"],
        "policy": ["job", "outcome"],
        "metrics": ["job", "outcome"],
        "planners": ["job", "outcome", "policy"],
        "scheduler": ["job", "outcome", "policy", "metrics"],
        "actual_times": ["job", "outcome", "policy"],
        "environments": ["job", "outcome", "policy", "metrics", "planners", "scheduler", "actual_times"],
        "waterwave": ["job", "outcome", "policy", "metrics", "planners"],
        "verify": ["job", "outcome", "actual_times", "waterwave"],
    },
}
CUDA = {"cuda", "numba_cuda", "cupy"}
OUTSIDE = ("__init__", "__main__")  # the public names, and the command line by the package's name
CUDA_PACKAGES = ("execute/cuda/", "kernels/", "runtime/")


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
    """Dotted names that a file imports, those for type checking and inside functions too unless set otherwise."""
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
    """The module that a dotted name of gpumem comes from; names that a package hands on are followed."""
    package, _, last = name.rpartition(".")
    for path in (SOURCE.parent / Path(*name.split(".")), SOURCE.parent / Path(*package.split("."))):
        if path.with_suffix(".py").exists():
            return ".".join(path.relative_to(SOURCE.parent).parts)
    init = SOURCE.parent / Path(*package.split("."), "__init__.py")
    loaded = importlib.import_module(package) if init.exists() and hands_on(init) else None  # others may need PyTorch
    if isinstance(loaded, LazyPackage) and last in loaded._home and loaded._home[last][0] != package:
        return home(".".join(loaded._home[last]))
    whole = SOURCE.parent / Path(*name.split("."))
    return name if whole.is_dir() else package  # a package as such, or what its `__init__` defines


def ours(path: Path) -> set[str]:
    """Modules of gpumem that a file imports from."""
    return {home(name) for name in imports(path) if name.startswith("gpumem.")}


def hands_on(path: Path) -> bool:
    """Whether an `__init__` file only hands names on."""
    return "lazy_interface(__name__)" in text(path)


def interfaces() -> list[Path]:
    """`__init__` files that only hand names on."""
    return [path for path in modules() if path.name == "__init__.py" and hands_on(path)]


def part(name: str, level: int) -> str:
    """The package of a dotted name, or at level 2 its folder or loose file in there."""
    parts = name.split(".")
    return parts[level] if len(parts) > level else ""


def wrong(table: Mapping[str, Sequence[str]], level: int, package: str = "gpumem") -> list[str]:
    """Imports between packages, or between what is inside one, that the table does not have."""
    found = []
    for path in modules():
        name = ".".join(["gpumem", *inside(path)])
        if path in interfaces() or not name.startswith(f"{package}.") or (mine := part(name, level)) in OUTSIDE:
            continue
        allowed = {mine, *table.get(mine, ())} if mine in table else set()
        others = {part(other, level) for other in ours(path) if other.startswith(f"{package}.")}
        found += [f"{path.relative_to(SOURCE)} imports {other}" for other in sorted(others - allowed - {""})]
    return found


def test_packages_import_what_the_table_says_and_no_other() -> None:
    assert wrong(PACKAGES, 1) == []


def test_inside_a_package_likewise() -> None:
    assert [line for package, table in INSIDE.items() for line in wrong(table, 2, f"gpumem.{package}")] == []


def test_no_import_goes_up() -> None:
    for table in (PACKAGES, *INSIDE.values()):
        below: set[str] = set()
        for name, allowed in table.items():
            assert set(allowed) <= below, f"{name} may import {set(allowed) - below}, which stands no lower"
            below.add(name)


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {
        ".".join(["gpumem", *inside(path)]).removesuffix(".__init__"): ours(path)
        for path in modules()
        if path not in interfaces()
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


def test_the_design_page_shows_this_table() -> None:
    page = (ROOT / "docs" / "reference" / "design.md").read_text()
    rows = [f"{name:<10} {' '.join(allowed) or '-'}" for name, allowed in PACKAGES.items()]
    assert "```text\n" + "\n".join(rows) + "\n```" in page, "\n".join(rows)
    here = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name not in ("data", "__pycache__")}
    assert here == set(PACKAGES)
    assert {path.stem for path in SOURCE.glob("*.py")} == set(OUTSIDE)
    for package, table in INSIDE.items():
        names = {path.stem for path in (SOURCE / package).iterdir()} - {"__pycache__", "__init__"}
        assert names == set(table), package


def test_no_public_class_name_stands_twice() -> None:
    where: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_pages_import_from_public_interfaces() -> None:
    """From `gpumem` or the interface of a package or a folder in one: no other module, nothing private."""
    for page in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        check_page(page)


def check_page(page: Path) -> None:
    code = "\n".join(example.source for example in doctest.DocTestParser().get_examples(page.read_text()))
    for node in ast.walk(ast.parse(code)):
        names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
        if isinstance(node, ast.Import):
            assert not {name for name in names if name.startswith("gpumem.")}, f"{page.name}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpumem":
            told, package = f"{page.name}: {ast.unparse(node)}", node.module.split(".")[1:]
            loaded = importlib.import_module(node.module)
            assert not {name for name in (*package, *names) if name.startswith("_")}, told
            modules = {"gpumem.kernels.reference", "gpumem.kernels.device", "gpumem.check"}
            assert node.module in modules or (isinstance(loaded, LazyPackage) and names <= set(dir(loaded))), told


def test_few_places_touch_cuda_numba_and_torch() -> None:
    for path in modules():
        name, roots = str(path.relative_to(SOURCE)), {name.split(".")[0] for name in imports(path)}
        assert not (roots & CUDA) or name.startswith(CUDA_PACKAGES), name
        assert "numba" not in roots or name == "base/jit.py" or name.startswith(("kernels/", "runtime/emm/")), name
        assert "torch" not in roots or name.startswith("torch/internals/"), name


def test_optional_packages_are_imported_where_they_are_used() -> None:
    for path in modules():
        first = imports(path, everywhere=False)
        assert not {name.split(".")[0] for name in first} & {"matplotlib", "pandas", "scipy", "sklearn"}, path
        late = inside(path)[0] == "torch" or not any(x.startswith("gpumem.torch.") for x in first)
        assert late, f"{path}: what needs PyTorch is imported where it is used"


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


# Test files that ask a question of several modules, which their docstring names; all others bear a module's name, or a
# folder's.
QUESTIONS = {
    *(
        "cli/wrong_lines",
        "execute/fake_cuda",
        "execute/fake_cuda_ptx",
        "execute/reruns",
        "jobs/fake_cuda_jobs",
    ),
    *("jobs/waterwave/swapped", "kernels/compiled", "pool/allocators/seeded_bugs", "pool/smartpool/smartpool"),
    *(
        "runtime/long",
        "runtime/page",
        "runtime/programs",
        "runtime/residency/state_machine",
        "simulator/overhead",
        "swap/plan/replay_loops",
        "swap/search/brute_force",
        "trace/kept",
    ),
    *("testing/testing", "torch/foreign", "torch/rebatch", "torch/shown", "torch/torch_peers", "torch/capture/bitwise"),
    *(
        "torch/capture/peaks",
        "torch/run/beside",
        "torch/run/bits",
        "torch/run/leaving",
        "torch/run/observing",
        "torch/run/faults",
        "torch/run/on_demand_runs",
        "torch/run/op_samples",
    ),
    *(
        "torch/run/random_programs",
        "torch/run/random_steps",
        "torch/zoo/zoo",
        "pool/allocators/contract",
        "base/deadline",
    ),
}


def test_the_word_finds_the_test() -> None:
    modules_of = {str(path.relative_to(SOURCE).with_suffix("")) for path in SOURCE.rglob("*.py")}
    folders = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_dir()}
    there = {name.rpartition("/")[0] + "/" + name.rpartition("/")[2].lstrip("_") for name in modules_of} | folders
    tests = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    named = {
        f"{path.parent}/{path.stem.removeprefix('test_')}".replace("pytorch", "torch", 1)
        for path in tests
        if len(path.parts) > 1 and path.parts[0] not in ("benchmarks", "fake_cuda")
    }
    assert named - there == QUESTIONS
