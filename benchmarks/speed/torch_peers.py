"""What do other ways to train in less memory hold, move and take, beside a plan? Needs `gpumem[zoo]`.

Every way runs here, on the host. The peak is what its tensors hold at most, read from PyTorch's allocator; its copies
on the host are not in it. How long a step would take on a GPU is predicted by one clock for all: the step of each as it
was recorded, its copies on the streams where it puts them, within the load that it has.
"""

from __future__ import annotations

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # or the profiler greets on standard error

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed._bench import header
from benchmarks.speed._peers import BACK, COPIES, EAGER, OUT, PEERS, Peer, budget
from benchmarks.speed._training import NETS, Net, Training
from gpumem import Machine, Trace, simulate
from gpumem.base.units import human, human_ns, percent
from gpumem.torch import LimitError, ManagedReport, managed, record
from gpumem.torch.capture.capture_mode import CaptureMode
from gpumem.torch.capture.captured import cut
from gpumem.torch.step.step_context import StepContext
from gpumem.trace import Buffers, Ops

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.pytorch.counting import WRAPPED, Mark, profiled

LIMITS = (70, 50, 35)  # percent of the eager peak
BUDGETS = (1, 0.75, 0.5, 0.25)
STEPS = 5  # of these, the first ones compile, are recorded, or make the optimizer's state
SETTLED = 3  # from this one on they are alike
BESIDES = frozenset({WRAPPED, torch.get_rng_state().nbytes})  # a generator's state is the host's
NOTE = """\
peak       the most bytes that tensors hold on the device, by PyTorch's allocator, in a steady step
cpu        processor time of a step here, one thread; copies are memory copies
out, back  bytes copied to the host and back
flops      beyond those of the eager step: what is made again
kernels    predicted time of all ops but copies; launches count, so what is made again is in it
predicted  time of a step by byte-counting simulation, within the load that the way has (managed: within its limit);
           nobody's Python is in it: a managed step takes tens of microseconds an op of a host (see cpu), which is
           more than the kernels of nets as small as these take, and a peer's hooks take some

save_on_cpu           PyTorch's, as pinned: copies on the stream that computes, at the link's pinned rate
OffloadsAsTorchtune   the documented rule of torchtune's OffloadActivations, stated by us (torchtune 0.6 does not load
                      with PyTorch 2.13): one stream for copies both ways, 5 tensors stay; weights never move
enable_activation_... PyTorch's pass, of all tensors that it can move; copies on the stream that computes, its default
compiled ones         by aot_eager, op by op: nothing is fused, fewer ops than eager
managed               gpumem.torch.managed; copies on two streams of their own; in the second table by its own count
other losses          the losses of the first steps are not those of the eager step, bit for bit
"""


@dataclass(frozen=True)
class Row:
    """What came of one way to train: bytes, seconds (`cpu`), predicted nanoseconds."""

    name: str
    peak: int
    cpu: float
    out: int
    back: int
    flops: float
    kernels: int
    predicted: int
    losses: tuple[str, ...]

    def told(self, eager: Row) -> str:
        """A line of the table."""
        cells = (
            f"{human(self.peak):>11}",
            f"{percent(self.peak / eager.peak):>8}",
            f"{human_ns(round(self.cpu * 1e9)):>10}",
            f"{human(self.out):>11}",
            f"{human(self.back):>11}",
            f"{self.flops / eager.flops - 1:>+7.0%}",
            f"{human_ns(self.kernels):>10}",
            f"{human_ns(self.predicted):>10}",
            "" if self.losses == eager.losses else "  other losses",
        )
        return f"{self.name:30}" + "".join(cells)


TITLES = ("peak", 11), ("of eager", 9), ("cpu", 9), ("out", 11), ("back", 11), ("flops", 7), ("kernels", 10)
HEAD = f"{'':30}" + "".join(f"{title:>{width}}" for title, width in (*TITLES, ("predicted", 10)))


def of_peer(net: Net, peer: Peer, machine: Machine) -> tuple[Row, Trace]:
    """Run a peer; return what came of it, and its step as it was recorded."""
    training = Training(net, peer)
    step = training()
    cpu, losses = timed(step)
    trace = recorded(training, step)
    told = with_copies(trace, COPIES.log, peer.stream, machine)
    moved = {OUT: 0, BACK: 0}
    for (_, size), i in zip(COPIES.log, copies_of(trace)):
        moved[trace.ops.name[i]] += size

    def run(mark: Mark) -> None:
        step = training()
        step()
        gc.collect()
        with mark("step 1"):
            step()

    peak = profiled(run, names_of(trace), BESIDES)["step 1"].held
    row = Row(peer.name, peak, cpu, moved[OUT], moved[BACK], *by_clock(told, machine, told.peak_live_bytes), losses)
    return row, trace


