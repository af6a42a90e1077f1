"""What a planner is: a record of its options, called with a trace, a machine and a limit; and what it proposes.

::

    AutoSwap(score="doa")(trace, machine, limit)           -> Plan
    AutoSwap(score="doa").propose(trace, machine, limit)   -> Proposal: the plan, its time, what is proved
    autoswap(trace, machine, limit, score="doa")           the same by keywords

What a planner is able to is declared: its options are the fields of the record, the rest are attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, NamedTuple, ParamSpec, Self, TypeVar

from gpumem.base import work
from gpumem.base.arguments import expect, strict
from gpumem.base.display import Facts, Shown
from gpumem.base.errors import IN_PLANNER, Infeasible, NotReached
from gpumem.base.names import meant
from gpumem.base.units import human_ns, percent
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import keep_tails, trimmed
from gpumem.swap.facts.options import check_option
from gpumem.swap.plan import Plan
from gpumem.swap.plan.tails import Tails
from gpumem.trace import Trace

P = ParamSpec("P")
R = TypeVar("R", bound="Plan | Proposal")

PLANNED, START = "planned", "start"  # statuses, beside those of `linear_programs`
SWAPS, PLANS = "swaps", "plans"  # what a planner starts from


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proposal(Shown):
    """A plan, how long its iteration takes by the byte-counting simulation, and what no plan of its kind can beat.

    Parameters
    ----------
    plan : Plan
    makespan, lower_bound : int
        Nanoseconds of an iteration: of the plan, and the least possible as far as that is proved; 0: nothing is.
    status : str
        `planned`: by a planner that proves nothing. `optimal`: the two times are equal, or as close as was asked for.
        `late`: the time was up, or the program has said all that it can. `start`: the same, and the plan is the one
        that was given.
    """

    plan: Plan
    makespan: int
    lower_bound: int = 0
    status: str = PLANNED

    @property
    def gap(self) -> float:
        """How far the plan may be from the best, as a fraction of its time."""
        return (self.makespan - self.lower_bound) / self.makespan if self.makespan else 0.0

    def _facts(self) -> Facts:
        times = {"iteration": human_ns(self.makespan)}
        if self.status != PLANNED:
            times |= {"at least": human_ns(self.lower_bound), "gap": percent(self.gap)}
        return {"": self.plan.trace} | times | {"status": self.status}


class Declared(NamedTuple):
    """An option of a planner: of which type it is, in words of Python, and what it is where nobody says."""

    kind: str
    default: Any


@dataclass(frozen=True, slots=True)
class PlannerRecord:
    """A planner by its options, the fields of a frozen dataclass; one of your own has a method `plan`.

    Attributes
    ----------
    proves : bool
        Whether a proposal has a lower bound. Such a planner takes all the time there is.
    starts_from : str
        The option `start` is to be the best plan known: of `swaps` only, or any of `plans`; empty: it begins alone.
    finds_lowest : bool
        Whether `lowest` looks for the lowest limit that costs nothing.
    reports : bool
        Whether `progress` is told how far it got.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import Heuristic
    >>> trace, machine = bundled("mlp3"), Machine.named("gtx1080ti")
    >>> Heuristic().propose(trace, machine, trace.peak_live_bytes * 19 // 20)
    Proposal(mlp3_b128_sgd: iteration 16.10 ms, status planned)
    """

    function: ClassVar[Callable[..., Plan | Proposal]]  # set by `plans`
    proves: ClassVar[bool] = False
    finds_lowest: ClassVar[bool] = False
    reports: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for one in fields(self):
            check_option(one.name, getattr(self, one.name), one.metadata)

    @property
    def name(self) -> str:
        """What tables call it."""
        function = getattr(type(self), "function", type(self))
        return str(function.__name__).removeprefix("solve_").replace("_", "-")

    @property
    def starts_from(self) -> str:
        """What plan to begin with is of use."""
        return ""

    @property
    def begins_with(self) -> tuple[Planner, ...]:
        """The planners that it is never worse than, the quick ones first."""
        return ()

    @property
    def options(self) -> dict[str, Any]:
        """All options by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not what they are where nobody says."""
        usual = self.declared()
        return {name: value for name, value in self.options.items() if value != usual[name].default}

    def declared(self) -> dict[str, Declared]:
        """The options that there are, by name."""
        return {one.name: Declared(kind_of(one.type), one.default) for one in fields(self)}

    def has(self, option: str) -> bool:
        """Whether there is such an option; `seconds` and `progress` count."""
        return option in self.declared() or option == "seconds" or (option == "progress" and self.reports)

    def known(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some options that it has, `seconds` and `progress` as well."""
        return {name: value for name, value in options.items() if self.has(name)}

    def with_(self, **options: Any) -> Self:
        """Return the planner with other options.

        >>> from gpumem.swap import AutoSwap
        >>> AutoSwap(score="doa").with_(peaks="all").given
        {'score': 'doa', 'peaks': 'all'}
        >>> AutoSwap().with_(scores="doa")
        Traceback (most recent call last):
        ValueError: scores: autoswap has no such option; did you mean 'score'?
        """
        for option in options:
            if option not in (known := self.declared()):
                raise ValueError(f"{option}: {self.name} has no such option{meant(option, known)}")
        return replace(self, **options)

    def with_known(self, options: Mapping[str, Any]) -> Self:
        """Return the planner with those of some options that it has."""
        return self.with_(**{name: value for name, value in options.items() if name in self.declared()})

    @strict
    def plan(
        self, trace: Trace, machine: Machine, limit: int, *, seconds: float | None, progress: work.Progress
    ) -> Plan | Proposal:
        """Plan with these options: what a record of your own says.

        `seconds` are what is left of the budget, and `progress` tells whom it tells: see `gpumem.base.work`.
        """
        return type(self).function(trace, machine, limit, **self.options)

    def __call__(
        self,
        trace: Trace,
        machine: Machine,
        limit: int,
        *,
        seconds: float | None = None,
        progress: work.Progress | None = None,
        **options: Any,
    ) -> Plan:
        """Return the plan alone; `options` stand for those of the record."""
        with work.within(seconds, progress):
            answer = self._asked(options, trace, machine, limit)
        return answer.plan if isinstance(answer, Proposal) else answer

    @strict
    def propose(
        self,
        trace: Trace,
        machine: Machine,
        limit: int,
        *,
        seconds: float | None = None,
        progress: work.Progress | None = None,
        **options: Any,
    ) -> Proposal:
        """Return the plan, how long its iteration takes, and what is proved."""
        with work.within(seconds, progress):
            answer = self._asked(options, trace, machine, limit)
        if isinstance(answer, Proposal):
            return answer
        return Proposal(answer, simulate(answer.apply(trace), machine, capacity=limit).makespan)

    def _asked(self, options: Mapping[str, Any], trace: Trace, machine: Machine, limit: int) -> Plan | Proposal:
        """Plan; what a planner of the user's own raises, and should not, bears its name."""
        planner = self.with_(**options)
        try:
            answer = planner.plan(trace, machine, limit, seconds=work.seconds(), progress=work.teller())
            if not isinstance(answer, Proposal):
                expect("planner", "what it returned", answer, "Plan")
        except (ValueError, Infeasible, NotReached):
            raise
        except Exception as error:
            if not str(planner.source.__module__).startswith("gpumem."):
                error.add_note(f"{IN_PLANNER}{self.name}")
            raise
        return answer

    @property
    def source(self) -> Any:
        """The class, or the function, that plans."""
        return type(self)

    @strict
    def lowest(self, trace: Trace, machine: Machine, **options: Any) -> tuple[Plan, int]:
        """Return a plan for the lowest limit that costs nothing, and that limit."""
        raise ValueError(f"{self.name}: it plans for a limit, and looks for none")


Planner = PlannerRecord  # what all are: `planner_of` makes one of any function


def kind_of(annotation: object) -> str:
    """Return what an annotation says, in words of Python.

    >>> kind_of("int | None"), kind_of(float), kind_of(tuple[float, ...])
    ('int | None', 'float', 'tuple[float, ...]')
    """
    return annotation.__name__ if type(annotation) is type else str(annotation)


def plans(record: type[PlannerRecord]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function what a record calls; its keywords, which are the options, are checked as the record's are."""

    def bind(function: Callable[P, R]) -> Callable[P, R]:
        names = [one.name for one in fields(record)]

        def check(keywords: Mapping[str, Any]) -> None:
            record(**{name: keywords[name] for name in names if name in keywords})

        entry = strict(work.budgeted(_without_tails(function)), check)
        entry.record, record.function = record, staticmethod(entry)  # type: ignore[attr-defined]
        return entry

    return bind


def _without_tails(function: Callable[P, R]) -> Callable[P, R]:
    """Plan without dead tails where some op cannot keep to the limit with them; the plan drops those in the way."""

    @wraps(function)
    def planner(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature(function).bind(*args, **kwargs)
        trace, limit = bound.arguments["trace"], bound.arguments["limit"]
        trimmed_trace = bound.arguments["trace"] = trimmed(trace, limit, always=False)
        if trimmed_trace is not trace and bound.arguments.get("start") is not None:
            bound.arguments["start"] = Tails(trace, trimmed_trace).trimmed(bound.arguments["start"])
        answer = function(*bound.args, **bound.kwargs)
        if trimmed_trace is trace:
            return answer
        plan: Any = answer if isinstance(answer, Plan) else answer.plan
        whole: Any = keep_tails(trace, Tails(trace, trimmed_trace).dropped(plan), bound.arguments["machine"], limit)
        return whole if isinstance(answer, Plan) else replace(answer, plan=whole)

    return planner


def plan_only(solve: Callable[P, Proposal]) -> Callable[P, Plan]:
    """Make the planner of a function that returns a proposal: its plan alone."""

    @wraps(solve)
    def planner(*args: P.args, **kwargs: P.kwargs) -> Plan:
        return solve(*args, **kwargs).plan

    planner.__name__ = planner.__qualname__ = solve.__name__.removeprefix("solve_")
    return planner
