"""The contract of online allocators as a Hypothesis state machine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from gpumem.testing.allocators.request_strategies import (
    request_sizes,  # first: says what is missing where Hypothesis is
)

# isort: split
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, multiple, rule

from gpumem.base.arguments import strict
from gpumem.testing.allocators.check import Trial
from gpumem.testing.allocators.history import Player
from gpumem.testing.contract_error import ContractError
from gpumem.testing.requests import Allocate, Free, Request, Sync, Use, WrongFree

if TYPE_CHECKING:
    from gpumem.pool.allocators.protocol import Allocator


@strict
def allocator_machine(
    factory: Callable[[], Allocator],
    *,
    max_size: int | None = None,
    streams: int = 2,
    skip: Collection[str] = (),
) -> type[RuleBasedStateMachine]:
    """Make a state machine that asks new allocators for what it likes and judges as `check_allocator` does.

    Parameters
    ----------
    factory, max_size, streams, skip
        As for `check_allocator`, with its errors.

    Returns
    -------
    type
        A `RuleBasedStateMachine`. Its `TestCase` is what pytest and unittest collect, and
        `TestCase.settings = settings(...)` sets the number of examples and steps.

    Notes
    -----
    Every answer is checked at once. At the end of an example the history is played on more new allocators, for the
    rules `recovery`, `growth` and `deterministic`, as in `check_allocator`. What is found in an allocator that cannot
    be repeated is a part of Hypothesis' `FlakyFailure` where it does not happen again.

    Examples
    --------
    >>> from hypothesis import settings
    >>> from hypothesis.stateful import run_state_machine_as_test
    >>> class Zero:
    ...     def allocate(self, size, *, stream=0):
    ...         if size < 1:
    ...             raise ValueError(f"size {size} is below 1")
    ...         return 0
    ...     def free(self, offset, *, stream=0):
    ...         raise ValueError(f"offset {offset} is not live")
    >>> quiet = settings(derandomize=True, database=None, deadline=None, report_multiple_bugs=False)
    >>> run_state_machine_as_test(allocator_machine(Zero), settings=quiet)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gpumem.testing.contract_error.ContractError: ...
    """
    trial = Trial(factory, max_size=max_size, skip=skip)
    sizes, stream = request_sizes(trial.max_size), st.integers(0, streams - 1)
    any_number = st.integers(0, 2**16)

    class AllocatorMachine(RuleBasedStateMachine):  # no preconditions: answers that vary would confuse Hypothesis
        """Rules that hold an allocator to its contract."""

        blocks, freed = Bundle("blocks"), Bundle("freed")

        def __init__(self) -> None:
            super().__init__()
            self.player = Player(trial.witness())
            self.broken = False

        def perform(self, request: Request) -> None:
            try:
                self.player.perform(request)
            except ContractError:
                self.broken = True
                raise

        def allocate(self, size: int, stream: int) -> int:
            block = len(self.player.offsets)
            self.perform(Allocate(block, size, stream))
            return block

        @rule(target=blocks, size=sizes, stream=stream)
        def allocate_any(self, size: int, stream: int) -> int:
            return self.allocate(size, stream)

        @rule(target=blocks, number=any_number, parts=st.integers(1, 3), more=st.integers(-1, 1), stream=stream)
        def allocate_a_hole(self, number: int, parts: int, more: int, stream: int) -> int:
            holes = self.player.witness.holes() or [(0, trial.max_size)]
            low, high = holes[number % len(holes)]
            return self.allocate(max(1, (high - low) // parts + more), stream)

        @rule(target=blocks, size=sizes, many=st.integers(2, 6), stream=stream)
        def allocate_many(self, size: int, many: int, stream: int) -> MultipleResults[int]:
            return multiple(*(self.allocate(size, stream) for _ in range(many)))

        @rule(size=st.integers(-2, 0))
        def allocate_too_little(self, size: int) -> None:
            self.allocate(size, 0)

        @rule(target=freed, block=consumes(blocks), stream=stream)
        def free(self, block: int, stream: int) -> int:
            self.perform(Free(block, stream))
            return block

        @rule(block=freed)
        def free_twice(self, block: int) -> None:
            self.perform(WrongFree(block))

        @rule(number=any_number, inside=st.booleans())
        def free_unknown(self, number: int, inside: bool) -> None:
            live = sorted(self.player.witness.live.items()) or [(0, 1)]
            offset, size = live[number % len(live)]
            self.perform(WrongFree(-1, offset + (size // 2 + 1 if inside else size)))

        @rule()
        def free_nothing(self) -> None:
            self.perform(WrongFree(-1, -1))
            self.perform(WrongFree(-1, 0))

        @rule(start=st.integers(0, 1), step=st.integers(1, 2), stream=stream)
        def free_many(self, start: int, step: int, stream: int) -> None:
            for block in self.player.blocks()[start::step]:
                self.perform(Free(block, stream))

        def teardown(self) -> None:
            if not self.broken:
                trial.run(self.player.done)

    if trial.witness().listens:

        class Shared(AllocatorMachine):
            """And tells of streams that use a block too, and asks for syncs."""

            @rule(number=any_number, stream=stream)
            def use(self, number: int, stream: int) -> None:
                if blocks := self.player.blocks():
                    self.perform(Use(blocks[number % len(blocks)], stream))

            @rule()
            def sync(self) -> None:
                self.perform(Sync())

        AllocatorMachine = Shared  # type: ignore[misc]

    name = getattr(factory, "__name__", type(factory).__name__)
    AllocatorMachine.__name__ = AllocatorMachine.__qualname__ = f"AllocatorMachine[{name}]"
    return AllocatorMachine
