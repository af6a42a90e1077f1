"""Figure 7 of Waterwave: what two jobs that share a GPU get done, in turn, by node groups, and as two processes.

- *In turn*: one iteration after another, both jobs' state on the device. *Switched*: what a job holds at rest is copied
  out, and the other's in, before each iteration, both directions at once where the link can.
- *Waterwave*: node groups within the memory there is, with delays where it needs them, at the best of some split sizes.
- *Processes* side by side (MPS) over unified memory: both begin at once and wait for nobody. Beyond the memory there
  is, pages that are missed come in, and those unused for longest go out; the GPU waits for both. A miss moves at
  5.4 GB/s where a prefetch moves at 10.9.

Kernels side by side slow each other down as `gpumem.simulator.sharing` has it. Each stream has a host thread.

References
----------
Rates of unified memory: N. Sakharnykh, Maximizing Unified Memory Performance in CUDA, NVIDIA Developer Blog, 2017 (a
Tesla P100 on PCIe), https://developer.nvidia.com/blog/maximizing-unified-memory-performance-cuda/.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.papers.waterwave.batches import Sizing, at_batch, needed, solo, within
from benchmarks.papers.waterwave.published import GAINS, OVER_MPS, model_of
from gpumem.base.arguments import strict
from gpumem.jobs.waterwave import Partition, Pipeline, Turn, co_schedule, waterwave
from gpumem.jobs.waterwave.node_groups import between
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.trace import Trace

Row = dict[str, Any]
FAULTED = 5.4 / 10.9  # of the link's rate: what misses of unified memory move
PARTS = (0.125, 0.25, 0.5, 0.75, 0.9, 1.0)  # of the largest batch alone
SLOWDOWNS = (0.0, 0.25, 0.5, 0.75, 1.0)
ROUNDS = 3  # of an iteration, until what is on the device at its start repeats


def groups_ns(traces: Sequence[Trace], sizing: Sizing, slowdown: float, hosts: int = 2) -> int | None:
    """What a round takes by node groups, at the best split size; None where a job does not fit beside the others."""
    line = within(waterwave, traces, sizing.machine, sizing.limit, slowdown=slowdown, hosts=hosts)
    return None if line is None else sizing.clock(line, sizing.machine, slowdown=slowdown, hosts=hosts)


def side_by_side(traces: Sequence[Trace], machine: Machine) -> Pipeline:
    """Two jobs that wait for each other only when both have ended an iteration."""
    parts = tuple(Partition.at(trace, machine, [0, trace.n], 1) for trace in traces)
    return Pipeline(parts, tuple(Turn(k, (0,), (k,)) for k in range(len(parts))), 1)


@strict
def missed(trace: Trace, limit: int) -> tuple[int, int]:
    """Return the bytes that come in and go out in an iteration if what is missed comes on demand.

    What was unused for longest goes first, and as many bytes of it as are needed. What has no value yet needs room, but
    nothing comes in; what is dead needs neither. O(accesses) an iteration, and what goes out.

    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> missed(trace, trace.peak_live_bytes), [size // 2**20 for size in missed(trace, trace.peak_live_bytes * 3 // 4)]
    ((0, 0), [170, 170])
    """
    here: dict[int, int] = {}  # the bytes of each buffer that are on the device, unused for longest first
    alive: set[int] = set()
    size, touched = trace.buffers.size.tolist(), trace.accesses().op.tolist()
    dying = _dying(trace)
    held = came = went = 0
    by_op: list[list[int]] = [[] for _ in range(trace.n)]
    for buffer, row in enumerate(touched):
        for op in row:
            by_op[op].append(buffer)
    for _ in range(ROUNDS):
        came = went = 0
        for op, buffers in enumerate(by_op):
            for b in buffers:
                missing = size[b] - here.get(b, 0)
                came += missing if b in alive else 0
                here.pop(b, None)
                held, here[b] = held + missing, size[b]
                alive.add(b)
            mine = set(buffers)
            for b in [*here]:
                if held <= limit:
                    break
                if b not in mine:
                    part = min(here[b], held - limit)
                    held, went = held - part, went + part
                    here[b] -= part
                    if not here[b]:
                        del here[b]
            for b in dying[op]:
                held -= here.pop(b, 0)
                alive.discard(b)
    return came, went


def _dying(trace: Trace) -> list[list[int]]:
    """The buffers whose lifetime ends with each op."""
    found: list[list[int]] = [[] for _ in range(trace.n)]
    for b, (end, always) in enumerate(zip(trace.buffers.end.tolist(), trace.eternal.tolist())):
        if not always:
            found[(end - 1) % trace.n].append(b)
    return found


def processes(traces: Sequence[Trace], sizing: Sizing) -> tuple[int, int, int]:
    """What a round takes as processes over unified memory, how much of it waits for misses, and what these move."""
    machine, line = sizing.machine, side_by_side(traces, sizing.machine)
    came, went = missed(co_schedule(line, machine, hosts=2).trace, sizing.limit)
    waits = (came * machine.into.ns_per_byte + went * machine.out.ns_per_byte) / FAULTED
    work = sizing.clock(line, machine, slowdown=sizing.slowdown, hosts=2)
    return work + round(waits), round(waits), came + went


def switch_ns(trace: Trace, machine: Machine) -> int:
    """What it takes to copy out what a job holds at rest, and as much of another one in."""
    rest = between(trace)[:1]
    both = [int(link.copy_ns(rest)[0]) for link in (machine.out, machine.into)]
    return max(both) if machine.duplex else sum(both)


@strict
def throughput(sizing: Sizing, trace: Trace, parts: Sequence[float] = PARTS) -> list[Row]:
    """Measure what two jobs get done at several batch sizes: figure 7.

    Returns
    -------
    list of dict
        A row a batch: samples a second of both jobs `in turn`, `switched`, `waterwave`, `processes`, None where it does
        not fit; `missed`, the bytes that unified memory moves in a round.
    """
    machine, alone, model = sizing.machine, solo(sizing, trace), model_of(trace.name)
    rows: list[Row] = []
    for part in parts:
        batch = max(round(part * alone), 1)
        sizing.progress(f"{trace.name}: two jobs at batch {batch}")
        (job,) = at_batch(trace, 1, batch)
        own, switch = simulate(job, machine).makespan, switch_ns(job, machine)
        fits = needed([job, job]) <= sizing.limit
        side, waits, moved = processes([job, job], sizing)
        times = {
            "in turn": 2 * own if fits else None,
            "switched": 2 * (own + switch) if job.peak_live_bytes <= sizing.limit else None,
            "waterwave": groups_ns([job, job], sizing, sizing.slowdown),
            "processes": side,
        }
        row: Row = {"trace": trace.name, "machine": machine.name, "batch": batch, "part": part, "missed": moved}
        row |= {key: None if ns is None else 2e9 * batch / ns for key, ns in times.items()}
        known = machine.name == "v100"
        rows.append(row | {"paper over turns": GAINS.get(model) if known else None})
        rows[-1]["paper over mps"] = over = OVER_MPS.get(model) if known else None
        if moved and over and (ours := times["waterwave"]) is not None:  # GB/s at which misses would give that
            rows[-1]["rate for that"] = moved / max(over * ours - (side - waits), 1)
    return rows


@strict
def slowed(sizing: Sizing, trace: Trace, part: float = 0.25, slowdowns: Sequence[float] = SLOWDOWNS) -> Row:
    """Measure how many times as much Waterwave gets done as jobs in turn, by how much kernels slow each other down.

    Of two jobs at `part` of the largest batch alone, with a host thread a stream and with one for both.
    """
    batch = max(round(part * solo(sizing, trace)), 1)
    (job,) = at_batch(trace, 1, batch)
    sizing.progress(f"{trace.name}: slowed down")
    turns = 2 * simulate(job, sizing.machine).makespan
    row: Row = {"trace": trace.name, "machine": sizing.machine.name, "batch": batch}
    ours = partial(groups_ns, [job, job], sizing)
    for hosts in (2, 1):
        for slowdown in slowdowns:
            ns = ours(slowdown, hosts)
            row[f"{hosts} hosts, {slowdown:g}"] = None if ns is None else turns / ns
    return row | {"paper": GAINS.get(model_of(trace.name))}
