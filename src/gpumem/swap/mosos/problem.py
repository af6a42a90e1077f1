"""What MO-SOS plans for, and what it decides: nodes, and a schedule of their runs and copies.

Nodes are computed in order, one new one a stage: stage t recomputes earlier nodes, and ends with node t::

    stage      0       1       2                3
    runs     [ 0 ]   [ 1 ]   [ 2 ]       [ recompute 0 ][ 3 ]
    out              0 -->|                                     offloaded while stage 1 runs
    back                                 |--> 0                 or fetched while an earlier stage runs

The paper's copies never keep a stage waiting: one ends in the stage that the times of the nodes say. Where `waits` are
allowed, a stage ends when its node has run and the copies that are due then have ended. A copy out is enqueued behind
the use and is due at the end of a stage that is chosen, a copy back behind that is due before the next use::

    stage      0                1       2             3
    runs     [ 0 ]............[ 1 ]   [ 2 ].........[ 3 ]
    out          |--> due here               waits
    back                                   |-----> 0

A *plain* schedule is one that a `Plan` can say. Of an output, between two of its recorded uses `u < v` in a row, where
node u makes it or reads it, and node v reads it (recomputations do not count)::

    stage        u                      v
    resident   [use]  1  1  0  0  1  1  1 [use]     it leaves once and comes back once: fetched or recomputed

1. `resident` of the stages u + 1 .. v is ones, zeros, ones; behind the last recorded use ones, then zeros.
2. It leaves at once, `resident[u + 1]` is zero, where it is recomputed in one of the stages u + 1 .. v.
3. An offload begins in one of the stages u + 1 .. v only if the output leaves before v, and fetches are for such a v:
   nothing is copied behind the last recorded use, whatever recomputations read.
4. What is resident when stage t begins stays through all recomputations of the stage; then it is freed, if node t is
   behind its last recorded use, or with node t, if that reads it. A recomputed output may be freed with any node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.base.display import Facts, Shown
from gpumem.base.units import percent
from gpumem.trace import I64, Bool, Csr


@dataclass(frozen=True, slots=True)
class Implementation:
    """An operator that can run a node: its name, the time in ns, the workspace in bytes."""

    name: str
    time: int
    workspace: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Nodes(Shown):
    """Columns over n nodes in the order in which they are computed.

    `implementations` of each node, at least one; `deps`, the nodes whose outputs it reads, all before it; `size`, bytes
    of its output; `held`, bytes that are live in its stage whatever is decided (input, parameters, gradients, what
    lives within the node alone); `recomputable`, whether it may be computed more than once; `offloadable`, whether its
    output may be copied out; `out_ns`, `in_ns`, how long its output takes over the link.
    """

    implementations: tuple[tuple[Implementation, ...], ...]
    deps: Csr
    size: I64
    held: I64
    recomputable: Bool
    offloadable: Bool
    out_ns: I64
    in_ns: I64

    @classmethod
    def make(
        cls,
        implementations: Sequence[Sequence[Implementation]],
        deps: Sequence[Sequence[int]],
        size: Sequence[int] | I64,
        *,
        held: int | Sequence[int] | I64 = 0,
        recomputable: bool | Sequence[bool] | Bool = True,
        offloadable: bool | Sequence[bool] | Bool = True,
        out_ns: int | Sequence[int] | I64 = 0,
        in_ns: int | Sequence[int] | I64 = 0,
    ) -> Nodes:
        """Make nodes from lists; one number or flag stands for all of them.

        Raises
        ------
        ValueError
            A node without an implementation, one that reads a node which is not before it, a number below 0, a column
            of another length; the message names the place.
        """
        n = len(implementations)
        if (node := next((node for node, variants in enumerate(implementations) if not variants), -1)) >= 0:
            raise ValueError(f"nodes: node {node} has no implementation")
        for node, node_deps in enumerate(deps):
            if (dep := next((dep for dep in node_deps if not 0 <= dep < node), None)) is not None:
                raise ValueError(f"nodes: node {node} reads node {dep}, which is not before it")
        return cls(
            tuple(tuple(row) for row in implementations),
            Csr.of(deps, "nodes: deps"),
            _column(size, "size", n),
            _column(held, "held", n),
            np.array(np.broadcast_to(np.asarray(recomputable, np.bool_), n)),
            np.array(np.broadcast_to(np.asarray(offloadable, np.bool_), n)),
            _column(out_ns, "out_ns", n),
            _column(in_ns, "in_ns", n),
        )

    def __len__(self) -> int:
        return len(self.size)

    @property
    def fastest(self) -> I64:
        """The time of each node by its fastest implementation, ns: how long its stage takes at least."""
        return np.array([min(variant.time for variant in variants) for variants in self.implementations], np.int64)

    def fitting(self, node: int, free_bytes: int) -> int:
        """Return the fastest implementation of a node with at most so much workspace, else the one of least."""
        variants = self.implementations[node]
        fitting = [index for index, variant in enumerate(variants) if variant.workspace <= free_bytes]
        if not fitting:
            return min(range(len(variants)), key=lambda index: (variants[index].workspace, variants[index].time))
        return min(fitting, key=lambda index: (variants[index].time, variants[index].workspace))

    def ends(self, copy_ns: I64) -> I64:
        """Return for each stage and node the stage in which a copy ends that begins with the stage: int64[n, n].

        n where it does not end. Stages last as long as their own nodes do at least; a copy takes a stage at least.

        >>> nodes = Nodes.make([[Implementation("", 5)]] * 3, [[], [0], [1]], size=[8] * 3)
        >>> nodes.ends(np.array([0, 7, 12])).tolist()
        [[0, 1, 2], [1, 2, 3], [2, 3, 3]]
        """
        n, time = len(self), np.cumsum(self.fastest)
        begin = np.concatenate([[0], time])[:n]
        last = np.searchsorted(time, begin[:, np.newaxis] + copy_ns)
        return np.maximum(last, np.arange(n)[:, np.newaxis])


def _column(given: int | Sequence[int] | I64, name: str, n: int) -> I64:
    column = np.array(np.broadcast_to(np.asarray(given, np.int64), n))
    if column.min(initial=0) < 0:
        raise ValueError(f"nodes: {name} {column.min()} of node {int(column.argmin())} is below 0")
    return column


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule(Shown):
    """A solution: what runs in which stage, what is on the device when a stage begins, what is copied when.

    `stage`, `node`, `by`: int64[r], the runs in order, with the index of the implementation; `resident[t, j]`: whether
    the output of node j is on the device when stage t begins; `out`, `back`: pairs of the stage in which a copy of a
    node's output begins and the node; `memory`: int64[r], bytes in use while each run computes; `time`: of all runs,
    ns; `wait`: ns in which nothing runs, as copies are due.
    """

    stage: I64
    node: I64
    by: I64
    resident: Bool
    out: tuple[tuple[int, int], ...]
    back: tuple[tuple[int, int], ...]
    memory: I64
    time: int
    wait: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rules(Shown):
    """What a schedule may do; left as it is, all that MO-SOS may.

    Parameters
    ----------
    copies : bool
        Whether outputs may be offloaded and prefetched; without, it is Checkmate.
    recompute : bool
        Whether nodes may be recomputed, those marked `recomputable`.
    since : int
        The first stage in which nodes may be recomputed.
    by : int64[n], optional
        The implementation of each node that every run of it takes: no choice, as in Checkmate and STR. The times of
        copies stay those of the fastest ones.
    plain : bool
        Whether the schedule has to be one that a `Plan` can say: between two recorded uses an output leaves and comes
        back once at most.
    duplex : bool
        Whether a copy out and a copy in may be in flight together.
    waits : bool
        Whether stages may wait for copies, which is not the paper's; of plain schedules only.

    Raises
    ------
    ValueError
        `waits` without `plain`.
    """

    copies: bool = True
    recompute: bool = True
    since: int = 0
    by: I64 | None = None
    plain: bool = False
    duplex: bool = True
    waits: bool = False

    def __post_init__(self) -> None:
        if self.waits and not self.plain:
            raise ValueError("rules: waits without plain: when a copy is due is known between two uses only")


ALL = Rules()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proved(Shown):
    """The best schedule found, and what was proved of it.

    `schedule`: None without any; `value`: its objective, infinite without any; `bound`: what no schedule is below;
    `status`: `optimal` within the gap that was asked for, `infeasible` (none within the limit is below `best`), `late`,
    or `start`: late, and the schedule that was given stayed the best one.
    """

    schedule: Schedule | None
    value: float
    bound: float
    status: str

    @property
    def gap(self) -> float:
        """How far the value may be from the best possible, as a fraction of the value; infinite without any."""
        if self.schedule is None or self.bound == -float("inf"):
            return float("inf")
        return max(self.value - self.bound, 0.0) / max(self.value, 1.0)

    def _facts(self) -> Facts:
        return {"": self.status, "value": f"{self.value:.6g}", "bound": f"{self.bound:.6g}", "gap": percent(self.gap)}
