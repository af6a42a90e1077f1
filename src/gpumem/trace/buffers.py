"""The buffers of a trace: columns inside, a record for each at the edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from gpumem.base.display import Facts, Shown, frame
from gpumem.base.units import human
from gpumem.trace.columns import I64, UNKNOWN, Bool, column, dimensions, int_column, position
from gpumem.trace.csr import joined, taken

if TYPE_CHECKING:
    from pandas import DataFrame

Shape = tuple[int, ...]

SPACES = ("device", "host")


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer, as a record for reading."""

    id: int
    size: int
    start: int
    end: int
    persistent: bool
    space: str
    kind: str
    of: int
    name: str
    shape: Shape | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Buffers(Shown):
    """Columns over buffers: `size` (bytes), `start`, `end` (steps), `persistent`, `host`, `kind`, `of`, ...

    `persistent`: the value survives the boundary (parameter, optimiser state). `host`: lives in pinned
    host memory. `of`: the buffer's id in the recorded file; pieces of one buffer share it. `shape`, `dtype`: of the
    tensor in it, None and "" where nobody told; None altogether in a trace that knows none.
    """

    size: I64
    start: I64
    end: I64
    persistent: Bool
    host: Bool
    kind: tuple[str, ...]
    of: I64
    name: tuple[str, ...]
    shape: tuple[Shape | None, ...] | None = None
    dtype: tuple[str, ...] | None = None

    @classmethod
    def make(  # noqa: PLR0913  a column each, by keyword
        cls,
        size: ArrayLike,
        start: ArrayLike,
        end: ArrayLike,
        *,
        persistent: ArrayLike | None = None,
        host: ArrayLike | None = None,
        kind: Sequence[str] | None = None,
        of: ArrayLike | None = None,
        name: Sequence[str] | None = None,
        shape: Sequence[Sequence[int] | None] | None = None,
        dtype: Sequence[str] | None = None,
    ) -> Buffers:
        """Build the columns; what is left out is False, `""`, the position, and no shapes."""
        sizes = int_column(size, "buffers: size")
        count = len(sizes)
        return cls(
            sizes,
            int_column(start, "buffers: start"),
            int_column(end, "buffers: end"),
            column(persistent, count, False, "buffers: persistent"),
            column(host, count, False, "buffers: host"),
            ("",) * count if kind is None else tuple(kind),
            np.arange(count, dtype=np.int64) if of is None else int_column(of, "buffers: of"),
            ("",) * count if name is None else tuple(name),
            None if shape is None else tuple(_shape(buffer, dims) for buffer, dims in enumerate(shape)),
            None if dtype is None else tuple(dtype),
        )

    def take(self, rows: I64) -> Buffers:
        """Return rows `rows[0]`, `rows[1]`, ...; -1 stands for a new row: no bytes, no lifetime, nothing known of it.

        >>> Buffers.make([8, 9], [0, 1], [3, 2], kind=["param", "temp"]).take(np.array([1, -1, 1])).kind
        ('temp', '', 'temp')
        """
        fresh = Buffers.make([0], [0], [0], of=[UNKNOWN], shape=[None], dtype=[""])
        return Buffers(*(taken(getattr(self, what), getattr(fresh, what), rows) for what in self.__slots__))

    @classmethod
    def joined(cls, tables: Sequence[Buffers]) -> Buffers:
        """Return the rows of several tables, one behind the other; what one of them does not tell is unknown there.

        >>> Buffers.joined([Buffers.make([8], [0], [1]), Buffers.make([4], [0], [1], dtype=["f4"])]).dtype
        ('', 'f4')
        """
        rows: dict[str, list[Any]] = {what: [getattr(table, what) for table in tables] for what in cls.__slots__}
        for what, nothing in (("shape", None), ("dtype", "")):
            if any(column is not None for column in rows[what]):
                rows[what] = [column or (nothing,) * len(table) for column, table in zip(rows[what], tables)]
        return cls(*(joined(columns) for columns in rows.values()))

    def extended(
        self, size: ArrayLike, start: ArrayLike, end: ArrayLike, *, kind: str, name: Sequence[str] | None = None
    ) -> Buffers:
        """Return the table with more rows behind it: buffers of one kind, of which nothing else is known.

        >>> Buffers.make([8], [0], [3]).extended([4, 2], [1, 2], [2, 3], kind="workspace").size
        array([8, 4, 2])
        """
        old, sizes = len(self), int_column(size, "buffers: size")
        table = self.take(np.append(np.arange(old), np.full(len(sizes), -1)))
        table.size[old:], table.start[old:], table.end[old:] = sizes, start, end
        names = ("",) * len(sizes) if name is None else name
        return replace(table, kind=(*self.kind, *[kind] * len(sizes)), name=(*self.name, *names))

    def _facts(self) -> Facts:
        host = int(self.size[self.host].sum())
        device = int(self.size.sum()) - host
        persistent = int(self.persistent.sum())
        return {"buffers": len(self), "persistent": persistent, "device": human(device), "host": human(host)}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row a buffer; needs `gpumem[pandas]`.

        `bytes`; `start`, `end` (steps); `persistent`; `space` (`device` or `host`); `kind`; `of` (the buffer's id in
        the recorded file, `<NA>` where it has none); `name`; `shape`, `dtype` where any is known.
        """
        space = [SPACES[int(host)] for host in self.host]
        rows = {"bytes": self.size, "start": self.start, "end": self.end, "persistent": self.persistent, "space": space}
        more: dict[str, Any] = {"kind": self.kind, "of": self.of, "name": self.name}
        more |= {what: list(getattr(self, what)) for what in ("shape", "dtype") if getattr(self, what) is not None}
        return frame(rows | more, index="buffer", absent=UNKNOWN, integers=["of"])

    def __len__(self) -> int:
        return len(self.size)

    def __getitem__(self, buffer: int) -> Buffer:
        buffer = position(buffer, len(self), "buffer")
        return Buffer(
            buffer,
            int(self.size[buffer]),
            start=int(self.start[buffer]),
            end=int(self.end[buffer]),
            persistent=bool(self.persistent[buffer]),
            space=SPACES[int(self.host[buffer])],
            kind=self.kind[buffer],
            of=int(self.of[buffer]),
            name=self.name[buffer],
            shape=None if self.shape is None else self.shape[buffer],
            dtype="" if self.dtype is None else self.dtype[buffer],
        )

    def __iter__(self) -> Iterator[Buffer]:
        """Go through all records; columns become lists first, as single numbers of an array take ten times as long."""
        space = [SPACES[row] for row in self.host.tolist()]
        numbers = (column.tolist() for column in (self.size, self.start, self.end, self.persistent))
        shape, dtype = self.shape or repeat(None), self.dtype or repeat("")
        return map(Buffer, range(len(self)), *numbers, space, self.kind, self.of.tolist(), self.name, shape, dtype)


def _shape(buffer: int, dims: Sequence[int] | None) -> Shape | None:
    return None if dims is None else dimensions(dims, f"buffer {buffer}: shape")
