"""Linear and integer programs, row by row: what the bound, the swapping program and MO-SOS are stated in.

HiGHS solves them, through SciPy, in a process of its own. Variables lie in [0, upper]; a program is minimised.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from queue import Empty, SimpleQueue
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

import numpy as np

from gpumem.base import work
from gpumem.base.display import Shown
from gpumem.swap import _solver_process as _solver
from gpumem.trace import F64, I64, Bool

OPTIMAL, INFEASIBLE, LATE = "optimal", "infeasible", "late"
# Seconds between looks for an interrupt, so that one is heard as if at once. Not tuned.
STEP = 0.05
# Rows up to which the bound is solved by the simplex method, which is quicker there; an interior point is beyond it.
# Not tuned further.
SMALL = 12_000
# Seconds that a solver may be late with the best solution it has, before it is ended. Not tuned.
GRACE = 5.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Relaxed(Shown):
    """A linear program solved, whole numbers or not.

    `x`: the variables; `price`: of each row, what a unit of its right side is worth; `dual`: a value that no solution
    is below, whatever the solver's tolerances.
    """

    x: F64
    price: F64
    dual: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solved(Shown):
    """What became of an integer program.

    `status`: `optimal` within the gap that was asked for, `infeasible` (nothing is below `best`, where that was given),
    or `late`; `x`: the best variables found, None without any; `value`: theirs, infinite without any; `bound`: what no
    solution is below, as the solver says.
    """

    status: str
    x: F64 | None
    value: float
    bound: float


class Rows:
    """A program that grows: variables with their costs, and rows `A x <= b` or `A x = b` as triplets."""

    def __init__(self) -> None:
        self.row: list[I64] = []
        self.column: list[I64] = []
        self.value: list[F64] = []
        self.right: list[F64] = []
        self.exact: list[Bool] = []
        self.upper: list[F64] = []
        self.cost: list[F64] = []
        self.whole: list[Bool] = []
        self.rows = self.columns = 0

    def variables(self, upper: F64, *, cost: F64 | float = 0.0, whole: bool = False) -> I64:
        """Add variables in [0, upper], each with its cost; `whole`: integers. Return their columns."""
        self.upper.append(np.asarray(upper, np.float64))
        self.cost.append(np.broadcast_to(np.asarray(cost, np.float64), len(upper)))
        self.whole.append(np.full(len(upper), whole))
        self.columns += len(upper)
        return np.arange(self.columns - len(upper), self.columns)

    def one(self, upper: float, *, cost: float = 0.0, whole: bool = False) -> int:
        """Add a variable; return its column."""
        return int(self.variables(np.array([upper]), cost=cost, whole=whole)[0])

    def add(self, right: F64, *, exact: bool = False) -> I64:
        """Add rows that are at most, or `exact`ly, these right sides. Return their indices."""
        self.right.append(np.asarray(right, np.float64))
        self.exact.append(np.full(len(right), exact))
        self.rows += len(right)
        return np.arange(self.rows - len(right), self.rows)

    def put(self, row: I64, column: I64, value: F64 | float) -> None:
        """Add `value` to the coefficient of `column` in `row`."""
        self.row.append(row)
        self.column.append(column)
        self.value.append(np.broadcast_to(np.asarray(value, np.float64), row.shape))

    def at_most(self, left: I64, right: I64) -> None:
        """Add rows `left <= right` for pairs of variables; a variable is never held against itself."""
        other = left != right
        row = self.add(np.zeros(int(other.sum())))
        self.put(row, left[other], 1.0)
        self.put(row, right[other], -1.0)

    def relaxed(self) -> Relaxed | None:
        """Solve the program without regard to whole numbers; None where there is no solution, or no time for one.

        Notes
        -----
        Any prices of the right sign give a lower bound (weak duality), so the solver's tolerances do not matter.
        """
        if work.over():  # to put a program together takes a second for each 10^7 of its coefficients
            return None
        cost, upper, right, exact, _, matrix = self._columns()
        sides: dict[str, Any] = {"A_ub": matrix[~exact], "b_ub": right[~exact]}
        if exact.any():
            sides |= {"A_eq": matrix[exact], "b_eq": right[exact]}
        sides["bounds"] = np.stack([np.zeros(len(upper)), upper], axis=1)
        sides["options"] = _limits()
        method = "highs-ds" if self.rows <= SMALL else "highs-ipm"
        answer = ask({"solver": "linprog", "method": method, "cost": cost, "sides": sides}, grace=0.0)
        if answer is None or answer["x"] is None:
            return None
        price = np.zeros(len(right))
        price[~exact] = np.maximum(-answer["at_most"], 0)
        if exact.any():
            price[exact] = -answer["exact"]
        dual = float(np.minimum((cost + matrix.T @ price) * upper, 0).sum() - right @ price)
        return Relaxed(answer["x"], price, dual)

    def solve(self, *, best: float = inf, gap: float = 0.0, nodes: int | None = None, sure: bool = True) -> Solved:
        """Solve the program in whole numbers, as well as the time allows; some seconds after that it is given up.

        Parameters
        ----------
        best : float
            A value that a solution has to be below to be of use.
        gap : float
            How far from the best possible a solution may be, as a fraction of its value.
        nodes : int, optional
            Of the search tree, at most; a measure of work that is the same on every machine.
        sure : bool
            Whether what the solver proves is of use. Without, HiGHS presolves, which finds more in the same time, and
            (1.12 and 1.15) now and then loses the optimum without a word: there is no bound, and the status is `late`.
        """
        cost, upper, right, exact, whole, matrix = self._columns()
        question = {
            "solver": "milp",
            "cost": cost,
            "matrix": matrix,
            "least": np.where(exact, right, -inf),
            "right": right,
            "lower": np.zeros(len(upper)),
            "upper": upper,
            "whole": whole,
            "best": best if best < inf else None,
            "options": {"mip_rel_gap": gap, "presolve": not sure}
            | _limits()
            | ({} if nodes is None else {"node_limit": nodes}),
        }
        answer = ask(question)
        if answer is None or answer["status"] not in (0, 1, 2) or (answer["x"] is None and not sure):
            return Solved(LATE, None, inf, -inf)
        if answer["status"] == 2:
            return Solved(INFEASIBLE, None, inf, best)
        bound = -inf if answer["bound"] is None or not sure else float(answer["bound"])
        if answer["x"] is None:
            return Solved(LATE, None, inf, bound)
        values = np.where(whole, np.rint(answer["x"]), answer["x"])
        return Solved(LATE if answer["status"] or not sure else OPTIMAL, values, float(answer["value"]), bound)

    def _columns(self) -> tuple[F64, F64, F64, Bool, Bool, Any]:
        """The costs, the upper bounds, the right sides, which rows are exact, which variables whole; the matrix."""
        from scipy.sparse import csr_array

        triplets = _joined(self.value), (_joined(self.row), _joined(self.column))
        matrix = csr_array(triplets, shape=(self.rows, self.columns))
        exact, whole = (_joined(flags).astype(np.bool_) for flags in (self.exact, self.whole))
        return _joined(self.cost), _joined(self.upper), _joined(self.right), exact, whole, matrix


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0)


def _limits() -> dict[str, float]:
    return {"time_limit": work.left()} if work.hurried() else {}


class _Worker:
    """A process that solves programs, and the thread that waits for its answers."""

    def __init__(self) -> None:  # -P: no module of this package is found by a name of the solver's libraries
        self.process = Popen([sys.executable, "-P", str(_solver.__file__)], stdin=PIPE, stdout=PIPE)
        self.answers: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Pass answers on until the process ends; only this thread touches its output."""
        assert self.process.stdout is not None
        with self.process.stdout as answers, suppress(Exception):  # whatever it is that cannot be read
            while True:
                self.answers.put(pickle.load(answers))
        status = self.process.wait()
        what = f"signal {-status}; was there too little memory?" if status < 0 else f"status {status}"
        self.answers.put(RuntimeError(f"the solver's process ended with {what}"))

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def ask(self, question: dict[str, Any], grace: float) -> Any:
        """Return the answer; None where it is so many seconds past its time."""
        assert self.process.stdin is not None
        deadline = work.now() + work.left() + grace if work.hurried() else inf
        with suppress(BrokenPipeError):  # it has ended, which `_listen` says
            pickle.dump(question, self.process.stdin)
            self.process.stdin.flush()
        while deadline == inf or work.now() < deadline:
            with suppress(Empty):
                return self.answers.get(timeout=STEP)
        return None


_idle: list[_Worker] = []  # processes that wait for the next program


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's: it would hear our answers


@atexit.register
def _end() -> None:
    while _idle:
        _idle.pop().end()


def _some_worker() -> _Worker:
    """Return a process that waits and lives, or a new one."""
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            return _Worker()
        if worker.process.poll() is None:
            return worker
        worker.end()


def ask(question: dict[str, Any], *, grace: float = GRACE) -> Any:
    """Have a question answered in another process (see `_solver_process`); None where it is `grace` seconds late.

    An interrupt is heard at once, and ends that process.
    """
    if work.over():
        return None
    worker = _some_worker()
    try:
        answer = worker.ask(question, grace)
    except BaseException:
        worker.end()
        raise
    if answer is None or isinstance(answer, BaseException):
        worker.end()
    else:
        _idle.append(worker)
    if isinstance(answer, BaseException):
        raise answer
    return answer
