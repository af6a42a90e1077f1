"""A survey of planners: rows, on any executor, kept in a file, continued, summed up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.leaderboard import standings
from benchmarks.leaderboard.ledger import Ledger
from benchmarks.leaderboard.standings import against, best_of_others, means
from benchmarks.leaderboard.survey import BOUNDS, Question, questions, survey
from gpumem import swap
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap import Plan, Swap
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import Cli, tiny_machine

NET = Trace(
    Buffers.make([40, 60], [0, 2], [6, 4]),
    Ops.make([[], [], [], [1], [], [0]], [[0], [], [1], [], [], []], duration=[10, 50, 10, 10, 50, 10]),
    name="net",
)
NONE = Plan.of(NET)
ONE = Plan.of(NET, [Swap(0, 0, 5, 2, 4)])


def swaps(trace: Trace, machine: Machine, limit: int) -> Plan:
    return ONE


def nothing(trace: Trace, machine: Machine, limit: int) -> Plan:
    return NONE


def gives_up(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise NotReached(90, limit)


def cannot(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise Infeasible(2, 80, limit)


def broken(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise KeyError("a bug")


def forgets(trace: Trace, machine: Machine, limit: int) -> Any:
    return None


def slow(trace: Trace, machine: Machine, limit: int, *, seconds: float | None = None) -> Plan:
    time.sleep(0.002)
    return ONE


ALL: dict[str, Callable[..., Any]] = {
    "swaps": swaps,
    "nothing": nothing,
    "gives-up": gives_up,
    "cannot": cannot,
    "broken": broken,
    "forgets": forgets,
    "slow": slow,
}


def asked(*names: str, **options: Any) -> list[Question]:
    table = {name: ALL[name] for name in names or ALL}
    return questions([NET], tiny_machine(), table, [0.6], options)


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "seconds": 0} for row in rows]


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


def test_a_file_continues(tmp_path: Path) -> None:
    path, said = tmp_path / "rows.jsonl", list[str]()
    first = survey(asked("swaps"), ledger=Ledger(path))
    both = survey(asked("swaps", "gives-up"), ledger=Ledger(path), progress=said.append)
    assert both[0] == first[0] and said == ["1 of 1: gives-up on net at 0.6: not reached"]
    assert len(path.read_text().splitlines()) == 3
    said.clear()
    survey(asked("swaps", "gives-up"), ledger=Ledger(path, ["gives-up"]), progress=said.append)
    assert len(said) == 1 and len(Ledger(path).rows) == 2
    other = tiny_machine().with_(pinned=10**5)  # what the answer depends on has changed
    assert Ledger(path).get(questions([NET], other, {"swaps": swaps}, [0.6])[0].asked()) is None
    assert Ledger(path).get(asked("slow", seconds=1.0)[0].asked()) is None


def test_a_line_that_was_cut_off_is_asked_again(tmp_path: Path) -> None:
    path, said = tmp_path / "rows.jsonl", list[str]()
    survey(asked("swaps", "gives-up"), ledger=Ledger(path))
    path.write_bytes(path.read_bytes()[:-9])
    ledger = Ledger(path, tell=said.append)
    assert len(ledger.rows) == 1 and "the last line was cut off" in said[0]
    survey(asked("swaps", "gives-up"), ledger=ledger)
    assert [json.loads(line).get("planner") for line in path.read_text().splitlines()] == [None, "swaps", "gives-up"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not say what it is"),
        ("id,lower\n", "does not say what it is"),
        ("[1]\n", "does not say what it is"),
        ('{"format": "gpumem.plan/1"}\n', "format 'gpumem.plan/1' is not 'gpumem.planners/1'"),
        ('{"format": "gpumem.planners/1"}\n{"planner": 3}\n', "line 2 is no answer"),
        ('{"format": "gpumem.planners/1"}\nxx\n', "line 2 is no answer: b'xx'"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Ledger(path)
    assert path.read_text() == text
    with pytest.raises(ValueError, match="Is a directory"):
        Ledger(tmp_path)
    with pytest.raises(ValueError, match="cannot write here"):
        Ledger(tmp_path / "no" / "rows.jsonl")


def row(planner: str, content: str, overhead: float | None, status: str = "planned") -> dict[str, Any]:
    about = {"content": content, "trace": content, "part": 0.5, "planner": planner, "iteration_ns": 10**9}
    cost = {"bytes_out": 2**20, "bytes_in": 0, "recompute_ns": 2_000} if status == "planned" else {}
    return about | cost | {"overhead": overhead, "status": status, "seconds": 0.5, "late": planner == "b"}


ROWS = [
    row("search", "x", 0.1),
    row("a", "x", 0.21),
    row("b", "x", 0.1 + 1e-6),
    row("program", "x", 0.0),
    row("bound", "x", 0.05, "bound"),
    row("search", "y", 0.0),
    row("a", "y", None, "not reached"),
    row("b", "y", 0.44),
    row("a", "z", None, "infeasible"),
    row("search", "z", None, "failed"),
]


def test_means_say_on_how_many_traces() -> None:
    found = {one["planner"]: one for one in means(ROWS)}
    assert found["search"]["overhead"] == pytest.approx(1.1**0.5 - 1) and found["search"]["traces"] == 2
    assert (found["a"]["overhead"], found["a"]["reached"], found["a"]["traces"]) == (pytest.approx(0.21), 1, 2)
    assert found["bound"]["overhead"] == pytest.approx(0.05) and found["b"]["late"] == 2


def test_the_search_against_others_where_both_get_there() -> None:
    best = best_of_others(ROWS, "search", ["program"])
    assert [(one["content"], one["of"]) for one in best] == [("x", "b"), ("y", "b")]
    found = {one["planner"]: one for one in against(ROWS, "search", ["program"])}
    assert list(found) == ["a", "b", "program", "best of others"]
    assert (found["a"]["both"], found["a"]["better"]) == (1, 1) and found["a"]["ratio"] == pytest.approx(1.1 / 1.21 - 1)
    counts = [(found[name]["better"], found[name]["same"], found[name]["worse"]) for name in ("b", "program")]
    assert counts == [(1, 1, 0), (0, 0, 1)]


def test_gaps_are_differences_to_each_bound() -> None:
    (gap,) = standings.gaps([*ROWS, row("bound", "y", 0.0, "bound"), row("bound", "z", 0.0, "bound")], "search")
    assert (gap["bound"], gap["traces"], gap["of"]) == ("bound", 2, "x")
    assert (gap["mean"], gap["most"]) == (pytest.approx(0.025), pytest.approx(0.05))
    assert standings.gap_table([gap]).split()[-6:] == ["0.5", "bound", "2", "2.50", "5.00", "x"]


def test_tables_and_figures() -> None:
    (x, y) = standings.figures(ROWS, "search")
    assert (x.title, y.title) == ("x", "y")  # nobody gets anywhere on z
    assert [(s.name, s.style, s.y) for s in x.series][::4] == [("search", "bold", [10.0]), ("bound", "dashed", [5.0])]
    text = standings.table(ROWS)
    assert "not reached" in text and "time up" in text and "1.00 MiB" in text and "2.00 us" in text
    assert "4.88% (2/2)" in standings.mean_table(means(ROWS))
    assert standings.against_table(against(ROWS, "search")).count("\n") == 4


def test_the_command_prints_writes_and_continues(cli: Cli, tmp_path: Path) -> None:
    common = ("bench", "planners", "mlp3", "--limits", "99%", "--results", tmp_path / "rows.jsonl")
    ran = cli(*common, "--planner", "heuristic,tensile", "--out", tmp_path / "out")
    blocks = ran.out.split("\n\n")
    assert ran.status == 0 and [block.split()[0] for block in blocks[2::2]] == ["trace", "planner", "limit", "limit"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.txt", "bench.json", "overhead.png"}
    before = (tmp_path / "rows.jsonl").read_text()
    found = cli(*common, "--only", "on-demand", "--planner", "heuristic,tensile,capuchin", "--json")
    assert [one["planner"] for one in found.json["rows"]] == ["heuristic", "tensile", "on-demand"]
    assert found.err == ["gpumem: 1 rows are left out: --only plans nothing else, and --results has none of them"]
    after = (tmp_path / "rows.jsonl").read_text()
    assert after.startswith(before) and after.count("\n") == before.count("\n") + 1
    cli(*common, "--planner", "heuristic,tensile", "--only", "tensile", "--again")
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == after.count("\n") + 1


def test_the_command_says_what_failed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(swap.PLANNERS, "broken", broken)
    ran = cli("bench", "planners", "mlp3", "--limits", "99%", "--planner", "broken", "--what", "rows")
    assert ran.status == 0 and "KeyError: 'a bug'" in ran.out
    assert ran.err == ["gpumem: 1 of 1 rows failed, the first: broken: KeyError: 'a bug'"]


@pytest.mark.thorough
@pytest.mark.jit
def test_processes_answer_the_same(cli: Cli) -> None:
    args = ("bench", "planners", "mlp3", "--limits", "99%", "--planner", "heuristic,tensile", "--json")
    here, there = (cli(*args, "--jobs", jobs).json["rows"] for jobs in (1, 2))
    assert plain(here) == plain(there)


@pytest.mark.thorough
@pytest.mark.jit
def test_a_dask_cluster_answers_the_same() -> None:
    distributed = pytest.importorskip("distributed")
    common = {"threads_per_worker": 1, "processes": True, "dashboard_address": None, "silence_logs": 50}
    table = {name: swap.PLANNERS[name] for name in ("heuristic", "tensile")}
    mine = questions([NET], tiny_machine(), table, [0.6])
    with distributed.LocalCluster(n_workers=2, **common) as cluster, distributed.Client(cluster) as client:
        assert plain(survey(mine, executor=client.get_executor())) == plain(survey(mine))
