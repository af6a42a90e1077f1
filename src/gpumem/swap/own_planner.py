"""A planner of the user's own: any function, and any module by its name.

The one place that reads the signature of a swap planner. Ours are records, and declare what they are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from gpumem.base import work
from gpumem.base.errors import failure
from gpumem.base.names import meant, name_of
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.swap.planner import Declared, Planner, PlannerRecord, Proposal, kind_of
from gpumem.trace import Trace


@dataclass(frozen=True, slots=True)
class FunctionPlanner(PlannerRecord):
    """A function `f(trace, machine, limit, *, own=1) -> Plan` as a record: its options are its keywords.

    >>> def greedy(trace, machine, limit, *, smallest: int = 2**20): ...
    >>> FunctionPlanner(greedy).declared()
    {'smallest': Declared(kind='int', default=1048576)}
    """

    func: Callable[..., Plan | Proposal]
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        takes = self.signature
        first = [parameter for parameter in takes.parameters.values() if parameter.kind is not parameter.KEYWORD_ONLY]
        try:
            takes.replace(parameters=first).bind(None, None, None)
        except TypeError as error:
            call = f"{self.name}: it is called as planner(trace, machine, limit, *, options)"
            raise ValueError(f"{call}, but {error}") from None

    @property
    def name(self) -> str:
        """The function's own."""
        return name_of(self.func)

    @property
    def source(self) -> Callable[..., Any]:
        """The function, or that inside a `functools.partial`."""
        return getattr(self.func, "func", self.func)

    @property
    def signature(self) -> inspect.Signature:
        """What the function takes."""
        try:
            return inspect.signature(self.func)
        except ValueError:  # some that are not written in Python
            return inspect.signature(lambda trace, machine, limit: None)

    @property
    def options(self) -> dict[str, Any]:
        """All options by name."""
        return {name: self.chosen.get(name, one.default) for name, one in self.declared().items()}

    @property
    def given(self) -> dict[str, Any]:
        """The options that were chosen."""
        return dict(self.chosen)

    def declared(self) -> dict[str, Declared]:
        """Its keywords, but for those that all planners have; without an annotation the default says the type."""
        parameters = self.signature.parameters.values()
        keywords = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        own = (parameter for parameter in keywords if parameter.name not in ("seconds", "progress"))
        return {parameter.name: _declared(parameter) for parameter in own}

    def has(self, option: str) -> bool:
        """Whether there is such a keyword, or it takes any."""
        parameters = self.signature.parameters.values()
        return any(
            parameter.kind is parameter.VAR_KEYWORD
            or (parameter.kind is parameter.KEYWORD_ONLY and parameter.name == option)
            for parameter in parameters
        )

    def with_(self, **options: Any) -> Self:
        """Return the planner with other options."""
        for option in options:
            if not self.has(option):
                raise ValueError(f"{option}: {self.name} has no such option{meant(option, self.declared())}")
        return replace(self, chosen={**self.chosen, **options})

    def with_known(self, options: Mapping[str, Any]) -> Self:
        """Return the planner with those of some options that it has."""
        return self.with_(**{name: value for name, value in options.items() if self.has(name)})

    def plan(
        self, trace: Trace, machine: Machine, limit: int, *, seconds: float | None, progress: work.Progress
    ) -> Plan | Proposal:
        """Call the function, with `seconds` and `progress` if it takes them."""
        budget = {} if seconds is None else {"seconds": seconds}
        return self.func(trace, machine, limit, **self.known({**budget, "progress": progress}), **self.chosen)


def _declared(parameter: inspect.Parameter) -> Declared:
    kind, default = parameter.annotation, parameter.default
    return Declared(kind_of(type(default) if kind is parameter.empty else kind), default)


def as_planner(given: object) -> Planner:
    """Return what any planner is: a record itself, the record of a function of ours, or one made of any other function.

    Raises
    ------
    ValueError
        It is no planner.
    """
    if isinstance(given, type) and issubclass(given, PlannerRecord):
        try:
            return given()
        except TypeError as error:
            raise ValueError(f"{given.__name__}: an option of it has no default: {error}") from None
    if isinstance(given, Planner) and not isinstance(given, type):
        return given
    if isinstance(given, partial) and not given.args:
        return as_planner(given.func).with_(**given.keywords)
    if (record := getattr(given, "record", None)) is not None:
        return as_planner(record)
    if callable(given):
        return FunctionPlanner(given)
    problem = f"{given!r:.60} is no planner"
    raise ValueError(f"{problem}: that is a function planner(trace, machine, limit, *, options), or a PlannerRecord")


def from_module(text: str, what: str) -> object:
    """Return what `module:name` names; the module may lie in the current directory.

    Raises
    ------
    ValueError
        There is no such module, its import fails, or it has no such name; `what` tells where the text was given.
    """
    module, _, name = text.partition(":")
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.append(directory)  # at the end: what lies here shall not stand in for a module of others
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{what}: there is no module {module!r}, nor one in the current directory") from None
        raise ValueError(f"{what}: the import of {module!r} fails: {failure(error)}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what}: the import of {module!r} fails: {failure(error)}") from error
    if not hasattr(imported, name):
        raise ValueError(f"{what}: module {module!r} has no {name!r}{meant(name, vars(imported))}")
    return getattr(imported, name)
