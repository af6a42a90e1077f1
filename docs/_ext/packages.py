"""The API pages: one a package, with every public name of it, so that a name added there shows up by itself.

`docs/reference/api/index.md` lists the packages, and autosummary makes each its page out of what `page` returns. A name
is described once, in the package that it lives in; where another one offers it too (`gpumem.Plan`), the page links
there.
"""

from __future__ import annotations

import inspect
import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from types import GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any

import gpumem
from gpumem.base.exports import LazyPackage

if TYPE_CHECKING:
    from docutils.nodes import Element, document
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.environment import BuildEnvironment

NOT_LIBRARY = {"gpumem.cli"}  # the command line
NEEDS = {"gpumem.torch": "torch"}  # which is mocked where the pages are built


def packages() -> list[str]:
    """Every package and every module on the ground, by name."""
    found = [f"gpumem.{module.name}" for module in pkgutil.iter_modules(gpumem.__path__) if module.name[0] != "_"]
    here = [name for name in found if name not in NEEDS or find_spec(NEEDS[name])]
    return ["gpumem", *(name for name in here if name not in NOT_LIBRARY)]


def names(module: str) -> list[str]:
    """What `__all__` lists, but for short names of array types; else what is defined here."""
    loaded = import_module(module)
    own = [name for name, thing in vars(loaded).items() if name[0] != "_" and _origin(thing) == module]
    return [name for name in getattr(loaded, "__all__", own) if not isinstance(getattr(loaded, name), GenericAlias)]


def subpackages(package: str) -> list[str]:
    """The packages inside a package that have a public interface, and the modules that its own interface lists."""
    loaded = import_module(package)
    if package == "gpumem" or not hasattr(loaded, "__path__"):
        return []
    listed = {name for name in names(package) if isinstance(getattr(loaded, name), ModuleType)}
    inside = (module for module in pkgutil.iter_modules(loaded.__path__, f"{package}.") if "._" not in module.name)
    return [module.name for module in inside if module.name.rpartition(".")[2] in listed or _has_interface(module)]


def page(package: str) -> str:
    """Return the page of a package: what it is for, a table of its names, and each of them in full."""
    parts = [_heading(package, "="), _module(package), _table(package), *_entries(package)]
    for subpackage in subpackages(package):
        parts += [_heading(subpackage, "-"), _module(subpackage), _table(subpackage), *_entries(subpackage)]
    return "\n\n".join(part for part in parts if part) + "\n"


@cache
def described() -> dict[str, str]:
    """Where each public thing is described: from the module and the name of its definition to that on the page."""
    found: dict[str, str] = {}
    for own in (True, False):  # what no package describes that it lives in, one describes that hands it on
        for package in packages()[1:]:
            for module in (package, *subpackages(package)):
                for name in names(module):
                    home = definition(module, name)
                    if home is not None and (f"{home}.".startswith(f"{package}.") or not own):
                        found.setdefault(home, f"{module}.{name}")
    return found


def definition(module: str, name: str) -> str | None:
    """Follow interfaces and imports to where a name is defined; None for a module."""
    loaded = import_module(module)
    if isinstance(thing := getattr(loaded, name), ModuleType):
        return None
    if origin := _origin(thing):
        return f"{origin}.{name}"
    while isinstance(loaded, LazyPackage) and name in loaded._home:
        module, name = loaded._home[name]
        loaded = import_module(module)
    return f"{module}.{name}"


def resolve(app: Sphinx, env: BuildEnvironment, node: Element, content: Element) -> Element | None:
    """Link what annotations and other interfaces call by another name than the page that describes it."""
    if node.get("refdomain") != "py":
        return None
    parts = str(node["reftarget"]).split(".")
    for module in reversed([*accumulate(parts[:-1], "{}.{}".format)]):
        name, *rest = parts[module.count(".") + 1 :]
        try:
            home = definition(module, name)
        except (ImportError, AttributeError):
            continue
        target = ".".join([described().get(str(home), ""), *rest])
        domain = env.domains.python_domain
        return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], target, node, content)
    return None


def trim(app: Sphinx, tree: document) -> None:
    """Take the blank line away that ends a doctest in Markdown, where pytest needs it.

    The source goes with the text: a block whose two differ is taken for marked-up text, and is not highlighted.
    """
    from docutils.nodes import Text, literal_block

    for block in tree.findall(literal_block):
        block.rawsource = block.astext().rstrip()
        block[:] = [Text(block.rawsource)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages for the template, where packages for a GPU need not be there, and link what Sphinx cannot."""
    app.connect("config-inited", _write)
    app.connect("missing-reference", resolve)
    app.connect("doctree-read", trim)
    app.connect("autodoc-skip-member", lambda _app, _what, _name, thing, skip, _options: skip or _is_field(thing))
    return {"parallel_read_safe": True}


def _write(app: Sphinx, config: Config) -> None:
    from sphinx.ext.autodoc.mock import mock

    with mock(config.autodoc_mock_imports):
        config.autosummary_context = {"pages": {package: page(package) for package in packages()}}


def _entries(module: str) -> list[str]:
    mine = described()
    full = [(f"{module}.{name}", definition(module, name)) for name in names(module)]
    return [_entry(name, pkgutil.resolve_name(name)) for name, home in full if mine.get(str(home)) == name]


def _entry(full: str, thing: object) -> str:
    if inspect.isclass(thing):
        kind = "autoexception" if issubclass(thing, BaseException) else "autoclass"
        return f".. {kind}:: {full}\n   :members:"
    if not _is_data(thing):
        return f".. autofunction:: {full}"
    keys = ", ".join(f"``{key}``" for key in thing) if isinstance(thing, dict) else ""
    return f".. autodata:: {full}\n   :no-value:\n\n   {keys}"


def _module(module: str) -> str:
    shadowed = module in described().values()  # `gpumem.swap.autoswap` is the function
    return f".. automodule:: {module}" + "\n   :no-index:" * shadowed


def _table(module: str) -> str:
    """A line for each name but for data, whose type is all that a summary would say."""
    told = [name for name in names(module) if not _is_data(getattr(import_module(module), name))]
    return "\n".join([".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in told)])


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"


def _has_interface(module: pkgutil.ModuleInfo) -> bool:
    return module.ispkg and hasattr(import_module(module.name), "__all__")


def _origin(thing: object) -> str | None:
    defined = inspect.isclass(thing) or inspect.isroutine(thing) or hasattr(thing, "__wrapped__")
    return getattr(thing, "__module__", None) if defined else None


def _is_data(thing: object) -> bool:
    return not hasattr(thing, "__name__")


def _is_field(thing: object) -> bool:
    return type(thing).__name__ == "_tuplegetter"
