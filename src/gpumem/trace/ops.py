"""The ops of a trace in issue order: columns inside, a record for each at the edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from gpumem.base.display import Facts, Shown, clipped, frame
from gpumem.trace.columns import F64, I64, UNKNOWN, Bool, column, int_column, position
from gpumem.trace.csr import Csr, joined, taken

if TYPE_CHECKING:
    from pandas import DataFrame

Attributes = Mapping[str, Any]  # of an op, by name

COMPUTE, COPY_OUT, COPY_IN, RECOMPUTE, SYNC = range(5)  # indices into `ROLES`
ROLES = ("compute", "copy_out", "copy_in", "recompute", "sync")
THE_HOST = "host"  # who launches ops of which nobody says more
NAMES = ("streams", "hosts")  # columns of `Ops` that name what others count


@dataclass(frozen=True, slots=True)
class Op:
    """One op, as a record for reading."""

    id: int
    name: str
    stream: str
    role: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    duration: int
    of: int
    host: str = THE_HOST
    blocking: bool = False
    attributes: Attributes | None = field(default=None, hash=False)  # a dict has no hash
    module: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ops(Shown):
    """Columns over ops, in issue order.

    `name`; `reads`, `writes` (buffer ids, CSR; an op that changes a buffer in place lists it in both);
    `stream` (index into `streams`); `duration` (ns, -1 where nobody measured it), `flops`, `moved`
    (bytes, for a roofline); `role` (index into `ROLES`); `of` (index in the recorded file, -1 for copies);
    `rng` (draws random numbers; a recomputation draws the same ones again); `statistics` (buffer ids, CSR: what the op
    keeps account of, and no other of its outputs depends on; None: by kind, see `Trace.statistics`); `host` (index into
    `hosts`: the host thread that launches the op), `blocking` (that thread waits for the op, see
    `gpumem.simulator.simulate`); `attributes` (of the op, as a convolution's stride) and `module` (where it stands in
    the model), None where no op of the trace has any.
    """

    name: tuple[str, ...]
    reads: Csr
    writes: Csr
    stream: I64
    streams: tuple[str, ...]
    duration: I64
    flops: F64
    moved: F64
    role: I64
    of: I64
    rng: Bool
    statistics: Csr | None
    host: I64
    hosts: tuple[str, ...]
    blocking: Bool
    attributes: tuple[Attributes | None, ...] | None = None
    module: tuple[str, ...] | None = None

    @classmethod
    def make(  # noqa: PLR0913  a column each, by keyword
        cls,
        reads: Csr | Sequence[Sequence[int]],
        writes: Csr | Sequence[Sequence[int]],
        *,
        name: Sequence[str] | None = None,
        stream: ArrayLike | None = None,
        streams: Sequence[str] = ("compute",),
        duration: ArrayLike | None = None,
        flops: ArrayLike | None = None,
        moved: ArrayLike | None = None,
        role: ArrayLike | None = None,
        of: ArrayLike | None = None,
        rng: ArrayLike | None = None,
        statistics: Csr | Sequence[Sequence[int]] | None = None,
        host: ArrayLike | None = None,
        hosts: Sequence[str] = (THE_HOST,),
        blocking: ArrayLike | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        module: Sequence[str] | None = None,
    ) -> Ops:
        """Build the columns; what is left out is one compute stream of unmeasured ops, launched by one host."""
        read_rows = reads if isinstance(reads, Csr) else Csr.of(reads, "ops: reads")
        write_rows = writes if isinstance(writes, Csr) else Csr.of(writes, "ops: writes")
        n = len(read_rows)
        kept = (
            statistics if statistics is None or isinstance(statistics, Csr) else Csr.of(statistics, "ops: statistics")
        )
        return cls(
            ("",) * n if name is None else tuple(name),
            read_rows,
            write_rows,
            column(stream, n, 0, "ops: stream"),
            tuple(streams),
            column(duration, n, UNKNOWN, "ops: duration"),
            column(flops, n, 0.0, "ops: flops"),
            column(moved, n, 0.0, "ops: moved"),
            column(role, n, COMPUTE, "ops: role"),
            np.arange(n, dtype=np.int64) if of is None else int_column(of, "ops: of"),
            column(rng, n, False, "ops: rng"),
            kept,
            column(host, n, 0, "ops: host"),
            tuple(hosts),
            column(blocking, n, False, "ops: blocking"),
            None if attributes is None else _mappings(attributes),
            None if module is None else tuple(module),
        )

    @classmethod
    def joined(cls, tables: Sequence[Ops]) -> Ops:
        """Return the ops of several tables, one behind the other, as if all named streams and hosts as the first does.

        They touch what they touched, so their ids are those of tables of buffers of their own. What one table does not
        tell is unknown there; statistics must be told of all or of none.

        >>> a, b = Ops.make([[0]], [[]], name=["a"]), Ops.make([[1]], [[]], name=["b"], module=["net"])
        >>> Ops.joined([a, b]).name, Ops.joined([a, b]).reads.tolist(), Ops.joined([a, b]).module
        (('a', 'b'), [[0], [1]], ('', 'net'))
        """
        rows = {what: [getattr(table, what) for table in tables] for what in cls.__slots__}
        for what, nothing in (("attributes", None), ("module", "")):
            if any(column is not None for column in rows[what]):
                rows[what] = [column or (nothing,) * len(table) for column, table in zip(rows[what], tables)]
        return cls(*(columns[0] if what in NAMES else joined(columns) for what, columns in rows.items()))

    def take(self, rows: I64) -> Ops:
        """Return ops `rows[0]`, `rows[1]`, ...; -1 stands for a new one that touches nothing.

        >>> ops = Ops.make([[0], []], [[], [0]], name=["read", "write"]).take(np.array([1, -1]))
        >>> ops.name, ops.writes.tolist(), ops.of
        (('write', ''), [[0], []], array([ 1, -1]))
        """
        fresh = Ops.make([[]], [[]], of=[UNKNOWN], statistics=[[]], attributes=[None], module=[""])
        return Ops(
            *(
                getattr(self, what) if what in NAMES else taken(getattr(self, what), getattr(fresh, what), rows)
                for what in self.__slots__
            )
        )

    @property
    def copies(self) -> Bool:
        """Which ops are copies between the device and the host, bool[n].

        >>> Ops.make([[0], [1]], [[1], [0]], role=[COPY_OUT, RECOMPUTE]).copies
        array([ True, False])
        """
        return np.asarray((self.role == COPY_OUT) | (self.role == COPY_IN), np.bool_)

    def _facts(self) -> Facts:
        measured, streams = int((self.duration != UNKNOWN).sum()), clipped(", ".join(self.streams), 80)
        return {"ops": len(self), "copies": int(self.copies.sum()), "measured": measured, "on": streams}

    def to_pandas(self) -> DataFrame:
        """Return a table with a row an op; needs `gpumem[pandas]`.

        `name`; `stream`, `role` (names); `reads`, `writes` (lists of buffers); `duration_ns` (`<NA>` where nobody
        measured it), `flops`, `moved_bytes`; `rng`; `of` (the op's index in the recorded file, `<NA>` for copies);
        `host` (its name), `blocking`; `attributes`, `module` where any is known.
        """
        rows: dict[str, Any] = {
            "name": self.name,
            "stream": [self.streams[k] for k in self.stream.tolist()],
            "role": [ROLES[k] for k in self.role.tolist()],
            "reads": self.reads.tolist(),
            "writes": self.writes.tolist(),
            "duration_ns": self.duration,
            "flops": self.flops,
            "moved_bytes": self.moved,
            "rng": self.rng,
            "of": self.of,
            "host": [self.hosts[k] for k in self.host.tolist()],
            "blocking": self.blocking,
        }
        rows |= {c: list(getattr(self, c)) for c in ("attributes", "module") if getattr(self, c) is not None}
        return frame(rows, index="op", absent=UNKNOWN, integers=["duration_ns", "of"])

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, op: int) -> Op:
        op = position(op, len(self), "op")
        return Op(
            op,
            self.name[op],
            stream=self.streams[self.stream[op]],
            role=ROLES[self.role[op]],
            reads=tuple(self.reads[op].tolist()),
            writes=tuple(self.writes[op].tolist()),
            duration=int(self.duration[op]),
            of=int(self.of[op]),
            host=self.hosts[self.host[op]],
            blocking=bool(self.blocking[op]),
            attributes=None if self.attributes is None else self.attributes[op],
            module="" if self.module is None else self.module[op],
        )

    def __iter__(self) -> Iterator[Op]:
        """Go through all records; see `Buffers`."""
        stream, role = [self.streams[k] for k in self.stream.tolist()], [ROLES[k] for k in self.role.tolist()]
        rows = (map(tuple, csr.tolist()) for csr in (self.reads, self.writes))
        numbers = (self.duration.tolist(), self.of.tolist())
        host, blocking = [self.hosts[k] for k in self.host.tolist()], self.blocking.tolist()
        more = self.attributes or repeat(None), self.module or repeat("")
        return map(Op, range(len(self)), self.name, stream, role, *rows, *numbers, host, blocking, *more)


def _mappings(rows: Sequence[Attributes | None]) -> tuple[Attributes | None, ...]:
    for op, row in enumerate(rows):
        if row is not None and not isinstance(row, Mapping):
            raise ValueError(f"ops: attributes of op {op}: {row!r:.60} is no mapping")
    return tuple(rows)
