"""A log of DTR's prototype, as its simulator reads it, becomes a trace.

A log is a line of JSON for each event of one training step: `CONSTANT`, `CALL`, `MUTATE`, `COPY`, `COPY_FROM`,
`RELEASE`, `ANNOTATE`; a `MEMORY` follows each constant, a `MEMORY` and an `ALIAS` each result of a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, PARAM

Event = dict[str, Any]

OWN = -1  # what `ALIAS` says of a result that is no view
OUTPUTS = "outputs"  # the last op, which reads what is referred to at the end of the log


@dataclass(slots=True)
class _Step:
    """The trace as it grows. A name stands for a storage, since a view is its storage; a storage is a buffer."""

    of: dict[str, int] = field(default_factory=dict)
    size: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    writes: list[list[int]] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    made: str = ACTIVATION  # the kind of what ops make: another one in the backward pass

    def storage(self, label: str, size: int, kind: str) -> int:
        """Add a storage, which the next op makes, with one reference; return its number."""
        self.size.append(size)
        self.start.append(len(self.name))
        self.end.append(-1)
        self.kind.append(kind)
        self.label.append(label)
        self.refs.append(1)
        return len(self.size) - 1

    def op(self, name: str, reads: Iterable[int], writes: Iterable[int], duration: int) -> None:
        """Add an op; an operand counts once however often it is named."""
        self.name.append(name)
        self.reads.append(list(dict.fromkeys(reads)))
        self.writes.append(list(writes))
        self.duration.append(duration)

    def release(self, storage: int) -> None:
        """Drop a reference; the last one ends the lifetime of what is no constant."""
        self.refs[storage] -= 1
        if self.refs[storage] == 0 and self.kind[storage] != PARAM:
            self.end[storage] = len(self.name)

    def call(self, event: Event, results: Sequence[tuple[int, int]]) -> None:
        """Run an operator, whose results have these bytes and alias these arguments; one of views only is no op."""
        if "backward" in event["NAME"]:
            self.made = ACT_GRAD
        args = [self.of[name] for name in event["ARGS"]]
        made = []
        for name, (size, alias) in zip(event["RESULT"], results, strict=True):
            if alias == OWN:
                made.append(self.storage(name, size, self.made))
                self.of[name] = made[-1]
            else:
                self.of[name] = args[alias]
                self.refs[args[alias]] += 1
        if made:
            self.op(event["NAME"], args, made, int(event["TIME"]))

    def mutate(self, event: Event) -> None:
        """Change arguments: as in the simulator it makes new storages, and the names are theirs from then on."""
        if "backward" in event["NAME"]:
            self.made = ACT_GRAD
        args = [self.of[name] for name in event["ARGS"]]
        names = [event["ARGS"][k] for k in event["MUTATE"]]
        made = [self.storage(f"{name}$", self.size[self.of[name]], self.made) for name in names]
        self.op(event["NAME"], args, made, int(event["TIME"]))
        for name, storage in zip(names, made):
            old, self.of[name] = self.of[name], storage
            self.release(old)

    def refer(self, name: str, source: str) -> None:
        """Let a name stand for what another one does."""
        self.of[name] = self.of[source]
        self.refs[self.of[source]] += 1

    def trace(self, name: str) -> Trace:
        """Return the step, with one op more, which reads what is referred to still."""
        kept = [b for b, refs in enumerate(self.refs) if refs > 0 and self.kind[b] != PARAM]
        self.op(OUTPUTS, kept, [], 0)
        n, lasting = len(self.name), [kind == PARAM and s == 0 for kind, s in zip(self.kind, self.start)]
        end = [n if e < 0 else e for e in self.end]
        buffers = Buffers.make(self.size, self.start, end, persistent=lasting, kind=self.kind, name=self.label)
        return Trace(buffers, Ops.make(self.reads, self.writes, name=self.name, duration=self.duration), name=name)


def read_log(path: Path | str, name: str = "") -> Trace:
    """Return the trace of the log in a file, called `name`, or else as the file is; see `of_lines`."""
    path = Path(path)
    with path.open() as lines:
        return of_lines(lines, name or path.name.split("-")[0])


def of_lines(lines: Iterable[str], name: str = "") -> Trace:
    """Return the trace of a log: a buffer a storage, an op a call that makes one, durations in nanoseconds.

    Parameters
    ----------
    lines : iterable of str
        What stands before the annotation `START` is left out.
    name : str

    Raises
    ------
    ValueError
        A line that is none of a log; the message has its number.

    Notes
    -----
    Constants are parameters, the batch too: persistent if they come before the first op, else there from the next op
    on; they are never freed. A view is its storage, and making it is no op: of the logs that
    the paper's simulator comes with, views take 0.01 to 3 % of the time. What changes an argument makes a new storage,
    as in that simulator. A storage lives until the last name for any of its views is released. `TIME` counts
    nanoseconds. No op draws random numbers: reruns are what they are there. O(lines).

    Examples
    --------
    >>> trace = of_lines('''
    ... {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}
    ... {"INSTRUCTION": "CONSTANT", "NAME": "w"}
    ... {"INSTRUCTION": "MEMORY", "NAME": "w", "MEMORY": "8"}
    ... {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["w"], "RESULT": ["y"], "TIME": "30"}
    ... {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "16"}
    ... {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"}
    ... '''.strip().splitlines())
    >>> trace.ops.name, trace.ops.reads.tolist(), trace.peak_live_bytes
    (('relu', 'outputs'), [[0], [1]], 24)
    """
    step, events = _Step(), _events(lines)
    for number, event in events:
        try:
            _follow(step, event, events)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {event} is no event of a log: {error!r}") from error
    return step.trace(name)


def _follow(step: _Step, event: Event, events: Iterator[tuple[int, Event]]) -> None:
    """Carry out an event; it takes the lines that belong to it."""
    match event["INSTRUCTION"]:
        case "CONSTANT":
            step.of[event["NAME"]] = step.storage(event["NAME"], _told(events, event["NAME"], "MEMORY"), PARAM)
        case "CALL":
            names = event["RESULT"]
            step.call(event, [(_told(events, name, "MEMORY"), _told(events, name, "ALIAS")) for name in names])
        case "MUTATE":
            step.mutate(event)
        case "COPY":
            step.refer(event["DST"], event["SRC"])
        case "COPY_FROM":
            old = step.of[event["DST"]]
            step.refer(event["DST"], event["SRC"])
            step.release(old)
        case "RELEASE":
            if event["NAME"] in step.of:  # else it was made before the log begins
                step.release(step.of[event["NAME"]])
        case "ANNOTATE":
            step.made = ACT_GRAD if event["ANNOTATION"] == "BACKWARD" else step.made
        case other:
            raise ValueError(f"{other} is unknown")


def _told(events: Iterator[tuple[int, Event]], name: str, what: str) -> int:
    """What the next line has to say of a name."""
    number, event = next(events, (0, {}))
    if (event.get("INSTRUCTION"), event.get("NAME")) != (what, name):
        raise ValueError(f"line {number} should be the {what} of {name}")
    return int(event[what])


def _events(lines: Iterable[str]) -> Iterator[tuple[int, Event]]:
    """The events behind the annotation `START` with the numbers of their lines; all of them where there is none."""
    found: list[tuple[int, Event]] = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: {line.strip()!r:.60} is no JSON") from error
        if not isinstance(event, dict):
            raise ValueError(f"line {number}: {line.strip()!r:.60} is no event of a log")
        found.append((number, event))
        if event.get("ANNOTATION") == "START":
            found = []
    return iter(found)
