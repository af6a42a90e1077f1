"""Where the source is, and the modules whose public names tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from gpumem import check
from gpumem.base.exports import LazyPackage

SOURCE = Path(__file__).resolve().parents[2] / "src"


GROUND = ("pipeline.report.plot", "io.chrome", "io.minimalloc", "check.verdict")


ABSENT = {"cuda", *([] if find_spec("torch") else ["torch"])}  # packages that need what is not here


def packages() -> Iterator[ModuleType]:
    from importlib import import_module

    for file in sorted(SOURCE.glob("gpumem/**/__init__.py")):
        name = ".".join(file.relative_to(SOURCE).parent.parts)
        if not ABSENT & {*name.split(".")} and isinstance(package := import_module(name), LazyPackage):
            yield package
    yield check
    yield from (import_module(f"gpumem.{name}") for name in GROUND)
