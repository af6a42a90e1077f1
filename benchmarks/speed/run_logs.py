"""What runs within a limit do, move by move, so that a change which should change none of it can show that.

    python -m benchmarks.speed.run_logs > after.txt && diff benchmarks/results/run_logs.txt after.txt

Twenty programs: ten on the transparent device, by the clock, and ten PyTorch steps on a host that plays the GPU. Each
has its moves as a hash (kind, op or place, bytes), its plan as a hash, what is left of its contents as a hash, and a
line an iteration: state, ops, peak, bytes out and in, ops run again, misses, evictions, and where it left its plan.
Processors round in ways of their own, so of PyTorch's contents there is only whether they are as without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.speed._golden_runs import digest
from gpumem import Machine, bundled
from gpumem.runtime import Adaptive, InMemory, ManagedReport, OnClock, play

Row = Iterator[str]
CLOCK = Machine.named("gtx1080ti")


def told(name: str, moves: object, report: ManagedReport, contents: str) -> Row:
    """A program's lines."""
    plan = "-" if report.plan is None else digest(report.plan.to_json())
    yield f"{name}: moves {digest(repr(moves))} plan {plan} contents {contents} notes {report.notes}"
    for x in report.iterations:
        counts = x.moved_out, x.moved_in, x.recomputed, x.misses, x.evictions
        yield " ".join(
            map(str, ("  ", x.number, x.state.replace(" ", "-"), x.ops, x.peak, *counts, x.deviation))
        ).rstrip()


# the transparent device


def step(device: Adaptive, weights: list[int], size: int, odd: bool = False) -> None:
    """An iteration: forward, then backward, over blocks of their own; an odd one has an op more in the middle."""
    made = [device.malloc(size) for _ in weights]
    for w, x in zip(weights, made):
        device.exec("forward", [w], [x], call=lambda stream, w, x: x.fill(w.sum() % 251), duration=50)
    if odd:
        device.exec("norm", [made[0]], [made[0]], call=lambda stream, x: x.__iadd__(1), duration=20)
    for w, x in zip(weights[::-1], made[::-1]):
        device.exec("backward", [x, w], [w], call=lambda stream, x, w: w.__iadd__(x[:1]), duration=50)
        device.free(x)


def program(device: Adaptive, schedule: list[tuple[int, bool]]) -> list[bytes]:
    """Iterations over blocks of some sizes; those that are odd do something else in the middle."""
    weights = [device.malloc(100) for _ in range(6)]
    for k, w in enumerate(weights):
        device.write(w, np.full(100, k + 1, np.uint8))
    for size, odd in schedule:
        step(device, weights, size, odd)
    return [device.read(w).tobytes() for w in weights]


def inputs(device: Adaptive) -> list[bytes]:
    """Iterations over the same blocks, which begin with an input that the program writes."""
    x, chain = device.malloc(100), [device.malloc(100) for _ in range(9)]
    for k in range(8):
        device.write(x, np.full(100, k, np.uint8))
        for a, b in zip([x, *chain], chain):
            device.exec("forward", [a], [b], call=lambda stream, a, b: b.fill(a.sum() % 251), duration=50)
        for a, b in zip(chain[::-1], chain[-2::-1]):
            device.exec("backward", [a, b], [b], call=lambda stream, a, b: b.__iadd__(a[:1]), duration=50)
    return [device.read(w).tobytes() for w in chain]


def played(name: str, device: Adaptive) -> None:
    """A bundled trace as a program."""
    play(bundled(name), None, device, iterations=5)


PLAIN, ODD, LARGE = (100, False), (100, True), (140, False)
ON_DEVICE: dict[str, tuple[Callable[[Adaptive], Any], int | str, dict[str, Any]]] = {
    "steady": (partial(program, schedule=[PLAIN] * 8), 700, {"planner": "heuristic"}),
    "steady, by tensile": (partial(program, schedule=[(200, False)] * 8), 1400, {"planner": "tensile"}),
    "on demand": (partial(program, schedule=[PLAIN] * 8), 700, {"planner": "on-demand"}),
    "it fits": (partial(program, schedule=[PLAIN] * 8), 2000, {"planner": "heuristic"}),
    "a part of the peak": (partial(program, schedule=[PLAIN] * 8), "70%", {"planner": "heuristic"}),
    "one odd": (partial(program, schedule=[*[PLAIN] * 6, ODD, *[PLAIN] * 4]), 700, {"planner": "heuristic"}),
    "another size": (partial(program, schedule=[*[PLAIN] * 6, *[LARGE] * 6]), 800, {"planner": "heuristic"}),
    "by turns": (partial(program, schedule=[PLAIN, LARGE] * 5), 800, {"planner": "heuristic"}),
    "inputs": (inputs, 600, {"planner": "heuristic", "detect": "writes"}),
    "vgg16": (partial(played, "vgg16"), "70%", {"planner": "autoswap", "min_length": 32}),
}


