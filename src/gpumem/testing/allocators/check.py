"""Hold an online allocator to its contract, without a test framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING

from gpumem.base.arguments import at_least, expect, strict
from gpumem.testing.allocators.contract import Witness, optional
from gpumem.testing.allocators.history import Player
from gpumem.testing.allocators.patterns import PATTERNS, UNITS, Pattern, Source
from gpumem.testing.contract_error import ContractError
from gpumem.testing.requests import Allocate, Free, Request, Sync, Use, renumbered
from gpumem.testing.shrink import shrink

if TYPE_CHECKING:
    from gpumem.pool.allocators.protocol import Allocator

WINDOW, WINDOWS = 4, 8  # rounds in which the highest address may rise; so many times in a row it may not. Not tuned
LARGEST = 64 * 2**20  # bytes of a request, where an allocator has no capacity. Not tuned
WRONG = 0.1  # how often a request that must be refused comes in between. Not tuned
SHARED = 0.3  # how often one about streams does, where the allocator has `use`. Not tuned


@strict
def check_allocator(
    factory: Callable[[], Allocator],
    *,
    seed: int = 0,
    examples: int = 100,
    max_size: int | None = None,
    streams: int = 2,
    steps: int = 40,
    skip: Collection[str] = (),
) -> None:
    """Ask new allocators for what hurts, and hold every answer against a naive model of the contract.

    Parameters
    ----------
    factory : callable
        Returns a new allocator, always in the same state.
    seed : int
        Of the requests.
    examples : int
        Histories to try; half of them use one stream only.
    max_size : int, optional
        Bytes of one request at most; the capacity where the allocator has one, else 64 MiB.
    streams : int
        Streams that requests come from.
    steps : int
        Requests of one history, about.
    skip : collection of str
        Rules that the allocator may break, of `gpumem.testing.OPTIONAL`.

    Raises
    ------
    ContractError
        The rule that was broken, and a short history that breaks it.
    ValueError
        A number below 1, or a rule that cannot be skipped.

    Notes
    -----
    About `8 * examples * steps` requests and `3 * examples` allocators. Each history is played on two of them, whose
    answers must agree. On the first one everything is then freed, and the largest block that a new allocator serves
    must be served once more. On the second one the history is repeated, everything freed in between, until a few rounds
    take no higher address, or for 32 rounds. The history that fails is shortened greedily. An allocator without
    `synchronize` cannot move bytes between streams, so recovery and growth are judged on one stream.

    Examples
    --------
    >>> class Bump:
    ...     '''Never takes anything back.'''
    ...     def __init__(self):
    ...         self.top, self.live = 0, set()
    ...     def allocate(self, size, *, stream=0):
    ...         if size < 1:
    ...             raise ValueError(f"size {size} is below 1")
    ...         self.top += size
    ...         self.live.add(self.top - size)
    ...         return self.top - size
    ...     def free(self, offset, *, stream=0):
    ...         if offset not in self.live:
    ...             raise ValueError(f"offset {offset} is not live")
    ...         self.live.remove(offset)
    >>> check_allocator(Bump, skip=["growth"])
    >>> check_allocator(Bump)
    Traceback (most recent call last):
    gpumem.testing.contract_error.ContractError: growth: request 1, repeated 32 times: the highest byte rises from 1 to 33
        p0 = a.allocate(1)  # 0
        a.free(p0)
    """  # noqa: E501
    at_least(1, examples=examples, streams=streams, steps=steps, max_size=max_size)
    trial = Trial(factory, max_size=max_size, skip=skip)
    random = Random(seed)
    for example in range(examples):
        pattern = PATTERNS[example // 2 % len(PATTERNS)]
        seeded = Random(random.getrandbits(64))
        source = Source(
            Player(trial.witness()), seeded, trial.max_size, streams=streams if example % 2 else 1, steps=steps
        )
        error: ContractError | None = None
        try:
            trial.meet(pattern, source)
        except ContractError as broken:
            error = broken
        history = source.player.done
        shortest = trial.error(history)
        if shortest is not None:
            raise _shortest(trial, history, shortest) from None
        if error is not None:  # it did not happen a second time, so it cannot be shortened
            raise error


class Trial:
    """Plays one history on new allocators and judges them: what `check_allocator` and the state machine share."""

    def __init__(
        self, factory: Callable[[], Allocator], *, max_size: int | None = None, skip: Collection[str] = ()
    ) -> None:
        self.factory, self.skip = factory, optional(skip)
        self.max_size = max_size or self.witness().capacity or LARGEST

    def witness(self) -> Witness:
        """Return the witness of a new allocator."""
        made = self.factory()
        expect("factory", "what it returned", made, "Allocator")
        return Witness(made, skip=self.skip)

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest block that a new allocator serves, up to `max_size`."""
        low, high = 0, self.max_size + 1  # low is served, high is not
        while high - low > 1:
            size = high - 1 if low == 0 and high == self.max_size + 1 else (low + high) // 2
            low, high = (size, high) if self._serves(size) else (low, size)
        if low == 0:
            raise ContractError("service", "a new allocator refuses to allocate 1 byte", ["a.allocate(1)"])
        return low

    def _serves(self, size: int) -> bool:
        player = Player(self.witness())
        player.perform(Allocate(0, size))
        return player.offsets[0] is not None

    def meet(self, pattern: Pattern, source: Source) -> None:
        """Have a pattern's requests performed, with some in between that must be refused, and some about streams."""
        player, random = source.player, source.random
        for request in pattern(source):
            player.perform(request)
            if random.random() < WRONG:
                player.perform(source.wrong())
            if source.streams > 1 and player.witness.listens and random.random() < SHARED:
                player.perform(source.shared())

    def error(self, history: Sequence[Request], rule: str | None = None) -> ContractError | None:
        """Return what is wrong with the allocators, or None; only this rule counts, where one is given."""
        try:
            self.run(history)
        except ContractError as broken:
            return broken if rule in (None, broken.rule) else None
        return None

    def run(self, history: Sequence[Request]) -> None:
        """Raise the first thing that is wrong."""
        largest = self.largest
        first = _played(Player(self.witness()), history)
        repeatable = first.witness.synchronises or not any(getattr(request, "stream", 0) for request in history)
        if repeatable and "recovery" not in self.skip:
            _recovers(first, largest)
        second = _played(Player(self.witness()), history)
        if "deterministic" not in self.skip:
            _same(first, second)
        if repeatable and "growth" not in self.skip:
            _stays_bounded(second, history)


