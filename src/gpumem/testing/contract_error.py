"""What all contracts raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem.testing.requests import Request


class ContractError(AssertionError):
    """An allocator or a planner broke a rule.

    Parameters
    ----------
    rule : str
        Which: a key of `RULES`, or of `PLANNER_RULES`.
    reason : str
        What happened, in one line.
    log : sequence of str
        What led to it, one request a line; the last one broke the rule.
    requests : sequence of Request
        The same as values, to be replayed.

    Examples
    --------
    >>> print(ContractError("overlap", "inside the live block [0, 3)", ["p0 = a.allocate(3)", "p1 = a.allocate(4)"]))
    overlap: inside the live block [0, 3)
        p0 = a.allocate(3)
        p1 = a.allocate(4)
    """

    def __init__(self, rule: str, reason: str, log: Sequence[str] = (), requests: Sequence[Request] = ()) -> None:
        self.rule, self.reason, self.log, self.requests = rule, reason, tuple(log), tuple(requests)
        super().__init__("\n    ".join([f"{rule}: {reason}", *log]))
