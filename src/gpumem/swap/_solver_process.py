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
        box, options = optimize.Bounds(lower, upper), question["options"]
        found = optimize.milp(
            question["cost"], integrality=question["whole"], bounds=box, constraints=rows, options=options
        )
        return {"status": found.status, "x": found.x, "value": found.fun, "bound": found.mip_dual_bound}
    found = optimize.linprog(question["cost"], method=question["method"], **question["sides"])
    sides = {"at_most": found.ineqlin.marginals, "exact": found.eqlin.marginals} if found.x is not None else {}
    return {"status": found.status, "x": found.x} | sides


def serve(asked: BinaryIO, told: BinaryIO) -> None:
    """Answer until nobody asks any more, which ends the process in the middle of a program too."""
    questions: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_hear, args=(asked, questions), daemon=True).start()
    while True:
        try:
            said: Any = answer(questions.get())
        except Exception as error:
            said = error
        pickle.dump(said, told)
        told.flush()


def _hear(asked: BinaryIO, questions: SimpleQueue[Any]) -> None:
    try:
        while True:
            questions.put(pickle.load(asked))
    finally:  # whoever asked has gone, or was killed
        os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks hears it, and ends this process
    mine = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    serve(sys.stdin.buffer, mine)
