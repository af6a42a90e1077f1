"""What issuing an op costs the host: launches made once, made anew each time, and made by Numba each time.

On a GPU `python -m benchmarks.speed.issue`; without one `python -m tests.fake_cuda python -m benchmarks.speed.issue`,
where the driver's part is the fake one's. The three take turns, and only the issuing is timed. Timed runs let the
device run dry after each iteration; the fake one runs on the host's core, whose caches are cold after that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.speed._bench import header
from gpumem import Machine, autoswap, best_fit
from gpumem.base.errors import Infeasible, NotReached
from gpumem.execute import Program, prepare
from gpumem.execute.cuda import Cuda, devices
from gpumem.execute.models import MODELS
from gpumem.execute.models.graph import Model
from gpumem.kernels import device, numba_cuda as _numba
from gpumem.trace import Trace

ROUNDS, ITERATIONS = 5, 20
SMALL: dict[str, dict[str, Any]] = {  # what the device does is not timed, and the fake one takes long
    "mlp": {"batch": 4, "features": 8, "hidden": (8,) * 8},
    "cnn-norm": {"batch": 2, "side": 8, "channels": (2, 2, 2)},
    "residual": {"batch": 2, "side": 8, "channels": (2, 2, 2)},
    "transformer": {"batch": 2, "length": 4, "width": 8, "heads": 2},
}
PLAIN = {name: partial(getattr(device, name)) for name in device.__all__}  # what is not marked is called each time


def by_numba(kernel: Any, grid: int, block: Any, arguments: tuple[Any, ...]) -> Callable[[Any], None]:
    """Launch as Numba does it: every argument is looked at each time."""
    return lambda stream: kernel[grid, block, stream](*arguments)


WAYS = {
    "prebound": (device, _numba._bound),
    "each time": (SimpleNamespace(**PLAIN), _numba._bound),
    "by Numba": (SimpleNamespace(**PLAIN), by_numba),
}


def swapped(model: Model) -> Trace:
    """The model's trace at the lowest of a few limits that AutoSwap reaches."""
    found = model.trace
    for percent in (80, 70, 60, 50, 40):
        try:
            limit = model.trace.peak_live_bytes * percent // 100
            found = autoswap(model.trace, Machine.named("h200"), limit, threshold=0, peaks="all").apply(model.trace)
        except (Infeasible, NotReached):
            break
    return found


class Way:
    """A program on a backend of its own, issued in one of the ways."""

    def __init__(self, way: str, model: Model, trace: Trace, **options: bool) -> None:
        library, self.bound = WAYS[way]
        self.backend = Cuda(**options)
        _numba._bound = self.bound
        launch = model.launch(library)
        self.program: Program = prepare(trace, best_fit(trace), self.backend, launch, host=best_fit(trace.host_side()))
        self.program.run(3)

    def us(self) -> float:
        """Microseconds to issue an op, in the median iteration."""
        _numba._bound = self.bound
        program, backend = self.program, self.backend
        backend.begin(program.works, ITERATIONS)
        before: list[Any] = []
        took = []
        for _ in range(ITERATIONS):
            begin = time.perf_counter()
            before = backend.iteration(partial(program._issue, before))
            took.append(time.perf_counter() - begin)
            if backend.timing:  # it would wait for the iteration before last inside of what is timed
                for work, token in zip(program.works, before):
                    program._wait(work, token)
        backend._drain()
        return statistics.median(took) / len(program.works) * 1e6


def main() -> None:
    """Print a row for each model, plan and kind of backend."""
    print(header(0))
    print(f"# device: {devices()[0]}; us an op: medians of {ROUNDS} rounds, each the median of {ITERATIONS} iterations")
    print(f"{'':44}{'ops':>6}" + "".join(f"{way:>12}" for way in WAYS) + f"{'Numba / prebound':>18}")
    for name, sizes in SMALL.items():
        model = MODELS[name](**sizes)
        for what, trace in {"unmanaged": model.trace, "swapped": swapped(model)}.items():
            for kind, options in {"streams": {}, "timed": {"timing": True}}.items():
                ways = [Way(way, model, trace, **options) for way in WAYS]
                rounds = [[way.us() for way in ways] for _ in range(ROUNDS)]
                us = [statistics.median(column) for column in zip(*rounds)]
                ratio = statistics.median(row[-1] / row[0] for row in rounds)
                told = "".join(f"{x:>12.2f}" for x in us)
                print(f"{f'{name}, {what}, {kind}':44}{trace.n:>6}{told}{ratio:>18.1f}", flush=True)
                for way in ways:
                    way.backend.close()


if __name__ == "__main__":
    main()
