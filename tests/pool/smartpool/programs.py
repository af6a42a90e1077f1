"""Programs that SmartPool serves: random iterations that repeat, what disturbs them, and the requests of a trace."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from gpumem.pool.allocators.protocol import stepwise
from gpumem.pool.smartpool import SmartPool
from gpumem.trace import Trace
from tests.pool.smartpool.judge import Judge

SIZES = [1, 2, 3, 4, 8, 8, 16, 20]
Program = list[tuple[str, object, int]]


@st.composite
def iterations(draw: st.DrawFn) -> tuple[list[tuple[str, int]], list[int]]:
    """Mallocs and frees in any order: a free before its malloc is that of the previous iteration's block."""
    count = draw(st.integers(1, 8))
    order = draw(st.permutations([(kind, b) for b in range(count) for kind in "mf"]))
    return list(order), draw(st.lists(st.sampled_from(SIZES), min_size=count, max_size=count))


def unroll(iteration: tuple[list[tuple[str, int]], list[int]], times: int, tag: object) -> Program:
    """Repeat an iteration; a block is named by the tag, its buffer and the iteration that made it."""
    order, size = iteration
    program: Program = []
    latest: dict[int, object] = {}
    for k in range(times):
        for kind, b in order:
            if kind == "m":
                if b in latest:  # cannot be: between two mallocs of a buffer lies its free
                    raise AssertionError
                latest[b] = (tag, b, k)
                program.append(("m", latest[b], size[b]))
            elif b in latest:
                program.append(("f", latest.pop(b), 0))
    return program


def perturb(draw: Callable[[int], int], program: Program, count: int) -> Program:
    """Change sizes, insert and remove blocks, swap neighbours, free late or early; `draw(n)` is below `n`."""
    program = list(program)
    for k in range(count):
        at, what = draw(len(program)), draw(6)
        kind, name, size = program[at]
        if what == 0 and kind == "m":
            program[at] = kind, name, SIZES[draw(len(SIZES))] + 7 * draw(2)
        elif what == 1:
            program.insert(min(at + 1 + draw(12), len(program)), ("f", ("extra", k), 0))
            program.insert(at, ("m", ("extra", k), SIZES[draw(len(SIZES))] + 7 * draw(2)))
        elif what == 2:
            program = [request for request in program if request[1] != name] or program
        elif what == 3 and at + 1 < len(program) and program[at + 1][1] != name:
            program[at : at + 2] = program[at + 1], program[at]
        elif what == 4 and kind == "f":
            del program[at]
            program.insert(min(at + draw(40), len(program)), (kind, name, size))
        elif what == 5 and kind == "f":
            made = next(i for i, (_, other, _) in enumerate(program) if other == name)
            program.insert(made + 1 + draw(at - made), program.pop(at))
    return program


def play(judge: Judge, program: Program, stream: Callable[[int], int] = lambda k: 0) -> None:
    for k, (kind, name, size) in enumerate(program):
        if kind == "m":
            judge.malloc(name, size, stream(k))
        else:
            judge.free(name, stream(k))


def requests(trace: Trace, times: int) -> tuple[Program, list[Program]]:
    """What a trace asks for: the head, then each iteration; one buffer is one name until it is freed."""
    script, head = stepwise(trace)
    size, made = trace.buffers.size.tolist(), [0] * len(trace.buffers)
    live: dict[int, object] = {}

    def ask(part: list[int]) -> Program:
        program: Program = []
        for r in part:
            if r >= 0:
                made[r] += 1
                live[r] = (r, made[r])
                program.append(("m", live[r], size[r]))
            elif ~r in live:
                program.append(("f", live.pop(~r), 0))
        return program

    return ask(script[:head]), [ask(script[head:]) for _ in range(times)]


def offsets(pool: SmartPool, at: dict[object, int], program: Program) -> dict[int, int]:
    """Run a program; return the offset of each buffer that it made."""
    found = {}
    for kind, name, size in program:
        if kind == "m":
            assert isinstance(name, tuple)
            found[name[0]] = at[name] = pool.allocate(size)
        else:
            pool.free(at.pop(name))
    return found
