"""Random training programs that know nothing of plans: steady for a while, then something else, then steady once more.

An iteration is drawn once as a net and then written down once an iteration, with new blocks and new data::

    x = input       y0 = layer 0 (x, w0)    y1 = layer 1 (y0, w1, x)  ...          activations live to
    ... d1 = back 1 (y1, w1, y0)   w1 = update 1 (w1, d1)   d0 = back 0 (d1, ...)    the backward half
    loss' = carry (d0, loss)        free loss                                       lives over the boundary
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from gpumem.base.arguments import strict
from gpumem.testing.devices.calls import AFTER, BEFORE, Compute, DeviceCall, Drop, Look, Malloc, Put, Wrong

SIZES = (0, 8, 100, 256, 256, 512, 1000, 1024, 1024, 2048, 4096)  # equal ones are common, and hard
STEADY = 6  # iterations, more or less, of what repeats. Not tuned


@dataclass(frozen=True, slots=True)
class _Layer:
    """How a layer runs: bytes of its result and of its workspace, and what it touches."""

    size: int
    scratch: int
    weight: int
    skip: int  # so many results further back it reads another one
    changes: bool  # an op in place follows
    early: bool  # its input is freed at once, and the backward half does without
    looks: bool  # the program reads the result


@dataclass(frozen=True, slots=True)
class _Net:
    size: int  # bytes of the input
    arrives: bool  # in a new block each time; else in the same one
    layers: tuple[_Layer, ...]
    late: bool  # what is over is freed at the end of the iteration
    carries: (
        int  # nothing over the boundary; a loss until there is another one; one that the next iteration begins with
    )


@dataclass(frozen=True, slots=True)
class LiveProgram:
    """A program, and from where on it repeats.

    Parameters
    ----------
    calls : tuple of DeviceCall
        They end with a `Look` at every block that is live and has bytes.
    steady_from : int
        From this call on it repeats, up to these looks.
    period : int
        Calls of what repeats.
    """

    calls: tuple[DeviceCall, ...]
    steady_from: int
    period: int

    @property
    def widest(self) -> int:
        """The most bytes that one op touches, or that are written or read at once: below that nothing can run."""
        return widest(self.calls)


def widest(calls: Iterable[DeviceCall]) -> int:
    """Return the most bytes that one of some calls touches, at least 1."""
    size: dict[int, int] = {}
    most = 1
    for call in calls:
        match call:
            case Malloc(block, bytes_):
                size[block] = bytes_
            case Compute(_, reads, writes):
                most = max(most, sum(size[block] for block in {*reads, *writes}))
            case Put(block) | Look(block):
                most = max(most, size[block])
    return most


@dataclass(slots=True)
class _Writer:
    """Writes a program down, call by call."""

    random: Random
    calls: list[DeviceCall] = field(default_factory=list)
    blocks: int = 0
    filled: dict[int, None] = field(default_factory=dict)  # live blocks with bytes
    size: dict[int, int] = field(default_factory=dict)  # of live blocks
    lasting: list[int] = field(default_factory=list)
    loss: int = -1
    begun: list[int] = field(default_factory=list)  # the call with which each iteration began

    def new(self, size: int, kind: str = "") -> int:
        self.blocks += 1
        self.calls.append(Malloc(self.blocks, size, kind))
        self.size[self.blocks] = size
        return self.blocks

    def drop(self, block: int) -> None:
        self.calls.append(Drop(block))
        self.filled.pop(block, None)
        del self.size[block]

    def put(self, block: int) -> None:
        self.calls.append(Put(block, len(self.calls)))
        self.filled[block] = None

    def look(self, block: int) -> None:
        self.calls.append(Look(block))

    def op(self, name: str, reads: list[int], writes: list[int], fails: str = "") -> None:
        """Add an op; it takes a nanosecond a byte, and some."""
        duration = 100 + sum(self.size[block] for block in {*reads, *writes})
        self.calls.append(Compute(name, tuple(reads), tuple(writes), duration=duration, fails=fails))
        if not fails:
            self.filled |= dict.fromkeys(writes)

    # what is drawn

    def net(self) -> _Net:
        rng = self.random
        layers = tuple(
            _Layer(
                size=rng.choice(SIZES),
                scratch=rng.choice(SIZES) if rng.random() < 0.2 else 0,
                weight=rng.randrange(len(self.lasting)),
                skip=rng.choice([0, 0, 0, 1, 2, 3]),
                changes=rng.random() < 0.3,
                early=rng.random() < 0.2,
                looks=rng.random() < 0.05,
            )
            for _ in range(rng.randint(2, 12))
        )
        size, arrives = rng.choice(SIZES), rng.random() < 0.6
        return _Net(size, arrives, layers, late=rng.random() < 0.2, carries=rng.choice([0, 1, 2, 2]))

    # an iteration

    def iteration(self, net: _Net, scale: float = 1, *, learns: bool = True, fails: str = "") -> None:
        """Write an iteration down, at so many times the batch; one that fails breaks off in the middle."""
        self.begun.append(len(self.calls))
        over: list[int] = []
        batch = self.new(int(net.size * scale), "input") if net.arrives or scale != 1 else self.lasting[0]
        self.put(batch)
        made = [batch]
        for number, layer in enumerate(net.layers):
            self._forward(number, layer, made, scale, over=over if net.late else None)
            if number == 0 and learns and net.carries == 2 and self.loss > 0:
                self._recall(made[-1])
        if fails:
            self._failing(made, fails)
        elif learns:
            self._backward(net, made, scale, over if net.late else None)
        for block in [*over, *reversed(made)]:
            if block in self.size and block not in self.lasting and block != self.loss:
                self.drop(block)

    def _forward(self, number: int, layer: _Layer, made: list[int], scale: float, over: list[int] | None) -> None:
        result, weight = made[-1], self.lasting[layer.weight]
        reads = list(dict.fromkeys([result, weight, *made[-1 - layer.skip : -layer.skip or None]]))
        new_result = self.new(int(layer.size * scale), "activation")
        scratch = [self.new(layer.scratch, "workspace")] if layer.scratch else []
        self.op(f"layer {number}", reads, [new_result, *scratch])
        for block in scratch:
            self.drop(block)
        if layer.changes:
            self.op(f"relu {number}", [new_result], [new_result])
        if layer.looks:
            self.look(new_result)
        if layer.early and result not in self.lasting:
            made.remove(result)
            self._over(result, over)
        made.append(new_result)

    def _backward(self, net: _Net, made: list[int], scale: float, over: list[int] | None) -> None:
        gradient = made[-1]
        for number, layer in reversed([*enumerate(net.layers)]):
            weight, operands = self.lasting[layer.weight], made[-1 - (layer.skip == 1) :]
            new_gradient = self.new(int(layer.size * scale), "gradient")
            self.op(f"back {number}", list(dict.fromkeys([gradient, *operands, weight])), [new_gradient])
            self.op(f"update {number}", [weight, new_gradient], [weight])
            for block in {gradient: None, made[-1]: None} if len(made) > 1 else {gradient: None}:
                if block not in self.lasting and block != made[0]:
                    self._over(block, over)
            if len(made) > 1:
                made.pop()
            gradient = new_gradient
        if net.carries:
            self._carry(gradient)
        self._over(gradient, over)

    def _carry(self, gradient: int) -> None:
        """Replace the loss by another one, which lives over the boundary."""
        before, self.loss = self.loss, self.new(8, "loss")
        self.op("carry", [gradient, *([before] if before > 0 else [])], [self.loss])
        if before > 0:
            self.drop(before)

    def _recall(self, activation: int) -> None:
        """Let the loss of the last iteration go into this one."""
        self.op("recall", [activation, self.loss], [activation])
        self.drop(self.loss)
        self.loss = -1

    def _over(self, block: int, over: list[int] | None) -> None:
        if over is None:
            self.drop(block)
        else:
            over.append(block)

    def _failing(self, made: list[int], fails: str) -> None:
        """An op fails that changes something in place and makes something new, which nobody reads then."""
        weight, lost = self.lasting[-1], self.new(self.random.choice(SIZES))
        self.op("failing", [made[-1], weight], [weight, lost], fails)
        self.drop(lost)

    # phases

    def steady(self, net: _Net) -> None:
        """One and the same iteration."""
        for _ in range(self.random.randint(2, 2 * STEADY)):
            self.iteration(net)

    def another_batch(self, net: _Net) -> None:
        """The last batch of an epoch, of another size."""
        self.iteration(net, self.random.choice([0.5, 1.5, 2, 3]))

    def another_branch(self, net: _Net) -> None:
        """An iteration of another net."""
        self.iteration(self.net())

    def in_turns(self, net: _Net) -> None:
        """Two branches that alternate."""
        other = self.net()
        for turn in range(self.random.randint(3, 2 * STEADY)):
            self.iteration((net, other)[turn % 2])

    def evaluation(self, net: _Net) -> None:
        """Forward halves, of another batch."""
        scale = self.random.choice([1, 2])
        for _ in range(self.random.randint(1, 4)):
            self.iteration(net, scale, learns=False)

    def failure(self, net: _Net) -> None:
        """An exception within an op; the program gives the iteration up."""
        self.iteration(net, fails=self.random.choice([BEFORE, AFTER]))

    def lengths(self, net: _Net) -> None:
        """Sequences of any length: the first layers only."""
        for _ in range(self.random.randint(2, STEADY)):
            some = net.layers[: self.random.randint(1, len(net.layers))]
            self.iteration(replace(net, layers=some), self.random.choice([1, 1, 2]))

    def restless(self, net: _Net) -> None:
        """Anything, in any order."""
        rng, own = self.random, [self.lasting[0]]
        for _ in range(rng.randint(5, 40)):
            if rng.random() < 0.3:
                own.append(self.new(rng.choice(SIZES)))
                self.op(f"make {rng.randint(0, 3)}", rng.sample(own[:-1], 1), [own[-1]])
            elif len(own) > 2 and rng.random() < 0.3:
                self.drop(own.pop(rng.randint(1, len(own) - 1)))
            else:
                self.op(f"mix {rng.randint(0, 3)}", rng.sample(own, min(len(own), 2)), rng.sample(own, 1))
        for block in own[1:]:
            self.drop(block)

    def grows(self, net: _Net) -> None:
        """Another lasting block, as an optimizer's state that comes late; one that nobody writes; a wrong call."""
        self.lasting.append(self.new(self.random.choice(SIZES), "state"))
        self.put(self.lasting[-1])
        freed = self.new(self.random.choice(SIZES))
        self.drop(freed)
        self.calls.append(Wrong(self.random.choice(["free", "read", "write", "exec"]), freed))


