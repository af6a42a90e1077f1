"""Data flow in an event log: every op finds the values that the unswapped job would read there.

A value's version is the (iteration, op) that wrote it last. The job runs twice in mind::

    unswapped   one place for each buffer               which version an op wants
    by the log  parts on the device, one on the host    which version is where
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpumem.base.errors import CheckError
from gpumem.check.event_log import COPY, RUN, LoggedEvent, objection
from gpumem.trace import Trace

Version = tuple[int, int]
Value = Version | None  # None: nobody wrote it, so any will do

INITIAL: Version = (-1, -1)  # what the job starts from


def values(log: Sequence[LoggedEvent], traces: Mapping[str, Trace]) -> None:
    """Check the data flow of a log whose ops and memory are in order.

    Raises
    ------
    CheckError
        An op reads another version than the unswapped job does, or touches what is not held; two of which one
        writes use a part at once; a part is freed in use; a value that crosses the boundary is nowhere.

    Notes
    -----
    An op touches the part of its buffer that was held last, but for parts in which a rerun has made an earlier version:
    these may lie beside one that holds the buffer, and stay there. So a rerun reads, or changes in place, the last held
    part that has the version it wants. It leaves its statistics alone. The log does not tell the parts that a plan
    finds at the boundary from those made by its first op: a value that is missing in one held at that very instant may
    be seen an iteration late.
    """
    jobs: dict[str, _Job] = {}
    for i, e in enumerate(log):
        try:
            if e.kind == "launch":
                jobs[e.job] = _Job(_Unswapped(traces[e.job]))
                jobs[e.job].launch(e.ns, _first_moved_in(log, i))
            elif e.job in jobs:
                jobs[e.job].follow(e)
        except CheckError as wrong:
            raise objection(wrong.rule, str(wrong), i, e) from None


def _first_moved_in(log: Sequence[LoggedEvent], launch: int) -> set[int]:
    """Buffers that a launched plan finds on the host: it copies them in before it ever copies them out."""
    first: dict[int, str] = {}
    for e in log[launch + 1 :]:
        if e.job == log[launch].job:
            if e.kind in ("adopt", "leave"):
                break
            if e.kind in COPY:
                first.setdefault(e.buffer, e.kind)
    return {b for b, kind in first.items() if kind == "in"}


@dataclass(slots=True)
class _Unswapped:
    """The job without any plan: the version that each buffer holds."""

    trace: Trace
    value: dict[int, Value] = field(init=False)
    made: dict[int, list[int]] = field(init=False)  # op -> buffers that it finds new, without a value
    statistics: list[list[int]] = field(init=False)  # of each op

    def __post_init__(self) -> None:
        self.statistics = self.trace.statistics.tolist()
        self.value, self.made = dict.fromkeys(self.crossing(), INITIAL), {}
        for b in self.trace.buffers:
            if not self.eternal(b.id):
                self.made.setdefault(b.start, []).append(b.id)

    def crossing(self) -> Iterator[int]:
        """Device buffers that carry a value over the boundary."""
        return (
            b.id for b in self.trace.buffers if b.space == "device" and (b.end > self.trace.n or self.eternal(b.id))
        )

    def eternal(self, j: int) -> bool:
        """Whether the buffer is never made anew."""
        b = self.trace.buffers[j]
        return b.persistent and b.end - b.start == self.trace.n

    def touched(self, op: int, *, again: bool = False) -> tuple[set[int], set[int]]:
        """Device buffers that an op reads and writes; its statistics, if it has any, only the first time."""
        ops, host = self.trace.ops, self.trace.buffers.host
        kept = set(self.statistics[op] if again else ())
        reads, writes = ({j for j in rows[op].tolist() if not host[j]} - kept for rows in (ops.reads, ops.writes))
        return reads, writes

    def run(self, iteration: int, op: int) -> dict[int, Value]:
        """Run an op; return what it finds in all that it touches."""
        self.value.update(dict.fromkeys(self.made.get(op, []), None))
        reads, writes = self.touched(op)
        found = {j: self.value.get(j) for j in reads | writes}
        self.value.update(dict.fromkeys(writes, (iteration, op)))
        return found


@dataclass(slots=True, eq=False)
class _Part:
    """Device bytes of one buffer, from hold to free."""

    buffer: int
    value: Value
    remade: bool = False  # its first value is by a rerun
    users: dict[str, bool] = field(default_factory=dict)  # who uses it now, and whether to write

    def use(self, who: str, *, write: bool) -> None:
        for other, writes in self.users.items():
            if write or writes:
                raise CheckError("race", f"{who} {_verb(write)} buffer {self.buffer} while {other} {_verb(writes)} it")
        self.users[who] = write


def _verb(write: bool) -> str:
    return "writes" if write else "reads"


@dataclass(slots=True)
class _Job:
    """One job by the log."""

    unswapped: _Unswapped
    parts: dict[int, dict[int, _Part]] = field(default_factory=dict)  # of each buffer, in the order of their holds
    host: dict[int, Value] = field(default_factory=dict)
    read: dict[int, dict[int, Value]] = field(default_factory=dict)  # what each op of this iteration wanted
    using: list[_Part] = field(default_factory=list)  # what the running op writes or reads
    moving: dict[int, Value] = field(default_factory=dict)  # what the host held when a copy into a part began
    boundary: int = -1  # when a plan was taken: parts are renumbered, and what is freed at that instant is held again
    freed: dict[int, Value] = field(default_factory=dict)  # what was freed since then

    def launch(self, ns: int, on_host: set[int]) -> None:
        """Values are made where the plan wants them."""
        self.boundary = ns
        for j in self.unswapped.crossing():
            self.freed[j] = INITIAL
            if j in on_host:
                self.host[j] = INITIAL

    def follow(self, e: LoggedEvent) -> None:
        if e.kind in RUN:
            self.begin(e)
        elif e.kind in RUN.values():
            self.end(e)
        elif e.kind == "hold":
            value = self.freed.pop(e.buffer, None)
            self.of(e.buffer)[e.part] = _Part(e.buffer, value if e.ns == self.boundary else None)
        elif e.kind == "free":
            part = self.of(e.buffer).pop(e.part)
            if part.users:
                raise CheckError("race", f"buffer {e.buffer} is freed while {next(iter(part.users))} uses it")
            self.freed[e.buffer] = part.value
        elif e.kind in COPY or e.kind in COPY.values():
            if e.part not in self.of(e.buffer):
                raise CheckError("held", f"part {e.part} of buffer {e.buffer} is not held")
            self.copy(e, self.of(e.buffer)[e.part])
        elif e.kind == "adopt":
            self.boundary = e.ns
            self.freed.clear()
        elif e.kind == "iteration":
            self.nothing_lost()

    def of(self, buffer: int) -> dict[int, _Part]:
        """The parts of a buffer that are held."""
        return self.parts.setdefault(buffer, {})

    def begin(self, e: LoggedEvent) -> None:
        """Check the operands of an op that starts."""
        self.boundary, again = -1, e.kind != "start"
        if not again:
            self.read[e.op] = self.unswapped.run(e.iteration, e.op)
        reads, writes = self.unswapped.touched(e.op, again=again)
        for j in sorted(reads | writes):
            held = list(self.of(j).values())
            if not held:
                raise CheckError("held", f"op {e.op} {_verb(j not in reads)} buffer {j}, which is not held")
            found = self.read[e.op].get(j)
            part, want = held[-1], found if j in reads else None
            if again and want is not None:
                part = next((p for p in reversed(held) if p.value == want), part)
            elif not again:
                part = next((p for p in reversed(held) if not p.remade or p.value == found), part)
            part.remade |= again and part.value is None
            if want is not None and part.value != want:
                raise CheckError("value", f"op {e.op} reads version {part.value} of buffer {j} instead of {want}")
            part.use(f"op {e.op}", write=j in writes)
            self.using.append(part)

    def end(self, e: LoggedEvent) -> None:
        """Let the op's results appear."""
        for part in self.using:
            if part.users.pop(f"op {e.op}"):
                part.value = e.iteration, e.op
        self.using.clear()

    def copy(self, e: LoggedEvent, part: _Part) -> None:
        """Begin or end a copy; one from a host buffer that changes meanwhile brings nothing."""
        if e.kind == "out":
            part.use("a copy-out", write=False)
        elif e.kind == "out_end":
            del part.users["a copy-out"]
            self.host[e.buffer] = part.value
        elif e.kind == "in":
            part.use("a copy-in", write=True)
            self.moving[e.part] = self.host.get(e.buffer)
        else:
            del part.users["a copy-in"]
            unchanged = self.moving.pop(e.part) == self.host.get(e.buffer)
            part.value = self.host.get(e.buffer) if unchanged else None

    def nothing_lost(self) -> None:
        """Each value that crosses the boundary is somewhere."""
        for j in self.unswapped.crossing():
            want = self.unswapped.value[j]
            if want not in (None, self.host.get(j), *(p.value for p in self.of(j).values())):
                raise CheckError("lost value", f"nobody holds version {want} of buffer {j}, which crosses the boundary")
