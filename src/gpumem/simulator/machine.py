"""The machine that a plan is made for: memory, link and compute, and how long each op takes on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from gpumem.base.arguments import finite, strict, strict_fields
from gpumem.base.display import Facts, Shown
from gpumem.base.names import choice, one_of
from gpumem.base.units import human, human_ns
from gpumem.trace import (
    COMPUTE,
    COPY_IN,
    COPY_OUT,
    F64,
    I64,
    MAX_BYTES,
    MAX_NS,
    RECOMPUTE,
    SYNC,
    UNKNOWN,
    Ops,
    Trace,
    first,
)

GIB = 2**30  # bytes


@strict_fields
@dataclass(frozen=True, slots=True)
class Link:
    """One direction of the host link: a copy of `b` bytes takes `latency_ns + b * ns_per_byte`.

    >>> Link(latency_ns=100, ns_per_byte=0.5).copy_ns(np.array([0, 1001]))
    array([100, 600])
    """

    latency_ns: float
    ns_per_byte: float

    def __post_init__(self) -> None:
        finite("link", latency_ns=self.latency_ns, ns_per_byte=self.ns_per_byte)

    def copy_ns(self, size: I64) -> I64:
        """Return the time to copy `size` bytes, rounded to the nearest nanosecond (ties to even).

        A copy that would take 2**53 ns or longer is a ValueError.
        """
        with np.errstate(over="ignore"):  # infinite is too long as well
            ns = np.rint(self.latency_ns + size * self.ns_per_byte)
        if (ns >= MAX_NS).any():
            raise ValueError(f"link: a copy of {np.max(size)} bytes takes too long to count in ns")
        return np.asarray(ns, np.int64)


class MeasuredTimes(Protocol):
    """What knows better than a roofline how long ops take, as `execute.latency.Calibration` does."""

    def ops_ns(self, ops: Ops, size: I64) -> F64:
        """Return the ns of each op, given the bytes of all buffers; NaN where it cannot tell."""


@strict_fields
@dataclass(frozen=True, slots=True, repr=False)
class Machine(Shown):
    """A GPU and its host.

    Parameters
    ----------
    capacity : int
        Bytes of device memory.
    out, into : Link
        Device to host, host to device.
    flops, flops_efficiency : float
        Peak rate in flop/s, and the fraction of it that ops reach.
    bandwidth, bandwidth_efficiency : float
        Device memory in B/s, and the fraction of it that ops reach.
    launch_ns : float
        Overhead of one op.
    duplex : bool
        Whether both directions of the link run at once (two copy engines), or one at a time.
    pinned : int
        Bytes of pinned host memory that plans may use.
    host_ns, copy_host_ns : float
        What it takes a host thread to launch an op, and a copy: host time, apart from `launch_ns`. Where both are 0
        and no op blocks the host is *off*: all is launched at once (see `gpumem.simulator.simulate`).
    reserved : int
        Bytes of device memory that a program cannot have: the context, libraries.
    times : MeasuredTimes, optional
        What counts in place of the roofline; see `measured`.

    Examples
    --------
    >>> Machine.named("gtx1080ti").capacity / GIB
    11.0
    """

    name: str
    capacity: int
    out: Link
    into: Link
    flops: float
    bandwidth: float
    flops_efficiency: float = 0.33
    bandwidth_efficiency: float = 0.75
    launch_ns: float = 5_000
    duplex: bool = True
    pinned: int = 64 * GIB
    host_ns: float = 0
    copy_host_ns: float = 0
    reserved: int = 0
    times: MeasuredTimes | None = None

    def __post_init__(self) -> None:
        for what in ("capacity", "flops", "bandwidth", "flops_efficiency", "bandwidth_efficiency"):
            if not 0 < getattr(self, what) < math.inf:
                raise ValueError(f"machine {self.name!r}: {what} {getattr(self, what)} is not positive and finite")
        for what in ("flops_efficiency", "bandwidth_efficiency"):
            if getattr(self, what) > 1:
                raise ValueError(f"machine {self.name!r}: {what} {getattr(self, what)} is no fraction: it is above 1")
        costs = ("launch_ns", "pinned", "host_ns", "copy_host_ns", "reserved")
        finite(f"machine {self.name!r}", **{what: getattr(self, what) for what in costs})
        for what in ("capacity", "pinned"):
            if getattr(self, what) >= MAX_BYTES:
                raise ValueError(f"machine {self.name!r}: {what} {getattr(self, what)} is 2**62 bytes or more")
        if self.reserved >= self.capacity:
            raise ValueError(f"machine {self.name!r}: reserved {self.reserved} leaves nothing of {self.capacity} bytes")

    def _facts(self) -> Facts:
        out, into = (
            f"{1 / link.ns_per_byte:.3g} GB/s" if link.ns_per_byte else "free" for link in (self.out, self.into)
        )
        costs = (("an op", self.host_ns), ("a copy", self.copy_host_ns))
        host = ", ".join(f"{human_ns(round(ns))} {what}" for what, ns in costs if ns)
        return {
            "": self.name,
            "memory": human(self.capacity) + (f", {human(self.reserved)} of it reserved" if self.reserved else ""),
            "compute": f"{self.flops / 1e12:.4g} Tflop/s",
            "bandwidth": f"{self.bandwidth / 1e9:.4g} GB/s",
            "link": f"{out} out and {into} in{'' if self.duplex else ', one at a time'}",
            "pinned": human(self.pinned),
            **({"ops": "as measured"} if self.times else {}),
            **({"host": host} if host else {}),
        }

    @property
    def available(self) -> int:
        """Bytes of device memory that a program can have.

        >>> card = Machine.named("rx5700xt")
        >>> card.available - card.with_(reserved=GIB).available == GIB
        True
        """
        return self.capacity - self.reserved

    @classmethod
    @strict
    def named(cls, name: str) -> Machine:
        """Return the preset called `name`; see `PRESETS`."""
        return choice(name, PRESETS, "machine")

    def with_(self, **changes: object) -> Machine:
        """Return a copy with some fields changed: `machine.with_(duplex=False)`; a ValueError for one that is none."""
        for change in changes:
            one_of("machine", change, [field.name for field in fields(self)])
        return replace(self, **changes)  # type: ignore[arg-type]

    @strict
    def measured(self, times: MeasuredTimes) -> Machine:
        """Return this machine with op times from measurements in place of its roofline; copies take its link's time.

        `times` is what `gpumem.execute.latency.calibrate` makes of a table, or has an `ops_ns` as that has.

        >>> class Millisecond:
        ...     def ops_ns(self, ops, size):
        ...         return np.full(len(ops), 1e6)
        >>> from gpumem.io import bundled
        >>> Machine.named("v100").measured(Millisecond()).durations(bundled("mlp3"))[:2]
        array([1000000, 1000000])
        """
        if not hasattr(times, "ops_ns"):
            raise TypeError(f"measured: {times!r:.60} has no ops_ns(ops, size); latency.calibrate(table) has")
        return replace(self, times=times)

    @strict
    def timed(self, trace: Trace) -> Trace:
        """Return `trace` with the times of `measured` for ops that have none, so that they are asked for only once.

        Durations that the trace has stand. What cannot be told is left to the roofline, copies to the link.
        """
        ops = trace.ops
        asked = np.flatnonzero((ops.duration == UNKNOWN) & ((ops.role == COMPUTE) | (ops.role == RECOMPUTE)))
        if self.times is None or not len(asked):
            return trace
        ns = self.times.ops_ns(ops.take(asked), trace.buffers.size)
        if (bad := first(~(np.isnan(ns) | ((ns >= 0) & (ns < MAX_NS))))) >= 0:
            raise ValueError(f"op {asked[bad]}: {ns[bad]} measured ns are not in [0, 2**53)")
        duration = ops.duration.copy()
        duration[asked] = np.rint(np.where(np.isnan(ns), UNKNOWN, ns)).astype(np.int64)
        return replace(trace, ops=replace(ops, duration=duration))

    def roofline_ns(self, flops: F64, moved: F64) -> F64:
        """Return `launch + max(flops / rate, bytes / bandwidth)` in nanoseconds, not rounded."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # `durations` refuses inf and nan
            compute = flops / (self.flops * self.flops_efficiency)
            memory = moved / (self.bandwidth * self.bandwidth_efficiency)
            return self.launch_ns + np.maximum(compute, memory) * 1e9

    @strict
    def durations(self, trace: Trace) -> I64:
        """Return how long each op of `trace` takes here.

        A measured duration stands. Otherwise a copy takes the link's time for the exact bytes of the
        buffer it writes, a sync nothing, and any other op what `measured` says or its roofline, rounded to the nearest
        nanosecond.

        Returns
        -------
        int64[n]
            Nanoseconds.

        Raises
        ------
        ValueError
            An op, or all of them together, would take 2**53 ns or longer.
        """
        ops = self.timed(trace).ops
        wide = self.roofline_ns(ops.flops, ops.moved)
        if (op := first(~(wide < MAX_NS))) >= 0:
            raise ValueError(
                f"op {op}: {ops.flops[op]:g} flops and {ops.moved[op]:g} bytes take too long to count in ns"
            )
        result = np.where(ops.role == SYNC, 0, np.rint(wide).astype(np.int64))
        for role, link in ((COPY_OUT, self.out), (COPY_IN, self.into)):
            copies = np.flatnonzero(ops.role == role)
            written = ops.writes.idx[ops.writes.ptr[copies]]
            result[copies] = link.copy_ns(trace.buffers.size[written])
        result = np.where(ops.duration == UNKNOWN, result, ops.duration)
        if float(result.sum(dtype=np.float64)) >= MAX_NS:
            raise ValueError(f"trace {trace.name!r}: its ops take too long to count in ns")
        return result

    @strict
    def host_costs(self, trace: Trace) -> I64:
        """Return the host time that launching each op of `trace` takes, int64[n], in whole nanoseconds.

        Raises
        ------
        ValueError
            All of it together would be 2**53 ns or longer.

        >>> from gpumem.io import bundled
        >>> Machine.named("p100").with_(host_ns=2e5).host_costs(bundled("mlp3"))[:2]
        array([200000, 200000])
        """
        each = np.rint(np.where(trace.ops.copies, self.copy_host_ns, self.host_ns))
        if each.sum() >= MAX_NS:
            raise ValueError(f"machine {self.name!r}: to launch {trace.n} ops takes too long to count in ns")
        return each.astype(np.int64)