def of_plan(net: Net, limit: int, name: str, machine: Machine, seconds: float, eager: Trace | None) -> Row:
    """Run the eager step within a limit; return what came of it.

    With the trace of the `eager` step its peak is the allocator's, else its own.

    Raises
    ------
    LimitError
        It cannot be.
    """
    training = Training(net, EAGER)
    how: dict[str, Any] = {"machine": machine, "device": "cpu", "on_exit": "host"}
    step = training()
    with managed(limit, wait=True, seconds=seconds, **how) as within:
        cpu, losses = timed(step)
    report: ManagedReport = within.report()
    last = report.iterations[-1]
    assert report.trace is not None
    told = report.trace if report.plan is None else report.plan.apply(report.trace)
    name = name if last.state in ("planned", "idle") else f"{name}, {last.state}"
    clock = by_clock(told, machine, limit)
    if eager is None:
        return Row(name, last.peak, cpu, last.moved_out, last.moved_in, *clock, losses)
    given = None if report.plan is None else (report.trace, report.plan)

    def run(mark: Mark) -> None:
        step = training()
        step()
        with managed(limit, given, **how):
            for k in range(2):
                gc.collect()
                with mark(f"step {k}"):
                    step()

    peak = profiled(run, names_of(eager), BESIDES)["step 1"].held
    return Row(name, peak, cpu, last.moved_out, last.moved_in, *clock, losses)


def recorded(training: Training, step: Callable[[], object]) -> Trace:
    """The steady step as a trace."""
    if training.peer.options is None:
        return record(lambda: step, "cpu", name=training.peer.name).trace
    from benchmarks.speed._compiled import watched  # here, as it takes seconds

    mode, bounds = CaptureMode("cpu", StepContext()), []
    with mode.step_context.followed(), watched(mode):
        for _ in range(3):
            gc.collect()
            lo = mode.recorder.begin()
            step()
            bounds.append((lo, mode.recorder.end()))
    return cut(mode.recorder, bounds, training.peer.name).trace


def copies_of(trace: Trace) -> list[int]:
    """The ops that are a peer's copies."""
    return [i for i, name in enumerate(trace.ops.name) if name in (OUT, BACK)]


def names_of(trace: Trace) -> set[str]:
    """The ops of a trace, as the profiler calls them."""
    return {f"aten::{name.partition('.')[0]}" for name in trace.ops.name}


def with_copies(trace: Trace, log: Sequence[tuple[int, int]], stream: str, machine: Machine) -> Trace:
    """The trace with what a peer's copies are: their stream, how long they take, the host's buffers between them.

    A copy of a view moves the bytes of the view, so it is an op of a known duration here, and not one between two
    buffers of a size.
    """
    ops, b, copies = trace.ops, trace.buffers, copies_of(trace)
    if len(copies) != len(log):
        raise ValueError(f"{trace.name}: {len(copies)} copies recorded, {len(log)} made")
    spans: dict[int, list[int]] = {}
    for i, (key, _) in zip(copies, log):
        spans.setdefault(key, []).append(i)
    host = {key: len(b) + k for k, key in enumerate(spans)}
    reads, writes = ops.reads.tolist(), ops.writes.tolist()
    streams, duration = [0] * trace.n, machine.durations(trace)
    for i, (key, size) in zip(copies, log):
        link, row = (machine.out, writes) if ops.name[i] == OUT else (machine.into, reads)
        row[i].append(host[key])
        streams[i] = int(stream != "compute")
        duration[i] = round(link.latency_ns + size * link.ns_per_byte)
    sizes, none = dict(log), [False] * len(spans)
    buffers = Buffers.make(
        [*b.size.tolist(), *(sizes[key] for key in spans)],
        [*b.start.tolist(), *(span[0] for span in spans.values())],
        [*b.end.tolist(), *(span[-1] + 1 for span in spans.values())],
        persistent=[*b.persistent.tolist(), *none],
        host=[*b.host.tolist(), *(not flag for flag in none)],
    )
    named = dict.fromkeys(["compute", stream])
    made = Ops.make(reads, writes, name=ops.name, stream=streams, streams=[*named], duration=duration, flops=ops.flops)
    return Trace(buffers, made, name=trace.name)


