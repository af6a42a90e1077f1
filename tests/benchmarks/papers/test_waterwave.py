"""`python -m benchmarks waterwave`, and its measures: largest batches, what misses move, what a host changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import waterwave as paper
from benchmarks.papers.waterwave import batches, hosts, pools, published
from benchmarks.papers.waterwave.throughput import FAULTED, processes, switch_ns
from gpumem.io import bundled, read, write
from gpumem.jobs.waterwave import co_schedule, halves
from gpumem.simulator.machine import GIB, Machine
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.batch import largest, recorded_batch
from tests.conftest import Cli, shared

V100, P100 = Machine.named("v100"), Machine.named("p100")
PARTS = ["table1", "pool", "rounds", "table2", "several", "splits", "throughput", "slowdown", "freed", "late"]
PARTS += ["sequential", "hosts", "balanced", "priorities", "sharing"]


def setting(machine: Machine = V100, pieces: tuple[float, ...] = (8.0, 28.5)) -> batches.Sizing:
    return batches.Sizing(machine, lambda text: None, pieces)


def recorded(name: str) -> Trace:
    """A shared trace; the test is left out where there is none."""
    if not (paths := shared(f"traces/{name}.json.gz")):
        pytest.skip("no shared traces")
    return read(paths[0])


@pytest.mark.jit
def test_bench(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    ran = cli("bench", "waterwave", "vgg16", "--quick", "--reserved", "31GiB", "--out", out)
    assert ran.status == 0
    found = json.loads((out / "bench.json").read_text())
    assert [part for part in found if part != "header"] == PARTS
    assert {path.name for path in out.glob("*.png")} >= {"fig7-vgg16_cifar_b100.png", "fig8-vgg16_cifar_b100.png"}
    for row in found["table1"] + found["several"]:
        assert row["bound"] <= row["waterwave"] <= row["solo"] >= row["delayed"] >= row["coarse bound"]
        assert row["paper"] is None
    for row in found["pool"]:
        assert row["wrapped"] < row["flat"] < row["ends delayed"] <= row["at most"] < row["load"] >= row["solo"]
        assert row["ends"] <= row["ends delayed"] and 0 < row["ends beside"] < 1
        assert row["load at 90"] is None  # two sets of weights: no pool has so much
    flat, wrapped = found["rounds"]
    assert len(set(flat["apart"])) == 1 and wrapped["apart"][0] < wrapped["apart"][-1]
    assert all(list_ <= apart for row in (flat, wrapped) for list_, apart in zip(row["one list"], row["apart"]))
    for row in found["throughput"]:
        assert row["in turn"] is None or row["switched"] <= row["in turn"] <= 2 * row["waterwave"]
        assert row["part"] < 0.9 or row["missed"] > 0
    assert found["table2"] == []  # one trace is no pair
    for row in found["balanced"]:
        assert 1 <= row["groups"] <= row["balanced"] <= 2 / (1 + row["slowdown"])
    for row in found["priorities"]:
        assert row["weights"] == [2, 1] and row["done"][0] == 2 * row["done"][1]
    for row in found["slowdown"]:
        assert row["1 hosts, 1"] <= row["1 hosts, 0"] <= row["2 hosts, 0"] <= 2


@pytest.mark.parametrize("options", [["--order", "deep"], ["--slowdown", "-1"]])
def test_bad_options_are_refused(cli: Cli, options: list[str]) -> None:
    ran = cli("bench", "waterwave", "mlp3", *options)
    assert ran.status == 2 and f"{options[0]}: " in ran.err[0]


# --- the largest batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 63, 64, 65, 99, 1000, 1003])
def test_the_largest_of_all_batches(most: int) -> None:
    asked: list[int] = []

    def holds(batch: int) -> bool:
        asked.append(batch)
        return batch <= most

    assert largest(holds, 100, exact=True) == most
    assert len(asked) < 30


def test_the_batch_of_a_trace() -> None:
    assert recorded_batch(bundled("mlp3")) == 128
    bare = Trace(Buffers.make([8], [0], [1], kind=["temp"]), Ops.make([[0]], [[]]), name="bare")
    with pytest.raises(ValueError, match="trace 'bare': no input has a shape that says the batch"):
        recorded_batch(bare)


@pytest.mark.parametrize(("net", "sizes"), [("resnet34_224", (128, 256, 512)), ("unet_256", (16, 120))])
def test_the_largest_batch_does_not_depend_on_the_recording(net: str, sizes: tuple[int, ...]) -> None:
    found = [batches.solo(setting(), recorded(f"{net}_b{size}")) for size in sizes]
    assert max(found) - min(found) <= 1


def test_two_resnet50_share_a_v100() -> None:
    row = batches.several(setting(), recorded("resnet50_224_b64"))
    assert row["waterwave"] >= 0.9 * row["solo"] and row["waterwave"] >= 1.3 * row["coarse"]
    assert row["paper"] == published.Batches(406, 384, 266, 370) and row["paper several"] == 370


@pytest.mark.parametrize("net", ["resnet50_224_b64", "bert_base_s128_b32", "inceptionv3_299_b2"])
def test_from_two_ends_two_fit_at_90_percent_of_the_solo_batch_and_much_of_it_side_by_side(net: str) -> None:
    trace, sizing = recorded(net), setting(pieces=(5.7, 16.0))
    (job,) = batches.at_batch(trace, 1, -(-9 * batches.solo(sizing, trace) // 10))
    line = pools.best_from_two_ends(sizing, [job, job])
    assert line is not None and line.bound().max() <= sizing.limit
    assert batches.beside(line) > 0.85 * batches.beside(batches.delayed(sizing, [job, job])) > 0.3


def test_two_models_have_the_same_part_of_what_each_has_alone() -> None:
    row = batches.mixed(setting(V100.with_(capacity=2**30)), [bundled("vgg16"), bundled("resnet18")])
    parts = [mine / alone for mine, alone in zip(row["waterwave"], row["solo"])]
    assert min(parts) > 0.5 and max(parts) == pytest.approx(min(parts), abs=0.02) and row["paper"] is None


def test_halves_are_cut_at_the_peak_and_between_the_passes_in_any_order() -> None:
    for order in ("recorded", "depth"):
        trace = batches.ordered(bundled("vgg16"), order)
        for line in halves([trace] * 2, V100):
            cut = int(line.parts[0].cuts[1])
            assert 0.2 * trace.n < cut < 0.65 * trace.n
            held = co_schedule(line, V100).trace.peak_live_bytes
            assert trace.peak_live_bytes < held <= line.bound().max() <= 2 * trace.peak_live_bytes


def test_with_delays_fits_what_fits_one_at_a_time() -> None:
    trace = bundled("vgg16")
    rest = int(batches.between(trace)[0])
    tight = setting(V100.with_(capacity=trace.peak_live_bytes + rest))
    assert batches.delayed(tight, [trace, trace]).bound().max() <= tight.limit
    assert not batches.Ladder(tight, batches.NEEDS["bound"])([trace, trace])


# --- figure 7 ---------------------------------------------------------------------------------------------


def passes(n: int, size: int) -> Trace:
    """`n` ops make a buffer each, then `n` read them, last first."""
    writes = [[k] for k in range(n)] + [[] for _ in range(n)]
    reads = [[] for _ in range(n)] + [[k] for k in reversed(range(n))]
    ends = [2 * n - k for k in range(n)]
    return Trace(Buffers.make([size] * n, list(range(n)), ends), Ops.make(reads, writes))


@pytest.mark.parametrize(("room", "moved"), [(40, 0), (30, 10), (25, 15), (10, 30)])
def test_what_misses_move_is_what_was_unused_for_longest(room: int, moved: int) -> None:
    assert paper.missed(passes(4, 10), room) == (moved, moved)


def test_what_is_kept_for_ever_is_missed_in_every_iteration() -> None:
    ops = Ops.make([[0], [1]], [[0], [1]])
    trace = Trace(Buffers.make([8, 8], [0, 0], [2, 2], persistent=[True, True]), ops)
    assert paper.missed(trace, 16) == (0, 0)
    assert paper.missed(trace, 12) == (8, 8)


def test_processes_over_unified_memory_wait_for_half_the_rate_of_the_link() -> None:
    trace, machine = bundled("vgg16"), V100.with_(capacity=700 * 2**20)
    ns, waits, moved = processes([trace] * 2, setting(machine))
    assert processes([trace] * 2, setting()) == (ns - waits, 0, 0)
    assert waits == pytest.approx(moved * machine.into.ns_per_byte / FAULTED, rel=0.1)


def test_a_switch_copies_what_is_held_at_rest() -> None:
    trace = bundled("vgg16")
    rest = batches.between(trace)[:1]
    both = [int(link.copy_ns(rest)[0]) for link in (V100.out, V100.into)]
    assert switch_ns(trace, V100) == max(both)
    assert switch_ns(trace, V100.with_(duplex=False)) == sum(both)


# --- what a host changes ----------------------------------------------------------------------------------


def test_memory_freed_late_is_no_memory_for_another_job() -> None:
    """Section 3.2: pairs live on what is free once it is launched. A host slower than the device hides it."""
    row = hosts.late(bundled("vgg16"), V100, 50_000)
    assert row["one_scheduled"] == pytest.approx(1, abs=0.01)
    assert row["two_scheduled"] < 1.7
    assert row["one_completed"] > 1.5
    assert row["two_completed"] > 1.3 * row["two_scheduled"]
    slow = hosts.late(bundled("vgg16"), V100, 5e6)
    assert slow["two_completed"] == pytest.approx(slow["two_scheduled"], rel=0.1)


def test_figures_2_and_3_by_one_host_cost() -> None:
    rows = hosts.freed(recorded("resnet50_224_b64"), P100)
    low, high = published.BAND
    assert low <= rows[0]["ratio"] <= high and rows[0]["scheduled"] / GIB == pytest.approx(published.FREED[0], abs=0.1)
    for net in ("resnet50_224_b64", "bert_base_s128_b32"):
        row = hosts.sequential(recorded(net), P100)
        assert row["lost"] == pytest.approx(row["paper"], abs=0.05)
    row = hosts.sequential(recorded("tacotron2_t40_b32"), P100)
    assert row["lost"] < 0.5 < row["paper"] and row["more_ns"] > row["host_ns"]


def test_a_launch_bound_pair_gains_from_a_host_a_stream() -> None:
    slow = hosts.a_host_a_stream(bundled("mlp3"), V100, 1e6)
    assert slow["turns_ns"] <= slow["hosts_1_ns"] and slow["hosts_1_ns"] > 1.8 * slow["hosts_2_ns"]


def test_the_models_of_the_paper_are_known_by_their_traces() -> None:
    assert published.model_of("inceptionv3_299_b2_adam") == "inceptionv3" and published.model_of("mlp3") == "mlp3"
    assert paper.loops(bundled("mlp3")) == []
    assert (
        np.mean([row.waterwave / row.solo for (_, model), row in published.TABLE1.items() if model == "nasnet"]) > 0.94
    )


# --- beyond the paper -------------------------------------------------------------------------------------


def test_what_no_pipeline_fits_is_left_out() -> None:
    pair = [bundled("mlp3")] * 2
    rows = paper.lengths(pair, V100, [1.0], [0.99])
    assert rows[0]["groups"] is None and rows[0]["balanced"] is None
    assert "Balanced does less in 0 of 0." in paper.TABLES["balanced"](rows)


def test_who_runs_more_often_gets_more_done() -> None:
    rows = paper.weighted([bundled("mlp3")] * 2, V100, 1.0, [(1, 1), (3, 1)])
    (a, b), (c, d) = (row["done"] for row in rows)
    assert a == b and c == 3 * d and c > a
    assert "3, 1" in paper.TABLES["priorities"](rows)


@pytest.mark.parametrize("part", ["sequential", "hosts", "balanced", "priorities", "sharing"])
def test_a_trace_that_takes_no_time_is_refused_by_name(cli: Cli, tmp_path: Path, part: str) -> None:
    ops = Ops.make([[], [0]], [[0], []], duration=[0, 0])
    write(tmp_path / "still.json", Trace(Buffers.make([8], [0], [2]), ops, name="still"))
    told = cli.refuses("bench", "waterwave", tmp_path / "still.json", "--what", part, "--host-ns", 0, "--quick")
    assert "trace 'still': all ops take 0 ns on v100" in told
