"""Every name of every package is what the package says, whatever was imported before; nothing is loaded unasked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.base.packages import SOURCE

ASK = """
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from gpumem.base.exports import LazyPackage

ABSENT = ("gpumem.__main__", "gpumem.execute.cuda", "gpumem.kernels.device")
ABSENT += () if find_spec("torch") else ("gpumem.torch",)
files = [f.relative_to(sys.argv[1]).with_suffix("") for f in sorted(Path(sys.argv[1]).glob("gpumem/**/*.py"))]
names = [".".join(f.parts).removesuffix(".__init__") for f in files]
names = [name for name in names if not name.startswith(ABSENT)]

def modules():
    for name in names:
        import_module(name)

def interfaces():
    return [package for package in map(import_module, names) if isinstance(package, LazyPackage)]

def origin(module, name):
    "What a package should show, without asking it: the object in the module that defines it, or a module."
    home = getattr(import_module(module), "_home", {})
    if home.get(name, ("",))[0] == module:
        return import_module(f"{module}.{name}")
    return origin(*home[name]) if name in home else vars(import_module(module))[name]

def ask():
    count = 0
    for package in interfaces():
        assert dir(package) == sorted(package._home) == sorted(package.__all__), package
        for name in dir(package):
            which, found = f"{package.__name__}.{name}", getattr(package, name)
            assert not name.startswith("_") and found is origin(package.__name__, name), f"{which} is {found}"
            asked = {}
            exec(f"import {package.__name__}; from {package.__name__} import {name} as found", asked)
            assert asked["found"] is found, which
            if eval(package.__name__, asked) is package:  # but `swap.autoswap`, a function
                assert eval(which, asked) is found, which
            count += 1
    return count
"""


def fresh(code: str) -> str:
    """Run code in a process of its own; return what it printed."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    ran = subprocess.run([sys.executable, "-c", code, str(SOURCE)], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.jit
@pytest.mark.parametrize(
    "order",
    [
        "count = ask(); modules(); assert ask() == count",  # interfaces first
        "modules(); count = ask()",
        "names.reverse(); modules(); count = ask()",  # what lies inside a package before the package's own modules
    ],
)
def test_a_name_of_a_face_is_what_it_says(order: str) -> None:
    namesakes = "[f'{package.__name__}.{name}' for package in interfaces() for name in dir(package)]"
    count, *both = fresh(f"{ASK}\n{order}\nprint(count, *({{*{namesakes}}} & {{*names}}))").split()
    assert int(count) > 150
    functions = {
        "simulator.simulate",
        "pool.search",
        "swap.autoswap",
        "swap.search",
        "swap.tensile",
    }  # and modules as well
    assert {f"gpumem.{name}" for name in functions} <= set(both)


def test_nothing_is_loaded_unasked() -> None:
    loaded = "[name for name in sys.modules if name.startswith('gpumem') and not hasattr(sys.modules[name], '_home')]"
    for package in ("gpumem", "gpumem.swap", "gpumem.pool", "gpumem.jobs"):
        assert fresh(f"import sys, {package}; print(*{loaded})").split() == [
            "gpumem.base.exports",
            "gpumem.base.version",
        ]
    used = fresh(
        "import gpumem; print(gpumem.check.budget.__name__, gpumem.simulator.simulate.__name__, gpumem.plot.__name__)"
    )
    assert used.split() == ["budget", "simulate", "gpumem.pipeline.report.plot"]


def test_planners_are_loaded_one_by_one() -> None:
    code = "import sys, gpumem.swap; gpumem.swap.vdnn; print(*(n for n in sys.modules if n.startswith('gpumem.swap.')))"
    loaded = {name.split(".")[2] for name in fresh(code).split()}
    assert "baselines" in loaded and not loaded & {"autoswap", "bound", "search", "snu", "tensile"}


def test_packages_are_there_when_they_are_asked_for() -> None:
    """`import gpumem` is enough for `gpumem.swap.autoswap`; what is no package and no name is no attribute."""
    script = (
        "import gpumem; print(gpumem.swap.autoswap.__name__, gpumem.pool.search.__name__, hasattr(gpumem, 'torches'), "
        "hasattr(gpumem, '_private'), 'swap' in dir(gpumem))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True
    )
    assert told.stdout.decode().split() == ["autoswap", "search", "False", "False", "False"], told.stderr.decode()
