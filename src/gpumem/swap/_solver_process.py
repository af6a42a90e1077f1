"""Solves programs in a process of its own: run as a file, it answers on stdout what it is asked on stdin.

It imports nothing of the package. A process can be ended whatever the solver is doing, and what HiGHS prints on
stdout, where a command prints its table, goes nowhere.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Solve what was asked for; the answer has the solver's fields as plain values."""
    from scipy import optimize

    if question["solver"] == "milp":
        least, right, lower, upper = (question[key] for key in ("least", "right", "lower", "upper"))
        rows = [optimize.LinearConstraint(question["matrix"], least, right)] if len(right) else []
        if question["best"] is not None:
            rows.append(optimize.LinearConstraint(question["cost"][None], -float("inf"), question["best"]))
        bounds, options = optimize.Bounds(lower, upper), question["options"]
        result = optimize.milp(
            question["cost"], integrality=question["whole"], bounds=bounds, constraints=rows, options=options
        )
        return {"status": result.status, "x": result.x, "value": result.fun, "bound": result.mip_dual_bound}
    result = optimize.linprog(question["cost"], method=question["method"], **question["sides"])
    sides = {"at_most": result.ineqlin.marginals, "exact": result.eqlin.marginals} if result.x is not None else {}
    return {"status": result.status, "x": result.x} | sides


def serve(questions_in: BinaryIO, answers: BinaryIO) -> None:
    """Answer until stdin closes, which ends the process in the middle of a program too."""
    questions: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_hear, args=(questions_in, questions), daemon=True).start()
    while True:
        try:
            result: Any = answer(questions.get())
        except Exception as error:
            result = error
        pickle.dump(result, answers)
        answers.flush()


def _hear(questions_in: BinaryIO, questions: SimpleQueue[Any]) -> None:
    try:
        while True:
            questions.put(pickle.load(questions_in))
    finally:  # the process that asks has ended, or was killed
        os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks hears it, and ends this process
    own_stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    serve(sys.stdin.buffer, own_stdout)
