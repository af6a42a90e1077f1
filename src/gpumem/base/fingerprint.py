"""What a compiled loop is made of: its own code, and all that is compiled into it from elsewhere.

Numba keeps a compiled loop until the file that the loop stands in changes. What the loop calls in other files, and the
constants and records that it takes from there, are a part of it as well: after an upgrade in place a loop would go on
with those of yesterday.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from inspect import get_annotations
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

Simple = bool | int | float | str | np.generic | None


@cache
def fingerprint(function: Callable[..., Any]) -> str:
    """Return a hash of a function, of what it calls, and of the constants and named tuples that these name.

    It stays the same while only comments, docstrings and lines move. Other packages, such as NumPy, are not looked at.
    O(code of all that is called).

    >>> twice, fourfold = (lambda x: 2 * x), (lambda x: 4 * x)
    >>> fingerprint(twice) == fingerprint(lambda y: 2 * y), fingerprint(twice) == fingerprint(fourfold)
    (True, False)
    """
    seen, parts, left = set[Any](), list[object](), list[Any]([function])
    while left:
        thing = left.pop()
        thing = getattr(thing, "py_func", thing)
        if thing not in seen:
            seen.add(thing)
            part, named = _record(thing) if isinstance(thing, type) else _function(thing)
            parts.append(part)
            left += named
    return sha256(repr(parts).encode()).hexdigest()


def _function(function: FunctionType) -> tuple[object, list[Any]]:
    """A function's code and constants; and which functions and records it names."""
    code, cells = function.__code__, function.__closure__ or ()
    free = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells)}
    names, scope = [*_names(code), *_words(function.__annotations__)], function.__globals__ | free
    package = function.__module__.partition(".")[0]
    for name in names:
        module = scope.get(name)
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] == package:
            scope = vars(module) | scope  # `module.loop`: the attribute is among the names
    constants, named = _split(names, scope)
    return (_code(code, function.__doc__), function.__defaults__, constants), named


def _record(record: type) -> tuple[object, list[Any]]:
    """A named tuple's fields; and which records these are."""
    annotations = get_annotations(record)
    scope = vars(sys.modules[record.__module__])
    return (record.__qualname__, annotations), _split(_words(annotations), scope)[1]


def _split(names: list[str], scope: dict[str, Any]) -> tuple[list[object], list[Any]]:
    """Which of some names are constants, with their values; and the functions and named tuples among them."""
    things = {name: scope[name] for name in dict.fromkeys(names) if name in scope}
    constants: list[object] = [(name, thing) for name, thing in things.items() if _is_constant(thing)]
    return constants, [thing for thing in things.values() if _is_compiled(thing)]


def _is_constant(thing: object) -> bool:
    return all(map(_is_constant, thing)) if isinstance(thing, tuple) else isinstance(thing, Simple)


def _is_compiled(thing: object) -> bool:
    if isinstance(thing, type):
        return issubclass(thing, tuple) and hasattr(thing, "_fields")
    return isinstance(getattr(thing, "py_func", thing), FunctionType)


def _code(code: CodeType, doc: str | None) -> object:
    constants = (one for one in code.co_consts if one != doc)
    inside = [_code(one, None) if isinstance(one, CodeType) else _text(one) for one in constants]
    return code.co_code, code.co_names, inside


def _text(constant: object) -> str:
    """A constant, the same in every process: the order of a set is not."""
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            yield from _names(inside)


def _words(annotations: dict[str, Any]) -> list[str]:
    return re.findall(r"\w+", " ".join(map(str, annotations.values())))