def _played(player: Player, history: Iterable[Request]) -> Player:
    """Play a history and free what is left."""
    for request in history:
        player.perform(request)
    player.free_all()
    return player


def _stays_bounded(player: Player, history: Sequence[Request]) -> None:
    """Repeat until a window of rounds takes no higher address."""
    witness, once = player.witness, len(player.done)
    start, blocks = witness.top, _blocks(history)
    for window in range(WINDOWS):
        before = witness.top
        for turn in range(1, WINDOW + 1):
            _played(player, _renumbered(history, (window * WINDOW + turn) * blocks))
        if witness.top == before or witness.top <= (witness.capacity or 0):  # no further than the capacity anyhow
            return
    reason = f"repeated {WINDOW * WINDOWS} times: the highest byte rises from {start} to {witness.top}"
    raise ContractError("growth", f"request {once - 1}, {reason}", player.log[:once], history)


def _blocks(history: Iterable[Request]) -> int:
    """Return one more than the highest number of a block."""
    return max((request.block for request in history if not isinstance(request, Sync)), default=-1) + 1


def _renumbered(history: Iterable[Request], first: int) -> Iterator[Request]:
    """Yield the same requests for blocks from `first` on."""
    return (renumbered(request, lambda block: block + first) for request in history)


def _recovers(player: Player, largest: int) -> None:
    history = tuple(player.done)
    player.perform(Allocate(_blocks(history), largest))
    if player.offsets[-1] is None:
        reason = f"all is freed, but {largest} bytes, which a new allocator serves, are refused"
        raise ContractError("recovery", f"request {len(history)}, {reason}", player.log, history)


def _same(first: Player, second: Player) -> None:
    places = [place for place, request in enumerate(second.done) if isinstance(request, Allocate)]
    for offset, other, place in zip(first.offsets, second.offsets, places):
        if offset != other:
            reason = f"the same requests gave {offset} with one new allocator and {other} with the next"
            raise ContractError(
                "deterministic", f"request {place}, {reason}", second.log[: place + 1], second.done[: place + 1]
            )


def _shortest(trial: Trial, history: list[Request], error: ContractError) -> ContractError:
    """Return the error of a short history that breaks the same rule, its blocks numbered from 0."""
    fails = partial(trial.error, rule=error.rule)
    whole = list(error.requests)  # as performed: cut off after the error, and with all rounds before it
    error = shrink(whole if fails(whole) else history, error, fails, _simpler)
    number: dict[int, int] = {}
    numbered = [renumbered(request, lambda block: number.setdefault(block, len(number))) for request in error.requests]
    return fails(numbered) or error


def _simpler(request: Request) -> list[Request]:
    """Return the same request with a rounder or smaller size, or on the first stream."""
    simpler: list[Request] = []
    if isinstance(request, Allocate):
        size = request.size
        smaller = {
            1,
            size // 2,
            size - 1,
            *(size // unit * unit for unit in UNITS),
            *(unit for unit in UNITS if unit < size),
        }
        simpler += [
            Allocate(request.block, smaller_size, request.stream)
            for smaller_size in sorted(smaller)
            if 1 <= smaller_size < size
        ]
        if request.stream:
            simpler.append(Allocate(request.block, size))
    elif isinstance(request, Free | Use) and request.stream:
        simpler.append(replace(request, stream=0))
    return simpler
