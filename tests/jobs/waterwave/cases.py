"""Small models together, as tests with real bytes run them: tight and loose, in overlapping rounds and flat ones."""

from __future__ import annotations

from functools import cache

from gpumem import Machine, Placement, best_fit
from gpumem.jobs.waterwave import CoSchedule, co_schedule, partition, pipeline
from tests.jobs.waterwave.models import model

MACHINE = Machine.named("v100")

# Jobs, their node groups' bytes, the limit as a part of what they hold without one, turns, whether rounds overlap
CASES = {
    "tight": (("adam", "net"), 2000, 0.0, None, True),
    "loose": (("adam", "net"), 2000, 1.0, None, True),
    "flat": (("adam", "net"), 3000, 0.5, None, False),
    "turns": (("sgd", "net"), 3000, 0.3, [1, 0, 1], True),
    "three": (("adam", "net", "sgd"), 3000, 0.2, None, True),
    "one": (("net",), 2000, 1.0, None, True),
}


@cache
def case(name: str) -> tuple[tuple[str, ...], CoSchedule, Placement]:
    """The jobs of a case, all of them as one trace, and a placement."""
    jobs, split, part, turns, wrap = CASES[name]
    parts = [partition(model(job).trace, MACHINE, split) for job in jobs]
    loose = pipeline(parts, turns=turns, wrap=wrap)
    least = sum(p.rest for p in parts) + max(p.peak - p.rest for p in parts)
    limit = least + int(part * (int(loose.bound().max()) - least))
    both = co_schedule(pipeline(parts, limit, turns=turns, wrap=wrap), MACHINE)
    return jobs, both, best_fit(both.trace)