def by_clock(told: Trace, machine: Machine, capacity: int) -> tuple[float, int, int]:
    """Flops, the time of all ops that are no copies, and the time of an iteration."""
    kernels = ~told.ops.copies
    kernels[copies_of(told)] = False
    line = simulate(told, machine, capacity=capacity)
    return float(told.ops.flops.sum()), int(machine.durations(told)[kernels].sum()), line.makespan


def timed(step: Callable[[], torch.Tensor]) -> tuple[float, tuple[str, ...]]:
    """Processor time of a settled step, the least of some; and the losses of all."""
    seconds, losses = [], []
    for _ in range(STEPS):
        begin = time.process_time()
        losses.append(step())
        seconds.append(time.process_time() - begin)
    return min(seconds[SETTLED:]), tuple(x.item().hex() for x in losses)


def compare(
    net: Net,
    machine: Machine,
    peers: Sequence[Peer],
    limits: Sequence[int] = LIMITS,
    seconds: float = 30.0,
    say: Callable[[str], object] = print,
) -> tuple[int, int]:
    """Print a net's tables; return how often a peer was better than a plan in both, and faster at its own peak."""
    eager, trace = of_peer(net, EAGER, machine)
    say(f"{net.name}: {trace.n} ops, {human(int(trace.buffers.size[trace.eternal].sum()))} last")
    say(f"{HEAD}\n{eager.told(eager)}")
    theirs, ours = [], []
    for peer in peers:
        theirs.append(of_peer(net, peer, machine)[0])
        say(theirs[-1].told(eager))
    for part in limits:
        name = f"managed, {part} %"
        found = tried(net, eager.peak * part // 100, name, machine, seconds, trace)
        say(found if isinstance(found, str) else found.told(eager))
        ours += [] if isinstance(found, str) else [found]
    better = [(a, b) for a in theirs for b in ours if a.peak < b.peak and a.predicted < b.predicted]
    for a, b in better:
        say(f"FAILS: {a.name} has less memory and less predicted time than {b.name}")
    if not better:
        say("holds: no peer has both less memory and less predicted time than a managed step above")
    say("\nmanaged with the peer's own peak as its limit")
    slower = 0
    for row in theirs:
        found = tried(net, row.peak, f"at the peak of {row.name}", machine, seconds)
        if isinstance(found, str):
            say(f"{found}: FAILS")
            slower += 1
            continue
        slower += found.predicted > row.predicted
        say(beside(found, row, eager))
    say("")
    return len(better), slower


def beside(mine: Row, row: Row, eager: Row) -> str:
    """A managed step beside the peer whose peak is its limit."""
    verdict = ""
    if mine.predicted > row.predicted:
        without = eager.predicted > row.predicted
        verdict = (
            f": FAILS{f', as the eager step does without a limit, {human_ns(eager.predicted)}' if without else ''}"
        )
    return (
        f"{row.name:30}{human(row.peak):>11}: predicted {human_ns(mine.predicted)} against its "
        f"{human_ns(row.predicted)}{verdict}; peak {human(mine.peak)}, "
        f"cpu {human_ns(round(mine.cpu * 1e9))} against {human_ns(round(row.cpu * 1e9))}"
        f"{'' if mine.losses == eager.losses else ', other losses'}"
    )


def tried(net: Net, limit: int, name: str, machine: Machine, seconds: float, eager: Trace | None = None) -> Row | str:
    """As `of_plan`; a sentence where it cannot be."""
    try:
        return of_plan(net, limit, name, machine, seconds, eager)
    except LimitError as error:
        return f"{name} ({human(limit)}) cannot be: {error}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", choices=[[], *(net.name for net in NETS)], help="left out, all")
    parser.add_argument("--machine", default="rtx4090", help="whose time is predicted")
    parser.add_argument("--about", action="store_true", help="say what the columns and rows are, no more")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="of planning, at most; so many that a busy machine makes no difference",
    )
    options = parser.parse_args()
    if options.about:
        print(NOTE, end="")
        return
    warnings.simplefilter("ignore")  # of the libraries
    torch.set_num_threads(1)
    print(header(0))
    print(f"# torch {torch.__version__}; predicted for {options.machine}\n")
    machine = Machine.named(options.machine)
    peers = (*PEERS, *map(budget, BUDGETS))
    chosen = [net for net in NETS if net.name in (options.nets or [net.name])]
    found = [compare(net, machine, peers, seconds=options.seconds) for net in chosen]
    better, slower = map(sum, zip(*found))
    print(f"A peer has less of both than a managed step at {better} places;", end=" ")
    print(f"at the peer's own peak a managed step is predicted slower {slower} times of {len(peers) * len(chosen)}.")


if __name__ == "__main__":
    main()
