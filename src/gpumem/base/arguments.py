"""Strict at the door: a list, a path or a text where a trace belongs is said so at once, not ten calls further in.

`strict` reads a function's annotations, once and at the first call. So what a function takes is said in one place, its
signature, and this module knows no class of the package: only in which module those live that people confuse, and how
one gets hold of one.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from inspect import unwrap
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast, get_origin

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Test = Callable[[Any], bool]

# A name in an annotation: where the class lives, and what would do.
CLASSES = {
    "Trace": ("gpumem.trace", "gpumem.read(path) and gpumem.bundled(name) return one"),
    "Machine": ("gpumem.simulator.machine", "gpumem.Machine.named(name) and gpumem.io.read_machine(path) return one"),
    "Placement": ("gpumem.trace.placement", "gpumem.best_fit(trace) and gpumem.Placement.at return one"),
    "Plan": ("gpumem.swap.plan", "gpumem.autoswap and gpumem.Plan.of(trace, swaps) return one"),
    "Timeline": ("gpumem.simulator.timeline", "gpumem.simulate(trace, machine) returns one"),
    "Span": ("gpumem.simulator.timeline", "gpumem.simulator.Span(op, start, end) makes one"),
    "Recording": ("gpumem.trace.record.recording", "gpumem.Recorder().recording() returns one"),
    "Run": ("gpumem.pipeline.report", "gpumem.plan(...).before and .after are two"),
    "Outcome": ("gpumem.jobs", "gpumem.jobs.simulate_jobs returns one"),
    "Job": ("gpumem.jobs", "gpumem.jobs.Job(name, trace) makes one"),
    "Buffers": ("gpumem.trace", "gpumem.trace.Buffers.make(size, start, end) makes one"),
    "Ops": ("gpumem.trace", "gpumem.trace.Ops.make(reads, writes) makes one"),
    "Task": ("gpumem.swap", "gpumem.swap.Task(trace, duration) makes one"),
    "Scheduled": ("gpumem.swap", "gpumem.swap.Scheduled(plan, ...) makes one"),
    "Policy": ("gpumem.jobs", "gpumem.jobs.TENSILE and gpumem.jobs.Policy(planner) are two"),
    "Backend": ("gpumem.execute", "gpumem.execute.Emulator() is one"),
    "Algorithm": ("gpumem.simulator.workspaces", "gpumem.simulator.workspaces.TABLE has some"),
    "Measurement": ("gpumem.execute.latency", "gpumem.execute.latency.read_table(path).rows are some"),
    "LatencyTable": ("gpumem.execute.latency", "gpumem.execute.latency.read_table(path) returns one"),
    "Allocator": ("gpumem.pool.allocators.protocol", "gpumem.pool.BFC() makes one"),
    "Pool": ("gpumem.pool.allocators.protocol", "gpumem.pool.BFC() makes one"),
    "TrainingScript": ("gpumem.torch.capture.script", "gpumem.torch.TrainingScript(path, args) makes one"),
    "Link": ("gpumem.simulator.machine", "gpumem.simulator.Link(latency_ns, ns_per_byte) makes one"),
}
PLAIN: dict[str, Test] = {
    "int": lambda value: type(value) is int or (hasattr(value, "__index__") and not isinstance(value, bool)),
    "float": lambda value: (
        hasattr(value, "__float__") and not isinstance(value, bool) and not hasattr(value, "__len__")
    ),
    "bool": lambda value: type(value).__name__ in ("bool", "bool_"),  # NumPy's, too
    "str": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes),
    "Path": lambda value: isinstance(value, os.PathLike),
    "None": lambda value: value is None,
}
PLAIN["Allocator"] = PLAIN["Pool"] = lambda value: hasattr(value, "allocate") and not isinstance(value, type)
MANY: dict[str, Test] = {
    "Sequence": lambda value: hasattr(value, "__iter__") and not isinstance(value, (str, bytes, dict)),
    "Iterable": lambda value: hasattr(value, "__iter__") and not isinstance(value, (str, bytes)),
    "Mapping": lambda value: hasattr(value, "items"),
    "Callable": callable,
}
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "str": "a text",
    "bytes": "bytes",
    "Path": "a path",
    "Sequence": "a list",
    "Iterable": "a list",
    "Mapping": "a dict",
    "Callable": "a function",
    "None": "None",
}


def strict(function: Callable[P, R], check: Callable[[dict[str, Any]], None] | None = None) -> Callable[P, R]:
    """Refuse arguments that are not what the function's annotations say, as far as they can be told apart.

    Looked at are parameters whose annotation is made of the classes above, of `int`, `float`, `str`, `bytes`, `Path`,
    `bool`, `None`, and of lists (of those classes), mappings and functions (also by an alias of the module, such as
    `Planner`); whatever counts as a whole number is an `int`, but for `True` and `False`. `check` sees the keywords
    after that.

    Raises
    ------
    TypeError
        It names the function, the argument, what came, and what would do.

    Examples
    --------
    >>> @strict
    ... def double(limit: int) -> int:
    ...     return 2 * limit
    >>> double(4)
    8
    >>> double("70%")
    Traceback (most recent call last):
        ...
    TypeError: double: limit: '70%' is a str; it must be a whole number
    """
    tests: list[tuple[int, str, tuple[Test, ...], str]] | None = None

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal tests
        if tests is None:
            tests = _tests(cast(FunctionType, unwrap(function)))
        for place, name, any_of, annotation in tests:
            if place < len(args):
                value = args[place]
            elif name in kwargs:
                value = kwargs[name]
            else:
                continue
            for fits in any_of:
                if fits(value):
                    break
            else:
                raise TypeError(_refusal(function.__qualname__, name, value, annotation))
        if check is not None:
            check(kwargs)
        return function(*args, **kwargs)

    return called


def strict_fields(cls: type[C]) -> type[C]:
    """Make the constructor of a dataclass `strict`."""
    cls.__init__ = strict(cls.__init__)  # type: ignore[method-assign]
    return cls


def _tests(function: FunctionType) -> list[tuple[int, str, tuple[Test, ...], str]]:
    """What to look at: place among positional arguments, name, tests of which one must hold, the annotation."""
    code, found = function.__code__, []
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for k, name in enumerate(names):
        annotation = str(function.__annotations__.get(name, ""))
        kinds = [_unaliased(kind, function.__globals__) for kind in _kinds(annotation)]
        if annotation and all(kind.partition("[")[0] in {**PLAIN, **CLASSES, **MANY} for kind in kinds):
            place = k if k < code.co_argcount else 2**31  # keyword only
            found.append((place, name, tuple(_test(kind) for kind in kinds), " | ".join(kinds)))
    return found


def _unaliased(kind: str, names: dict[str, Any]) -> str:
    """What kind an alias stands for, as far as that is a function, a list or a mapping; `work.Progress` is one too."""
    if kind.startswith("Mutable"):
        return kind.removeprefix("Mutable")
    module, dot, name = kind.partition(".")
    alias = getattr(names.get(module), name, None) if dot and name.isidentifier() else names.get(kind)
    origin = getattr(get_origin(alias), "__name__", "")
    return origin if origin in MANY else kind.replace("Collection[", "Iterable[")


def _kinds(annotation: str) -> list[str]:
    """The alternatives of an annotation; what stands in brackets is one.

    >>> _kinds("str | Sequence[int | str] | None")
    ['str', 'Sequence[int | str]', 'None']
    """
    return [kind.strip() for kind in re.split(r"\|(?![^\[]*\])", annotation)]


def _test(kind: str) -> Test:
    head, _, inside = kind.partition("[")
    if head in CLASSES and head not in PLAIN:
        cls = getattr(import_module(CLASSES[head][0]), head)
        return lambda value: isinstance(value, cls)
    if head == "Sequence" and inside.removesuffix("]") in CLASSES:
        one, many = _test(inside.removesuffix("]")), MANY[head]
        return lambda value: many(value) and all(map(one, value))
    return PLAIN.get(head) or MANY[head]


def at_least(least: int, /, **numbers: float | None) -> None:
    """Refuse a number that is too small; None passes.

    >>> at_least(1, examples=3, max_size=None, iterations=0)
    Traceback (most recent call last):
    ValueError: iterations: 0 is below 1
    """
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"{name}: {number} is below {least}")


def finite(where: str = "", /, **numbers: float) -> None:
    """Refuse a number that is negative, infinite or none; `where` it stands, if its name does not say it.

    >>> finite(slowdown=-0.5)
    Traceback (most recent call last):
    ValueError: slowdown: -0.5 is not finite and >= 0
    >>> finite("op 3", flops=0, moved=math.inf)
    Traceback (most recent call last):
    ValueError: op 3: moved inf is not finite and >= 0
    """
    for name, number in numbers.items():
        if not 0 <= number < math.inf:
            told = f"{where}: {name}" if where else f"{name}:"
            raise ValueError(f"{told} {number} is not finite and >= 0")


def expect(where: str, name: str, value: object, annotation: str) -> None:
    """Refuse a value that is not of these kinds, say one that a function of the user's has returned.

    >>> expect("planner", "what it returned", None, "Plan")
    Traceback (most recent call last):
    TypeError: planner: what it returned: None is a NoneType; it must be a Plan; gpumem.autoswap and \
gpumem.Plan.of(trace, swaps) return one
    """
    if not any(_test(kind)(value) for kind in _kinds(annotation)):
        raise TypeError(_refusal(where, name, value, annotation))


def _refusal(where: str, name: str, value: object, annotation: str) -> str:
    kinds = _kinds(annotation)
    wanted = " or ".join(_word(kind) for kind in kinds)
    if {"int", "str"} <= {*kinds}:
        wanted = wanted.replace(WORDS["str"], "a text such as '300MiB' or '70%'")
    hints = "".join(f"; {CLASSES[kind][1]}" for kind in map(_inner, kinds) if kind in CLASSES)
    where = where.removesuffix(".__init__")
    return f"{where}: {name}: {reprlib.repr(value):.60} is {_a(type(value).__name__)}; it must be {wanted}{hints}"


def _word(kind: str) -> str:
    if kind.startswith("Sequence[") and (of := _inner(kind)) in CLASSES:
        return f"a list of {of}"
    return WORDS.get(kind.partition("[")[0]) or _a(kind)


def _inner(kind: str) -> str:
    return kind.removeprefix("Sequence[").removesuffix("]") if kind.startswith("Sequence[") else kind


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiouAEIO" else f"a {noun}"
