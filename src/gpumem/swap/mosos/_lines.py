"""Rows of a program, one at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpumem.swap.linear_programs import Rows

Terms = Iterable[tuple[int, float]]  # columns with their coefficients; column -1 is a variable that is 0


class Lines:
    """Rows of a program, as triplets, until they are put `into` it."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.right: list[float] = []
        self.exact: list[int] = []

    def at_most(self, terms: Terms, right: float = 0.0) -> None:
        """Add a row `terms <= right`, unless all its variables are 0."""
        there = [(column, value) for column, value in terms if column >= 0]
        if there and sum(value for _, value in there if value > 0) > right:  # else it holds whatever they are
            self._add(there, right)

    def exactly(self, terms: Terms, right: float) -> None:
        """Add a row `terms = right`."""
        self.exact.append(len(self.right))
        self._add([(column, value) for column, value in terms if column >= 0], right)

    def _add(self, there: list[tuple[int, float]], right: float) -> None:
        self.row += [len(self.right)] * len(there)
        self.column += [int(column) for column, _ in there]
        self.value += [float(value) for _, value in there]
        self.right.append(right)

    def into(self, rows: Rows) -> None:
        """Put the rows into a program, those that are exact first."""
        exact = np.zeros(len(self.right), np.bool_)
        exact[self.exact] = True
        place, right = np.empty(len(exact), np.int64), np.array(self.right)
        for kind in (True, False):
            place[exact == kind] = rows.add(right[exact == kind], exact=kind)
        rows.put(place[np.array(self.row, np.int64)], np.array(self.column, np.int64), np.array(self.value))
