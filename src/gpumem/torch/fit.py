"""Will it fit? What a training step takes of a GPU, and what it would take to make it fit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Any

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.units import amount, fraction, human
from gpumem.pipeline import Planned, PlannerComparison, Requirement, compare_planners, requirement, smallest_pool
from gpumem.pipeline.compare_planners import BEST, QUICK
from gpumem.pipeline.requirement import context_of
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.simulator.workspaces import adding as convolving
from gpumem.swap.planners import planner_of
from gpumem.torch.capture.capture import record
from gpumem.torch.capture.captured import Captured
from gpumem.torch.capture.one_gpu import of_size
from gpumem.torch.capture.script import TrainingScript
from gpumem.torch.fit_report import SECONDS, Fit, Largest
from gpumem.torch.step.foreach_chunks import in_bytes
from gpumem.torch.step.workload import Make, WorkloadError, name_of
from gpumem.trace import Trace
from gpumem.trace.batch import largest as largest_of

EACH = 4.0  # seconds of planning at one batch, while the largest is searched for; not tuned
START = 32  # the batch at which that search begins, where `make` has no default; not tuned


@strict
def fit(  # noqa: PLR0913  public: a keyword for each question
    make: Make | TrainingScript,
    machine: Machine | str,
    *,
    limit: int | str | None = None,
    overhead: float | str | None = None,
    batch: int | None = None,
    device: str = "meta",
    chunk: int | str | None = None,
    assume: str | None = None,
    largest: bool = False,
    planner: str | Sequence[str] = BEST,
    options: Mapping[str, Any] = MappingProxyType({}),
    seconds: float = SECONDS,
    uncertainty: Uncertainty | None = None,
    workspaces: str | int = "fastest",
    name: str = "",
    progress: work.Progress | None = None,
) -> Fit:
    """Say whether a training step fits a machine, and what it would take to make it fit.

    Parameters
    ----------
    make : callable or TrainingScript
        As in `capture`.
    machine : Machine or str
        A machine, or the name of a preset.
    limit : int or str, optional
        Bytes that tensors and workspaces may take, or a text such as `"16GiB"` or `"70%"` of the peak live bytes. Left
        out, it is what the machine has beside the context: what its `reserved` says, or else 512 MiB.
    overhead : float or str, optional
        The most that a plan may cost, as a fraction of the iteration without it, or a text such as `"10%"`.
    batch : int, optional
        Handed on to `make`.
    device : str
        As in `capture`: no memory is needed on `meta`; `cpu` and `cuda` train for real, for steps that need values.
    chunk : int or str, optional
        As in `capture`: where one call of the optimizer holds more than the limit, it can be split.
    assume : str, optional
        As in `capture`.
    largest : bool
        Look for the largest batches that fit, without a plan and with one, and answer for the latter.
    planner : str or sequence of str
        Names in `swap.PLANNERS`, or `module:name` of your own; the cheapest plan counts. Left out, `search`, which
        begins with the plans of the others.
    options : mapping
        Of planners, such as `threshold`: each gets those that it has.
    seconds : float
        Of planning. Captures come on top, and the search for the largest batch, with up to 4 s at each batch.
    uncertainty : Uncertainty, optional
        How far durations may be off: what the plan costs then is in `planned.realised`.
    workspaces : str or int
        Of convolutions, as `workspaces.add` has its `rule`.
    name : str
        Of the trace; by default that of `make`.
    progress : callable
        Told what is being done.

    Returns
    -------
    Fit

    Raises
    ------
    WorkloadError
        The workload cannot be recorded, or takes no batch where one is asked for.
    ValueError
        What is wrong with another argument.
    RuntimeError
        The plan failed its own check.

    Notes
    -----
    Largest batches are found by capturing again and by halves; that what fits at a batch fits at smaller ones is
    assumed. Beyond 64 the batches tried are 32 between a power of two and the next.

    Examples
    --------
    >>> import torch
    >>> def make(batch=64):
    ...     net = torch.nn.Sequential(torch.nn.Linear(1024, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 10))
    ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ...     def step():
    ...         net(torch.randn(batch, 1024)).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     return step
    >>> fit(make, "rtx4090", batch=4096)
    Fit(make at batch 4096 on rtx4090: fits yes, needs 434.00 MiB, of 23.50 GiB)
    """
    machine = Machine.named(machine) if isinstance(machine, str) else machine
    names = [planner] if isinstance(planner, str) else [*planner]
    for one in names:
        planner_of(one)
    asked = _Asked(
        make,
        device,
        in_bytes(chunk),
        assume,
        machine,
        limit,
        None if overhead is None else fraction(overhead, "overhead"),
        names,
        options,
        seconds,
        workspaces,
        name or name_of(make),
    )
    work.check_seconds(seconds)
    if largest and batch is not None:
        raise ValueError(f"batch: {batch}: with largest, batches are tried; leave one of the two out")
    with work.within(progress=progress):
        result = asked.largest() if largest else asked.at(batch)
    if uncertainty is None or result.planned is None:
        return result
    return replace(result, planned=result.planned.under(uncertainty))


Step = tuple[Trace, Requirement, Captured]  # with workspaces; what it takes; what was captured


@dataclass(slots=True)
class _Asked:
    """One question, and what was captured for it so far."""

    make: Make | TrainingScript
    device: str
    chunk: int | None
    assume: str | None
    machine: Machine
    bytes: int | str | None
    overhead: float | None
    planners: Sequence[str]
    options: Mapping[str, Any]
    seconds: float
    rule: str | int
    name: str
    captured: dict[int | None, Step] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    planned: dict[int | None, Planned] = field(default_factory=dict)  # not checked

    def capture(self, batch: int | None) -> Step:
        """Return the step at a batch."""
        if batch not in self.captured:
            work.tell("capturing" + ("" if batch is None else f" at batch {batch}"))
            machine = self.machine
            with of_size(machine.name, machine.capacity - context_of(machine), machine.capacity):
                result = record(
                    self.make, self.device, batch=batch, chunk=self.chunk, assume=self.assume, name=self.name
                )
            rule, words = self.rule, (convolving.FASTEST, convolving.NONE)
            if isinstance(rule, str) and rule not in words:
                rule = amount(rule, result.trace.peak_live_bytes, "workspaces", least=0)
            worked = convolving.add(machine.timed(result.trace), rule=rule)
            self.captured[batch] = worked, requirement(result.trace, worked), result
        return self.captured[batch]

    def limit(self, peak: int) -> int:
        """The bytes that tensors may take."""
        context = context_of(self.machine)
        has = self.machine.capacity - context
        if self.bytes is None:
            return has
        limit = amount(self.bytes, peak, "limit")
        if limit > has:
            available = f"{human(has)} beside a context of {human(context)}"
            raise ValueError(f"limit: {human(limit)} is more than a {self.machine.name} has: {available}")
        return limit

    def at(self, batch: int | None) -> Fit:
        """Answer for one batch."""
        trace, taken, result = self.capture(batch)
        limit = self.limit(taken.live)
        base = simulate(trace, self.machine)
        answer = Fit(
            trace,
            self.machine,
            batch,
            limit,
            context_of(self.machine),
            taken,
            base.makespan,
            overhead=self.overhead,
            seconds=self.seconds,
            notes=result.notes,
            assumptions=result.assumptions,
            sizable=self.sizable,
        )
        if answer.fits:
            return answer
        begin = work.now()
        chosen = self.plan(trace, limit)
        best, known = chosen.planned, self.planned.get(batch)
        if known is not None and (best is None or known.overhead < best.overhead):  # time may be shorter now
            best = known.verified(self.seconds)
        if best is not None:
            return answer.with_(planned=best, tried=chosen.tried)
        broken = {one.planner for one in chosen.tried if one.error}
        lowest = smallest_pool(
            trace,
            self.machine,
            max(limit, chosen.needs),
            planners=[name for name in self.any_of if name not in broken],
            options=self.options,
            overhead=self.overhead,
            seconds=max(begin + self.seconds - work.now(), self.seconds / 2),
        )
        return answer.with_(tried=chosen.tried, least=lowest, needs=chosen.needs)

    def plan(self, trace: Trace, limit: int, **how: Any) -> PlannerComparison:
        """Plan as was asked."""
        usual = {"planners": self.planners, "overhead": self.overhead, "seconds": self.seconds, "options": self.options}
        return compare_planners(trace, self.machine, limit, **{**usual, **how})

    def largest(self) -> Fit:
        """Look for the largest batches; answer for the one with a plan."""
        if isinstance(self.bytes, str) and "%" in self.bytes:
            raise ValueError(f"limit: {self.bytes!r} is a part of one batch's peak; with largest, write bytes")
        limit = self.limit(0)

        def fits(batch: int) -> bool:
            return (result := self.tried(batch)) is not None and result[1].reserved <= limit

        def fits_planned(batch: int) -> bool:
            if (result := self.tried(batch)) is None or fits(batch):
                return result is not None
            any_plan = {"planners": self.any_of, "enough": inf, "seconds": EACH, "check": False}
            planned = self.plan(result[0], limit, **any_plan).planned
            if planned is not None:
                self.planned[batch] = planned
            return planned is not None

        plain = largest_of(fits, self.start())
        planned = largest_of(fits_planned, max(plain, 1))
        result = Largest(plain, planned, tuple(self.failed.values()))
        smallest = min(batch for batch in self.captured if batch is not None)
        return self.at(planned or smallest).with_(largest=result)

    @property
    def any_of(self) -> list[str]:
        """The planners where any plan will do: those that take little time first, whose plans a search begins with."""
        wanted = {*self.planners, *(QUICK if {*BEST} <= {*self.planners} else ())}
        return [*(name for name in QUICK if name in wanted), *(name for name in self.planners if name not in QUICK)]

    def tried(self, batch: int) -> Step | None:
        """What was captured at a batch; None where the step cannot be recorded at it, which is kept in mind."""
        try:
            return self.capture(batch)
        except WorkloadError as error:
            if not self.captured:
                raise
            self.failed[batch] = f"batch {batch}: {error}"
            return None

    @property
    def sizable(self) -> bool:
        """Whether `make` takes a batch."""
        if isinstance(self.make, TrainingScript):
            return False
        takes = inspect.signature(self.make).parameters
        return "batch" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values())

    def start(self) -> int:
        """The batch at which to begin: the default of `make`, which has to take one."""
        if isinstance(self.make, TrainingScript):
            raise WorkloadError(f"{self.make.path}: a script has its own arguments; largest needs def make(batch=...)")
        if not self.sizable:
            raise WorkloadError(f"{name_of(self.make)}: takes no batch to make larger; write def make(batch=...)")
        takes = inspect.signature(self.make).parameters
        default = takes["batch"].default if "batch" in takes else None
        return default if isinstance(default, int) and default > 0 else START
