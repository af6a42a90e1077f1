"""Rows of integers of different lengths, and rows taken of any column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpumem.base.display import Facts, Shown
from gpumem.trace.columns import I64, Bool, int_column


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Csr(Shown):
    """Rows of integers of different lengths: row `i` is `idx[ptr[i]:ptr[i + 1]]`.

    >>> rows = Csr.of([[1, 2], [], [0]])
    >>> rows[0], len(rows), rows.tolist()
    (array([1, 2]), 3, [[1, 2], [], [0]])
    """

    ptr: I64
    idx: I64

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], what: str = "rows") -> Csr:
        """Pack a list of lists."""
        if not hasattr(rows, "__len__") or isinstance(rows, str):
            raise TypeError(f"{what}: {rows!r:.60} is no list of rows; each row is a list of integers")
        for i, row in enumerate(rows):
            if not hasattr(row, "__len__") or isinstance(row, str):
                raise TypeError(f"{what}[{i}]: {row!r:.60} is no list of integers; each row is a list")
        ptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=ptr[1:])
        return cls(ptr, int_column([entry for row in rows for entry in row], what))

    @classmethod
    def grouped(cls, row: I64, idx: I64, count: int) -> Csr:
        """Put each entry of `idx` into its row, of `count` rows; within a row the order stays.

        >>> Csr.grouped(np.array([2, 0, 2]), np.array([7, 8, 9]), 3).tolist()
        [[8], [], [7, 9]]
        """
        order = np.argsort(row, kind="stable")
        return cls(np.searchsorted(row[order], np.arange(count + 1)).astype(np.int64), idx[order])

    def _facts(self) -> Facts:
        return {"rows": len(self), "entries": len(self.idx)}

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> I64:
        return self.idx[self.ptr[row] : self.ptr[row + 1]]

    def rows(self) -> I64:
        """Return the row number of each entry of `idx`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.ptr))

    def take(self, order: I64) -> Csr:
        """Return rows `order[0]`, `order[1]`, ...

        >>> Csr.of([[1, 2], [], [0]]).take(np.array([2, 0])).tolist()
        [[0], [1, 2]]
        """
        length = np.diff(self.ptr)[order]
        ptr = np.concatenate([[0], np.cumsum(length)])
        inside = np.arange(ptr[-1]) - np.repeat(ptr[:-1], length)
        return Csr(ptr, self.idx[np.repeat(self.ptr[order], length) + inside])

    def sums(self, values: I64 | Bool) -> I64:
        """Return for each row the sum of `values` at its entries, int64[rows].

        >>> Csr.of([[1, 2], [], [0]]).sums(np.array([10, 20, 30]))
        array([50,  0, 10])
        """
        through = np.concatenate([[0], np.cumsum(values[self.idx], dtype=np.int64)])
        return np.asarray(through[self.ptr[1:]] - through[self.ptr[:-1]], np.int64)

    def tolist(self) -> list[list[int]]:
        """Unpack into a list of lists."""
        flat, cut = self.idx.tolist(), self.ptr.tolist()
        return [flat[cut[row] : cut[row + 1]] for row in range(len(self))]


def taken(values: Any, fresh: Any, rows: I64) -> Any:
    """Return rows of a column, or of none; -1 stands for the one row of `fresh`."""
    if values is None:
        return None
    if isinstance(values, Csr):
        return Csr(np.append(values.ptr, values.ptr[-1]), values.idx).take(np.where(rows < 0, len(values), rows))
    if isinstance(values, tuple):
        more = (*values, *fresh)
        return tuple(more[row] for row in rows.tolist())
    return np.append(values, fresh)[rows]


def joined(columns: Sequence[Any]) -> Any:
    """Return the rows of several columns of one kind, or of none, one behind the other.

    >>> joined([Csr.of([[0], [1]]), Csr.of([[0, 1]])]).tolist()
    [[0], [1], [0, 1]]
    >>> joined([("a",), ("b", "c")])
    ('a', 'b', 'c')
    """
    if all(column is None for column in columns):
        return None
    if isinstance(columns[0], Csr):
        ends = np.cumsum([0, *(len(rows.idx) for rows in columns)])
        ptr = np.concatenate([[0], *(rows.ptr[1:] + end for rows, end in zip(columns, ends))])
        return Csr(ptr.astype(np.int64), np.concatenate([rows.idx for rows in columns]))
    if isinstance(columns[0], tuple):
        return tuple(value for column in columns for value in column)
    return np.concatenate(columns)
