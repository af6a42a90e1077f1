"""A job on its backend: laid out under its plan, its ops submitted one by one, each waited for by the host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.errors import ExecutionError
from gpumem.execute.backend import Backend, Token
from gpumem.execute.program import Program, prepare
from gpumem.execute.views import Launch
from gpumem.jobs.scheduler.executor import Executor
from gpumem.jobs.scheduler.instructions import Instructions
from gpumem.trace import I64, UNKNOWN, Trace


@dataclass(slots=True, eq=False)
class Running:
    """The job `name` under one plan, from its iteration `first` on.

    `began`: how many iterations have begun since. `tokens`: the last of each op. `kernel`: of the last kernel that has
    ended.
    """

    name: str
    backend: Backend
    launch: Launch | None
    program: Program
    todo: Instructions
    first: int
    began: int = 0
    tokens: dict[int, Token] = field(default_factory=dict)
    kernel: Token | None = None
    alone: Lock = field(default_factory=Lock)

    def run(self, op: int, iteration: int) -> tuple[Token, int]:
        """Start an op, and wait for it; return the ns it took.

        The order among the threads of a job does not matter: the host has waited for whatever an op comes after.
        """
        with self.alone:
            token = self.submit(op, iteration)
        return token, self.wait(op, token)

    def submit(self, op: int, iteration: int) -> Token:
        """Start an op behind what the host has waited for already; one thread at a time."""
        while self.first + self.began <= iteration:
            self.backend.iteration(list)
            self.began += 1
        program = self.program
        after = [self.tokens[copy] for copy in self.todo.after[op] if copy in self.tokens]
        if self.kernel is not None:
            after.append(self.kernel)
        with self._named(op, "could not be started"):
            token = self.backend.submit(program.works[op], program.reads[op], program.writes[op], after)
        self.tokens[op] = token
        return token

    def wait(self, op: int, token: Token) -> int:
        """Wait for an op; return the ns it took, or the host waited where the backend measures no single op."""
        began = time.perf_counter_ns()
        with self._named(op, "did not end, it or an op before it"):
            span = self.backend.wait(token)
        return time.perf_counter_ns() - began if span.start == UNKNOWN else span.end - span.start

    def ended(self, op: int, token: Token) -> None:
        """Note the end of a kernel: noted sooner, copies would wait for one they do not depend on."""
        if self.todo.part[op] < 0:
            self.kernel = token

    @contextmanager
    def _named(self, op: int, what: str) -> Iterator[None]:
        """Add to an error which op of which job failed."""
        try:
            yield
        except Exception as error:
            work = self.program.works[op]
            named = error if isinstance(error, ExecutionError) else ExecutionError(op, work.name, f"{what}: {error}")
            named.add_note(f"job {self.name!r}")
            if named is error:
                raise
            raise named from error


def prepared(
    executor: Executor, backend: Backend, launch: Launch | None, values: Mapping[int, NDArray[Any]]
) -> Running:
    """Lay a job out under its plan, and write its values; a failure closes the backend."""
    todo = executor.todo
    assert todo.placement is not None
    whole = _recorded(executor.job.trace, todo.trace)
    program = prepare(whole, todo.placement, backend, launch, first=executor.iteration)
    program.works = [replace(work, signals=True, waited=True, ends=()) for work in program.works]
    with ExitStack() as failed:
        failed.callback(backend.close)
        over = program.crossing()
        program.write({of: value for of, value in values.items() if of in over})
        backend.begin(program.works, executor.job.iterations - executor.iteration)
        failed.pop_all()
    return Running(executor.job.name, backend, launch, program, todo=todo, first=executor.iteration)


def _recorded(job: Trace, todo: Trace) -> Trace:
    """The rewritten trace with the recorded file's ids."""

    def composed(of: I64, first: I64) -> I64:
        return np.where(of >= 0, first[of], UNKNOWN)

    return replace(
        todo,
        buffers=replace(todo.buffers, of=composed(todo.buffers.of, job.buffers.of)),
        ops=replace(todo.ops, of=composed(todo.ops.of, job.ops.of)),
    )
