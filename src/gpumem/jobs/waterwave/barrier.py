"""The counter barrier: a pair of node groups begins when all of the pair before has been enqueued."""

from __future__ import annotations

from collections.abc import Callable
from threading import BrokenBarrierError, Condition

from gpumem.base.arguments import at_least
from gpumem.base.display import Facts, Shown


class CounterBarrier(Shown):
    """Stands between two pairs of node groups, iteration after iteration.

    Leaves of the pair before count `leaves` down. Roots of the pair behind wait until none is left, then count `roots`
    down; with the last of them both are what they were, for the next iteration.

    Parameters
    ----------
    leaves, roots : int
        How many come in an iteration, 1 and more. What is "a leaf" is up to you: an op, or a thread that has
        enqueued its node group.

    Raises
    ------
    ValueError
        A number below 1.

    Notes
    -----
    Any thread may call any method. No thread polls: one that waits sleeps until it is woken. A leaf of the next
    iteration waits until the roots of this one have passed. The barrier counts, it does not know who comes: between two
    visits in the same role a thread has to wait for the others somewhere, as all do that are leaves of one barrier and
    roots of it or the next.

    Examples
    --------
    >>> barrier = CounterBarrier(leaves=2, roots=1)
    >>> barrier.leaf()
    >>> barrier
    CounterBarrier(leaves 1 of 2, roots 1 of 1)
    >>> barrier.root(timeout=0.01)
    Traceback (most recent call last):
        ...
    TimeoutError: a root has waited 0.01 s for leaves: 1 of 2 has not come
    >>> barrier.leaf()
    >>> barrier.root()
    >>> barrier
    CounterBarrier(leaves 2 of 2, roots 1 of 1)

    References
    ----------
    Shi et al., Waterwave, section 4.3 and figure 6.
    """

    def __init__(self, leaves: int, roots: int) -> None:
        at_least(1, leaves=leaves, roots=roots)
        self.leaves, self.roots = leaves, roots
        self._prev, self._succ = leaves, roots  # yet to come
        self._moved = Condition()
        self._removed = self._broken = False

    def leaf(self, timeout: float | None = None) -> None:
        """Count one of the pair before as done; wait for the roots of the iteration before if they have not passed.

        Raises
        ------
        TimeoutError
            After so many seconds. Nothing has been counted.
        threading.BrokenBarrierError
            The barrier has been aborted.
        """
        with self._moved:
            if self._passes(lambda: self._prev > 0, timeout):
                self._prev -= 1
                self._wake(self._prev == 0)

    def root(self, timeout: float | None = None) -> None:
        """Wait until all leaves have come, then pass; raises as `leaf` does."""
        with self._moved:
            if self._passes(lambda: self._prev == 0, timeout):
                self._succ -= 1
                if last := self._succ == 0:
                    self._prev, self._succ = self.leaves, self.roots
                self._wake(last)

    def remove(self) -> None:
        """Remove the barrier: threads that wait or come from now on pass."""
        with self._moved:
            self._removed = True
            self._moved.notify_all()

    def abort(self) -> None:
        """Abort: threads that wait or come from now on raise a `threading.BrokenBarrierError`."""
        with self._moved:
            self._broken = True
            self._moved.notify_all()

    def _passes(self, may: Callable[[], bool], timeout: float | None) -> bool:
        """Wait; return whether to count: not once the barrier has been removed."""
        woken = self._moved.wait_for(lambda: self._broken or self._removed or may(), timeout)
        if self._broken:
            raise BrokenBarrierError("the barrier has been aborted")
        if not woken:
            who, whom, left, of = ("leaf", "roots", self._succ, self.roots)
            if self._prev:
                who, whom, left, of = ("root", "leaves", self._prev, self.leaves)
            missing = f"{left} of {of} {'has' if left == 1 else 'have'} not come"
            raise TimeoutError(f"a {who} has waited {timeout:g} s for {whom}: {missing}")
        return not self._removed

    def _wake(self, now: bool) -> None:
        if now:
            self._moved.notify_all()

    def _facts(self) -> Facts:
        return {"leaves": f"{self._prev} of {self.leaves}", "roots": f"{self._succ} of {self.roots}"}