_PCIE3 = (Link(47_200, 0.0756), Link(9_700, 0.0823))  # AutoSwap's measured PCIe 3 x16
_PCIE4 = (Link(20_000, 0.0400), Link(9_000, 0.0400))  # about 25 GB/s each way
_PCIE5 = (Link(10_000, 0.0182), Link(8_000, 0.0182))  # about 55 GB/s each way

# Flop/s of FP32 without tensor cores, at boost clock; capacity as printed on the box. Vendors' figures, from:
#   gtx1080ti   NVIDIA, "GeForce GTX 1080 Ti" (product page)
#   rtx2080ti   NVIDIA, "NVIDIA Turing GPU Architecture" (whitepaper)
#   p40, p100   NVIDIA, "Tesla P40" and "Tesla P100 PCIe" (datasheets); p40 computed from its boost clock
#   v100        NVIDIA, "Tesla V100" (datasheet, PCIe column)
#   rx5700xt    AMD, "Radeon RX 5700 XT" (product page); behind the PCIe 3 link of the SNU thesis' Xeon Gold 6130
#   a100        NVIDIA, "NVIDIA A100 Tensor Core GPU" (datasheet, 80GB SXM column)
#   h100        NVIDIA, "NVIDIA H100 Tensor Core GPU Architecture" (whitepaper, SXM5 column)
#   h200        NVIDIA, "NVIDIA H200 Tensor Core GPU" (datasheet, SXM column); capacity as its driver leaves it
#   rtx3090     NVIDIA, "NVIDIA Ampere GA102 GPU Architecture" (whitepaper)
#   rtx4090     NVIDIA, "NVIDIA Ada GPU Architecture" (whitepaper)
PRESETS = {
    machine.name: machine
    for machine in (
        Machine("gtx1080ti", 11 * GIB, *_PCIE3, flops=11.34e12, bandwidth=484e9),
        Machine("rtx2080ti", 11 * GIB, *_PCIE3, flops=13.45e12, bandwidth=616e9),
        Machine("p40", 24 * GIB, *_PCIE3, flops=11.76e12, bandwidth=346e9),
        Machine("p100", 16 * GIB, *_PCIE3, flops=9.3e12, bandwidth=732e9),
        Machine("v100", 32 * GIB, *_PCIE3, flops=14.0e12, bandwidth=900e9),
        Machine("rx5700xt", 8 * GIB, *_PCIE3, flops=9.75e12, bandwidth=448e9),
        Machine("a100", 80 * GIB, *_PCIE4, flops=19.5e12, bandwidth=2039e9),
        Machine("h100", 80 * GIB, *_PCIE5, flops=66.9e12, bandwidth=3350e9),
        Machine("h200", 139 * GIB, *_PCIE5, flops=66.9e12, bandwidth=4800e9),
        Machine("rtx3090", 24 * GIB, *_PCIE4, flops=35.6e12, bandwidth=936e9),
        Machine("rtx4090", 24 * GIB, *_PCIE4, flops=82.6e12, bandwidth=1008e9),
    )
}
