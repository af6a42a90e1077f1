"""Plans as JSON: there and back, files of older versions, and what is refused."""

from __future__ import annotations

import pytest

from gpumem.swap.plan import Hold, Plan, Recompute, Swap, Variant


def test_plans_survive_json() -> None:
    plan = Plan((Swap(0, 1, 2, 2, 2), Recompute(1, 2, 4, 3), Hold(1, 6), Variant(0, "fast", 5, 6)), 7, "net")
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(Plan().to_json()) == Plan()
    rerun = Plan((Recompute(1, 2, 4, 3), Variant(0, "fast", 5, 6, at=3)), 7)
    assert Plan.from_json(rerun.to_json()) == rerun
    late = Plan((Swap(0, 1, 4, 4, 4, out=3),))
    assert Plan.from_json(late.to_json()) == late
    assert Plan.from_json(late.to_json().replace(', "out": 3', "")).swaps[0].out == 1


def test_a_plan_file_from_before_holds_reads_as_it_did() -> None:
    text = """{"format": "gpumem.plan/1", "trace": "net", "n": 7, "decisions": [
        {"kind": "swap", "buffer": 0, "after": 1, "before": 4, "release": 2, "prefetch": 3},
        {"kind": "recompute", "buffer": 1, "after": 2, "before": 4, "at": 3},
        {"kind": "variant", "op": 0, "name": "fast", "duration": 5, "workspace": 6}
    ]}"""
    assert Plan.from_json(text).decisions == (Swap(0, 1, 4, 2, 3), Recompute(1, 2, 4, 3), Variant(0, "fast", 5, 6))


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "plan"),
        ("[]", "plan"),
        ('{"format": "x", "decisions": []}', "format 'x' is not"),
        ('{"format": "gpumem.plan/1", "decisions": 5}', "must be a list"),
        ('{"format": "gpumem.plan/1", "decisions": [], "n": true}', "a number of ops"),
        ('{"format": "gpumem.plan/1", "decisions": [], "blocking": 1}', "plan: blocking 1 is neither true nor false"),
        ('{"format": "gpumem.plan/1", "decisions": [], "blocking": "no"}', "plan: blocking 'no' is neither true"),
        ('{"format": "gpumem.plan/1", "decisions": [], "blocking": null}', "plan: blocking None is neither true"),
        ('{"format": "gpumem.plan/1", "decisions": [7]}', "decision 0: 7 has no kind; there are swap, recompute"),
        ('{"format": "gpumem.plan/1", "decisions": [{"kind": [1]}]}', "is unknown"),
        ('{"format": "gpumem.plan/1", "decisions": [{"kind": "jump"}]}', "decision 0: kind 'jump' is unknown"),
        ('{"format": "gpumem.plan/1", "decisions": [{"kind": "swap", "buffer": -1}]}', "decision 0 .swap."),
        ('{"format": "gpumem.plan/1", "decisions": [{"kind": "swap", "buffer": "1"}]}', "decision 0 .swap."),
        (
            '{"format": "gpumem.plan/1", "decisions": [{"kind": "hold", "buffer": 1, "untill": 4}]}',
            "decision 0 .hold.: 'untill' is unknown; .*; did you mean 'until'",
        ),
        (
            '{"format": "gpumem.plan/1", "decisions": [{"kind": "hold", "buffer": 1, "until": 2.0}]}',
            r"decision 0 .hold.: until 2\.0 is not an integer",
        ),
        (
            '{"format": "gpumem.plan/1", "decisions": [{"kind": "recompute", "buffer": 1, "after": 0, "before": 3}]}',
            "decision 0 .recompute.: `at` is missing",
        ),
        (
            '{"format": "gpumem.plan/1", "decisions": [{"kind": "hold", "buffer": 1, "until": null}]}',
            "decision 0 .hold.: until None is not an integer",
        ),
    ],
)
def test_a_bad_plan_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Plan.from_json(text)
