"""Training steps of any length: blocks of a transformer repeated, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, GRADIENT, INPUT, OPT_STATE, OPT_TEMP, PARAM

BYTES_PER_NS, FLOPS_PER_NS, LAUNCH_NS = 756, 27_000, 5_000  # of an `rtx4090`, about
BLOCK_OPS = 126  # of a block: 10 forward, 20 backward, 96 of the updates
TOKENS, WIDTH = 4096, 256


@dataclass(slots=True)
class Step:
    """A step that grows op by op; a buffer lives from the op that makes it through the last that touches it."""

    size: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    writes: list[list[int]] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)

    def new(self, size: int, kind: str = ACTIVATION) -> int:
        """Add a buffer, which the next op makes."""
        self.size.append(size)
        self.kind.append(kind)
        self.first.append(len(self.name))
        self.last.append(len(self.name))
        return len(self.size) - 1

    def op(self, name: str, reads: Sequence[int], writes: Sequence[int], duration: int = -1, flops: int = 0) -> None:
        """Add an op; without a duration it takes as long as its work, or its operands to come and go."""
        for b in (*reads, *writes):
            self.last[b] = len(self.name)
        moved = sum(self.size[b] for b in (*reads, *writes))
        self.name.append(name)
        self.reads.append(sorted(set(reads)))
        self.writes.append(sorted(set(writes)))
        self.duration.append(
            LAUNCH_NS + max(moved // BYTES_PER_NS, flops // FLOPS_PER_NS) if duration < 0 else duration
        )

    def trace(self, name: str) -> Trace:
        """Return the step; parameters and states live for ever."""
        n = len(self.name)
        lasting = [kind in (PARAM, OPT_STATE) for kind in self.kind]
        start = [0 if forever else first for first, forever in zip(self.first, lasting)]
        end = [n if forever else last + 1 for last, forever in zip(self.last, lasting)]
        ops = Ops.make(self.reads, self.writes, name=self.name, duration=self.duration)
        return Trace(Buffers.make(self.size, start, end, persistent=lasting, kind=self.kind), ops, name=name)


def blocks(n: int, seed: int = 0) -> Trace:
    """Return a step of about `n` ops: plain blocks of a transformer, 8 x 512 tokens of width 256, and AdamW.

    What one captures of such a net in PyTorch, parameter by parameter; `seed` is not looked at.
    """
    step, act = Step(), TOKENS * WIDTH * 4
    wide = (WIDTH, WIDTH, 3 * WIDTH**2, 3 * WIDTH, WIDTH**2, WIDTH, WIDTH, WIDTH, 4 * WIDTH**2, 4 * WIDTH,
            4 * WIDTH**2, WIDTH)  # fmt: skip
    nets = [[step.new(4 * count, PARAM) for count in wide] for _ in range(max(n // BLOCK_OPS, 1))]
    x = step.new(act, INPUT)
    step.op("randn", [], [x])
    saved = []
    for p in nets:
        saved.append(_block(step, p, x))
        x = saved[-1][-1]
    gradient = step.new(act, ACT_GRAD)
    step.op("loss_backward", [x], [gradient])
    grads = []
    for p, kept in zip(reversed(nets), reversed(saved)):
        gradient, of = _block_backward(step, p, kept, gradient)
        grads.append(of)
    for p, of in zip(nets, reversed(grads)):
        for weight, grad in zip(p, of):
            _adamw(step, weight, grad)
    return step.trace(f"blocks {len(nets)}")


def _made(
    step: Step, name: str, reads: Sequence[int], *sizes: int, kind: str = ACTIVATION, weight: int = -1
) -> list[int]:
    """An op and what it makes; with a weight it multiplies all tokens by it."""
    made = [step.new(size, kind) for size in sizes]
    step.op(name, reads, made, flops=0 if weight < 0 else TOKENS * step.size[weight] // 2)
    return made


def _block(step: Step, p: list[int], x: int) -> list[int]:
    """Add the forward ops of a block; return what its backward ops read, its input first, its output last."""
    act, row = TOKENS * WIDTH * 4, TOKENS * 4
    normed, mean, scale = _made(step, "native_layer_norm", [x, p[0], p[1]], act, row, row)
    (qkv,) = _made(step, "addmm", [normed, p[2], p[3]], 3 * act, weight=p[2])
    seen, sums = _made(step, "attention", [qkv], act, 4 * row, weight=p[8])
    (out,) = _made(step, "addmm", [seen, p[4], p[5]], act, weight=p[4])
    (mid,) = _made(step, "add", [x, out], act)
    again, mean2, scale2 = _made(step, "native_layer_norm", [mid, p[6], p[7]], act, row, row)
    (up,) = _made(step, "addmm", [again, p[8], p[9]], 4 * act, weight=p[8])
    (bent,) = _made(step, "gelu", [up], 4 * act)
    (down,) = _made(step, "addmm", [bent, p[10], p[11]], act, weight=p[10])
    (y,) = _made(step, "add", [mid, down], act)
    return [x, normed, mean, scale, qkv, seen, sums, mid, again, mean2, scale2, up, bent, y]


def _block_backward(step: Step, p: list[int], kept: list[int], gradient: int) -> tuple[int, list[int]]:
    """Add the backward ops of a block; return the gradient of its input, and those of its parameters."""
    x, normed, mean, scale, qkv, seen, sums, mid, again, mean2, scale2, up, bent, _ = kept
    act, size = TOKENS * WIDTH * 4, step.size

    def weights(out: int, into: int, weight: int, bias: int, width: int) -> tuple[int, int, int]:
        (back,) = _made(step, "mm", [out, weight], width, kind=ACT_GRAD, weight=weight)
        (w,) = _made(step, "mm", [out, into], size[weight], kind=GRADIENT, weight=weight)
        (b,) = _made(step, "sum", [out], size[bias], kind=GRADIENT)
        return back, w, b

    def norm(out: int, into: int, stats: list[int], weight: int, bias: int) -> list[int]:
        made = [step.new(act, ACT_GRAD), step.new(size[weight], GRADIENT), step.new(size[bias], GRADIENT)]
        step.op("native_layer_norm_backward", [out, into, *stats, weight, bias], made)
        return made

    back, w10, b10 = weights(gradient, bent, p[10], p[11], 4 * act)
    (unbent,) = _made(step, "gelu_backward", [back, up], 4 * act, kind=ACT_GRAD)
    back, w8, b8 = weights(unbent, again, p[8], p[9], act)
    back, w6, b6 = norm(back, mid, [mean2, scale2], p[6], p[7])
    step.op("add_", [gradient, back], [gradient])
    back, w4, b4 = weights(gradient, seen, p[4], p[5], act)
    (heads,) = _made(step, "attention_backward", [back, qkv, seen, sums], 3 * act, kind=ACT_GRAD, weight=p[8])
    (stacked,) = _made(step, "stack", [heads], 3 * act, kind=ACT_GRAD)
    (plain,) = _made(step, "clone", [stacked], 3 * act, kind=ACT_GRAD)
    back, w2, b2 = weights(plain, normed, p[2], p[3], act)
    back, w0, b0 = norm(back, x, [mean, scale], p[0], p[1])
    step.op("add_", [gradient, back], [gradient])
    return gradient, [w0, b0, w2, b2, w4, b4, w6, b6, w8, b8, w10, b10]


def _adamw(step: Step, weight: int, grad: int) -> None:
    """Add the update of a parameter, its two states in place with it."""
    size = step.size[weight]
    first, second = step.new(size, OPT_STATE), step.new(size, OPT_STATE)
    step.op("mul_", [weight], [weight])
    step.op("lerp_", [first, grad], [first])
    step.op("mul_", [second], [second])
    step.op("addcmul_", [second, grad], [second])
    (root,) = _made(step, "sqrt", [second], size, kind=OPT_TEMP)
    (scaled,) = _made(step, "div", [root], size, kind=OPT_TEMP)
    step.op("add_", [scaled], [scaled])
    step.op("addcdiv_", [weight, first, scaled], [weight])


def random_step(n: int, seed: int = 0) -> Trace:
    """Return a random step of about `n` ops: activations read again in reverse, parameters and states updated in place.

    Sizes range over three orders of magnitude, ops take from no time to long; some change what they read in place, some
    read what was made long before, some write a whole buffer a second time.
    """
    rng = np.random.default_rng(seed)
    step, layers = Step(), max(n * 2 // 5, 2)
    weights = max((n - 2 * layers) // 2, 1)
    sizes = (10 ** rng.uniform(3, 6, 4 * layers + 4 * weights)).astype(np.int64) * 4
    times = np.where(rng.random(n + 8) < 0.2, 0, 10 ** rng.uniform(2, 5.5, n + 8)).astype(np.int64)
    size, ns = iter(sizes.tolist()), iter(times.tolist())
    params = [step.new(next(size), PARAM) for _ in range(weights)]
    made = [step.new(next(size), INPUT)]
    step.op("load", [], made, next(ns))
    touched: list[list[int]] = []
    what, near, far, luck = (rng.integers(0, top, layers).tolist() for top in (10, 3, 10**9, 10))
    for k in range(layers):
        reads = [made[-1 - near[k] % min(len(made), 3)]]
        reads += [made[-1 - far[k] % min(len(made), 200 if luck[k] else len(made))]] if luck[k] < 3 else []
        reads += [params[k * weights // layers]] if what[k] > 4 else []
        _layer(step, what[k], reads, made, next(size), next(ns))
        touched.append([*reads, *step.writes[-1]])
    _backward(step, touched, rng.random(3 * layers).tolist(), lambda: step.new(next(size), ACT_GRAD), ns)
    gradient = step.writes[-1][0]
    for p in params:
        states = [step.new(step.size[p], OPT_STATE) for _ in range(2)]
        step.op("moments", [gradient, *states], states, next(ns))
        step.op("step", [p, *states], [p], next(ns))
    return step.trace(f"random {n}")


def _layer(step: Step, what: int, reads: list[int], made: list[int], size: int, ns: int) -> None:
    """Add a forward op: in place, a second whole write, or something new."""
    if what == 0:
        step.op("relu_", reads, [reads[0]], ns)
    elif what == 1 and reads[-1] != reads[0]:
        step.op("copy", reads[1:], [reads[0]], ns)
    else:
        made.append(step.new(size))
        step.op("layer", reads, [made[-1]], ns)


def _backward(
    step: Step, touched: list[list[int]], luck: list[float], new: Callable[[], int], ns: Iterator[int]
) -> None:
    """Add the backward ops in reverse: each reads the gradient, and most of what its layer touched."""
    gradient = new()
    step.op("loss", [touched[-1][-1]], [gradient], next(ns))
    for k in reversed(range(len(touched))):
        reads = [b for j, b in enumerate(touched[k]) if j % 2 or luck[3 * k + j % 3] < 0.8]
        if luck[3 * k] < 0.3:
            step.op("backward_", [*reads, gradient], [gradient], next(ns))
        else:
            gradient, old = new(), gradient
            step.op("backward", [*reads, old], [gradient], next(ns))


MAKERS: dict[str, Callable[[int, int], Trace]] = {"blocks": blocks, "random": random_step}
