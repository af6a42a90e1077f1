"""Where the iterations of a training script are: from one optimizer step to the next.

With several optimizers an iteration is one period of the pattern in which they step; one that steps another, which it
wraps, makes a pattern with it. One that is there and does not step may still begin to (a critic steps five times before
its generator does once), so it is waited for a while.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

from gpumem.torch.capture.capture_mode import CaptureMode
from gpumem.torch.capture.captured import Captured, cut, cut_alone
from gpumem.torch.internals import register_optimizer_step_post_hook, torch
from gpumem.torch.internals.redirected import OPTIMIZER, original, redirected
from gpumem.torch.step.workload import WorkloadError

# Steps, times the optimizers that there are, for which one that does not step is waited: WGAN's critic takes five, then
# its generator one; not tuned.
PATIENCE = 16
# Iterations without two alike in a row, as of batches padded to their longest text, before one is taken; not tuned.
UNLIKE = 9
# Steps, times the optimizers, times the iterations asked for, after which a script without a pattern is given up: not
# tuned.
IRREGULAR = 20


def period(order: Sequence[int], needed: Set[int], times: int) -> int:
    """Return the length of the pattern that the last steps repeat, and in which all `needed` optimizers step; or 0.

    Parameters
    ----------
    order : sequence of int
        The optimizer of each step.
    needed : set of int
        Optimizers.
    times : int
        How often it is to be there.

    Notes
    -----
    O(steps^2) at worst, O(steps) where optimizers differ early.

    Examples
    --------
    >>> period([1, 1, 1], {1}, 3), period([1, 2, 1, 2, 1, 2], {1, 2}, 3), period([1, 1, 1], {1, 2}, 3)
    (1, 2, 0)
    """
    for length in range(1, len(order) // times + 1):
        last = order[-length:]
        ends = [len(order) - back * length for back in range(times)]
        if needed <= {*last} and all(order[end - length : end] == last for end in ends):
            return length
    return 0


class Iterations:
    """Finds the iterations of a script while it runs, and ends it when it has them.

    What runs before the first step is not recorded: a validation pass, or what a model is built of.

    Parameters
    ----------
    mode : CaptureMode
        Records the script.
    warmup, iterations : int
        How many iterations are looked at, and how many, one at least, go before.
    name : str
        Of the trace.
    stop : callable
        Ends the script; told why, where it cannot be captured.
    """

    def __init__(
        self, mode: CaptureMode, warmup: int, iterations: int, name: str, stop: Callable[..., NoReturn]
    ) -> None:
        self.mode, self.name, self.stop = mode, name, stop
        self.count, self.alike = max(warmup, 1) + iterations, iterations > 1
        self.numbers: Any = weakref.WeakKeyDictionary()  # of optimizers
        self.last: dict[int, int] = {}  # the last step of each, or the one before which it was made
        self.order: list[int] = []  # the optimizer of each step
        self.ends: list[int] = []  # of each step: the next op
        self.captured: Captured | None = None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Listen while a script runs."""
        make = original(OPTIMIZER)

        def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._number(optimizer)

        with register_optimizer_step_post_hook(self._stepped), redirected([(OPTIMIZER, made)]):
            yield

    def _number(self, optimizer: torch.optim.Optimizer) -> int:
        number: int = self.numbers.setdefault(optimizer, len(self.last))
        self.last.setdefault(number, len(self.order))
        return number

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.captured is not None:  # in a script that holds on
            self.stop()
        number = self._number(optimizer)
        gc.collect()
        self.ends.append(self.mode.recorder.end())
        self.order.append(number)
        self.last[number] = len(self.order)
        bounds = self._bounds()
        if len(bounds) >= self.count - 1:
            self._cut(bounds)  # now, as what the script holds dies with it
        if self.captured is not None:
            self.stop()
        self.mode.recorder.begin()

    def _bounds(self) -> list[tuple[int, int]]:
        """Return the iterations that the last steps are, the first of all left out; none where they are too few."""
        alive = {*self.numbers.values()}
        waited = len(self.order) - PATIENCE * len(alive)
        needed = {number for number in alive if self.last[number] > waited}
        length = period(self.order, needed, self.count)
        if not length:
            if len(self.order) > IRREGULAR * self.count * len(alive):
                self.stop(f"{len(self.order)} steps of {len(alive)} optimizers follow no pattern")
            return []
        begins = self.ends[::-length][::-1]
        return list(pairwise(begins))[-max(UNLIKE, self.count - 1) :]

    def _cut(self, bounds: list[tuple[int, int]]) -> None:
        """Cut the last iteration out, or where no two of many are alike the one with the highest peak."""
        recorder, assumptions = self.mode.recorder, self.mode.assumptions.made
        if any(lo == hi for lo, hi in bounds):
            self.stop("an optimizer steps, and no op ran on a GPU; it has to train on 'cuda'")
        try:
            self.captured = cut(
                recorder, bounds[1 - self.count :], self.name, alike=self.alike, assumptions=assumptions
            )
        except WorkloadError as error:
            if len(bounds) < UNLIKE:
                return
            known = [one for one in bounds if one[0]]  # of the first it is not known what had died before it
            each = [cut_alone(recorder, one, self.name, assumptions) for one in known]
            largest = max(each, key=lambda one: one.trace.peak_live_bytes)
            why = str(error).partition(";")[0]
            note = f"{why}: of {len(each)} iterations this is the one with the highest peak; others may need more"
            self.captured = replace(largest, notes=(*largest.notes, note))
