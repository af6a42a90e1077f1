"""How large a pool do two jobs in turn need by Waterwave's allocator, next to their load?"""

from __future__ import annotations

from benchmarks.speed._bench import SHARED, header
from gpumem import Machine, best_fit
from gpumem.base.units import human
from gpumem.io import read
from gpumem.jobs.waterwave import co_schedule, partition, pipeline
from gpumem.pool import MultiStream, replay
from gpumem.trace import Trace

NETS = "resnet50_224_b64 resnet152_224_b64 nasnet_331_b32 inceptionv3_299_b2 bert_base_s128_b32 tacotron2_t40_b32"
GROUPS = 16  # of a job's peak live bytes
LIMIT = 1.5  # of two jobs' load, next to that of one
STEP = 64  # pools are found to a part of so many of the load


class Hasty(MultiStream):
    """Syncs at every request, so all free chunks are one list: what apart lists cost is the difference."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        self.sync_and_coalesce()
        return super().allocate(size, stream=stream)


def main() -> None:
    """Print a line a net."""
    print(header())
    print(f"\npools next to the load of what they serve, to 1/{STEP}; two of a net take turns on a v100, groups of")
    print(f"1/{GROUPS} of its load, a limit of {LIMIT} times its load; syncs: a round; always: a sync at every request")
    columns = ("one", "two", "syncs", "slots", "two, always", "two, offline")
    print(f"\n{'net':22}{'load':>12}{'two':>6}" + "".join(f"{column:>14}" for column in columns))
    machine = Machine.named("v100")
    for net in NETS.split():
        trace = read(SHARED / "traces" / f"{net}.json.gz")
        job = partition(trace, machine, trace.peak_live_bytes // GROUPS)
        pipe = pipeline([job, job], int(LIMIT * trace.peak_live_bytes))
        two = co_schedule(pipe, machine).trace
        (one, _), (pair, syncs), (always, _) = least(MultiStream, trace), least(MultiStream, two), least(Hasty, two)
        offline = best_fit(two).ratio(two)
        cells = f"{one:>14.2f}{pair:>14.2f}{syncs:>14.1f}{pipe.period:>14}{always:>14.2f}{offline:>14.2f}"
        print(
            f"{net:22}{human(trace.peak_live_bytes):>12}{two.peak_live_bytes / trace.peak_live_bytes:>6.2f}{cells}",
            flush=True,
        )


def least(make: type[MultiStream], trace: Trace) -> tuple[float, float]:
    """Return the smallest pool that serves a trace, next to its peak live bytes, and syncs in an iteration."""
    low, high, syncs = STEP - 1, 2 * STEP, 0.0
    while high - low > 1:
        middle = (low + high) // 2
        pool = make(capacity=trace.peak_live_bytes * middle // STEP, allow_growth=False)
        try:
            replay(trace, pool)
        except MemoryError:
            low = middle
            continue
        except ValueError:  # what wraps lies elsewhere in each iteration: no placement, but all are served
            pass
        high, syncs = middle, pool.syncs / iterations(pool, trace)
    return high / STEP, syncs


def iterations(pool: MultiStream, trace: Trace) -> float:
    """How many it has served, about: by how many chunks it has given."""
    asked = ~trace.buffers.host & (trace.buffers.size > 0)
    passing = asked & (trace.buffers.end - trace.buffers.start < trace.n)
    return pool.statistics.blocks.total / max(int(passing.sum()), 1)


if __name__ == "__main__":
    main()
