"""Which activations a compiled model saves, chosen by what its graphs then hold: a solver for PyTorch's partitioner."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpumem.base.arguments import strict
from gpumem.base.units import amount, exact, human
from gpumem.torch.compiled.frontier import Frontier, search
from gpumem.torch.compiled.splits import Splits
from gpumem.torch.internals import torch
from gpumem.torch.internals.partitioner import knapsack_solver

ALWAYS = 1e-9  # a budget at which PyTorch asks its solver: at 0 it recomputes all and does not ask; not tuned


@dataclass(frozen=True, slots=True)
class ChosenSplit:
    """What was chosen for one graph.

    Attributes
    ----------
    asked : int
        Bytes that the budget or the limit came to.
    peak : int
        Peak live bytes of the forward and the backward graph: parameters, inputs and results included.
    recomputed : float
        What the backward graph recomputes, by the estimate that PyTorch is configured to use: flops by default.
    least, full : int
        The least peak that was found, and that of the split PyTorch makes at budget 1.
    tried : int
        Splits that were evaluated.
    """

    asked: int
    peak: int
    recomputed: float
    least: int
    full: int
    tried: int

    def __str__(self) -> str:
        return (
            f"holds {human(self.peak)}, asked {human(self.asked)} (between {human(self.least)} and {human(self.full)})"
        )


class Solver:
    """What `solver` returns. `chosen` has what it chose, one for each time that PyTorch asked."""

    def __init__(self, budget: float | None, limit: int | str | None) -> None:
        self.budget, self.limit = budget, limit
        self.chosen: list[ChosenSplit] = []
        self._last: tuple[weakref.ref[Any], Splits, Frontier] | None = None
        knapsack_solver().register(type(self))

    @property
    def settings(self) -> dict[str, Any]:
        """What to patch into `torch._functorch.config`, so that PyTorch asks this solver."""
        own = self.budget is not None or self.limit is not None
        asks = {"activation_memory_budget": ALWAYS} if own else {}
        return {"activation_memory_budget_solver": self, **asks}

    def __call__(
        self, memory: Sequence[float], graph: Any, budget: float, info: Any, ops: Sequence[Any]
    ) -> tuple[list[int], list[int]]:
        """Return the positions in `ops` of those saved, and of those that may be recomputed. PyTorch calls this."""
        if self._last is None or self._last[0]() is not graph:
            splits = Splits(graph, info, ops)
            self._last = (weakref.ref(graph), splits, search(splits, memory))
        _, splits, frontier = self._last
        least = frontier.points[0].peak
        full = splits.given[0].peak if splits.given[0] else frontier.points[-1].peak
        asked = self._asked(budget, least, full, splits)
        point = frontier.within(asked)
        self.chosen.append(
            ChosenSplit(asked, peak=point.peak, recomputed=point.recomputed, least=least, full=full, tried=splits.tried)
        )
        if point.peak > asked and self.limit is not None:
            warnings.warn(f"limit {exact(asked)}: the least that was found holds {exact(point.peak)}", stacklevel=2)
        splits.tag(point.base)
        recomputed = set(point.ops)
        return [k for k in range(len(ops)) if k not in recomputed], sorted(recomputed)

    def _asked(self, budget: float, least: int, full: int, splits: Splits) -> int:
        """Return the bytes asked for; where PyTorch did not ask at larger budgets, no more than what it then took."""
        if self.limit is not None:
            return amount(self.limit, full, "limit")
        asked = least + int((budget if self.budget is None else self.budget) * max(full - least, 0))
        return asked if self.budget is not None else min([asked, *(s.peak for s in splits.given if s)])

    def uuid(self) -> str:
        """Return what compiled graphs are cached by: this code, and what is asked for."""
        parts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
        return sha256("\n".join([*parts, torch.__version__, repr((self.budget, self.limit))]).encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {"budget": self.budget, "limit": self.limit, "chosen": [], "_last": None}

    def __deepcopy__(self, memo: Any) -> Solver:
        return self  # configurations are copied; what was chosen is to be seen in this one

    def __repr__(self) -> str:
        given = {"budget": self.budget, "limit": self.limit}
        return f"solver({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)})"


@strict
def solver(budget: float | None = None, limit: int | str | None = None) -> Solver:
    """Return a solver for `torch._functorch.config.activation_memory_budget_solver`.

    PyTorch splits the joint graph of a compiled model into a forward and a backward graph, and asks a solver which
    costly ops the backward graph recomputes. Its own ones count the bytes saved in between. This one counts the peak
    live bytes of both graphs, storage by storage, in the order they run: it takes the split of least recomputation
    within the bytes that a budget comes to.

    Parameters
    ----------
    budget : float, optional
        Between the least peak that is found (0) and that of the split PyTorch makes at its budget 1. Left out, it is
        `torch._functorch.config.activation_memory_budget`; but PyTorch asks no solver where it finds its ratio of saved
        bytes small enough.
    limit : int or str, optional
        Bytes to be held at most, or a text such as `"2GiB"` or `"70%"` (of the peak at budget 1), in place of a budget.

    Returns
    -------
    Solver
        To be called by PyTorch. `settings` is what to patch into its configuration, `chosen` what was chosen.

    Raises
    ------
    ValueError
        The budget is not in 0 to 1, the limit is no amount, or both are given.
    NoSolver
        This PyTorch has no such solver, or splits graphs another way (as the model is compiled).

    Warns
    -----
    UserWarning
        Nothing was found within the limit; the least that was found is taken.

    Notes
    -----
    The search knows of no budget, so the peak never rises as the budget falls. It starts from what PyTorch's own
    knapsack chooses for 21 budgets, so that at the peak of one of these no more is recomputed. It evaluates 400,000
    nodes of splits, some seconds, and is deterministic. Ops that draw random numbers, and those that read what the
    forward graph overwrites, are never recomputed. Kernels' workspaces and what a compiler fuses away are not known. On
    PyTorch 2.12 what calls the graphs holds some saved values for longer than they do: up to 10 % more in our nets.

    Examples
    --------
    >>> import torch
    >>> from torch._functorch import config
    >>> net = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())])
    >>> half = solver(budget=0.5)
    >>> with config.patch(half.settings):
    ...     torch.compile(net, backend="aot_eager")(torch.randn(512, 64)).sum().backward()
    >>> print(half.chosen[0])
    holds 1.64 MiB, asked 1.88 MiB (between 1.27 MiB and 2.50 MiB)
    """
    if budget is not None and limit is not None:
        raise ValueError(f"budget {budget} and limit {limit!r}: either says what is asked for, give one of them")
    if budget is not None and not 0 <= budget <= 1:
        raise ValueError(f"budget {budget} must be between 0 (the least peak) and 1 (that of the fastest split)")
    if limit is not None:
        amount(limit, 2**40, "limit")
    return Solver(budget, limit)
