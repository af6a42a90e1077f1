"""The oracle over the event log of jobs: hand-made logs, and each of them broken in every way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.jobs import Job, Policy, simulate_jobs
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import Buffers, Csr, Ops, Trace
from gpumem.trace.kinds import STATISTICS
from tests.conftest import objects, tiny_machine
from tests.strategies import plans, traces


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
Planner = Callable[[Sequence[Task], Machine, int], list[Scheduled]]

W, X = 0, 1  # of job a
A = Trace(  # X made by op 0, read by op 2; W kept, read by op 1, updated by op 3
    Buffers.make([8, 8], [0, 0], [4, 3], persistent=[True, False]),
    Ops.make([[], [W], [X], [W]], [[X], [], [], [W]], duration=[5, 5, 5, 5]),
)
B = Trace(  # one op, reads V, which is kept, and makes Y in place
    Buffers.make([4, 2], [0, 0], [1, 1], persistent=[True, False]), Ops.make([[0, 1]], [[1]], duration=[30])
)
C = Trace(  # D made by 0 from U, used by 1, dropped and made again for 3; E is made along with it, read by 2
    Buffers.make([1, 2, 4], [0, 0, 0], [4, 4, 3], persistent=[True, False, False]),
    Ops.make([[0], [1], [2], [1]], [[1, 2], [], [], []], duration=[3, 3, 3, 3]),
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
    """Read a log; the iteration is 0, the part is the buffer, and the size that of the buffer, unless told."""
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


def test_a_right_log() -> None:
    judge(log_of(LOG, TRACES))


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

ORDER: Cases = [
    ("time", r"time runs back from 37 ns", {"42 a end op=0 iteration=1": "36 a end op=0 iteration=1"}),
    ("order", r"16 ns, job 'a', start.: op 3 starts, the next one is 2 of 4", {"16 a start op=2": "16 a start op=3"}),
    ("order", r"op 3 starts, the next one is 2", {"16 a start op=2": "", "21 a end op=2": ""}),
    ("order", r"op 1 starts, the next one is 2", {"14 a end op=1": "... | 14 a start op=1 | 14 a end op=1"}),
    ("order", r"op 2 starts before op 1 has ended", {"14 a end op=1": ""}),
    ("order", r"op 3 of iteration 0 is not running", {"21 a end op=2": "21 a end op=3"}),
    ("order", r"op 2 of iteration 1 is not running", {"21 a end op=2": "21 a end op=2 iteration=1"}),
    ("order", r"op 2 of iteration 0 is not running", {"21 a end op=2": "21 a recomputed op=2"}),
    ("order", r"op 0 of iteration 0 starts in iteration 1", {"37 a start op=0 iteration=1": "37 a start op=0"}),
    ("life", r"adopt.: in the middle of iteration 0", {"33 a iteration": ""}),
    ("order", r"op 0 of iteration 1 starts in iteration 0", {"33 a iteration": "", "33 a adopt size=17": ""}),
    ("order", r"iteration 1 ends in iteration 0", {"33 a iteration": "33 a iteration iteration=1"}),
    ("order", r"iteration 0 ends in iteration 1 before op 0 of 4", {"33 a iteration": "... | 33 a iteration"}),
    ("order", r"iteration 0 ends in iteration 0 before op 3 of 4", {"21 a end op=2": "... | 21 a iteration"}),
    ("order", r"op 3 is run again, but has not run", {"21 a end op=2": "... | 21 a recompute op=3"}),
    ("life", r"job has not arrived", {"0 a arrive": ""}),
    ("life", r"job is waiting", {"2 b arrive": "... | 2 b arrive"}),
    ("life", r"4 ns, job 'b', hold.: the job is waiting", {"4 b launch size=6": ""}),
    ("life", r"4 ns, job 'b', launch.: the job is gone", {"2 b wait": "2 b refused"}),
    ("life", r"job runs", {"4 b launch size=6": "... | 4 b launch size=6"}),
    ("life", r"hold.: the job is gone", {"57 a leave iteration=1": "... | 57 a hold buffer=0 iteration=1"}),
    ("life", r"event 56: the log ends, but job 'a' runs", {"57 a leave iteration=1": ""}),
    ("life", r"leave.: in the middle of iteration 1", {"47 a end op=1 iteration=1": "... | 47 a leave"}),
    ("life", r"adopt.: in the middle of iteration 0", {"16 a start op=2": "... | 16 a adopt size=16"}),
    ("life", r"adopt.: in the middle of iteration 1", {"37 a start op=0 iteration=1": "... | 37 a adopt size=17"}),
    ("event", r"no such job", {"2 b wait": "2 c wait"}),
    ("event", r"no such kind", {"12 a passive buffer=1 part=3": "12 a active buffer=1 part=3"}),
]  # fmt: skip

MEMORY: Cases = [
    ("capacity", r"adopt.: the budgets are 24 bytes, the capacity is 23", {"33 a adopt size=17": "33 a adopt size=18"}),
    ("budget", r"5 ns.*hold.: the job holds 16 bytes, its budget is 15", {"0 a launch size=16": "0 a launch size=15"}),
    ("budget", r"passive.: the job holds 8 bytes, its budget is 7",
     {"33 a adopt size=17": "33 a adopt size=7", "33 a hold buffer=0": "", "33 a free buffer=0": ""}),
    ("held", r"free.: part 1 of buffer 1 is not held", {"12 a free buffer=1 part=1": "... | ..."}),
    ("held", r"free.: part 2 of buffer 1 is not held", {"12 a free buffer=1 part=1": "12 a free buffer=1 part=2"}),
    ("held", r"free.: part 1 of buffer 0 is not held", {"12 a free buffer=1 part=1": "12 a free buffer=0 part=1"}),
    ("held", r"hold.: part 0 is held already", {"5 a hold buffer=0": "... | ..."}),
    ("held", r"hold.: part 1 is held already",
     {"12 a free buffer=1 part=1": "", "12 a hold buffer=1 part=3": "12 a hold buffer=1 part=1"}),
    ("event", r"buffer 0 has 8 bytes, not 7", {"5 a hold buffer=0": "5 a hold buffer=0 size=7"}),
    ("event", r"buffer 0 has 8 bytes, not 9", {"5 a in buffer=0": "5 a in buffer=0 size=9"}),
    ("event", r"buffer 2 is unknown", {"5 a hold buffer=0": "5 a hold buffer=2 size=1"}),
    ("held", r"leave.: the job still holds part 0 of buffer 0", {"34 b free buffer=0": ""}),
]  # fmt: skip

LINKS: Cases = [
    ("link", r"5 ns, job 'a', in.: job 'b' is still copying buffer 0 in", {"4 b start op=0": "... | 4 b in buffer=0"}),
    ("duration", r"in_end.: the copy of 8 bytes took 3 ns, not 4", {"9 a in_end buffer=0": "8 a in_end buffer=0"}),
    ("duration", r"out_end.: the copy of 8 bytes took 6 ns, not 7",
     {"26 a out buffer=0": "", "33 a out_end buffer=0": "27 a out buffer=0 | ..."}),
    ("duration", r"in_end.: the copy of 8 bytes took 5 ns, not 4",
     {"33 a in buffer=0": "", "33 a out_end buffer=0": "32 a in buffer=0 | ..."}),
    ("link", r"9 ns.*in_end.: no such copy of part 0 of buffer 0", {"5 a in buffer=0": ""}),
    ("link", r"9 ns.*in_end.: no such copy of part 2 of buffer 0",
     {"9 a in_end buffer=0": "9 a in_end buffer=0 part=2"}),
    ("link", r"9 ns.*out_end.: no such copy of part 0", {"9 a in_end buffer=0": "9 a out_end buffer=0"}),
    ("link", r"event 37 .33 ns, job 'a', in.: the copy never ends", {"37 a in_end buffer=0": ""}),
    ("link", r"event 36 .*passive.: the copy-in of part 0 of buffer 0 never begins",
     {"33 a in buffer=0": "", "37 a in_end buffer=0": ""}),
]  # fmt: skip

VALUES: Cases = [
    # what an op reads never came in
    ("value", r"9 ns.*start.: op 1 reads version None of buffer 0 instead of \(-1, -1\)",
     {"5 a in buffer=0": "", "9 a in_end buffer=0": ""}),
    ("value", r"16 ns.*start.: op 2 reads version None of buffer 1 instead of \(0, 0\)",
     {"12 a in buffer=1 part=3": "", "16 a in_end buffer=1 part=3": "", "12 a passive buffer=1 part=3": ""}),
    ("value", r"42 ns.*start.: op 1 reads version None of buffer 0 instead of \(0, 3\)",
     {"33 a in buffer=0": "", "37 a in_end buffer=0": "", "33 a passive buffer=0": ""}),
    # it never went out, or too early
    ("value", r"16 ns.*start.: op 2 reads version None of buffer 1 instead of \(0, 0\)",
     {"5 a out buffer=1 part=1": "", "12 a out_end buffer=1 part=1": ""}),
    ("lost value", r"33 ns.*iteration.: nobody holds version \(0, 3\) of buffer 0",
     {"26 a out buffer=0": "", "33 a out_end buffer=0": ""}),
    ("lost value", r"33 ns.*iteration.: nobody holds version \(0, 3\) of buffer 0",
     {"26 a out buffer=0": "", "33 a out_end buffer=0": "",
      "14 a end op=1": "... | 14 a out buffer=0", "21 a end op=2": "... | 21 a out_end buffer=0"}),
    # two at once
    ("race", r"21 ns.*out.: a copy-out reads buffer 0 while op 3 writes it",
     {"26 a out buffer=0": "", "21 a start op=3": "... | 21 a out buffer=0", "33 a out_end buffer=0": "",
      "26 a end op=3": "... | 28 a out_end buffer=0"}),
    ("race", r"21 ns.*start.: op 3 writes buffer 0 while a copy-out reads it",
     {"26 a out buffer=0": "", "33 a out_end buffer=0": "", "16 a start op=2": "... | 20 a out buffer=0",
      "26 a end op=3": "... | 27 a out_end buffer=0"}),
    ("race", r"21 ns.*in.: a copy-in writes buffer 0 while op 3 writes it",
     {"21 a start op=3": "... | 21 a in buffer=0 | 25 a in_end buffer=0"}),
    ("race", r"16 ns.*in.: a copy-in writes buffer 1 while op 2 reads it",
     {"16 a start op=2": "... | 16 a in buffer=1 part=3 | 20 a in_end buffer=1 part=3"}),
    ("value", r"9 ns.*start.: op 1 reads version None of buffer 0",
     {"9 a in_end buffer=0": "", "9 a start op=1": "... | 9 a in_end buffer=0"}),
    ("race", r"37 ns.*start.: op 0 writes buffer 1 while a copy-in writes it",
     {"37 a hold buffer=1 iteration=1": "... | 37 a in buffer=1",
      "42 a end op=0 iteration=1": "41 a in_end buffer=1 | ..."}),
    # not held, or not to the end
    ("held", r"16 ns.*start.: op 2 reads buffer 1, which is not held",
     {"16 a in_end buffer=1 part=3": "... | 16 a free buffer=1 part=3", "21 a free buffer=1 part=3": ""}),
    ("held", r"37 ns.*start.: op 0 writes buffer 1, which is not held",
     {"37 a hold buffer=1 iteration=1": "", "52 a free buffer=1 iteration=1": ""}),
    ("held", r"26 ns.*out.: part 0 of buffer 0 is not held",
     {"26 a end op=3": "... | 26 a free buffer=0", "33 a free buffer=0": ""}),
    ("race", r"11 ns.*free.: buffer 1 is freed while a copy-out uses it",
     {"9 a start op=1": "... | 11 a free buffer=1 part=1", "12 a free buffer=1 part=1": ""}),
    ("race", r"22 ns.*free.: buffer 0 is freed while op 3 uses it",
     {"21 a start op=3": "... | 22 a free buffer=0 | 23 a hold buffer=0"}),
    ("race", r"15 ns.*free.: buffer 1 is freed while a copy-in uses it",
     {"14 a end op=1": "... | 15 a free buffer=1 part=3", "21 a free buffer=1 part=3": ""}),
]  # fmt: skip


@pytest.mark.parametrize("rule, why, edits", [*ORDER, *MEMORY, *LINKS, *VALUES])
def test_a_broken_log_is_refused_for_the_right_reason(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, LOG, TRACES, edits)


def test_a_smaller_budget_does_not_free_anything() -> None:
    traces = {"p": B, "q": B}
    log = """
    0 p arrive
    0 p launch size=6
    0 p hold buffer=0
    0 p hold buffer=1
    0 p start op=0
    0 q arrive
    30 p end op=0
    30 p iteration
    30 p adopt size=3
    30 p free buffer=1
    30 q launch size=6
    30 q hold buffer=0
    30 q hold buffer=1
    30 q start op=0
    31 p free buffer=0
    31 p leave
    60 q end op=0
    60 q iteration
    60 q free buffer=0
    60 q free buffer=1
    60 q leave
    """
    judge(log_of(log, traces), traces, capacity=10)
    late = broken(log, traces, {"30 p free buffer=1": "", "31 p free buffer=0": "... | 31 p free buffer=1"})
    with objects("capacity", r"30 ns, job 'q', hold.: the jobs hold 12 bytes, the capacity is 11"):
        judge(late, traces, capacity=11)


def test_one_copy_engine_or_two() -> None:
    duration = {k: t.ops.duration for k, t in TRACES.items()}
    half, slow = tiny_machine(duplex=False), tiny_machine().with_(into=Link(3, 0.25))
    busy = "5 ns, job 'a', in.: job 'a' is still copying buffer 1 out"
    for machine, rule, why in ((half, "link", busy), (slow, "duration", "4 ns, not 5")):
        with objects(rule, why):
            check.jobs(log_of(LOG, TRACES), TRACES, machine, 23, duration)


C = Trace(  # D and E made by 0 from U, which 2 updates; D is dropped after 1 and made again before 2, for 3
    Buffers.make([1, 2, 4], [0, 0, 0], [4, 4, 3], persistent=[True, False, False]),
    Ops.make([[0], [1], [0, 2], [1]], [[1, 2], [], [0], []], duration=[3, 4, 5, 6]),
)
RERUN = """
0  c arrive
0  c launch     size=11
0  c hold       buffer=0
0  c hold       buffer=1
0  c hold       buffer=2
0  c start      op=0
3  c end        op=0
3  c start      op=1
7  c end        op=1
7  c free       buffer=1
7  c hold       buffer=1 part=3
7  c hold       buffer=2 part=4
7  c recompute  op=0
10 c recomputed op=0
10 c free       buffer=2 part=4
10 c start      op=2
15 c end        op=2
15 c free       buffer=2
15 c start      op=3
21 c end        op=3
21 c iteration
21 c free       buffer=0
21 c free       buffer=1 part=3
21 c leave
"""
RERUNS: Cases = [
    ("value", r"15 ns.*start.: op 3 reads version None of buffer 1 instead of \(0, 0\)",
     {"7 c recompute op=0": "", "10 c recomputed op=0": ""}),
    ("value", r"15 ns.*recompute.: op 0 reads version \(0, 2\) of buffer 0 instead of \(-1, -1\)",
     {"7 c recompute op=0": "", "10 c recomputed op=0": "", "15 c start op=3": "15 c recompute op=0 |"
      " 18 c recomputed op=0 | 18 c start op=3", "21 c end op=3": "24 c end op=3", "21 c iteration": "24 c iteration",
      "21 c free buffer=0": "24 c free buffer=0", "21 c free buffer=1 part=3": "24 c free buffer=1 part=3",
      "21 c leave": "24 c leave"}),
    ("order", r"10 ns.*recompute.: op 2 is run again, but has not run", {"10 c start op=2": "10 c recompute op=2"}),
    ("order", r"7 ns.*recompute.: op 0 of iteration 1 starts in iteration 0",
     {"7 c recompute op=0": "7 c recompute op=0 iteration=1"}),
    ("order", r"10 ns.*start.: op 2 starts before op 0 has ended", {"10 c recomputed op=0": ""}),
    ("order", r"21 ns.*iteration.: iteration 0 ends in iteration 0 before op 4 of 4",
     {"21 c end op=3": "... | 21 c recompute op=0"}),
    ("duration", r"9 ns.*recomputed.: op 0 did work of 2 ns, it takes 3",
     {"10 c recomputed op=0": "9 c recomputed op=0"}),
    ("held", r"7 ns.*recompute.: op 0 writes buffer 1, which is not held",
     {"7 c hold buffer=1 part=3": "", "10 c free buffer=2 part=4": "... | 10 c hold buffer=1 part=3"}),
    ("race", r"9 ns.*free.: buffer 2 is freed while op 0 uses it",
     {"10 c free buffer=2 part=4": "", "7 c recompute op=0": "... | 9 c free buffer=2 part=4"}),
]  # fmt: skip


@pytest.mark.parametrize("rule, why, edits", RERUNS)
def test_recomputations(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, RERUN, {"c": C}, edits)


def test_the_part_held_last_is_the_one_in_use() -> None:
    # while the scratch part of E is held, op 2 would read that one
    scratch = broken(
        RERUN, {"c": C}, {"10 c free buffer=2 part=4": "", "15 c free buffer=2": "... | 15 c free buffer=2 part=4"}
    )
    judge(scratch, {"c": C})  # here it holds the same version
    fresh = {
        "10 c free buffer=2 part=4": "... | 10 c hold buffer=2 part=5",
        "15 c free buffer=2": "... | 15 c free buffer=2 part=5",
    }
    refused("value", r"op 2 reads version None of buffer 2 instead of \(0, 0\)", RERUN, {"c": C}, fresh)


# X is made by 0 and changed in place by 2 and 3; Y, of X as 0 left it and with the statistics R, by 1. Before 5, Y is
# made again: X as it was comes to lie in scratch (part 4) beside X as it is (part 0), and is changed there once.
S = Trace(
    Buffers.make([4, 2, 1, 3], [0, 1, 0, 2], [6, 6, 6, 6], persistent=[False, False, True, False],
                 kind=["", "", STATISTICS, ""]),
    Ops.make([[], [0, 2], [0], [0], [1, 3], [0, 1, 3]], [[0], [1, 2], [0, 3], [0], [], []], duration=[2] * 6),
)  # fmt: skip
BESIDE = """
0  s arrive
0  s launch     size=14
0  s hold       buffer=2
0  s hold       buffer=0
0  s start      op=0
2  s end        op=0
2  s hold       buffer=1
2  s start      op=1
4  s end        op=1
4  s hold       buffer=3
4  s start      op=2
6  s end        op=2
6  s start      op=3
8  s end        op=3
8  s start      op=4
10 s end        op=4
10 s free       buffer=1
10 s free       buffer=3
10 s hold       buffer=0 part=4
10 s recompute  op=0
12 s recomputed op=0
12 s hold       buffer=1 part=5
12 s recompute  op=1
14 s recomputed op=1
14 s hold       buffer=3 part=6
14 s recompute  op=2
16 s recomputed op=2
16 s free       buffer=0 part=4
16 s start      op=5
18 s end        op=5
18 s iteration
18 s free       buffer=0
18 s free       buffer=1 part=5
18 s free       buffer=3 part=6
18 s free       buffer=2
18 s leave
"""
BESIDES: Cases = [
    ("value", r"12 ns.*recompute.: op 1 reads version \(0, 3\) of buffer 0 instead of \(0, 0\)",
     {"10 s hold buffer=0 part=4": "", "16 s free buffer=0 part=4": "",
      "10 s recompute op=0": "", "12 s recomputed op=0": ""}),
    ("value", r"16 ns.*recompute.: op 2 reads version \(0, 2\) of buffer 0 instead of \(0, 0\)",  # a change done twice
     {"16 s free buffer=0 part=4": "16 s recompute op=2 | 18 s recomputed op=2 | 18 s free buffer=0 part=4",
      "16 s start op=5": "18 s start op=5", "18 s end op=5": "20 s end op=5", "18 s iteration": "20 s iteration",
      "18 s free buffer=0": "20 s free buffer=0", "18 s free buffer=1 part=5": "20 s free buffer=1 part=5",
      "18 s free buffer=3 part=6": "20 s free buffer=3 part=6", "18 s free buffer=2": "20 s free buffer=2",
      "18 s leave": "20 s leave"}),
    ("value", r"16 ns.*start.: op 5 reads version \(0, 2\) of buffer 0 instead of \(0, 3\)",
     {"16 s free buffer=0 part=4": "", "18 s free buffer=0": "... | 18 s free buffer=0 part=4"}),
    ("value", r"16 ns.*start.: op 5 reads version None of buffer 3 instead of \(0, 2\)",  # a change left out
     {"14 s recompute op=2": "", "16 s recomputed op=2": ""}),
]  # fmt: skip


def test_a_rerun_leaves_statistics_alone_and_works_beside_the_buffer() -> None:
    log = log_of(BESIDE, {"s": S})
    judge(log, {"s": S})
    lost = [
        e for e in log if (e.buffer, e.kind) != (2, "free")
    ]  # the statistics may be gone by then, as far as reruns go
    lost.insert(16, replace(log[0], ns=10, kind="free", buffer=2, part=2, size=1))
    with objects("lost value", r"nobody holds version \(0, 1\) of buffer 2"):
        judge(lost, {"s": S})
    told = replace(S, ops=replace(S.ops, statistics=Csr.of([[]] * 6)))  # no statistics: it would change them once more
    with objects("value", r"op 1 reads version \(0, 1\) of buffer 2 instead of \(-1, -1\)"):
        judge(log, {"s": told})


@pytest.mark.parametrize("rule, why, edits", BESIDES)
def test_versions_beside_the_buffer(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, BESIDE, {"s": S}, edits)


P = Trace(Buffers.make([], [], []), Ops.make([[]], [[]], duration=[30]))
Q = Trace(Buffers.make([], [], []), Ops.make([[], []], [[], []], duration=[5, 0]))


@pytest.mark.parametrize(
    "slowdown, first, last, right, why",
    [
        # s = 1: p alone to 10 ns, both at half speed to 20 ns, p alone again for its other 15 ns
        (1.0, 20, 35, True, ""),
        (1.0, 21, 35, True, ""),  # a nanosecond for rounding
        (1.0, 25, 38, False, "op 0 did work of 7.5 ns, it takes 5"),
        (1.0, 15, 33, False, "op 0 did work of 2.5 ns, it takes 5"),
        (1.0, 20, 30, False, "op 0 did work of 25 ns, it takes 30"),
        (1.0, 20, 40, False, "op 0 did work of 35 ns, it takes 30"),
        # s = 1/2: two thirds of the speed, so q takes 7.5 ns, and p 12 + 7.5 / 3
        (0.5, 18, 33, True, ""),
        (0.5, 17, 32, True, ""),
        (0.5, 18, 37, False, "op 0 did work of 34.3333 ns, it takes 30"),
        # nothing is shared: exact
        (0.0, 15, 30, True, ""),
        (0.0, 15, 31, False, "op 0 did work of 31 ns, it takes 30"),
        (0.0, 14, 30, False, "op 0 did work of 4 ns, it takes 5"),
    ],
)  # fmt: skip
def test_kernels_slow_each_other_down(slowdown: float, first: int, last: int, right: bool, why: str) -> None:
    log = f"""
    0 p arrive
    0 p launch
    0 p start op=0
    10 q arrive
    10 q launch
    10 q start op=0
    {first} q end op=0
    {first} q start op=1
    {first} q end op=1
    {first} q iteration
    {first} q leave
    {last} p end op=0
    {last} p iteration
    {last} p leave
    """
    traces = {"p": P, "q": Q}
    if right:
        judge(log_of(log, traces), traces, slowdown=slowdown)
    else:
        with objects("duration", why):
            judge(log_of(log, traces), traces, slowdown=slowdown)


K = Trace(  # op 0 reads K, which nobody writes, and Z, which op 1 makes for the next iteration
    Buffers.make([4, 2], [0, 1], [2, 3], persistent=[True, False]), Ops.make([[0, 1], []], [[], [1]], duration=[5, 5])
)
NEW_PLAN = """
0  k arrive
0  k launch  size=6
0  k hold    buffer=0
0  k hold    buffer=1
0  k start   op=0
5  k end     op=0
5  k free    buffer=1
5  k hold    buffer=1
5  k start   op=1
10 k end     op=1
10 k iteration
10 k adopt   size=6
10 k free    buffer=0
10 k free    buffer=1
10 k hold    buffer=1 part=2
10 k hold    buffer=0 part=3
20 k start   op=0 iteration=1
25 k end     op=0 iteration=1
25 k free    buffer=1 part=2
25 k hold    buffer=1 part=2
25 k start   op=1 iteration=1
30 k end     op=1 iteration=1
30 k iteration iteration=1
30 k free    buffer=1 part=2
30 k free    buffer=0 part=3
30 k leave
"""
NEW_PLANS: Cases = [
    # values are handed from part to part at the change of plan only, where the old one is given up
    ("value", r"start.: op 0 reads version None of buffer 0 instead of \(-1, -1\)",
     {"10 k adopt size=6": "", "10 k hold buffer=1 part=2": "... | 10 k adopt size=6"}),
    ("value", r"start.: op 0 reads version None of buffer 0 instead of \(-1, -1\)", {"10 k adopt size=6": ""}),
    ("value", r"start.: op 0 reads version None of buffer 1 instead of \(0, 1\)",
     {"10 k free buffer=1": "", "10 k adopt size=6": "10 k free buffer=1 | ..."}),
    ("value", r"start.: op 0 reads version None of buffer 0",
     {"10 k hold buffer=0 part=3": "11 k hold buffer=0 part=3"}),
    ("value", r"start.: op 0 reads version None of buffer 0",
     {"10 k hold buffer=0 part=3": "... | 10 k free buffer=0 part=3 | 11 k hold buffer=0 part=3"}),
    ("value", r"start.: op 0 reads version None of buffer 0",
     {"10 k adopt size=6": "10 k adopt size=10", "10 k hold buffer=0 part=3": "... | 10 k hold buffer=0 part=4",
      "30 k free buffer=0 part=3": "... | 30 k free buffer=0 part=4"}),
    # the host does not have by itself what the first plan kept on the device
    ("value", r"20 ns.*start.: op 0 reads version None of buffer 0 instead of \(-1, -1\)",
     {"10 k hold buffer=0 part=3": "... | 10 k in buffer=0 part=3 | 13 k in_end buffer=0 part=3"}),
    # what one iteration leaves to the next, read or not
    ("lost value", r"10 ns.*iteration.: nobody holds version \(0, 1\) of buffer 1",
     {"10 k end op=1": "... | 10 k free buffer=1 | 10 k hold buffer=1"}),
    ("lost value", r"30 ns.*iteration.: nobody holds version \(1, 1\) of buffer 1",
     {"30 k end op=1 iteration=1": "... | 30 k free buffer=1 part=2", "30 k free buffer=1 part=2": ""}),
    ("lost value", r"30 ns.*iteration.: nobody holds version \(-1, -1\) of buffer 0",
     {"25 k start op=1 iteration=1": "... | 25 k free buffer=0 part=3", "30 k free buffer=0 part=3": ""}),
]  # fmt: skip


@pytest.mark.parametrize("rule, why, edits", NEW_PLANS)
def test_changes_of_plan(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, NEW_PLAN, {"k": K}, edits)


MOVES = """
0  k arrive
0  k launch  size=10
0  k hold    buffer=0
0  k hold    buffer=1
0  k out     buffer=0
5  k out_end buffer=0
5  k hold    buffer=0 part=2
5  k in      buffer=0 part=2
8  k in_end  buffer=0 part=2
8  k start   op=0
13 k end     op=0
13 k start   op=1
18 k end     op=1
18 k iteration
18 k free    buffer=0
18 k free    buffer=0 part=2
18 k free    buffer=1
18 k leave
"""


@pytest.mark.parametrize(
    "edits",
    [
        {"5 k hold buffer=0 part=2": "", "5 k in buffer=0 part=2": "",
         "5 k out_end buffer=0": "4 k hold buffer=0 part=2 | 4 k in buffer=0 part=2 | ...",
         "8 k in_end buffer=0 part=2": "7 k in_end buffer=0 part=2"},
        {"5 k in buffer=0 part=2": "", "8 k in_end buffer=0 part=2": ""},
    ],
)  # fmt: skip
def test_what_comes_in_went_out_before(edits: dict[str, str]) -> None:
    refused("value", r"op 0 reads version None of buffer 0 instead of \(-1, -1\)", MOVES, {"k": K}, edits)


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


def test_a_buffer_that_is_made_anew_may_hold_anything() -> None:
    both = {"b": B, "c": B}
    for edits in ({}, {"30 b iteration": "30 b free buffer=1 | ... | 30 b hold buffer=1"}):
        judge(broken(AGAIN, both, edits), both, capacity=6)


def test_a_job_that_left_needs_no_budget() -> None:
    edits = {"0 b launch size=6": "... | 0 c arrive | 0 c launch size=6", "60 c arrive": "", "60 c launch size=6": ""}
    with objects("capacity", "budgets are 12 bytes, the capacity is 11"):
        judge(broken(AGAIN, {"b": B, "c": B}, edits), {"b": B, "c": B}, capacity=11)


ZERO = """
0  s arrive
0  s launch size=4
0  s hold   buffer=0
0  s start  op=0
0  s end    op=0
0  s start  op=1
5  s end    op=1
5  s iteration
5  s free   buffer=0
5  s leave
"""


def test_an_op_of_no_duration_ends_the_instant_of_launch() -> None:
    ops = Ops.make([[0], [0]], [[], []], duration=[0, 5])
    traces = {"s": Trace(Buffers.make([4], [0], [2], persistent=[True]), ops)}
    edits = {"0 s end op=0": "... | 0 s free buffer=0 | 0 s hold buffer=0"}
    refused("value", r"op 1 reads version None of buffer 0 instead of", ZERO, traces, edits)


def in_turn(turns: dict[int, list[Scheduled]]) -> Planner:
    """A memory scheduler that gives each trace its next plan, or its smallest where these do not fit together."""
    asked: Counter[int] = Counter()

    def plan(tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        few = [(key, turns[key]) for key in (id(task.trace) for task in tasks)]
        found = [mine[asked[key] % len(mine)] for key, mine in few]
        asked.update(key for key, _ in few)
        fits = sum(s.peak for s in found) <= capacity
        return found if fits else [min(mine, key=lambda s: s.peak) for _, mine in few]

    return plan


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Trace], Machine, int, float, Log]:
    """Jobs that come and go, each with a few random plans that take turns where they fit; the log of their run."""
    count = draw(st.integers(1, 3))
    own = [draw(traces(max_ops=6, max_buffers=5)) for _ in range(count)]
    jobs = [
        Job(name, trace, draw(st.sampled_from([0, 0, 0, 9, 70])), draw(st.integers(1, 3)))
        for name, trace in zip("abc", own)
    ]
    turns = {id(t): [Scheduled(Plan(), t.peak_load), *draw(st.lists(scheduled(t), max_size=2))] for t in own}
    least, most = (sum(choose(s.peak for s in few) for few in turns.values()) for choose in (min, max))
    capacity = max(1, draw(st.sampled_from([least, (least + most) // 2, most])))
    machine, slowdown = tiny_machine(duplex=draw(st.booleans())), draw(st.sampled_from([0.0, 0.0, 1.0, 0.3]))
    plan, drain = in_turn(turns), draw(st.booleans())
    ran = simulate_jobs(jobs, machine, capacity, Policy(plan, drain=drain), slowdown=slowdown)
    return {job.name: job.trace for job in jobs}, machine, capacity, slowdown, list(ran.log)


@st.composite
def scheduled(draw: st.DrawFn, trace: Trace) -> Scheduled:
    """Any swaps with any delays."""
    plan = draw(plans(trace))
    delay = st.just(0) | st.integers(0, 60)
    delays = draw(st.lists(st.tuples(delay, delay), min_size=len(plan.decisions), max_size=len(plan.decisions)))
    return Scheduled(plan, plan.apply(trace).peak_load, tuple(delays))


@given(runs(), st.data())
def test_the_simulator_is_right_and_no_event_can_be_spared(
    run: tuple[dict[str, Trace], Machine, int, float, Log], data: st.DataObject
) -> None:
    own, machine, capacity, slowdown, log = run

    def judge(log: Log) -> None:
        check.jobs(log, own, machine, capacity, {k: t.ops.duration for k, t in own.items()}, slowdown=slowdown)

    judge(log)
    spare = ("wait", "replan", "passive", "adopt")
    k = data.draw(st.sampled_from([k for k, e in enumerate(log) if e.kind not in spare]))
    for times in (0, 2):
        with pytest.raises(CheckError):
            judge([*log[:k], *[log[k]] * times, *log[k + 1 :]])
    for k in [k for k, e in enumerate(log) if e.kind == "in" and is_read(own[e.job], log, k)]:
        copy = log[k]
        end = next(i for i in range(k, len(log)) if log[i] == replace(copy, ns=log[i].ns, kind="in_end"))
        gone = {k, end, *(i for i in range(k) if log[i].kind == "passive" and log[i].part == copy.part)}
        with objects("value", f"reads version .* of buffer {copy.buffer} instead of"):
            judge([e for i, e in enumerate(log) if i not in gone])


@pytest.mark.parametrize(
    "capacity, a, b, expected",
    [
        (130, "b" + "s" * 9, "s", ["a launch 100", "a adopt 60", "b launch 60"]),  # b comes when a has shrunk
        (160, "ss" + "b" * 9, "b" + "s" * 9, ["a launch 60", "b launch 100", "b adopt 60", "a adopt 100"]),  # a waits
    ],
)
def test_bytes_change_hands(capacity: int, a: str, b: str, expected: list[str]) -> None:
    # W takes 60 bytes all the time (big), or is swapped while Y takes 40 (small)
    wy = Buffers.make([60, 40], [0, 1], [4, 3], persistent=[True, False])
    ops = Ops.make([[0], [], [1], [0]], [[], [1], [], []], duration=[10, 10, 10, 10])
    own = {"a": Trace(wy, ops), "b": Trace(wy, ops)}
    chosen = {"b": Scheduled(Plan(), 100), "s": Scheduled(Plan((Swap(0, 0, 3, 1, 3),)), 60)}
    plan = in_turn({id(own[job]): [chosen[k] for k in turns] for job, turns in (("a", a), ("b", b))})
    jobs = [Job("a", own["a"], 0, 4), Job("b", own["b"], 5, 4)]
    log = simulate_jobs(jobs, tiny_machine(), capacity, Policy(plan)).log
    check.jobs(log, own, tiny_machine(), capacity, {k: t.ops.duration for k, t in own.items()})
    assert [f"{e.job} {e.kind} {e.size}" for e in log if e.kind in ("launch", "adopt")] == expected


def is_read(trace: Trace, log: Log, k: int) -> bool:
    """Whether the first op to touch what comes in at event `k`, a buffer that always has a value, reads it.

    Not so for parts held at the instant of a new plan: their values may have been made, or been left, there.
    """
    b, mine = trace.buffers[log[k].buffer], [e for e in log[:k] if e.job == log[k].job]
    held = next(e.ns for e in reversed(mine) if e.kind == "hold" and e.part == log[k].part)
    planned = next(e.ns for e in reversed(mine) if e.kind in ("launch", "adopt"))
    if not (b.persistent and b.end - b.start == trace.n and held > planned):
        return False
    for e in log[k + 1 :]:
        if e.job == log[k].job and e.kind in ("free", "adopt") and e.part in (log[k].part, -1):
            return False
        if e.job == log[k].job and e.kind == "start":
            if b.id in trace.ops.reads[e.op]:
                return True
            if b.id in trace.ops.writes[e.op]:
                return False
    return False
