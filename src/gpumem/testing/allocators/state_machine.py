"""The contract of online allocators as a Hypothesis state machine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING

import gpumem.testing.allocators.request_strategies  # noqa: F401 - first: says what is missing where Hypothesis is

# isort: split
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gpumem.base.arguments import strict
from gpumem.testing.allocators.check import Trial
from gpumem.testing.allocators.history import Player
from gpumem.testing.allocators.patterns import PATTERNS, Pattern, Source
from gpumem.testing.contract_error import ContractError

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
    rules `recovery`, `growth` and `deterministic`, as in `check_allocator`. What breaks in an allocator that cannot
    be repeated is a part of Hypothesis' `FlakyFailure` where it does not happen a second time.

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
    >>> try:
    ...     run_state_machine_as_test(allocator_machine(Zero), settings=quiet)
    ... except ContractError as error:
    ...     print(error.rule)
    overlap
    """
    trial = Trial(factory, max_size=max_size, skip=skip)

    class AllocatorMachine(RuleBasedStateMachine):
        """Lets patterns of requests meet an allocator that is held to its contract."""

        def __init__(self) -> None:
            super().__init__()
            self.player = Player(trial.witness())
            self.broken = False

        # Seeded once for each call: what a pattern draws depends on the answers, and answers that vary would confuse
        # Hypothesis if it drew the numbers itself.
        @rule(pattern=st.sampled_from(PATTERNS), random=st.randoms(use_true_random=True), steps=st.integers(1, 8))
        def ask(self, pattern: Pattern, random: Random, steps: int) -> None:
            try:
                trial.meet(pattern, Source(self.player, random, trial.max_size, streams=streams, steps=steps))
            except ContractError:
                self.broken = True
                raise

        def teardown(self) -> None:
            if not self.broken:
                trial.run(self.player.done)

    name = getattr(factory, "__name__", type(factory).__name__)
    AllocatorMachine.__name__ = AllocatorMachine.__qualname__ = f"AllocatorMachine[{name}]"
    return AllocatorMachine
