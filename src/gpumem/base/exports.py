"""The public interface of a package: its public names, each loaded when it is asked for.

A package's `__init__` says what is public once, as imports under `TYPE_CHECKING`, which type checkers read::

    if TYPE_CHECKING:
        from gpumem.pool.smartpool.offline import best_fit as best_fit

    lazy_interface(__name__)

`lazy_interface` reads the same lines. So importing a package loads only what is asked for, `dir()` shows what is
public, and a name that a module inside the package bears as well (`gpumem.swap.autoswap`) is always the public one,
whatever was imported first. The module is still there to import from (`from gpumem.swap.autoswap.planner import
candidates`); but `import gpumem.swap.autoswap as x` asks the package for the name, so that `x` is the function.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


class LazyPackage(ModuleType):
    """A package that loads its public names at first use."""

    _home: dict[str, tuple[str, str]]  # public name -> module, name in there

    def __getattr__(self, name: str) -> object:
        if name not in self._home:
            inside = f"{self.__name__}.{name}"
            if name.startswith("_") or find_spec(inside) is None:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            return import_module(inside)  # `import gpumem; gpumem.torch.managed`, as people know it from SciPy
        module, attribute = self._home[name]
        package = module == self.__name__  # a module right inside this package
        return import_module(f"{module}.{attribute}") if package else getattr(import_module(module), attribute)

    def __setattr__(self, name: str, value: object) -> None:
        """Bind a name, but for a module in place of a public name: that is the import system, after a first import."""
        if not (isinstance(value, ModuleType) and name in self._home and self._home[name][0] != self.__name__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(self._home)


def lazy_interface(package: str) -> None:
    """Make the package named show what it imports for type checking, and nothing else."""
    module = sys.modules[package]
    assert module.__spec__ is not None
    source = module.__spec__.loader.get_source(package)  # type: ignore[union-attr]
    home = {
        alias.asname or alias.name: (node.module, alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    module.__dict__.update(_home=home, __all__=[*home])
    module.__class__ = LazyPackage
