"""What a plan costs where durations are not what it was planned with: overheads over many draws of an `Uncertainty`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from gpumem.base.arguments import at_least, strict
from gpumem.base.display import Facts, Shown
from gpumem.base.units import percent
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.trace import F64, Trace
from gpumem.trace.placement import Placement

DRAWS = 100  # so that five of them are above the 95th percentile


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Realised(Shown):
    """The overheads of one plan, a draw of durations each.

    Parameters
    ----------
    uncertainty : Uncertainty
    overheads : float64[draws]
        As fractions of an iteration without the plan, of the same draw.
    """

    uncertainty: Uncertainty
    overheads: F64

    def _facts(self) -> Facts:
        return {"median": percent(self.median), "95th percentile": percent(self.p95), "draws": len(self.overheads)}

    @property
    def median(self) -> float:
        """The median overhead."""
        return float(np.median(self.overheads))

    @property
    def p95(self) -> float:
        """The 95th percentile."""
        return float(np.percentile(self.overheads, 95))

    def row(self) -> dict[str, object]:
        """Return the figures for programs."""
        return {
            "overhead_median": self.median,
            "overhead_p95": self.p95,
            "draws": len(self.overheads),
            "uncertainty": asdict(self.uncertainty),
        }

    def __str__(self) -> str:
        return f"median {percent(self.median)}, 95th percentile {percent(self.p95)} of {len(self.overheads)} draws"


@strict
def realised(
    trace: Trace,
    planned: Trace,
    machine: Machine,
    uncertainty: Uncertainty,
    *,
    placements: tuple[Placement, Placement] | None = None,
    capacity: int | None = None,
    draws: int = DRAWS,
) -> Realised:
    """Run a trace with a plan and without it under durations that are off their estimates.

    Parameters
    ----------
    trace, planned : Trace
        Without the plan, and rewritten by it.
    machine : Machine
        Gives the estimates.
    uncertainty : Uncertainty
    placements : pair of Placement, optional
        Of both traces: the address-aware simulation.
    capacity : int, optional
        Bytes: the byte-counting simulation for the plan.
    draws : int
        At least 1.

    Returns
    -------
    Realised

    Raises
    ------
    ValueError
        No draws; what `simulate` raises.

    Notes
    -----
    Two simulations a draw. Copies of the plan are drawn in its order of issue.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.swap import tensile
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 7 // 10
    >>> planned = tensile(trace, machine, limit).apply(trace)
    >>> for spread in (0.0, 0.5):
    ...     found = realised(trace, planned, machine, Uncertainty(spread=spread), capacity=limit, draws=20)
    ...     print(found)
    median 0.00%, 95th percentile 0.00% of 20 draws
    median 2.11%, 95th percentile 7.24% of 20 draws
    """
    at_least(1, draws=draws)
    spread = _overheads(
        trace, planned, machine, uncertainty=uncertainty, placements=placements, capacity=capacity, draws=draws
    )
    return Realised(uncertainty, np.fromiter(spread, np.float64, draws))


def _overheads(
    trace: Trace,
    planned: Trace,
    machine: Machine,
    *,
    uncertainty: Uncertainty,
    placements: tuple[Placement, Placement] | None,
    capacity: int | None,
    draws: int,
) -> Iterator[float]:
    before, after = (None, None) if placements is None else placements
    for draw in range(draws):
        swapped = uncertainty.drawn(planned, machine, draw)
        base = baseline(uncertainty.drawn(trace, machine, draw), machine, swapped, before)
        yield simulate(swapped, machine, after, capacity=capacity).overhead(base)
