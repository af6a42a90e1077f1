"""Wrong calls, as a user makes them: each is an error that names the place, the value, and what would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpumem
from benchmarks.papers.zero_overhead_limit import lowest_limit
from gpumem import (
    Machine,
    Plan,
    Recorder,
    Swap,
    Trace,
    check,
    execute,
    io,
    jobs,
    pipeline as evaluate,
    pool,
    swap,
    testing,
)
from gpumem.execute import latency, models
from gpumem.jobs import Job
from gpumem.kernels import reference
from gpumem.simulator.machine import Link
from gpumem.trace import Buffers, Ops
from gpumem.trace.record import period

MLP, VGG = gpumem.bundled("mlp3"), gpumem.bundled("vgg16")
BARE = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
V100 = Machine.named("v100")
OTHER = gpumem.best_fit(BARE)
LINE = gpumem.simulator.simulate(MLP, V100)
LAUNCH = models.mlp(batch=2, features=3, hidden=[4]).launch(reference)
KEY = '{"format":"gpumem.plan/1","n":1,"decisions":[{"kind":"swap","buffer":0,"otu":1}]}'
nan = float("nan")
untyped: Any = gpumem  # these calls are wrong on purpose


def made_again(buffer: int, after: int, before: int) -> Trace:
    """A recomputation in VGG16, as a plan file brings it."""
    again = gpumem.Recompute(buffer, after, before, before)
    return Plan.from_json(Plan.of(VGG, [again]).to_json()).apply(VGG)


def planned_by(planner: Any) -> Any:
    return jobs.simulate_jobs([Job("a", MLP)], V100, 2**34, jobs.Policy(planner))


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # a path, a list or a text where a trace or a machine belongs
    (lambda: untyped.plan("vgg16.json", "v100"), TypeError, "plan: trace: 'vgg16.json' is a str; it must be a Trace; "),
    (lambda: untyped.plan([1], "v100"), TypeError, r"plan: trace: \[1\] is a list; .*gpumem.read\(path\)"),
    (lambda: untyped.plan("v100", MLP), TypeError, "plan: trace: 'v100' is a str; .*gpumem.bundled"),
    (lambda: untyped.plan(MLP, 16), TypeError, "plan: machine: 16 is an int; .*Machine.named"),
    (lambda: untyped.simulate(V100, MLP), TypeError, "simulate: trace: Machine.* is a Machine; it must be a Trace"),
    (lambda: untyped.simulate(MLP, "v100"), TypeError, r"simulate: machine: 'v100' .*Machine.named\(name\)"),
    (lambda: untyped.best_fit(Plan()), TypeError, "best_fit: trace: Plan.* is a Plan; it must be a Trace"),
    (lambda: untyped.read(None), TypeError, "read: path: None is a NoneType; it must be a text or a path"),
    (lambda: untyped.Trace([1], [2]), TypeError, r"Trace: buffers: \[1\] is a list; .*Buffers.make"),
    (lambda: untyped.write(MLP, "x.json"), TypeError, "write: path: Trace.* is a Trace; it must be a text or a path"),
    (lambda: untyped.write("x.json", MLP, [5] * 40), TypeError, "write: placement: .* is a list; .*gpumem.best_fit"),
    (lambda: jobs.simulate_jobs(Job("a", MLP), V100, 2**34), TypeError, "jobs: Job.* a list of Job"),  # type: ignore[arg-type]
    (lambda: jobs.simulate_jobs([MLP], V100, 2**34), TypeError, "it must be a list of Job; .*Job"),  # type: ignore[list-item]
    (lambda: jobs.simulate_jobs([], V100, 2**34, "tensile"), TypeError, "policy: 'tensile' is a str; .*TENSILE"),  # type: ignore[arg-type]
    (lambda: execute.prepare(MLP, OTHER, "emulator"), TypeError, "backend: 'emulator' is a str; .*Emulator"),  # type: ignore[arg-type]
    (lambda: pool.replay(MLP, pool.BFC), TypeError, r"allocator: <class .* an Allocator; gpumem.pool.BFC\(\)"),  # type: ignore[arg-type]
    (lambda: testing.check_allocator(3), TypeError, "check_allocator: factory: 3 is an int; it must be a function"),  # type: ignore[arg-type]
    (lambda: latency.fit([1, 2]), TypeError, r"fit: rows: \[1, 2\] is a list; it must be a list of Measurement"),  # type: ignore[list-item]
    # limits and options of the wrong type, or out of range
    (
        lambda: untyped.autoswap(MLP, V100, "70%"),
        TypeError,
        "autoswap: limit: '70%' is a str; it must be a whole number",
    ),
    (lambda: untyped.autoswap(MLP, V100, 2e8), TypeError, "autoswap: limit: 200000000.0 is a float"),
    (lambda: untyped.autoswap(MLP, V100, 2**27, score=3), TypeError, "autoswap: score: 3 is an int; it must be a text"),
    (lambda: gpumem.autoswap(MLP, V100, 2**27, score="best"), ValueError, "score: 'best' .*there are doa, aoa"),
    (lambda: gpumem.autoswap(MLP, V100, -1), ValueError, "limit: -1 bytes is below 1"),
    (
        lambda: untyped.plan(MLP, "v100", load="97%", score=3),
        TypeError,
        "plan: score: 3 is an int; .* a text or a list",
    ),
    (lambda: gpumem.plan(MLP, "v100", limit="70%"), ValueError, "limit: search has no such option; pool= .* load="),
    (lambda: untyped.plan(MLP, "v100", pool=0.7), TypeError, "pool: 0.7 is a float; .*'300MiB' or '70%'"),
    (
        lambda: gpumem.plan(MLP, "v100", planner="autoswop"),
        ValueError,
        "'autoswop' is unknown.*did you mean 'autoswap'",
    ),
    (lambda: untyped.simulate(MLP, V100, capacity="70%"), TypeError, "capacity: '70%' is a str; it must be a whole"),
    (lambda: swap.least_stall(MLP, V100, "50%"), TypeError, "least_stall: limit: '50%'"),  # type: ignore[arg-type]
    (lambda: check.budget(MLP, "70%"), TypeError, "budget: limit: '70%'"),  # type: ignore[arg-type]
    (lambda: pool.search(MLP, effort=nan), ValueError, "effort: nan is not a finite number >= 0"),
    (lambda: gpumem.best_fit(MLP, alignment=0), ValueError, r"alignment: 0 is not in \[1, 2\*\*40\]"),
    (lambda: evaluate.Case.of(MLP, V100, pool="70%"), TypeError, "Case.of: pool: '70%'"),  # type: ignore[arg-type]
    # machines
    (lambda: Machine.named("v10"), ValueError, "machine: 'v10' is unknown; there are .*did you mean 'v100'"),
    (lambda: V100.with_(bandwith=3e9), ValueError, "'bandwith' is unknown; .*did you mean 'bandwidth'"),
    (lambda: V100.with_(capacity="11GiB"), TypeError, "Machine: capacity: '11GiB' is a str; it must be a whole number"),
    (lambda: Link("1", 2), TypeError, "Link: latency_ns: '1' is a str; it must be a number"),  # type: ignore[arg-type]
    # what does not belong together
    (
        lambda: gpumem.simulator.simulate(MLP, V100, OTHER),
        ValueError,
        "placement: 2 offsets, but trace .* has 35 buffers",
    ),
    (lambda: OTHER.ratio(MLP), ValueError, "placement: 2 offsets, but trace .* has 35 buffers"),
    (lambda: Plan.of(MLP).apply(BARE), ValueError, "plan: made for 40 ops, the trace has 3"),
    (
        lambda: io.chrome.events(BARE, gpumem.simulator.simulate(MLP, V100)),
        ValueError,
        "timeline: 40 ops, but trace '' has 3",
    ),
    (lambda: gpumem.plan(BARE, "v100"), ValueError, "trace: '' is a bare instance, it has no ops to swap between"),
    # plans
    (lambda: Plan.from_json({}), TypeError, "from_json: text: {} is a dict; it must be a text or bytes"),  # type: ignore[arg-type]
    (lambda: Plan.from_json(KEY), ValueError, r"decision 0 \(swap\): .* unknown field `otu`.*did you mean 'out'"),
    (lambda: Plan.of(MLP, ["swap"]).apply(MLP), TypeError, "decision 0: 'swap' is no Swap, Recompute"),  # type: ignore[list-item]
    (lambda: Plan((Swap(999, 0, 2, 1, 2),)).apply(MLP), ValueError, "buffer=999.*there are 35 buffers"),
    # columns
    (lambda: Trace.from_lifetimes([4.5], [0], [2]), ValueError, "buffers: size: expected a list of integers"),
    (lambda: Trace.from_lifetimes([4, 2], [0], [2]), ValueError, "buffers: 2 rows, but column 'start' has 1"),
    (lambda: Trace.from_lifetimes([-4], [0], [2]), ValueError, "buffer 0: size -4 is negative"),
    (lambda: Ops.make([0], [[]]), TypeError, r"ops: reads\[0\]: 0 is no list of integers"),  # type: ignore[list-item]
    (lambda: Plan.of(MLP, [(1, 2)]).to_json(), TypeError, r"decision 0: \(1, 2\) is no Swap"),  # type: ignore[list-item]
    (lambda: testing.steps(streams=0), ValueError, "streams: 0 is below 1"),
    (lambda: testing.steps(sizes=8), TypeError, "sizes: 8 is no strategy"),  # type: ignore[arg-type]
    (lambda: testing.steps(durations=8), TypeError, "durations: 8 is no strategy"),  # type: ignore[arg-type]
    (lambda: testing.steps(states=-1), ValueError, "states: -1 is below 0"),
    (lambda: testing.plans(MLP, kinds=[gpumem.Variant]), ValueError, "kinds: .*Variant.* is none of Swap"),
    (lambda: Ops.make([[]], [[]], statistics=5), TypeError, "ops: statistics: 5 is no list of rows"),  # type: ignore[arg-type]
    (lambda: Ops.make([[0]], [[]], flops=["many"]), ValueError, "ops: flops: expected a list of numbers, got <U4"),
    (lambda: Buffers.make([8], [0], [1], persistent=["no"]), ValueError, "persistent: expected a list of truth values"),
    # recorder, jobs
    (lambda: Recorder().malloc("4"), TypeError, "Recorder.malloc: size: '4' is a str; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Recorder().exec("a", reads=[3]), ValueError, r"op 0 \(a\): block 3 was never allocated"),
    (lambda: Recorder().exec("a", reads=3), TypeError, "Recorder.exec: reads: 3 is an int; it must be a list"),  # type: ignore[arg-type]
    (lambda: Job("a", MLP, ratio=nan), ValueError, r"job 'a': ratio nan is not in \[0, 1\]"),
    (lambda: swap.Task(MLP, np.array([1, 2])), ValueError, "job .*: 2 durations for 40 ops"),
    # files
    (lambda: gpumem.read("four.json"), ValueError, "four.json: No such file or directory"),
    (lambda: gpumem.read("."), ValueError, r"\.: Is a directory"),
    (lambda: gpumem.read(""), ValueError, "path: the name is empty"),
    (lambda: gpumem.read(io.bundled_path("mlp3"), iteration=99), ValueError, "iteration 99: the recording has 2"),
    (lambda: gpumem.bundled("vgg19"), ValueError, "bundled trace: 'vgg19' is unknown; .*did you mean 'vgg16'"),
    (lambda: gpumem.write("x.jsn", MLP, machine=V100), ValueError, "x.jsn: suffix '.jsn' is unknown; .*mean '.json'"),
    (lambda: gpumem.write("no/x.json", MLP, machine=V100), ValueError, "no/x.json: cannot write here"),
    (lambda: gpumem.write("x.json", MLP), ValueError, "x.json: op 0 .* was not measured.*machine='v100'"),
    # a name or a result where a function belongs, a text where yes or no does
    (lambda: testing.check_planner("best-fit"), TypeError, "check_planner: planner: 'best-fit' .* must be a function"),  # type: ignore[arg-type]
    (lambda: testing.check_planner(gpumem.best_fit, skip="growth"), TypeError, "skip: 'growth' .* must be a list"),
    (lambda: lowest_limit(MLP, V100, "autoswap"), TypeError, "lowest_limit: planner: 'autoswap' .* must be a function"),  # type: ignore[arg-type]
    (lambda: pool.SmartPool(planner="best-fit"), TypeError, "SmartPool: planner: 'best-fit' .* must be a function"),  # type: ignore[arg-type]
    (lambda: execute.Emulator("random"), TypeError, "Emulator: order: 'random' is a str; .* or a function"),  # type: ignore[arg-type]
    (lambda: jobs.Policy("tensile"), TypeError, "Policy: planner: 'tensile' is a str; it must be a function"),  # type: ignore[arg-type]
    (lambda: untyped.plan(MLP, V100, progress=True), TypeError, "plan: progress: True is a bool; .* a function"),
    (lambda: untyped.plan(MLP, V100, check="no"), TypeError, "plan: check: 'no' is a str; it must be True or False"),
    (lambda: V100.with_(duplex="no"), TypeError, "Machine: duplex: 'no' is a str; it must be True or False"),
    # decisions and plans
    (lambda: Swap("w", 0, 2, 1, 2), TypeError, "Swap: buffer: 'w' is a str; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Plan((Swap(0, 0, 5, 1, 6),)).apply(MLP), ValueError, "prefetch 6 <= before 5 does not hold"),
    (lambda: Plan((Swap(0, 0, 5, 0, 4),)).apply(MLP), ValueError, "out 0 < release 0 does not hold"),
    (lambda: gpumem.Variant(0, 3, "x", 4), TypeError, "Variant: name: 3 is an int; it must be a text"),  # type: ignore[arg-type]
    (lambda: untyped.Plan.of(MLP, Swap(0, 0, 2, 1, 2)), TypeError, "decisions: Swap.* is a Swap; it must be a list"),
    (lambda: made_again(0, 2, 140), ValueError, r"buffer=0.*: what buffer 0 holds after op 2 .* is a parameter or"),
    (lambda: made_again(158, 0, 2), ValueError, r"buffer 158 holds after op 0 \(empty.*: its data comes from outside"),
    (
        lambda: made_again(160, 4, 315),
        ValueError,
        r"buffer=160, .*before=315.*: wraps the iteration boundary",
    ),
    (lambda: made_again(160, 5, 139), ValueError, "at=139.: ops 5 and 139 are not consecutive accesses of it"),
    (lambda: made_again(160, 4, 138), ValueError, "not consecutive accesses of it; the next access is at 139"),
    (lambda: Plan((gpumem.Hold(160, 138),)).apply(VGG), ValueError, r"until=138,.*: must .* lifetime is \[2, 140\)"),
    (lambda: gpumem.Hold(160, None), TypeError, "Hold: until: None is a NoneType; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Plan.from_json("plan.json"), ValueError, "plan: not JSON .*: 'plan.json'"),
    # oracles
    (lambda: check.timeline(MLP, LINE, V100), TypeError, r"duration: a Machine came; machine.durations\(trace\)"),  # type: ignore[arg-type]
    (lambda: check.timeline(MLP, LINE, np.array([1, 2])), ValueError, "duration: 2 of them, but trace .* has 40 ops"),
    (lambda: check.timeline(BARE, LINE, np.array([1, 2, 3])), ValueError, "timeline: 40 ops, but trace '' has 3"),
    # rows
    (lambda: MLP.buffers[99], IndexError, "buffer 99: there are 35"),
    (lambda: untyped.bundled("mlp3").ops["f"], TypeError, "op 'f': .* to_pandas"),
    (lambda: untyped.Trace.from_lifetimes(None, [1], [2]), ValueError, "size: expected a list of integers, got None"),
    # models
    (lambda: models.mlp(batch=0), ValueError, "batch: 0 is no whole number of 1 and more"),
    (lambda: models.mlp(hidden=[8, -3]), ValueError, "hidden: -3 is no whole number of 1 and more"),
    (lambda: models.mlp(optimiser="adamw"), ValueError, "optimiser: 'adamw' is unknown; .*did you mean 'adam'"),
    (lambda: models.transformer(heads=5), ValueError, "expected a multiple of length, 32, by one of heads, 5"),
    (lambda: models.residual(side=0), ValueError, "side: 0 is no whole number"),
    (lambda: models.cnn(channels=[0]), ValueError, "channels: 0 is no whole number"),
    # what does not belong together
    (lambda: pool.SmartPool.of(MLP, OTHER), ValueError, "placement: 2 offsets, but trace .* has 35 buffers"),
    (lambda: execute.scaled(MLP, OTHER), ValueError, "placement: 2 offsets, but trace .* has 35 buffers"),
    (
        lambda: execute.run(gpumem.bundled(), gpumem.best_fit(gpumem.bundled()), execute.Emulator(), LAUNCH),
        ValueError,
        "op 0 .*: it is recorded as op 315, not one of the 18 of 'mlp_b2_sgd'",
    ),
    (lambda: gpumem.plot.profile(MLP, gpumem.bundled()), ValueError, "after: 315 ops of trace .*, but .* has 40"),
    # streams of events
    (lambda: untyped.Recorder().exec("a", duration=-5), ValueError, r"op 0 \(a\): duration -5 ns is negative"),
    (lambda: period.detect(["malloc"]), ValueError, "event 0: 'malloc' is no BlockEvent"),  # type: ignore[arg-type]
    (lambda: untyped.Recorder().free("0"), TypeError, "Recorder.free: block: '0' is a str; it must be a whole number"),
    (lambda: untyped.Recorder().exec("a", reads=["w"]), ValueError, r"op 0 \(a\): block 'w' was never allocated"),
    (lambda: untyped.Recorder().exec("a", flops=nan), ValueError, r"op 0 \(a\): flops nan is not finite and >= 0"),
    (lambda: untyped.Recorder().trace("0"), TypeError, "Recorder.trace: lo: '0' is a str"),
    (lambda: period.detect(3), TypeError, "detect: events: 3 is an int; it must be a list"),  # type: ignore[arg-type]
    # what a function of one's own returns, and what is no allocator
    (lambda: testing.check_allocator(lambda: None), TypeError, "factory: what it returned: None .* be an Allocator"),  # type: ignore[arg-type,return-value]
    (lambda: testing.play(3, []), TypeError, "play: allocator: 3 is an int; it must be an Allocator"),  # type: ignore[arg-type]
    (lambda: pool.SmartPool("native"), TypeError, "SmartPool: fallback: 'native' is a str; it must be a Pool or None"),  # type: ignore[arg-type]
    (
        lambda: jobs.simulate_jobs([Job("a", MLP)], V100, 2**34, jobs.Policy(lambda *_: [])),
        ValueError,
        "policy: the planner returned 0 plans for 1 jobs",
    ),
    (
        lambda: jobs.simulate_jobs([Job("a", MLP)], V100, 2**34, jobs.Policy(lambda *_: None)),
        TypeError,
        "policy: what the planner returned: None .* a list of Scheduled",
    ),  # type: ignore[arg-type,return-value]
    (lambda: untyped.Swap.each(swap.gaps(MLP), [1], [2]), ValueError, "release: 1 of them for 67 gaps"),
    (lambda: gpumem.plan(MLP, V100, laod="70%"), ValueError, "laod: search has no such option; did you mean 'load'"),
    # files
    (lambda: io.minimalloc.parse(Path("x.csv")), TypeError, "parse: text: .*Path.* it must be a text"),  # type: ignore[arg-type]
    (lambda: untyped.plan(MLP, V100, check=False).save(None), TypeError, "save: directory: None .* a text or a path"),
]


@pytest.mark.parametrize("call, kind, message", WRONG, ids=range(len(WRONG)))
def test_a_wrong_call_is_told_what_where_and_what_would_do(
    call: Callable[[], Any], kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as told:
        call()
    assert type(told.value) is kind and "\n" not in str(told.value) and len(str(told.value)) < 320
    assert not list(tmp_path.iterdir())  # nothing half-written
