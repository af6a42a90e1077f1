"""Data flow in an event log: what an op reads is what it would read without swaps, or the oracle objects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem.trace import Buffers, Csr, Ops, Trace
from gpumem.trace.kinds import STATISTICS
from tests.check.logs import AGAIN, LOG, TRACES, B, Cases, broken, judge, log_of, refused
from tests.conftest import objects

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


@pytest.mark.parametrize("rule, why, edits", VALUES)
def test_a_broken_log_is_refused_for_the_right_reason(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, LOG, TRACES, edits)


C = Trace(  # D and E made by 0 from U, which 2 updates; D is dropped after 1 and recomputed before 2, for 3
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
    ("order", r"10 ns.*recompute.: op 2 is recomputed, but has not run", {"10 c start op=2": "10 c recompute op=2"}),
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
# recomputed: X as it was comes to lie in scratch (part 4) beside X as it is (part 0), and is changed there once.
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
    ("value", r"16 ns.*start.: op 5 reads version None of buffer 3 instead of \(0, 2\)",  # a change left out
     {"14 s recompute op=2": "", "16 s recomputed op=2": ""}),
]  # fmt: skip


def test_a_rerun_leaves_statistics_alone_and_works_beside_the_buffer() -> None:
    log = log_of(BESIDE, {"s": S})
    judge(log, {"s": S})
    lost = [
        e for e in log if (e.buffer, e.kind) != (2, "free")
    ]  # the statistics may be gone by then, as far as recomputations go
    lost.insert(16, replace(log[0], ns=10, kind="free", buffer=2, part=2, size=1))
    with objects("lost value", r"nobody holds version \(0, 1\) of buffer 2"):
        judge(lost, {"s": S})
    told = replace(S, ops=replace(S.ops, statistics=Csr.of([[]] * 6)))  # no statistics: it would change them once more
    with objects("value", r"op 1 reads version \(0, 1\) of buffer 2 instead of \(-1, -1\)"):
        judge(log, {"s": told})


def test_an_earlier_version_may_stay_beside_the_buffer() -> None:
    """Op 5 reads the buffer, not the part in which a recomputation has made what it was before."""
    log = log_of(BESIDE, {"s": S})
    (freed,) = (e for e in log if (e.kind, e.buffer, e.ns) == ("free", 0, 16))
    last = max(i for i, e in enumerate(log) if (e.kind, e.buffer) == ("free", 0))
    later = [e for e in log if e is not freed]
    later.insert(last, replace(freed, ns=18))
    judge(later, {"s": S})


@pytest.mark.parametrize("rule, why, edits", BESIDES)
def test_versions_beside_the_buffer(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, BESIDE, {"s": S}, edits)


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


def test_a_buffer_that_is_made_anew_may_hold_anything() -> None:
    both = {"b": B, "c": B}
    for edits in ({}, {"30 b iteration": "30 b free buffer=1 | ... | 30 b hold buffer=1"}):
        judge(broken(AGAIN, both, edits), both, capacity=6)


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
