"""A list or a text where a trace, machine, plan, placement or timeline belongs is said so, in all public functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem.base.arguments import CLASSES, strict
from gpumem.base.exports import LazyPackage
from gpumem.jobs import Job
from gpumem.pipeline.report import Run
from gpumem.swap import Scheduled, Task
from gpumem.trace.record.recording import Recording
from tests.base.packages import packages

ASKED = {"Trace", "Machine", "Placement", "Plan", "Timeline", "Recording", "Outcome", "Job"}
MADE_BY_USERS = (gpumem.Machine, gpumem.Trace, Job, Recording, Run, Scheduled, Task)


def functions() -> dict[str, Callable[..., Any]]:
    """Every public function, and every public method of every public class, with `self` or `cls` given."""
    found: dict[str, Callable[..., Any]] = {}
    for package in packages():
        for name in (
            dir(package) if isinstance(package, LazyPackage) else [n for n in vars(package) if not n.startswith("_")]
        ):
            thing = getattr(package, name)
            if not getattr(thing, "__module__", "").startswith("gpumem"):
                continue
            if inspect.isfunction(thing):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
            if inspect.isclass(thing) and not getattr(thing, "_is_protocol", False):
                if thing in MADE_BY_USERS:
                    found[f"{thing.__module__}.{thing.__qualname__}"] = thing
                found.update(methods(thing))
    return found


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, classmethod)):
            bound = method.__get__(None, cls) if isinstance(method, classmethod) else partial(method, None)
            yield f"{cls.__module__}.{cls.__qualname__}.{name}", bound


def kinds(parameter: inspect.Parameter) -> set[str]:
    return {kind.strip() for kind in str(parameter.annotation).split("|")}


def checked_parameters() -> list[tuple[str, str]]:
    return [
        (name, parameter.name)
        for name, function in sorted(functions().items())
        for parameter in inspect.signature(function).parameters.values()
        if kinds(parameter) & ASKED
    ]


@cache
def good(kind: str) -> Any:
    """Something of a kind that passes the check; what is not checked may be anything."""
    plain = {"int": 1, "float": 1.0, "str": "x", "Path": Path("x"), "None": None, "Make": print}
    if kind not in CLASSES:
        return {"Sequence": (), "Iterable": (), "Mapping": {}}.get(kind.partition("[")[0], plain.get(kind))
    from importlib import import_module

    cls = getattr(import_module(CLASSES[kind][0]), kind)
    abstract = getattr(cls, "__abstractmethods__", ())
    return object.__new__(type(kind, (cls,), dict.fromkeys(abstract)) if abstract else cls)


def test_every_public_function_refuses_what_belongs_elsewhere() -> None:
    for name, argument in checked_parameters():
        check_parameter(name, argument)


def check_parameter(name: str, argument: str) -> None:
    function = functions_once()[name]
    parameters = inspect.signature(function).parameters
    needed = {
        p.name: good(sorted(kinds(p))[0])
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    wrong: list[Any] = [[1, 2], {"a": 1}] + (["a.json"] if "str" not in kinds(parameters[argument]) else [])
    for value in wrong:
        with pytest.raises(TypeError, match=f"{argument}: .* is an? {type(value).__name__}; it must be ") as told:
            function(**needed | {argument: value})
        assert any(f" {kind}" in str(told.value) for kind in ASKED)
        assert "gpumem." in str(told.value) and "\n" not in str(told.value)


functions_once = cache(functions)


def test_there_are_many_checked_parameters() -> None:
    assert len(checked_parameters()) > 110
    names = {name for name, _ in checked_parameters()}
    assert {
        "gpumem.simulator.simulate.simulate",
        "gpumem.swap.plan.plan.Plan.apply",
        "gpumem.trace.placement.Placement.at",
    } <= names


def test_the_signature_stays() -> None:
    @strict
    def plan(limit: int, *, seed: float | None = None) -> int:
        return limit

    assert str(inspect.signature(plan)) == "(limit: 'int', *, seed: 'float | None' = None) -> 'int'"
    assert plan(3) == plan(limit=3, seed=None) == plan(3, seed=1) == 3
    for limit in (True, 2.5, "70%", None, [1]):
        with pytest.raises(TypeError, match=r"limit: .* it must be a whole number"):
            plan(limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed: 'x' is a str; it must be a number or None"):
        plan(1, seed="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'limit'"):
        plan()  # type: ignore[call-arg]
