"""How long ops and copies really take, where plans count on estimates: errors that last, and noise that passes.

A plan that is judged by the durations it was made with costs what it was planned to cost, by construction.
`Uncertainty` says how far the truth may be off; it draws factors by a seed and a key, so the same op has the same error
under every plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import at_least, strict, strict_fields
from gpumem.simulator.machine import Machine
from gpumem.trace import COPY_IN, COPY_OUT, F64, I64, SYNC, Trace

FOREIGN = 64 * 2**20  # bytes of a copy of someone else: what PyTorch's loaders pin for a batch of images; not tuned
# Kinds of keys: under one seed, lasting errors, copies and iterations draw apart. Any distinct numbers do.
OPS, COPIES, ITERATION = 1, 2, 3


@strict_fields
@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How far durations are off their estimates.

    Parameters
    ----------
    spread : float
        Sigma of a log-normal factor that each op keeps in all iterations: its estimate is off by that. 0.5 puts half of
        all ops off by a third or more.
    bias : float
        What all ops take, of their estimates: 10 for a net in half precision whose times were estimated in full.
    noise : float
        Sigma of a log-normal factor of each op in each iteration.
    copy_noise : float
        The same of each copy.
    link : float
        The part of the link's rate that is there, in (0, 1].
    link_used : float
        The part of the time, in [0, 1), for which someone else has the link: a copy waits for the rest of theirs, of
        64 MiB, that often.
    seed : int

    Raises
    ------
    ValueError
        A number out of range.

    Notes
    -----
    Factors have a mean of 1 (times `bias`), so that the sum of many ops is nearly kept.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("mlp3"), Machine.named("rtx2080ti")
    >>> off = Uncertainty(spread=0.5)
    >>> true = off.drawn(trace, machine, 0)
    >>> bool((machine.durations(true) != machine.durations(trace)).all()), off.certain, Uncertainty().certain
    (True, False, True)
    """

    spread: float = 0.0
    bias: float = 1.0
    noise: float = 0.0
    copy_noise: float = 0.0
    link: float = 1.0
    link_used: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for what in ("spread", "noise", "copy_noise"):
            if not 0 <= getattr(self, what) <= 3:  # e^3: a factor of 20 is no noise any more
                raise ValueError(f"{what}: {getattr(self, what)} is not in [0, 3]")
        if not 0 < self.bias < math.inf:
            raise ValueError(f"bias: {self.bias} is not finite and > 0")
        if not 0 < self.link <= 1:
            raise ValueError(f"link: {self.link} is not in (0, 1]")
        if not 0 <= self.link_used < 1:
            raise ValueError(f"link_used: {self.link_used} is not in [0, 1)")
        at_least(0, seed=self.seed)

    @property
    def certain(self) -> bool:
        """Whether all is as estimated."""
        return replace(self, seed=0) == Uncertainty()

    def lasting(self, count: int, *key: int) -> F64:
        """Return what each of `count` ops takes of its estimate, in all iterations, float64[n]."""
        return self.bias * _factors(self.spread, count, self.seed, OPS, *key)

    def passing(self, count: int, *key: int) -> F64:
        """Return what each of `count` ops takes of its lasting time in one iteration, float64[n]."""
        return _factors(self.noise, count, self.seed, ITERATION, *key)

    @strict
    def copies(self, ns: I64, machine: Machine, *key: int) -> I64:
        """Return how long copies take that would take `ns` on a link that is whole and free, int64 of that shape."""
        rng = np.random.default_rng([self.seed, COPIES, *key])
        factor = np.exp(self.copy_noise * rng.standard_normal(len(ns)) - self.copy_noise**2 / 2)
        foreign = float(machine.out.copy_ns(np.array([FOREIGN]))[0]) / self.link
        waits = rng.random(len(ns)) < self.link_used
        return np.rint(ns * factor / self.link + waits * rng.random(len(ns)) * foreign).astype(np.int64)

    @strict
    def drawn(self, trace: Trace, machine: Machine, draw: int) -> Trace:
        """Return a trace, recorded or rewritten by a plan, with the durations of one draw.

        Parameters
        ----------
        trace : Trace
        machine : Machine
            Gives the estimates.
        draw : int
            Which: ops of one draw take as long under all plans of a trace, and as long again where they are recomputed.

        Notes
        -----
        O(n).
        """
        ops = trace.ops
        ns = machine.durations(trace)
        of = np.where(ops.of >= 0, ops.of, np.arange(len(ops)))
        count = int(of.max(initial=-1)) + 1
        factor = self.lasting(count, draw) * self.passing(count, draw)
        copies = (ops.role == COPY_OUT) | (ops.role == COPY_IN)
        true = np.where(ops.role == SYNC, ns, np.rint(ns * factor[of]).astype(np.int64))
        true[copies] = self.copies(ns[copies], machine, draw)
        return replace(trace, ops=replace(ops, duration=true))


def _factors(sigma: float, count: int, *key: int) -> F64:
    """Log-normal factors of mean 1."""
    return np.exp(sigma * np.random.default_rng(key).standard_normal(count) - sigma**2 / 2)
