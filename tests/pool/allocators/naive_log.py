"""The requests that a trace makes, by slow loops: what `gpumem.pool.allocators.protocol` has to agree with."""

from __future__ import annotations

from gpumem.trace import Trace


def naive_log(trace: Trace, iterations: int, uses: bool = False) -> list[tuple[str, int, int]]:
    """What comes and what goes (id, stream), and whose reads nothing orders."""
    return [event for _, event in timed_log(trace, iterations, uses)]


def timed_log(trace: Trace, iterations: int, uses: bool = False) -> list[tuple[int, tuple[str, int, int]]]:
    """The same, after how many ops; step by step over all buffers."""
    n, b = trace.n, trace.buffers
    stream: list[int] = trace.ops.stream.tolist() or [0] * n
    mine = [x for x in b if x.space == "device" and x.size]
    whole = [x for x in mine if x.end - x.start == n]
    parts = [x for x in mine if x.end - x.start < n]

    def touching(x: int) -> list[int]:
        steps = [t % n for t in range(b[x].start, b[x].end)]
        return [t for t in steps if len(trace.ops) and x in {*trace.ops[t].reads, *trace.ops[t].writes}]

    def first(x: int) -> int:
        return stream[(touching(x) or [b[x].start])[0]]

    def last(x: int) -> int:
        return stream[(touching(x) or [b[x].start])[-1]]

    def also(x: int, step: int) -> bool:
        """Whether an op reads it that the last one to touch it does not wait for."""
        at = touching(x)
        later = at[at.index(step) :] if step in at else []
        return bool(later) and stream[step] != last(x) and not any(x in trace.ops[t].writes for t in later)

    log = [(0, ("+", x.id, first(x.id))) for x in whole]
    wrapping = sorted((x for x in parts if x.end > n), key=lambda x: (x.start, x.id))
    log += [(0, ("+", x.id, first(x.id))) for x in wrapping]
    born = {x.id for x in wrapping}
    for time in range(iterations * n + 1):
        if uses and time:
            log += [(time, ("=", x, stream[(time - 1) % n])) for x in sorted(born) if also(x, (time - 1) % n)]
        gone = [x for x in parts if x.end % n == time % n and x.id in born]
        log += [(time, ("-", x.id, last(x.id))) for x in gone]
        born -= {x.id for x in gone}
        if time == iterations * n:
            break
        fresh = [x for x in parts if x.start == time % n]
        log += [(time, ("+", x.id, first(x.id))) for x in fresh]
        born |= {x.id for x in fresh}
    return log
