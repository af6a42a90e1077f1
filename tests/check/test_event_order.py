"""Order in an event log: jobs arrive, run their ops one by one and leave, or the oracle objects."""

from __future__ import annotations

import pytest

from tests.check.logs import LOG, TRACES, Cases, refused

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
    ("order", r"op 3 is recomputed, but has not run", {"21 a end op=2": "... | 21 a recompute op=3"}),
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


@pytest.mark.parametrize("rule, why, edits", ORDER)
def test_a_broken_log_is_refused_for_the_right_reason(rule: str, why: str, edits: dict[str, str]) -> None:
    refused(rule, why, LOG, TRACES, edits)
