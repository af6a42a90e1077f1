"""Assumptions: what a program asked of values that are not known, and what it was answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpumem.base.names import one_of
from gpumem.torch.step.workload import WorkloadError

NOTHING, BALANCED, WORST = "none", "balanced", "worst"
ASSUME = (NOTHING, BALANCED, WORST)
NAMED = 3  # assumptions that a warning names; not tuned
TELL = "say what to assume (assume='balanced' or 'worst'; --assume), or record on device='cpu'"


@dataclass(frozen=True, slots=True)
class Assumption:
    """An answer that does not follow from the program alone.

    `place` is the module, or the step, and the line of the program; `asked` the op whose result was asked for, and how;
    `times`, over all iterations that were recorded or warmed up.
    """

    place: str
    asked: str
    answer: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.asked} in {self.place}: {self.answer}"


def notes_of(assumptions: tuple[Assumption, ...]) -> tuple[str, ...]:
    """The line that warns of them, with the first three."""
    if not assumptions:
        return ()
    more = f"; {len(assumptions) - NAMED} more" if len(assumptions) > NAMED else ""
    return (f"assumed, since nothing computes it without a device: {'; '.join(map(str, assumptions[:NAMED]))}{more}",)


class Assumptions:
    """What has been assumed so far.

    Parameters
    ----------
    policy : str, optional
        `none`: whoever asks is refused. `balanced`, `worst`: how many are chosen, where sizes depend on it: each class
        as often, and half of each mask; all the same class, and all of each mask. Left out, sizes are refused.
    """

    def __init__(self, policy: str | None = None) -> None:
        if policy is not None:
            one_of("assume", policy, ASSUME)
        self.policy = policy
        self._assumed: Counter[tuple[str, str, str]] = Counter()

    def note(self, place: str, asked: str, answer: object) -> None:
        """Write an answer down; refuse it where nothing is to be assumed."""
        if self.policy == NOTHING:
            raise WorkloadError(
                f"{asked} in {place}: the answer depends on what the net computes; nothing is to be assumed"
            )
        self._assumed[place, asked, f"{answer}"] += 1

    @property
    def sizes(self) -> str:
        """What is assumed of sizes; nothing where they are refused."""
        return self.policy if self.policy in (BALANCED, WORST) else ""

    @property
    def made(self) -> tuple[Assumption, ...]:
        """All of them, in order."""
        return tuple(Assumption(*what, times) for what, times in self._assumed.items())