def on_device() -> Row:
    """The programs on the transparent device."""
    for name, (run, limit, options) in ON_DEVICE.items():
        environment = OnClock(CLOCK) if name == "vgg16" else InMemory()
        with Adaptive(environment, limit, wait=True, **{"min_length": 8, **options}) as device:
            contents, before = run(device), device.report()
            moves = [e.event if name == "vgg16" else e[:5] for e in device.log]
        yield from told(name, moves, before, digest(repr(contents)))


# PyTorch


class Bare:
    """No run at all."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, step: Callable[..., None]) -> Callable[..., None]:
        return step


class Moves:
    """Writes down what an engine and its pointers are asked for."""

    def __init__(self, of: Any, found: list[tuple[str, int]]) -> None:
        self.of, self.found = of, found

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.of, name)
        if name not in ("out", "back", "empty", "fill", "adopt"):
            return value

        def called(storage: Any, *rest: Any) -> Any:
            self.found.append((name, rest[0] if name == "fill" else storage.nbytes()))
            return value(storage, *rest)

        return called


def net(width: int = 48, depth: int = 5, dropout: float = 0.0) -> Any:
    """Layers, each with what makes it worth to keep, or not."""
    from torch import nn

    layers = [(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(dropout)) for _ in range(depth)]
    return nn.Sequential(*(m for layer in layers for m in layer))


def trained(run: Any, model: Any, optimizer: Any, batches: list[int], clip: int = -1, tell: bool = False) -> None:
    """Steps over batches of some sizes; that of number `clip` does something more."""
    import torch

    with run:
        for k, batch in enumerate(batches):
            optimizer.zero_grad()
            model(torch.randn(batch, 48)).square().mean().backward()
            if k == clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if tell:
                run.boundary()


def by_hand(run: Any, model: Any, optimizer: Any, batches: list[int]) -> None:
    """Steps of no optimizer: where an iteration ends, only what repeats tells."""
    import torch

    with run:
        for batch in batches:
            model(torch.randn(batch, 48)).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None


def decorated(run: Any, model: Any, optimizer: Any, batches: list[int]) -> None:
    """Each call of a step is an iteration."""
    import torch

    @run
    def once(batch: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(batch, 48)).square().mean().backward()
        optimizer.step()

    for batch in batches:
        once(batch)


def again(run: Any, model: Any, optimizer: Any, batches: list[int]) -> None:
    """The run is left in the middle, and entered again."""
    trained(run, model, optimizer, batches[:5])
    trained(run, model, optimizer, batches[5:])


SAME = [256] * 8
STEPS: dict[str, tuple[Callable[..., None], list[int], str, dict[str, Any], dict[str, Any]]] = {
    "sgd": (trained, SAME, "SGD", {}, {"planner": "heuristic"}),
    "adam": (trained, SAME, "AdamW", {}, {"planner": "heuristic", "limit": "60%"}),
    "on demand, torch": (trained, SAME, "SGD", {}, {"planner": "on-demand"}),
    "recomputation": (trained, SAME, "SGD", {}, {"planner": "checkpoint"}),
    "both": (trained, SAME, "SGD", {"dropout": 0.1}, {"planner": "tensile", "limit": "60%"}),
    "one clips": (partial(trained, clip=5), [256] * 10, "SGD", {}, {"planner": "tensile"}),
    "batches": (trained, [256] * 6 + [320] * 7, "SGD", {}, {"planner": "tensile", "limit": "900KiB"}),
    "by hand": (by_hand, [256] * 10, "SGD", {}, {"planner": "tensile"}),
    "decorated": (decorated, SAME, "AdamW", {}, {"planner": "tensile"}),
    "told, and entered again": (again, [256] * 10, "SGD", {}, {"planner": "tensile", "on_exit": "device"}),
}


def in_torch() -> Row:
    """The PyTorch steps."""
    import torch

    from gpumem.torch import managed

    for name, (go, batches, kind, model_options, options) in STEPS.items():
        limit = options.pop("limit", "70%")
        run, moves = managed(limit, device="cpu", wait=True, **options), list[tuple[str, int]]()
        run.memory.engine, run.memory.pointers = Moves(run.memory.engine, moves), Moves(run.memory.pointers, moves)
        contents = []
        for within in (run, Bare()):
            torch.manual_seed(0)
            model = net(**model_options)
            optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
            go(within, model, optimizer, batches)
            contents.append([p.tolist() for p in model.parameters()])
        yield from told(name, moves, run.report(), "as bare" if contents[0] == contents[1] else "not as bare")


def main() -> None:
    """Print all lines."""
    for source in (on_device, in_torch):
        for line in source():
            print(line, flush=True)


if __name__ == "__main__":
    main()
