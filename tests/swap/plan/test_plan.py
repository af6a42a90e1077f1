"""Plans as JSON: there and back, files of older versions, and what is refused; how they are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpumem.swap.plan import Hold, Plan, Recompute, Swap, Variant
from gpumem.trace import Buffers, Ops, Trace


def test_plans_survive_json() -> None:
    plan = Plan((Swap(0, 1, 2, 2, 2), Recompute(1, 2, 4, 3), Hold(1, 6), Variant(0, "fast", 5, 6)), 7, "net")
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_json(Plan().to_json()) == Plan()
    waits = replace(plan, blocking=True)
    assert Plan.from_json(waits.to_json()) == waits
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


def one(kind: str, **row: object) -> str:
    return json.dumps(
        {"format": "gpumem.plan/1", "decisions": [{"kind": "hold", "buffer": 0, "until": 1}, {"kind": kind, **row}]}
    )


@pytest.mark.parametrize("value", [0, 1, 2**62 - 1])
def test_a_file_without_ops_or_name_is_for_any_trace(value: int) -> None:
    assert Plan.from_json(one("hold", buffer=value, until=value)) == Plan((Hold(0, 1), Hold(value, value)), 0, "")
    assert Plan.from_json('{"format": "gpumem.plan/1", "decisions": [], "n": 0}') == Plan()
    assert Plan.from_json('{"format": "gpumem.plan/1", "decisions": [], "blocking": true}') == Plan(blocking=True)


@pytest.mark.parametrize("value", [-1, 2**62, True])
def test_a_field_out_of_range_names_its_decision(value: int) -> None:
    with pytest.raises(ValueError, match=rf"decision 1 .hold.: until: expected `int`.*, found {value}$"):
        Plan.from_json(one("hold", buffer=0, until=value))
    with pytest.raises(ValueError, match=r"decision 1 .variant.: name: expected `str`, got `int`, found 5$"):
        Plan.from_json(one("variant", op=0, name=5, duration=1, workspace=0))


PLAN = '{"format": "gpumem.plan/1", "decisions": '


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "plan: not JSON"),
        ("[]", "plan: format None is not"),
        ('{"decisions": []}', "plan: format None is not"),
        ('{"format": "gpumem.plan/1"}', "plan: object missing required field `decisions`"),
        (PLAN + '[{"buffer": 1}]}', "field `kind`, .*; there are swap, recompute"),
        (PLAN + '[], "trace": 5}', "plan: trace: expected `str`, .*, found 5$"),
        pytest.param(PLAN + "[" * 10**5, "plan: not JSON", id="deep"),
        ('{"format": "x", "decisions": []}', "format 'x' is not"),
        (PLAN + "5}", "plan: decisions: expected `array`.*, found 5$"),
        (PLAN + '[], "n": true}', "plan: n: expected `int`, got `bool`, found True$"),
        (PLAN + '[], "n": -1}', "plan: n: expected `int` >= 0, found -1$"),
        (
            PLAN + '[], "blocking": 1}',
            "plan: blocking: expected `bool`, .*, found 1$",
        ),
        (
            PLAN + '[], "blocking": "no"}',
            "plan: blocking: expected `bool`, .*, found 'no'$",
        ),
        (
            PLAN + '[], "blocking": null}',
            "plan: blocking: expected `bool`, .*, found None$",
        ),
        (
            PLAN + "[7]}",
            "decision 0: expected `object`, .* found 7; there are swap, recompute",
        ),
        (
            PLAN + '[{"kind": [1]}]}',
            r"decision 0: kind: expected `str`, found \[1\]; there are swap",
        ),
        (
            PLAN + '[{"kind": "jump"}]}',
            "decision 0: kind: invalid value 'jump', .*; there are swap",
        ),
        (
            PLAN + '[{"kind": "swap", "buffer": -1}]}',
            "decision 0 .swap.: buffer: .* >= 0, found -1$",
        ),
        (
            PLAN + '[{"kind": "swap", "buffer": "1"}]}',
            "decision 0 .swap.: buffer: .*, found '1'$",
        ),
        (
            PLAN + '[{"kind": "hold", "buffer": 1, "untill": 4}]}',
            "decision 0 .hold.: object contains unknown field `untill`, .*; did you mean 'until'",
        ),
        (
            PLAN + '[{"kind": "hold", "buffer": 1, "until": 2.0}]}',
            r"decision 0 .hold.: until: expected `int`, got `float`, found 2\.0$",
        ),
        (
            PLAN + '[{"kind": "recompute", "buffer": 1, "after": 0, "before": 3}]}',
            "decision 0 .recompute.: object missing required field `at`",
        ),
        (
            PLAN + '[{"kind": "hold", "buffer": 1, "until": null}]}',
            "decision 0 .hold.: until: expected `int`, got `null`, found None$",
        ),
    ],
)
def test_a_bad_plan_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Plan.from_json(text)


def trace() -> Trace:
    return Trace(Buffers.make([8], [0], [3]), Ops.make([[], [], [0]], [[0], [], []]), name="net")


def test_what_is_no_decision_is_refused_by_its_place() -> None:
    swap: Any = Swap(0, 0, 2, 1, 2)
    for bad in (Plan((swap, "swap"), 3), Plan((swap, None), 3)):  # type: ignore[arg-type]
        for call in (lambda plan: plan.apply(trace()), Plan.to_json):
            with pytest.raises(TypeError, match=r"plan: decision 1: .* is no Swap, Recompute, Hold or Variant"):
                call(bad)


@pytest.mark.parametrize("n", [0, 3])
def test_a_plan_without_ops_fits_any_trace(n: int) -> None:
    plan = Plan((Swap(0, 0, 2, 1, 2),), n)
    assert plan.apply(trace()).n == 5 and plan.swaps == plan.decisions
    assert Plan.of(trace()) == Plan((), 3, "net") and Plan.of(trace()).apply(trace()).n == 3


def test_where_the_copies_of_each_decision_end_up() -> None:
    # A lives for ever: read by ops 0 and 2, so it is on the host; B is made by op 0, read by 2; C by 1, read by 3
    ops = Ops.make([[0], [], [0, 1], [2]], [[1], [2], [], []])
    trace = Trace(Buffers.make([8] * 3, [0, 0, 1], [4, 3, 4], persistent=[True, False, False]), ops)
    chosen = [Recompute(2, 1, 3, 3), Swap(1, 0, 2, 1, 2), Hold(1, 4), Swap(0, 2, 4, 3, 4), Variant(1, "fast", 1, 0)]
    done = Plan.of(trace, chosen).carried(trace)
    # 0 copy in, 1 op 0, 2 copy out, 3 op 1, 4 copy in, 5 op 2, 6 op 1 again, 7 op 3
    assert done.trace.n == 8
    assert (done.out.tolist(), done.back.tolist()) == ([-1, 2, -1, -1, -1], [6, 4, -1, 0, -1])
    none = Plan.of(trace).carried(trace)
    assert none.trace is trace and (len(none.out), len(none.back)) == (0, 0)


def test_a_plan_is_shown_by_what_it_counts() -> None:
    swap, drop, hold, way = Swap(0, 0, 2, 1, 2), Recompute(1, 0, 2, 2), Hold(2, 3), Variant(0, "fast", 5, 6)
    assert repr(Plan((swap, swap), 3, "net")) == "Plan(net: 2 swaps, 0 recomputations, for 3 ops)"
    more = repr(Plan((drop, way, hold, way), 7, blocking=True))
    assert more == "Plan(0 swaps, 1 recomputations, 1 holds, 2 variants, copies blocking, for 7 ops)"


def test_a_table_has_a_row_a_decision_and_a_gap_where_a_kind_has_no_such_field() -> None:
    pytest.importorskip("pandas")
    table = Plan((Swap(0, 1, 4, 2, 3), Recompute(1, 2, 5, 4), Hold(2, 6), Variant(3, "fast", 5, 0))).to_pandas()
    assert table.index.name == "decision" and table.kind.tolist() == ["swap", "recompute", "hold", "variant"]
    assert table.name.tolist() == ["", "", "", "fast"]
    want = {
        "buffer": [0, 1, 2, None],
        "after": [1, 2, None, None],
        "before": [4, 5, None, None],
        "release": [2, None, None, None],
        "prefetch": [3, None, None, None],
        "out": [1, None, None, None],
        "at": [None, 4, None, None],
        "until": [None, None, 6, None],
        "op": [None, None, None, 3],
        "duration_ns": [None, None, None, 5],
        "workspace_bytes": [None, None, None, 0],
    }
    assert {*table} == {"kind", "name", *want}
    for name, column in want.items():
        assert [None if none else x for x, none in zip(table[name], table[name].isna())] == column
