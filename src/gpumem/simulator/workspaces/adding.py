"""Put workspaces into a trace, by a table of algorithms and a rule that chooses among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gpumem.base.arguments import expect, strict
from gpumem.base.names import meant
from gpumem.base.units import human
from gpumem.simulator.workspaces.shapes import Convolution, convolutions
from gpumem.simulator.workspaces.table import TABLE, Algorithm
from gpumem.trace import MAX_BYTES, UNKNOWN, Csr, Trace, position
from gpumem.trace.kinds import WORKSPACE

FASTEST, NONE = "fastest", "none"


@dataclass(frozen=True, slots=True)
class Offer:
    """What an op may be run by: the algorithm's name, its time over that of the fastest, workspace in bytes.

    A backward op has one algorithm for each gradient, as `winograd + fft`; these run one after the other.
    """

    name: str
    time: float
    workspace: int


@strict
def offers(trace: Trace, op: int, table: Sequence[Algorithm] = TABLE) -> tuple[Offer, ...]:
    """Return what an op may be run by: the fastest first, each further one slower and with less workspace.

    Parameters
    ----------
    trace : Trace
        With shapes, see `convolutions`.
    op : int
    table : sequence of Algorithm

    Returns
    -------
    tuple of Offer
        None for an op that is no convolution, or one whose shapes fit none.

    Raises
    ------
    ValueError
        A buffer of the op has no shape; the table has no algorithm for one of its convolutions, or one whose time or
        workspace is below 0 or without bound.

    Notes
    -----
    O(ops + algorithms**2): the shapes of a backward op are those of its forward op, which may stand anywhere before.

    Examples
    --------
    >>> from gpumem import bundled
    >>> for offer in offers(bundled("vgg16"), 7):
    ...     print(f"{offer.name:18}{offer.time:5.2f}{offer.workspace:11,}")
    winograd           1.00    262,144
    implicit-gemm      2.25          0
    """
    op = position(op, trace.n, "op")
    return _offers(trace, op, convolutions(trace).get(op, ()), table)


def _offers(trace: Trace, op: int, done: Sequence[Convolution], table: Sequence[Algorithm]) -> tuple[Offer, ...]:
    if not done:
        return ()
    by_each = []
    for convolution in done:
        fitting = [_offer(trace, op, convolution, algorithm) for algorithm in table if algorithm.fits(convolution)]
        if not fitting:
            raise ValueError(f"{_op_name(trace, op)}: the table has no algorithm for {convolution}")
        by_each.append(_best(fitting))
    together = _best([_one_after_the_other(chosen) for chosen in product(*by_each)])
    fastest = together[0].time
    return tuple(replace(offer, time=offer.time / fastest if fastest else 1.0) for offer in together)


def _offer(trace: Trace, op: int, convolution: Convolution, algorithm: Algorithm) -> Offer:
    """What an algorithm says of a convolution; a table may be anybody's."""
    name = f"{_op_name(trace, op)}: {algorithm.name}"
    offer = Offer(algorithm.name, algorithm.time(convolution), algorithm.workspace(convolution))
    expect(name, "time", offer.time, "float")
    expect(name, "workspace", offer.workspace, "int")
    if not 0 <= offer.time < math.inf:
        raise ValueError(f"{name}: time: {offer.time} of {convolution} is not finite and >= 0")
    if not 0 <= offer.workspace < MAX_BYTES:
        raise ValueError(f"{name}: workspace: {offer.workspace} bytes of {convolution} are not in [0, 2**62)")
    return offer


def _one_after_the_other(chosen: Sequence[Offer]) -> Offer:
    name = " + ".join(offer.name for offer in chosen)
    return Offer(name, sum(offer.time for offer in chosen), max(offer.workspace for offer in chosen))


def _best(offered: Sequence[Offer]) -> list[Offer]:
    """Those that no other one beats in both time and workspace, the fastest first."""
    best: list[Offer] = []
    for offer in sorted(offered, key=lambda offer: (offer.time, offer.workspace)):
        if not best or offer.workspace < best[-1].workspace:
            best.append(offer)
    return best


