"""What tests of Waterwave share: jobs of given node groups, random jobs together, and all that oracles say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from gpumem import Machine, check
from gpumem.jobs.waterwave import CoSchedule, Partition, Pipeline, partition, pipeline
from gpumem.jobs.waterwave.algorithm1 import Row
from gpumem.trace import Ops, Trace
from tests.strategies import nets, steps

MACHINE = Machine.named("v100")
Shape = tuple[int, int]  # node groups, and how many of them are of allocation


def made(jobs: Sequence[Shape], sizes: Sequence[int] | None = None) -> list[Partition]:
    """Jobs of so many groups: an op a group, each takes a buffer that a later one gives back, and one that stays."""
    found = []
    for k, (groups, angs) in enumerate(jobs):
        size = 10 if sizes is None else sizes[k]
        n = max(groups, 1)
        ends = [n - 1 - i * (n - angs) // max(angs, 1) for i in range(angs)]
        trace = Trace.from_lifetimes([size] * angs, range(angs), [max(e, i + 1) for i, e in enumerate(ends)], n=n)
        found.append(
            Partition.at(
                replace(trace, ops=Ops.make([[]] * n, [[]] * n, duration=[1] * n)), MACHINE, range(n + 1), angs
            )
        )
    return found


def checked(jobs: Sequence[Trace], found: CoSchedule, limit: int | None = None) -> None:
    """All that an oracle knows of jobs together."""
    check.together(jobs, found.trace, found.job, found.turn, found.op, found.lag, found.slot)
    check.budget(found.trace, int(found.pipeline.bound().max()))
    if limit is not None:
        check.budget(found.trace, limit)
        assert found.pipeline.bound().max() <= limit


@st.composite
def sets(draw: st.DrawFn) -> tuple[list[Trace], Pipeline, int | None]:
    """Jobs, what they do together, and the limit that they were told."""
    jobs = draw(st.lists(st.one_of(nets(), steps(streams=1)), min_size=1, max_size=4))
    order = draw(st.sampled_from(["recorded", "depth"]))
    parts = [partition(job, MACHINE, draw(st.integers(1, 150)), order=order) for job in jobs]
    rest = sum(part.rest for part in parts)
    least = max(part.peak - part.rest for part in parts) + rest
    limit = draw(st.none() | st.integers(least, 2 * least))
    turns = draw(
        st.none() | st.permutations([*range(len(jobs)), *draw(st.lists(st.integers(0, len(jobs) - 1), max_size=2))])
    )
    return jobs, pipeline(parts, limit, turns=turns, wrap=draw(st.booleans())), limit


def wrong(av: Row, dv: Row, jobs: Sequence[Shape]) -> str:
    """What is wrong with two streams, naively: '' where each group runs once, and each job's in turn."""
    for job, (groups, _) in enumerate(jobs):
        where = [slot for slot, pair in enumerate(zip(av, dv)) for found in pair if found and found[0] == job]
        which = [found[1] for pair in zip(av, dv) for found in pair if found and found[0] == job]
        if sorted(which) != list(range(groups)):
            return f"job {job} runs {which}"
        if which != list(range(groups)) or len(set(where)) < groups:
            return f"job {job} runs {which} in slots {where}"
    return ""


def judged(traces: Sequence[Trace], both: CoSchedule, limit: int | None = None) -> None:
    check.together(traces, both.trace, both.job, both.turn, both.op, both.lag, both.slot)
    if limit is not None:
        check.budget(both.trace, limit)
