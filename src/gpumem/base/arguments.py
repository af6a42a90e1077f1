"""Arguments are checked where a user's value enters: a list, a path or a text in place of a trace is refused at once.

`strict` reads a function's annotations, once and at the first call. So what a function takes is said in one place, its
signature, and this module imports no class of the package: `CLASSES` says in which module those live that people
confuse, and how one gets hold of one. beartype was tried (0.23): it looks at one random item of a list, so the same
wrong call is now refused and now not, and it does not say what would do instead.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature, unwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Test = Callable[[Any], bool]

# The name of a class: where it lives, and what makes one.
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


class Alternative(NamedTuple):
    """One alternative of an annotation: which values are of it, and in words what it is and how one gets it."""

    fits: Test
    words: str
    hint: str = ""


PLAIN = {
    int: Alternative(
        lambda value: type(value) is int or (hasattr(value, "__index__") and not isinstance(value, bool)),
        "a whole number",
    ),
    float: Alternative(
        lambda value: hasattr(value, "__float__") and not isinstance(value, bool) and not hasattr(value, "__len__"),
        "a number",
    ),
    bool: Alternative(lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),  # NumPy's, too
    str: Alternative(lambda value: isinstance(value, str), "a text"),
    bytes: Alternative(lambda value: isinstance(value, bytes), "bytes"),
    Path: Alternative(lambda value: isinstance(value, os.PathLike), "a path"),
    NoneType: Alternative(lambda value: value is None, "None"),
}
LIST = Alternative(lambda value: hasattr(value, "__iter__") and not isinstance(value, (str, bytes, dict)), "a list")
ITERABLE = Alternative(lambda value: hasattr(value, "__iter__") and not isinstance(value, (str, bytes)), "a list")
MAPPING = Alternative(lambda value: hasattr(value, "items"), "a dict")
MANY = {
    Sequence: LIST,
    Iterable: ITERABLE,
    Collection: ITERABLE,
    Mapping: MAPPING,
    MutableMapping: MAPPING,
    Callable: Alternative(callable, "a function"),
}
PROTOCOLS = ("Allocator", "Pool")  # which `isinstance` does not take


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
    parameters: list[tuple[int, str, list[Alternative]]] | None = None

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal parameters
        if parameters is None:
            parameters = _parameters(unwrap(function))
        for place, name, kinds in parameters:
            if place < len(args):
                value = args[place]
            elif name in kwargs:
                value = kwargs[name]
            else:
                continue
            for kind in kinds:  # no `any`: a generator takes as long as all the tests
                if kind.fits(value):
                    break
            else:
                raise TypeError(_refusal(function.__qualname__, name, value, kinds))
        if check is not None:
            check(kwargs)
        return function(*args, **kwargs)

    return called


def strict_fields(cls: type[C]) -> type[C]:
    """Make the constructor of a dataclass `strict`."""
    cls.__init__ = strict(cls.__init__)  # type: ignore[method-assign]
    return cls


class _Classes(dict[str, Any]):
    """The names that an annotation may use: those of its module, and `CLASSES`, which it may import for types only."""

    def __missing__(self, name: str) -> Any:
        if name not in CLASSES:
            raise KeyError(name)
        return getattr(import_module(CLASSES[name][0]), name)


def _parameters(function: Callable[..., Any]) -> list[tuple[int, str, list[Alternative]]]:
    """Return the parameters that can be checked: place among positional arguments, name, and what they may be."""
    checked = []
    for place, parameter in enumerate(signature(function).parameters.values()):
        kinds = _kinds(parameter.annotation, getattr(function, "__globals__", {}))
        if kinds:
            last = 2**31 if parameter.kind is Parameter.KEYWORD_ONLY else place
            checked.append((last, parameter.name, kinds))
    return checked


def _kinds(annotation: Any, names: Mapping[str, Any]) -> list[Alternative]:
    """Return the alternatives of an annotation; none where one of them is a kind that is not looked at.

    >>> [kind.words for kind in _kinds("str | Sequence[int | str] | None", globals())]
    ['a text', 'a list', 'None']
    """
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, {}, _Classes(names))
        except NameError:  # a class that is imported for types only
            return []
    union = get_origin(annotation) in (Union, UnionType)
    kinds = [_kind(alternative) for alternative in (get_args(annotation) if union else (annotation,))]
    return [kind for kind in kinds if kind] if all(kinds) else []


def _kind(alternative: Any) -> Alternative | None:
    alternative = NoneType if alternative is None else alternative
    origin = get_origin(alternative) or alternative
    if origin is Sequence and (of := _kind((*get_args(alternative), Any)[0])) and of.hint:
        items = f"a list of {get_args(alternative)[0].__name__}"
        return Alternative(lambda value: LIST.fits(value) and all(map(of.fits, value)), items, of.hint)
    kind = PLAIN.get(origin) or MANY.get(origin)
    name = getattr(origin, "__name__", "")
    if kind or name not in CLASSES or not str(origin.__module__).startswith("gpumem"):
        return kind
    fits = _allocates if name in PROTOCOLS else lambda value: isinstance(value, origin)
    return Alternative(fits, _a(name), f"; {CLASSES[name][1]}")


def _allocates(value: object) -> bool:
    return hasattr(value, "allocate") and not isinstance(value, type)


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
            place = f"{where}: {name}" if where else f"{name}:"
            raise ValueError(f"{place} {number} is not finite and >= 0")


def expect(where: str, name: str, value: object, annotation: str) -> None:
    """Refuse a value that is not of these kinds, say one that a function of the user's has returned.

    >>> expect("planner", "what it returned", None, "Plan")
    Traceback (most recent call last):
    TypeError: planner: what it returned: None is a NoneType; it must be a Plan; gpumem.autoswap and \
gpumem.Plan.of(trace, swaps) return one
    """
    kinds = _kinds(annotation, globals())
    if not any(kind.fits(value) for kind in kinds):
        raise TypeError(_refusal(where, name, value, kinds))


def _refusal(where: str, name: str, value: object, kinds: list[Alternative]) -> str:
    wanted = " or ".join(kind.words for kind in kinds)
    if {PLAIN[int], PLAIN[str]} <= {*kinds}:
        wanted = wanted.replace("a text", "a text such as '300MiB' or '70%'")
    hints = "".join(dict.fromkeys(kind.hint for kind in kinds))
    where = where.removesuffix(".__init__")
    return f"{where}: {name}: {reprlib.repr(value):.60} is {_a(type(value).__name__)}; it must be {wanted}{hints}"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiouAEIO" else f"a {noun}"
