"""Every planner beside what is possible: questions that stand alone, asked one by one, anywhere, and only once.

A `Question` is one planner, or one bound, for one trace and one limit. Its answer is a row: plain figures that go into
a file as a line. `survey` asks what a `Ledger` has no answer to, here or on any executor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.leaderboard.ledger import Ledger, Row
from gpumem import check as oracles, swap
from gpumem.base.arguments import expect, strict
from gpumem.base.display import Facts, Shown, clipped
from gpumem.base.errors import CheckError, Infeasible, NotReached
from gpumem.base.version import __version__
from gpumem.base.work import now
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.swap import Bound, Plan
from gpumem.trace import COPY_IN, COPY_OUT, RECOMPUTE, Trace

LIMITS = (0.8, 0.6, 0.5, 0.4, 0.3)  # of the peak live bytes
BOUNDS: Mapping[str, Callable[..., Bound]] = {
    "bound-swap": swap.least_stall,
    "bound": partial(swap.least_stall, recompute=True),
}
AT_ONCE = 64  # questions that an executor holds, so that a thousand traces do not wait in its queue
NEARLY = 0.95  # of its seconds: a planner that took so many was cut short


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Question(Shown):
    """What does this planner, or bound, say of a trace at a load limit?

    Parameters
    ----------
    trace : Trace
    machine : Machine
    part : float
        The limit as a part of the peak live bytes, in (0, 1].
    name : str
        Of the planner or bound.
    planner : callable
        `planner(trace, machine, limit, **options)` returns a `Plan`, or a `Bound`. For processes and dask it must be
        one that can be pickled: a function of a module.
    options : mapping
        Those that the planner has are handed on. The values must be plain: JSON has them.
    """

    trace: Trace
    machine: Machine
    part: float
    name: str
    planner: Callable[..., Plan | Bound]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ValueError(f"limit: {self.part} of the peak live bytes is not in (0, 1]")

    def _facts(self) -> Facts:
        return {
            "": f"{self.name} on {clipped(self.trace.name, 40)}",
            "limit": f"{self.part:.4g} of the peak live bytes",
        }

    @property
    def limit(self) -> int:
        """Bytes."""
        return int(self.trace.peak_live_bytes * self.part)

    @property
    def told(self) -> dict[str, Any]:
        """The options that the planner has, and its own where it is not as the table has it."""
        planner = swap.planner_of(self.planner)
        own = {} if planner == swap.PLANNERS.get(self.name) else planner.given
        return {**own, **planner.known(self.options)}

    def asked(self) -> Row:
        """Return what the answer depends on: content of the trace, machine, limit, planner, its options, version."""
        return {
            "trace": self.trace.name,
            "content": content(self.trace),
            "machine": self.machine.name,
            "machine_content": content(self.machine),
            "peak_live_bytes": self.trace.peak_live_bytes,
            "part": self.part,
            "limit": self.limit,
            "planner": self.name,
            "options": self.told,
            "version": __version__,
        }

    def answer(self) -> Row:
        """Plan, and judge by the byte-counting simulation at the limit; what goes wrong is an answer as well.

        Returns
        -------
        dict
            `asked()`, and `status`: `planned`, `bound`, `infeasible` (`needs`: the least bytes that could do),
            `not reached` (`reached`: the lowest load it got to) or `failed` (`why`); `overhead` as a fraction, None
            without a plan, `iteration_ns` that it is a part of, `bytes_out`, `bytes_in`, `recompute_ns`, `seconds` of
            the planner, and whether it was cut short (`late`).
        """
        row = self.asked()
        begin = now()
        try:
            found = self.planner(self.trace, self.machine, self.limit, **row["options"])
        except Infeasible as stop:
            said: Row = {"status": "infeasible", "needs": stop.needs}
        except NotReached as stop:
            said = {"status": "not reached", "reached": stop.reached}
        except Exception as error:  # one planner that is broken does not end a night's run
            said = failed(error)
        else:
            said = {}
        seconds = now() - begin
        if not said:
            try:
                said = self._judged(found)
            except (CheckError, ValueError, TypeError) as error:
                said = failed(error)
        late = seconds >= NEARLY * row["options"].get("seconds", np.inf)
        return row | {"overhead": None, "seconds": seconds, "late": late} | said

    def _judged(self, found: Plan | Bound) -> Row:
        if isinstance(found, Bound):
            base = simulate(self.trace, self.machine).makespan
            overhead = found.stall_ns / base if base else 0.0
            return {"status": "bound", "overhead": overhead, "iteration_ns": base}
        expect(self.name, "what it returned", found, "Plan")
        after = found.apply(self.trace)
        oracles.data_flow(self.trace, after)
        if after.peak_live_bytes > self.limit or after.live_bytes(host=True).max() > self.machine.pinned:
            oracles.budget(after, self.limit, host=self.machine.pinned)
        line, before = simulate(after, self.machine, capacity=self.limit), baseline(self.trace, self.machine, after)
        copied = {role: after.ops.role == role for role in (COPY_OUT, COPY_IN)}
        size, first = after.buffers.size[after.ops.writes.idx], after.ops.writes.ptr[:-1]
        moved = {role: int(size[first[mine]].sum()) for role, mine in copied.items()}
        return {
            "status": "planned",
            "overhead": line.overhead(before),
            "iteration_ns": before.makespan,
            "bytes_out": moved[COPY_OUT],
            "bytes_in": moved[COPY_IN],
            "recompute_ns": int((line.end - line.start)[after.ops.role == RECOMPUTE].sum()),
        }


def failed(error: BaseException) -> Row:
    """Return the answer of a planner that raised what no planner should."""
    return {"status": "failed", "why": f"{type(error).__name__}: {error}"[:300]}


@lru_cache(maxsize=64)  # by identity
def content(thing: object) -> str:
    """Return a hash of all that a trace, or a machine, consists of, but for its own name.

    Names of ops and buffers count: planners read what an op does from them.

    >>> trace = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
    >>> content(trace) == content(Trace.from_lifetimes([4, 2], [0, 1], [2, 3], name="other"))
    True
    >>> content(trace) == content(Trace.from_lifetimes([4, 3], [0, 1], [2, 3]))
    False
    """
    found = hashlib.sha256()
    _add(found, thing, but="name")
    return found.hexdigest()[:16]


def _add(found: Any, thing: object, but: str = "") -> None:
    if is_dataclass(thing):
        for one in fields(thing):
            if one.name != but:
                found.update(one.name.encode())
                _add(found, getattr(thing, one.name))
    elif isinstance(thing, np.ndarray):
        found.update(thing.tobytes())
    else:
        found.update(repr(thing).encode())


@strict
def questions(
    traces: Iterable[Trace],
    machine: Machine,
    planners: Mapping[str, Callable[..., Plan | Bound]],
    limits: Sequence[float] = LIMITS,
    options: Mapping[str, Any] | None = None,
) -> list[Question]:
    """Return a question for each trace, limit and planner, in this order; the bounds are in `BOUNDS`.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> asked = questions([bundled("mlp3")], Machine.named("gtx1080ti"), {**swap.PLANNERS, **BOUNDS}, [0.8, 0.6])
    >>> len(asked) == 2 * (len(swap.PLANNERS) + 2)
    True
    """
    return [
        Question(trace, machine, part, name, planner, options or {})
        for trace in traces
        for part in limits
        for name, planner in planners.items()
    ]


def ask(question: Question) -> Row:
    """Answer a question: what an executor is given."""
    return question.answer()


@strict
def survey(
    asked: Sequence[Question],
    *,
    executor: Executor | None = None,
    ledger: Ledger | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Answer questions, in this process or on an executor, and keep each answer as soon as it is there.

    Parameters
    ----------
    asked : sequence of Question
    executor : concurrent.futures.Executor, optional
        A pool of threads or of processes, dask's `Client.get_executor()`.
    ledger : Ledger, optional
        Has answers of earlier runs, which are not asked for again unless they say `failed`, and keeps the new ones.
    progress : callable
        Told of each answer.

    Returns
    -------
    list of dict
        A row for each question, in order; see `Question.answer`. A task that the executor loses has failed.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from gpumem.io import bundled
    >>> some = {"heuristic": swap.PLANNERS["heuristic"], "capuchin": swap.PLANNERS["capuchin"]}
    >>> asked = questions([bundled("mlp3")], Machine.named("gtx1080ti"), some, [0.9])
    >>> with ThreadPoolExecutor(2) as threads:
    ...     rows = survey(asked, executor=threads)
    >>> [(row["planner"], row["status"]) for row in rows]
    [('heuristic', 'planned'), ('capuchin', 'not reached')]
    """
    ledger = Ledger() if ledger is None else ledger
    known = [ledger.get(question.asked()) for question in asked]
    left = [k for k, row in enumerate(known) if row is None]
    answers = _here(asked, left) if executor is None else _on(executor, asked, left)
    for count, (k, row) in enumerate(answers, 1):
        known[k] = row
        ledger.keep(row)
        told = row["status"] if row["overhead"] is None else f"{row['overhead']:.2%}"
        progress(f"{count} of {len(left)}: {row['planner']} on {row['trace']} at {row['part']:.4g}: {told}")
    return [row for row in known if row is not None]


def _here(asked: Sequence[Question], left: Sequence[int]) -> Iterable[tuple[int, Row]]:
    return ((k, ask(asked[k])) for k in left)


def _on(executor: Executor, asked: Sequence[Question], left: Sequence[int]) -> Iterable[tuple[int, Row]]:
    """Answers as they come in; a few questions are on their way at any time."""
    waiting: dict[Future[Row], int] = {}
    rest = iter(left)
    try:
        while True:
            for k in islice(rest, AT_ONCE - len(waiting)):
                try:
                    waiting[executor.submit(ask, asked[k])] = k
                except RuntimeError as error:  # the executor is broken
                    yield k, _lost(asked[k], error)
            if not waiting:
                return
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                k, lost = waiting.pop(done), done.exception()
                yield k, done.result() if lost is None else _lost(asked[k], lost)
    finally:
        for future in waiting:
            future.cancel()


def _lost(question: Question, error: BaseException) -> Row:
    return question.asked() | {"overhead": None, "seconds": 0.0, "late": False} | failed(error)