DEVIATIONS = (
    _Writer.another_batch,
    _Writer.another_branch,
    _Writer.in_turns,
    _Writer.evaluation,
    _Writer.failure,
    _Writer.lengths,
    _Writer.restless,
    _Writer.grows,
)


@strict
def live_program(seed: int, *, phases: int = 3, iterations: int = 10) -> LiveProgram:
    """Draw a program for a device that finds out itself what repeats.

    Parameters
    ----------
    seed : int
    phases : int
        Deviations at most; what repeats lies between them.
    iterations : int
        How often the last pattern repeats, one net or two in turn.

    Returns
    -------
    LiveProgram
        For `perform`.

    Raises
    ------
    ValueError
        Negative phases, or fewer iterations than 1.

    Examples
    --------
    >>> from gpumem.testing import Unmanaged, perform
    >>> program = live_program(seed=1)
    >>> device = Unmanaged()
    >>> seen = perform(program.calls, device)
    >>> program.widest < device.peak
    True
    """
    if phases < 0 or iterations < 1:
        raise ValueError(f"phases: {phases}, iterations: {iterations}; at least 0 and 1")
    random = Random(seed)
    writer = _Writer(random)
    for _ in range(random.randint(2, 5)):
        writer.lasting.append(writer.new(random.choice(SIZES[1:]), "parameter"))
        writer.put(writer.lasting[-1])
    net = writer.net()
    for _ in range(random.randint(0, phases)):
        writer.steady(net)
        random.choice(DEVIATIONS)(writer, net)
        net = writer.net() if random.random() < 0.3 else net
    nets = [net, writer.net()] if random.random() < 0.2 else [net]
    first = len(writer.begun)
    for turn in range(iterations * len(nets)):
        writer.iteration(nets[turn % len(nets)])
    starts = writer.begun[first:]
    period = (starts[2 * len(nets)] - starts[len(nets)]) if iterations > 2 else len(writer.calls) - starts[0]
    for block in writer.filled:
        writer.look(block)
    return LiveProgram(tuple(writer.calls), starts[0], period)
