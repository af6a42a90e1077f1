"""Event logs of jobs as text: how they are read, broken line by line, and judged; one log of two jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumem import check
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import objects, tiny_machine


@dataclass(frozen=True, slots=True)
class Line:
    """An event."""

    ns: int
    job: str
    kind: str
    iteration: int = -1
    op: int = -1
    buffer: int = -1
    size: int = 0
    part: int = -1


Log = list[Line]


W, X = 0, 1  # of job a


A = Trace(  # X made by op 0, read by op 2; W kept, read by op 1, updated by op 3
    Buffers.make([8, 8], [0, 0], [4, 3], persistent=[True, False]),
    Ops.make([[], [W], [X], [W]], [[X], [], [], [W]], duration=[5, 5, 5, 5]),
)


B = Trace(  # one op, reads V, which is kept, and makes Y in place
    Buffers.make([4, 2], [0, 0], [1, 1], persistent=[True, False]), Ops.make([[0, 1]], [[1]], duration=[30])
)


TRACES = {"a": A, "b": B}


# Job a swaps W from op 3 to op 1 of the next iteration, and X from op 0 to op 2; copies of 8 bytes take 7 ns out and
# 4 ns in. Its second iteration runs without a plan, so W comes in at the boundary.
LOG = """
0  a arrive
0  a launch     size=16
0  a hold       buffer=1 part=1
0  a start      op=0
2  b arrive
2  b wait
4  b replan
4  b launch     size=6
4  b hold       buffer=0
4  b hold       buffer=1
4  b start      op=0
5  a end        op=0
5  a hold       buffer=0
5  a out        buffer=1 part=1
5  a in         buffer=0
9  a in_end     buffer=0
9  a start      op=1
12 a out_end    buffer=1 part=1
12 a free       buffer=1 part=1
12 a hold       buffer=1 part=3
12 a passive    buffer=1 part=3
12 a in         buffer=1 part=3
14 a end        op=1
16 a in_end     buffer=1 part=3
16 a start      op=2
21 a end        op=2
21 a free       buffer=1 part=3
21 a start      op=3
26 a end        op=3
26 a out        buffer=0
33 a out_end    buffer=0
33 a free       buffer=0
33 a iteration
33 a replan
33 a adopt      size=17
33 a hold       buffer=0
33 a passive    buffer=0
33 a in         buffer=0
34 b end        op=0
34 b free       buffer=1
34 b iteration
34 b free       buffer=0
34 b leave
37 a in_end     buffer=0
37 a hold       buffer=1              iteration=1
37 a start      op=0                  iteration=1
42 a end        op=0                  iteration=1
42 a start      op=1                  iteration=1
47 a end        op=1                  iteration=1
47 a start      op=2                  iteration=1
52 a end        op=2                  iteration=1
52 a free       buffer=1              iteration=1
52 a start      op=3                  iteration=1
57 a end        op=3                  iteration=1
57 a iteration                        iteration=1
57 a free       buffer=0              iteration=1
57 a leave                            iteration=1
"""


def log_of(text: str, traces: dict[str, Trace]) -> Log:
    """Read a log; the iteration is 0, the part is the buffer, and the size that of the buffer, unless set."""
    log = []
    for line in text.strip().splitlines():
        ns, job, kind, *rest = line.split()
        told = {key: int(number) for key, number in (pair.split("=") for pair in rest)}
        if "buffer" in told:
            told.setdefault("part", told["buffer"])
            if "size" not in told:
                told["size"] = int(traces[job].buffers.size[told["buffer"]])
        log.append(Line(int(ns), job, kind, **({"iteration": 0} | told)))
    return log


def judge(log: Log, traces: dict[str, Trace] = TRACES, *, capacity: int = 23, slowdown: float = 0.0) -> None:
    machine = tiny_machine()
    check.jobs(log, traces, machine, capacity, {k: t.ops.duration for k, t in traces.items()}, slowdown=slowdown)


def broken(text: str, traces: dict[str, Trace], edits: dict[str, str]) -> Log:
    """Replace lines: by nothing, by others (`|` between them), with `...` for the line itself."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    for old, new in edits.items():
        assert lines.count(old) == 1, f"{old!r} is there {lines.count(old)} times"
        lines[lines.index(old)] = new.replace("...", old).replace("|", "\n")
    return log_of("\n".join(line for line in lines if line), traces)


def refused(rule: str, why: str, text: str, traces: dict[str, Trace], edits: dict[str, str], **options: Any) -> None:
    judge(broken(text, traces, {}), traces)
    with objects(rule, why):
        judge(broken(text, traces, edits), traces, **options)


Cases = list[tuple[str, str, dict[str, str]]]  # the rule, the reason, what is changed in the log


AGAIN = """
0  b arrive
0  b launch size=6
0  b hold   buffer=0
0  b hold   buffer=1
0  b start  op=0
30 b end    op=0
30 b iteration
30 b start  op=0 iteration=1
60 b end    op=0 iteration=1
60 b iteration iteration=1
60 b free   buffer=0
60 b free   buffer=1
60 b leave
60 c arrive
60 c launch size=6
60 c leave
"""
