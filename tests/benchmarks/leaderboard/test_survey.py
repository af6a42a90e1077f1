"""A survey of planners: every end of a planner is a row, whatever the executor."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.leaderboard.ledger import Ledger
from benchmarks.leaderboard.survey import BOUNDS, content, questions, survey
from gpumem import swap
from tests.benchmarks.leaderboard.answers import ALL, NET, asked, plain
from tests.conftest import tiny_machine


def test_every_end_of_a_planner_is_a_row() -> None:
    rows = {row["planner"]: row for row in survey(asked(seconds=0.001))}
    assert {name: row["status"] for name, row in rows.items()} == {
        "swaps": "planned",
        "nothing": "failed",
        "gives-up": "not reached",
        "cannot": "infeasible",
        "broken": "failed",
        "forgets": "failed",
        "slow": "planned",
    }
    one = rows["swaps"]
    assert one["overhead"] == 0.0 and one["iteration_ns"] == 140 and (one["bytes_out"], one["bytes_in"]) == (40, 40)
    assert one["recompute_ns"] == 0 and one["limit"] == 60 and not one["late"]
    assert rows["gives-up"]["reached"] == 90 and rows["cannot"]["needs"] == 80
    assert rows["broken"]["why"] == "KeyError: 'a bug'" and "it must be a Plan" in rows["forgets"]["why"]
    assert "100" in rows["nothing"]["why"]  # what it holds above the limit
    assert rows["slow"]["late"] and rows["slow"]["options"] == {"seconds": 0.001} and one["options"] == {}


def test_bounds_are_rows_too() -> None:
    (row,) = survey(questions([NET], tiny_machine(), {"bound": swap.least_stall}, [0.6]))
    assert (row["status"], row["overhead"]) == ("bound", 0.0)
    assert set(BOUNDS) == {"bound-swap", "bound"}


def test_what_planners_read_tells_traces_apart() -> None:
    ops, buffers = NET.ops, NET.buffers
    renamed = replace(ops, name=tuple(f"random_{name}" for name in ops.name))  # recomputed otherwise, or not at all
    others = [
        replace(NET, ops=renamed),
        replace(NET, buffers=replace(buffers, name=("own", *buffers.name[1:]))),
        replace(NET, buffers=replace(buffers, kind=("workspace", *buffers.kind[1:]))),
        replace(NET, ops=replace(ops, module=("block",) * NET.n)),
    ]
    assert len({content(trace) for trace in (NET, *others)}) == 5
    assert content(replace(NET, name="another")) == content(NET)


@pytest.mark.parametrize("part", [0, -0.1, 1.01, float("nan")])
def test_a_limit_is_a_part_of_the_peak(part: float) -> None:
    with pytest.raises(ValueError, match=r"not in \(0, 1\]"):
        questions([NET], tiny_machine(), ALL, [part])


def test_threads_answer_the_same() -> None:
    with ThreadPoolExecutor(3) as threads:
        assert plain(survey(asked(), executor=threads)) == plain(survey(asked()))


class Loses(Executor):
    """Runs every other task, loses the rest, and takes no more than `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        if self.count > self.most:
            raise RuntimeError("shut down")
        future: Future[Any] = Future()
        if self.count % 2:
            future.set_result(call(*args))
        else:
            future.set_exception(ConnectionError("the worker is gone"))
        return future


def test_lost_tasks_have_failed_and_are_asked_again(tmp_path: Path) -> None:
    path, three = tmp_path / "rows.jsonl", asked("swaps", "gives-up", "cannot")
    rows = survey(three, executor=Loses(2), ledger=Ledger(path))
    assert [row["status"] for row in rows] == ["planned", "failed", "failed"]
    assert [row.get("why") for row in rows] == [None, "ConnectionError: the worker is gone", "RuntimeError: shut down"]
    assert plain(survey(three, ledger=Ledger(path))) == plain(survey(three))


@pytest.mark.thorough
@pytest.mark.jit
def test_a_dask_cluster_answers_the_same() -> None:
    distributed = pytest.importorskip("distributed")
    common = {"threads_per_worker": 1, "processes": True, "dashboard_address": None, "silence_logs": 50}
    table = {name: swap.PLANNERS[name] for name in ("heuristic", "tensile")}
    mine = questions([NET], tiny_machine(), table, [0.6])
    with distributed.LocalCluster(n_workers=2, **common) as cluster, distributed.Client(cluster) as client:
        assert plain(survey(mine, executor=client.get_executor())) == plain(survey(mine))
