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
    An op touches the part of its buffer that was held last, but for parts in which a recomputation has made an earlier
    version: these may lie beside one that holds the buffer, and stay there. So a recomputed op reads, or changes in
    place, the last held part that has the version it wants. It leaves its statistics alone. The log does not tell the
    parts that a plan finds at the boundary from those made by its first op: a value that is missing in one held at that
    very instant may be seen an iteration late.
    """
    jobs: dict[str, _Job] = {}
    for index, event in enumerate(log):
        try:
            if event.kind == "launch":
                jobs[event.job] = _Job(_Unswapped(traces[event.job]))
                jobs[event.job].launch(event.ns, _first_moved_in(log, index))
            elif event.job in jobs:
                jobs[event.job].follow(event)
        except CheckError as wrong:
            raise objection(wrong.rule, str(wrong), index, event) from None


def _first_moved_in(log: Sequence[LoggedEvent], launch: int) -> set[int]:
    """Buffers that a launched plan finds on the host: it copies them in before it ever copies them out."""
    first: dict[int, str] = {}
    for event in log[launch + 1 :]:
        if event.job == log[launch].job:
            if event.kind in ("adopt", "leave"):
                break
            if event.kind in COPY:
                first.setdefault(event.buffer, event.kind)
    return {buffer for buffer, kind in first.items() if kind == "in"}


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
        for buffer in self.trace.buffers:
            if not self.eternal(buffer.id):
                self.made.setdefault(buffer.start, []).append(buffer.id)

    def crossing(self) -> Iterator[int]:
        """Device buffers that carry a value over the boundary."""
        return (
            buffer.id
            for buffer in self.trace.buffers
            if buffer.space == "device" and (buffer.end > self.trace.n or self.eternal(buffer.id))
        )

    def eternal(self, buffer: int) -> bool:
        """Whether the buffer is never made anew."""
        row = self.trace.buffers[buffer]
        return row.persistent and row.end - row.start == self.trace.n

    def touched(self, op: int, *, is_recompute: bool = False) -> tuple[set[int], set[int]]:
        """Device buffers that an op reads and writes; its statistics, if it has any, only the first time."""
        ops, host = self.trace.ops, self.trace.buffers.host
        untouched = set(self.statistics[op] if is_recompute else ())
        reads, writes = (
            {buffer for buffer in rows[op].tolist() if not host[buffer]} - untouched for rows in (ops.reads, ops.writes)
        )
        return reads, writes

    def run(self, iteration: int, op: int) -> dict[int, Value]:
        """Run an op; return what it finds in all that it touches."""
        self.value.update(dict.fromkeys(self.made.get(op, []), None))
        reads, writes = self.touched(op)
        operands = {buffer: self.value.get(buffer) for buffer in reads | writes}
        self.value.update(dict.fromkeys(writes, (iteration, op)))
        return operands


@dataclass(slots=True, eq=False)
class _Part:
    """Device bytes of one buffer, from hold to free."""

    buffer: int
    value: Value
    is_recomputed: bool = False  # its first value is by a recomputation
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
        for buffer in self.unswapped.crossing():
            self.freed[buffer] = INITIAL
            if buffer in on_host:
                self.host[buffer] = INITIAL

    def follow(self, event: LoggedEvent) -> None:
        if event.kind in RUN:
            self.begin(event)
        elif event.kind in RUN.values():
            self.end(event)
        elif event.kind == "hold":
            value = self.freed.pop(event.buffer, None)
            self.of(event.buffer)[event.part] = _Part(event.buffer, value if event.ns == self.boundary else None)
        elif event.kind == "free":
            part = self.of(event.buffer).pop(event.part)
            if part.users:
                raise CheckError("race", f"buffer {event.buffer} is freed while {next(iter(part.users))} uses it")
            self.freed[event.buffer] = part.value
        elif event.kind in COPY or event.kind in COPY.values():
            if event.part not in self.of(event.buffer):
                raise CheckError("held", f"part {event.part} of buffer {event.buffer} is not held")
            self.copy(event, self.of(event.buffer)[event.part])
        elif event.kind == "adopt":
            self.boundary = event.ns
            self.freed.clear()
        elif event.kind == "iteration":
            self.nothing_lost()

    def of(self, buffer: int) -> dict[int, _Part]:
        """The parts of a buffer that are held."""
        return self.parts.setdefault(buffer, {})

    def begin(self, event: LoggedEvent) -> None:
        """Check the operands of an op that starts."""
        self.boundary, is_recompute = -1, event.kind != "start"
        if not is_recompute:
            self.read[event.op] = self.unswapped.run(event.iteration, event.op)
        reads, writes = self.unswapped.touched(event.op, is_recompute=is_recompute)
        for buffer in sorted(reads | writes):
            held = list(self.of(buffer).values())
            if not held:
                raise CheckError(
                    "held", f"op {event.op} {_verb(buffer not in reads)} buffer {buffer}, which is not held"
                )
            recorded = self.read[event.op].get(buffer)
            part, want = held[-1], recorded if buffer in reads else None
            if is_recompute and want is not None:
                part = next((candidate for candidate in reversed(held) if candidate.value == want), part)
            elif not is_recompute:
                part = next(
                    (
                        candidate
                        for candidate in reversed(held)
                        if not candidate.is_recomputed or candidate.value == recorded
                    ),
                    part,
                )
            part.is_recomputed |= is_recompute and part.value is None
            if want is not None and part.value != want:
                raise CheckError(
                    "value", f"op {event.op} reads version {part.value} of buffer {buffer} instead of {want}"
                )
            part.use(f"op {event.op}", write=buffer in writes)
            self.using.append(part)

    def end(self, event: LoggedEvent) -> None:
        """Let the op's results appear."""
        for part in self.using:
            if part.users.pop(f"op {event.op}"):
                part.value = event.iteration, event.op
        self.using.clear()

    def copy(self, event: LoggedEvent, part: _Part) -> None:
        """Begin or end a copy; one from a host buffer that changes meanwhile brings nothing."""
        if event.kind == "out":
            part.use("a copy-out", write=False)
        elif event.kind == "out_end":
            del part.users["a copy-out"]
            self.host[event.buffer] = part.value
        elif event.kind == "in":
            part.use("a copy-in", write=True)
            self.moving[event.part] = self.host.get(event.buffer)
        else:
            del part.users["a copy-in"]
            unchanged = self.moving.pop(event.part) == self.host.get(event.buffer)
            part.value = self.host.get(event.buffer) if unchanged else None

    def nothing_lost(self) -> None:
        """Each value that crosses the boundary is somewhere."""
        for buffer in self.unswapped.crossing():
            want = self.unswapped.value[buffer]
            if want not in (None, self.host.get(buffer), *(part.value for part in self.of(buffer).values())):
                raise CheckError(
                    "lost value", f"nobody holds version {want} of buffer {buffer}, which crosses the boundary"
                )