def _op_name(trace: Trace, op: int) -> str:
    ops = trace.ops
    reads, writes = (", ".join(map(str, rows[op].tolist())) for rows in (ops.reads, ops.writes))
    return f"op {op} {ops.name[op]!r} (buffers {reads} to {writes})"


@strict
def add(trace: Trace, table: Sequence[Algorithm] = TABLE, *, rule: str | int = FASTEST) -> Trace:
    """Give each convolution the workspace of the algorithm that it is run by.

    Parameters
    ----------
    trace : Trace
        With shapes, see `convolutions`. What it has as durations and flops are taken as those of the fastest algorithm.
    table : sequence of Algorithm
        What there is to choose from.
    rule : {"fastest", "none"} or int
        The fastest algorithm of each op; the fastest whose workspace is at most so many bytes; no workspaces at all.

    Returns
    -------
    Trace
        The same ops and buffers, and after these one buffer of kind `workspace` for each convolution that needs one,
        which its op alone writes; one of no bytes says that an op is run by a slower algorithm without any. A slower
        algorithm than the fastest makes an op's duration (where it was measured), flops and bytes moved larger by the
        ratio of the times. The trace itself where no op gets a workspace.

    Raises
    ------
    ValueError
        A convolution whose buffers have no shapes, or for which the table has no algorithm, or none within the bytes,
        or one whose time or workspace is below 0 or without bound; a rule that is none.

    Notes
    -----
    A convolution that has a workspace keeps it, so adding twice is adding once. One whose shapes fit no convolution is
    left as it is; `convolutions` lists it with an empty row. O(ops + accesses + convolutions * algorithms**2).

    Examples
    --------
    >>> from gpumem import bundled
    >>> trace = bundled("vgg16")
    >>> [add(trace, rule=rule).peak_live_bytes for rule in ("none", 2**20, "fastest")]
    [484472336, 484472336, 536966672]
    """
    _check_rule(rule)
    if rule == NONE:
        return trace
    taken = {op: _chosen(trace, op, done, table, rule) for op, done in convolutions(trace).items() if done}
    own = set(
        trace.ops.writes.rows()[[trace.buffers.kind[buffer] == WORKSPACE for buffer in trace.ops.writes.idx]].tolist()
    )
    taken = {op: offer for op, offer in taken.items() if op not in own and (offer.workspace or offer.time != 1)}
    return _with(trace, taken) if taken else trace


def _check_rule(rule: str | int) -> None:
    if isinstance(rule, str) and rule not in (FASTEST, NONE):
        known = f"{FASTEST!r}, {NONE!r} and a number of bytes"
        raise ValueError(f"rule: {rule!r:.60} is unknown; there are {known}{meant(rule, (FASTEST, NONE))}")
    if not isinstance(rule, str) and rule < 0:
        raise ValueError(f"rule: {rule} bytes are fewer than none")


def _chosen(trace: Trace, op: int, done: Sequence[Convolution], table: Sequence[Algorithm], rule: str | int) -> Offer:
    fitting = _offers(trace, op, done, table)
    if isinstance(rule, str):
        return fitting[0]
    for offer in fitting:
        if offer.workspace <= rule:
            return offer
    least = human(fitting[-1].workspace)
    raise ValueError(f"{_op_name(trace, op)}: no algorithm of the table does with {human(rule)}, the least is {least}")


def _with(trace: Trace, taken: dict[int, Offer]) -> Trace:
    old_buffers, ops = trace.buffers, trace.ops
    old, at = len(old_buffers), np.array([*taken], np.int64)
    size, name = [offer.workspace for offer in taken.values()], [offer.name for offer in taken.values()]
    buffers = old_buffers.extended(size, at, at + 1, kind=WORKSPACE, name=name)
    slower = np.ones(len(ops))
    slower[at] = [offer.time for offer in taken.values()]
    duration = np.where(ops.duration == UNKNOWN, UNKNOWN, np.rint(ops.duration * slower).astype(np.int64))
    writes = Csr.grouped(
        np.append(ops.writes.rows(), at), np.append(ops.writes.idx, old + np.arange(len(at))), len(ops)
    )
    changed = replace(ops, writes=writes, duration=duration, flops=ops.flops * slower, moved=ops.moved * slower)
    return Trace(buffers, changed, trace.n, name=trace.name)
