"""What `plan` returns: all that follows from the plan, and files that are saved whole or not at all."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import gpumem
from gpumem import Machine, Plan, Trace, check, simulate
from gpumem.pipeline import Planned
from gpumem.simulator import Uncertainty
from gpumem.swap.search.robust import PRICE
from tests.files import full_disk, snapshot
from tests.nets import PEAK, net


def test_a_result_has_all_that_follows_from_the_plan(planned: Planned) -> None:
    trace, machine = net(), Machine.named("gtx1080ti")
    assert planned.before.placement.height == PEAK and planned.pool == PEAK * 3 // 4 and planned.load is None
    assert planned.trace is planned.after.trace and planned.placement is planned.after.placement
    assert (
        planned.trace.peak_live_bytes == planned.plan.apply(trace).peak_live_bytes <= planned.load_limit <= planned.pool
    )
    check.everything(trace, planned.trace, planned.placement, planned.after.timeline, machine, limit=planned.pool)
    base = simulate(trace, machine, planned.before.placement).makespan
    assert planned.before.timeline.makespan == base
    assert planned.overhead == planned.after.timeline.makespan / base - 1
    assert (planned.machine, planned.planner, planned.score) == (machine, "search", planned.row()["score"])
    with pytest.raises(FrozenInstanceError):
        planned.score = "mine"  # type: ignore[misc]


def test_a_name_of_any_length_gives_a_short_repr(planned: Planned) -> None:
    text = repr(planned)
    assert text.startswith("Planned(net, pool of 18.00 MiB on gtx1080ti: ") and "swaps by " in text
    machine = Machine.named("gtx1080ti").with_(name="m" * 500)
    trace = Trace(net().buffers, net().ops, name="n" * 500)
    long = replace(planned, machine=machine, planner="p" * 500, score="", before=replace(planned.before, trace=trace))
    assert len(repr(long)) <= 200 and "\n" not in repr(long)
    assert "load of 2.00 KiB" in repr(replace(planned, load=2048))


def test_what_is_saved_can_be_read_back(planned: Planned, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    planned.save(str(tmp_path))
    assert Plan.from_json((tmp_path / "plan.json").read_text()) == planned.plan
    back = gpumem.read(tmp_path / "trace.json.gz")
    assert back.peak_live_bytes == planned.trace.peak_live_bytes and (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("existed", [False, True])
def test_a_disk_that_fills_up_leaves_no_half_of_the_files(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    folder = full_disk(tmp_path, monkeypatch, existed)
    with pytest.raises(ValueError, match=f"^directory: {folder}: cannot write .No space left on device.$"):
        planned.save(folder)
    assert snapshot(tmp_path) == ({"out/plan.json": b"old"} if existed else {})
    assert folder.exists() == existed


def test_places_that_cannot_be_written_to_are_named(planned: Planned, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full" / "timeline.json").mkdir(parents=True)
    for place, message in (("file", "cannot write here"), ("full", "timeline.json is a directory")):
        with pytest.raises(ValueError, match=f"^directory: .*{message}"):
            planned.save(tmp_path / place)
    with pytest.raises(ValueError, match=r"^directory: the name is empty$"):
        planned.save("")
    assert sorted(snapshot(tmp_path)) == ["file"]


def test_what_a_plan_costs_where_durations_are_off(planned: Planned) -> None:
    """By the clock that judges, both with the plan and without it in the same draws."""
    assert planned.realised is None
    certain = planned.under(Uncertainty(), draws=2).realised
    assert certain is not None and certain.overheads.tolist() == [planned.overhead] * 2
    trace, slow = planned.before.trace, planned.under(Uncertainty(link=0.1), draws=2)
    late = Uncertainty(link=0.1).drawn(planned.trace, planned.machine, 0)
    base = simulate(trace, planned.machine, planned.before.placement)
    expected = simulate(late, planned.machine, planned.placement).overhead(base)
    assert slow.realised is not None and slow.realised.overheads.tolist() == [expected] * 2
    row = slow.row()
    assert row["overhead_median"] == row["overhead_p95"] == expected > row["overhead"] and row["draws"] == 2
    assert "as it turns out" in slow.table() and "as it turns out" not in planned.table()


@pytest.mark.thorough
def test_a_plan_for_durations_that_may_be_off_is_no_dearer_in_a_pool() -> None:
    trace, off = gpumem.bundled("vgg16"), Uncertainty(spread=0.3, copy_noise=0.3)
    how = {"pool": "60%", "effort": 0.001, "uncertainty": off}
    plain, robust = (gpumem.plan(trace, "gtx1080ti", robust=sigma, **how) for sigma in (0.0, 0.3))  # type: ignore[arg-type]
    assert robust.placement.height <= robust.pool == plain.pool
    assert robust.overhead <= plain.overhead + PRICE
    assert plain.realised and robust.realised and robust.realised.p95 <= plain.realised.p95
