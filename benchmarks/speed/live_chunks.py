"""A malloc and its free with many live chunks: allocators side by side, on one stream and on two."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from random import Random
from statistics import median

from benchmarks.speed._bench import header
from gpumem.pool import Caching, MultiStream, Pool

AWAY = 16  # chunks of the load that are free at a time
TURN = 100  # pairs until jobs change turns
NAMES = ("caching", "streams", "streams, turns")


def main() -> None:
    """Print microseconds of a pair, and how often they wait for all streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print(header(0))
    print(
        "\nus of CPU time of a malloc and its free, the median of rounds in turn; ratio: to caching in the same round"
    )
    print("small: 1 byte to 1 MiB, mixed: to 16 MiB; syncs: calls of synchronize in 1,000 pairs")
    print("each is freed on one of the streams at random; turns: with a sync_and_coalesce every 100 pairs, in the time")
    print(f"\n{'live':>6} {'sizes':6} streams" + "".join(f"{name:>16}{'ratio':>7}{'syncs':>8}" for name in NAMES))
    for live in args.live:
        for sizes, most in (("small", 1 << 20), ("mixed", 16 << 20)):
            for streams in (1, 2):
                rows = measured(live, most, streams, args.rounds)
                cells = [f"{us:>16.2f}{ratio:>7.2f}{syncs:>8.1f}" for us, ratio, syncs in rows]
                print(f"{live:>6} {sizes:6}{streams:>8}" + "".join(cells), flush=True)


def measured(live: int, most: int, streams: int, rounds: int) -> Iterator[tuple[float, float, float]]:
    """Yield (us, ratio to the first, waits in 1,000 pairs) of each allocator."""
    random = Random(0)
    sizes = [int(2 ** random.uniform(0, most.bit_length() - 1)) for _ in range(live)]
    turns = MultiStream()
    pools = [
        Held(Caching(), sizes, streams),
        Held(MultiStream(), sizes, streams),
        Held(turns, sizes, streams, turns.sync_and_coalesce),
    ]
    pairs = max(2_000, live // 2)
    gc.disable()
    for held in pools:
        held.churn(2 * live)  # until it is as fragmented as it gets
        held.waits = 0
    ns = [[held.churn(pairs) / pairs for held in pools] for _ in range(rounds)]
    gc.enable()
    for k, held in enumerate(pools):
        taken = [row[k] for row in ns]
        yield median(taken) / 1e3, median(row[k] / row[0] for row in ns), held.waits * 1e3 / (pairs * rounds)


class Held:
    """An allocator and its live chunks, of sizes evenly spread on a logarithmic scale; the load stays as it is."""

    def __init__(self, pool: Pool, sizes: list[int], streams: int, turn: Callable[[], None] = lambda: None) -> None:
        self.pool, self.random, self.streams, self.waits = pool, Random(1), streams, 0
        pool.synchronize, self.turn = self._wait, turn
        self.sizes = sizes
        self.at = [pool.allocate(size, stream=self.random.randrange(streams)) for size in sizes]
        self.live, self.out = list(range(AWAY, len(sizes))), list(range(AWAY))
        for k in self.out:
            pool.free(self.at[k])

    def churn(self, pairs: int) -> int:
        """Free a chunk and ask for one that is long gone, so often; return nanoseconds of CPU time."""
        script = [self._pair() for _ in range(pairs)]
        allocate, free, at = self.pool.allocate, self.pool.free, self.at
        begin = time.thread_time_ns()
        for first in range(0, pairs, TURN):
            for k, last, j, size, stream in script[first : first + TURN]:
                free(at[k], stream=last)
                at[j] = allocate(size, stream=stream)
            self.turn()
        return time.thread_time_ns() - begin

    def _pair(self) -> tuple[int, int, int, int, int]:
        r, i, j = self.random, self.random.randrange(len(self.live)), self.out.pop(0)
        k, self.live[i] = self.live[i], j
        self.out.append(k)
        return k, r.randrange(self.streams), j, self.sizes[j], r.randrange(self.streams)

    def _wait(self) -> None:
        self.waits += 1


if __name__ == "__main__":
    main()
