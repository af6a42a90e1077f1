"""What a request costs a program that knows nothing of plans (`requests`), on the path of Numba's memory manager.

On a GPU `python -m benchmarks.speed.live`; without one `python -m tests.fake_cuda python -m benchmarks.speed.live`,
where the driver's part is the fake one's. The requests are those of one iteration of VGG16, of 1/4096 of their sizes:
how large they are makes no difference but to a driver that fills new memory, as the fake one does. The ways take turns.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as api
from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver

from benchmarks.speed._bench import header
from gpumem.io import bundled
from gpumem.pool.allocators import CnMem
from gpumem.pool.allocators.protocol import stepwise
from gpumem.pool.smartpool import SmartPool
from gpumem.runtime.emm import manager as emm

WARM, ROUNDS = 6, 41
SMALLER = 4096


class Way:
    """One way to be served: `malloc(size)` returns what `free` takes, or what is dropped where there is no `free`."""

    def __init__(self, malloc: Callable[[int], Any], free: Callable[[Any], object] | None = None) -> None:
        self.malloc, self.free = malloc, free
        trace = bundled("vgg16")
        requests, head = stepwise(trace)
        self.size = [max(size // SMALLER, 1) for size in trace.buffers.size.tolist()]
        self.held: list[Any] = [None] * len(trace.buffers)
        self.iteration = requests[head:]
        self.play(requests[:head])
        for _ in range(WARM):
            self.play(self.iteration)

    def play(self, requests: list[int]) -> None:
        """Make requests."""
        malloc, free, size, held = self.malloc, self.free, self.size, self.held
        for r in requests:
            if r >= 0:
                held[r] = malloc(size[r])
            else:
                if free is not None:
                    free(held[~r])
                held[~r] = None

    def us(self) -> float:
        """Microseconds of a request, the mean over an iteration; the device then runs dry."""
        begin = time.perf_counter_ns()
        self.play(self.iteration)
        took = time.perf_counter_ns() - begin
        api.cuCtxSynchronize()
        return took / len(self.iteration) / 1e3


def of_the_driver(result: tuple[Any, ...]) -> Any:
    """What a call of the driver returned."""
    if result[0]:
        raise MemoryError(result[0].name)
    return result[-1]


def ways() -> dict[str, Way]:
    """Every way, warm."""
    cuda.set_memory_manager(emm.MemoryManager)
    context = cuda.current_context()
    manager = context.memory_manager
    numbas = numba_driver.NumbaCUDAMemoryManager(context=context)
    numbas.initialize()
    pool, stream = SmartPool(CnMem()), of_the_driver(api.cuStreamCreate(1))
    found = {
        "Numba's path, from the plan": Way(manager.memalloc),
        "cuMemAllocAsync, cuMemFreeAsync": Way(
            lambda size: of_the_driver(api.cuMemAllocAsync(size, stream)),
            lambda address: of_the_driver(api.cuMemFreeAsync(address, stream)),
        ),
        "Numba's own manager": Way(numbas.memalloc),
        "the pool below the path alone": Way(pool.allocate, pool.free),
    }
    told = emm.statistics()
    assert told.plans == 1 and told.deviations == 0, told
    return found


def requests() -> None:
    """Print a row for each way."""
    found = ways()
    gc.collect()
    gc.freeze()
    before = emm.statistics()
    rounds = [[way.us() for way in found.values()] for _ in range(ROUNDS)]
    after = emm.statistics()
    hits, misses = after.hits - before.hits, after.misses - before.misses
    count = len(next(iter(found.values())).iteration)
    print(f"# device: {cuda.get_current_device().name}; us a request, a malloc or a free: median of {ROUNDS} rounds")
    print(f"# {count} requests a round; from the plan: {hits} mallocs of {hits + misses}")
    print(f"{'':36}{'us':>8}{'least':>8}{'of the path':>14}")
    for (name, _), column, ratio in zip(
        found.items(), zip(*rounds), zip(*([x / row[0] for x in row] for row in rounds))
    ):
        print(f"{name:36}{statistics.median(column):>8.2f}{min(column):>8.2f}{statistics.median(ratio):>14.2f}")


def main() -> None:
    """Print every section."""
    print(header())
    requests()


if __name__ == "__main__":
    main()
