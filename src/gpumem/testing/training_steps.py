"""Hypothesis strategies: training steps with all that recomputation must cope with, and plans for any trace.

Needs Hypothesis, which comes with `gpumem[test]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumem.testing.strategies import SIZES  # first: says what is missing where Hypothesis is

# isort: split
from hypothesis import strategies as st

from gpumem.base.arguments import at_least, strict
from gpumem.swap.plan import Decision, Hold, Plan, Recompute, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import ACT_GRAD, ACTIVATION, GRADIENT, INPUT, OPT_STATE, PARAM, STATISTICS, WORKSPACE

BY_KIND, EXPLICIT, DENIED = range(3)  # how a trace says which buffers are statistics
SOURCES = ("zeros", "empty.memory_format", "new_empty", "arange")
DURATIONS = st.integers(0, 30)
RANDOM = 9  # the digit of ten with which an op draws random numbers


class _Part(NamedTuple):
    """What is drawn for an op: what it does, which buffers it takes, and how it runs."""

    what: int
    near: int
    far: int
    mask: int
    luck: int
    stream: int
    duration: int

    @classmethod
    def drawn(cls, streams: int, durations: st.SearchStrategy[int]) -> st.SearchStrategy[_Part]:
        digit = st.integers(0, 9)
        return st.builds(cls, *[digit] * 5, stream=st.integers(0, streams - 1), duration=durations)


@dataclass(slots=True)
class _Step:
    """A training step that grows op by op; a lifetime is what its ops touch, and a tail."""

    kind: list[str] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    writes: list[list[int]] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)  # statistics
    states: dict[int, int] = field(default_factory=dict)  # of the optimizer, and of which parameter each is
    lasting: int = 0  # so many buffers live for ever; they come first

    def new(self, kind: str) -> int:
        """Add a buffer; the next op touches it first."""
        self.kind.append(kind)
        self.first.append(len(self.reads))
        self.last.append(len(self.reads))
        return len(self.kind) - 1

    def op(
        self, name: str, part: _Part, reads: Sequence[int], writes: Sequence[int], statistics: Sequence[int] = ()
    ) -> None:
        """Add an op; now and then it has a workspace."""
        written = [*writes, *([self.new(WORKSPACE)] if part.luck == 8 else [])]
        for buffer in (*reads, *written, *statistics):
            self.last[buffer] = len(self.reads)
        self.reads.append(sorted({*reads, *statistics}))
        self.writes.append(sorted({*written, *statistics}))
        self.name.append(name)
        self.parts.append(part)
        self.kept.append(sorted(statistics))

    def forward(self, part: _Part, made: list[int]) -> None:
        """Add a layer: it reads what was made of late, or long ago, and makes something or changes it in place."""
        recent, earlier = made[-1 - part.near % min(len(made), 3)], made[part.far % len(made)]
        reads = [recent, earlier] if part.mask % 2 else [recent]
        if part.what <= 1:
            made.append(self.new(ACTIVATION))
            self.op("layer", part, reads, [made[-1]])
        elif part.what <= 3:  # in place, perhaps with a result beside it
            made += [self.new(ACTIVATION)] if part.mask >= 6 else []
            self.op("relu_", part, reads, [recent, *made[len(made) - (part.mask >= 6) :]])
        elif part.what == 4:
            made += [self.new(ACTIVATION) for _ in range(2 + part.mask % 2)]
            self.op("split", part, reads, made[-2 - part.mask % 2 :])
        elif part.what == 5 and recent != earlier:  # a second whole write
            self.op("copy", part, [earlier], [recent])
        elif part.what == 6:
            made.append(self.new(ACTIVATION))
            self.op(SOURCES[part.far % len(SOURCES)], part, [], [made[-1]])
        elif part.what == 7 and self.lasting:  # what lives for ever is read, or written whole
            buffer = part.far % self.lasting
            made.append(self.new(ACTIVATION))
            self.op("read", part, [recent, buffer], [made[-1]]) if part.mask < 7 else self.op(
                "set", part, [recent], [made[-1], buffer]
            )
        else:
            candidates = [buffer for buffer in range(self.lasting) if self.kind[buffer] == STATISTICS]
            statistics = candidates[part.far % 3 :][:2]
            made.append(self.new(ACTIVATION))
            self.op("norm", part, reads, [made[-1]], statistics=statistics)

    def backward(self, part: _Part, layer: int, gradient: int) -> int:
        """Add the backward op of a layer, which reads some of what the layer touched; return the new gradient."""
        touched = sorted({*self.reads[layer], *self.writes[layer]} - {gradient})
        touched = [buffer for buffer in touched if self.kind[buffer] != WORKSPACE]
        reads = [buffer for place, buffer in enumerate(touched) if part.mask >> place & 1 or part.far == place]
        writes = [gradient] if part.what <= 2 and gradient >= 0 else [self.new(ACT_GRAD)]
        changed = [
            buffer for buffer in reads if part.what == 9 and self.kind[buffer] == ACTIVATION
        ]  # destroys its input
        self.op("backward", part, [*reads, *([gradient] if gradient >= 0 else [])], [*writes, *changed])
        return writes[0]

    def update(self, part: _Part, buffer: int, gradient: int) -> None:
        """Add the update of what lives for ever, in place or as a whole; its states come with it, in place."""
        states = [state for state, of in self.states.items() if of == buffer]
        self.op("step", part, [gradient, *([buffer] if part.mask else []), *states], [buffer, *states])

    def trace(self, sizes: Sequence[int], tail: int, turn: int, *, streams: int, statistics_by: int) -> Trace:
        """Return the step, its ops turned on by `turn`."""
        count = len(self.reads)
        order = [(op - turn) % count for op in range(count)]  # which op comes to place i
        start, end = [], []
        for buffer, (birth, death) in enumerate(zip(self.first, self.last)):
            death = min(count, death + 1 + (tail if buffer % 3 == 0 and self.kind[buffer] != WORKSPACE else 0))
            start.append(0 if buffer < self.lasting else (birth + turn) % count)
            end.append(count if buffer < self.lasting else start[buffer] + death - birth)
        kind = [
            buffer_kind if statistics_by != EXPLICIT or buffer_kind != STATISTICS else "" for buffer_kind in self.kind
        ]
        statistics = (
            None if statistics_by == BY_KIND else [self.kept[op] if statistics_by == EXPLICIT else [] for op in order]
        )
        parts = [self.parts[op] for op in order]
        ops = Ops.make(
            [self.reads[op] for op in order],
            [self.writes[op] for op in order],
            name=[self.name[op] for op in order],
            duration=[part.duration for part in parts],
            stream=[part.stream for part in parts],
            streams=[f"compute{birth}" for birth in range(streams)],
            rng=[part.luck == RANDOM for part in parts],
            statistics=statistics,
        )
        persistent = [buffer < self.lasting for buffer in range(len(kind))]
        size = [sizes[buffer % len(sizes)] for buffer in range(len(kind))]
        return Trace(Buffers.make(size, start, end, persistent=persistent, kind=kind), ops, name="step")


@strict
def steps(
    *,
    max_layers: int = 12,
    streams: int = 2,
    sizes: st.SearchStrategy[int] = SIZES,
    durations: st.SearchStrategy[int] = DURATIONS,
    states: int = 0,
) -> st.SearchStrategy[Trace]:
    """Draw a training step: layers forward, their backward ops in reverse order, updates.

    Parameters
    ----------
    max_layers : int
        Forward ops besides the batch's arrival; there are about twice as many ops, and a few.
    streams : int
        Compute streams at most.
    sizes : SearchStrategy of int
        Bytes of a buffer.
    durations : SearchStrategy of int
        Nanoseconds of an op.
    states : int
        Of the optimizer, for each parameter: updated in place together with it.

    Returns
    -------
    SearchStrategy of Trace
        With chains of changes in place and readers between them, several whole writes in one lifetime, ops with
        several results, random ops, statistics (by kind, explicit, or denied by `ops.statistics`), sources, workspaces,
        inputs that die early or are destroyed, parameters, lasting buffers that are written whole. It may begin
        anywhere in the step, so that arcs wrap the boundary.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=20, derandomize=True, database=None, deadline=None)
    ... @given(steps())
    ... def statistics_are_read_and_written(trace):
    ...     for op, kept in zip(trace.ops, trace.statistics.tolist()):
    ...         assert set(kept) <= set(op.reads) & set(op.writes)
    >>> statistics_are_read_and_written()
    """
    at_least(1, max_layers=max_layers, streams=streams)
    at_least(0, states=states)
    for name, given in (("sizes", sizes), ("durations", durations)):
        if not isinstance(given, st.SearchStrategy):
            reason = "is no strategy; hypothesis.strategies.integers(1, 100) returns one"
            raise TypeError(f"{name}: {given!r:.60} {reason}")
    return _steps(max_layers=max_layers, streams=streams, sizes=sizes, durations=durations, states=states)


@st.composite
def _steps(
    draw: st.DrawFn,
    *,
    max_layers: int,
    streams: int,
    sizes: st.SearchStrategy[int],
    durations: st.SearchStrategy[int],
    states: int,
) -> Trace:
    part = _Part.drawn(streams, durations)
    step, lasting = _Step(), draw(st.lists(st.sampled_from(["", PARAM, STATISTICS, STATISTICS]), max_size=5))
    for kind in lasting:
        step.new(kind)
    for buffer in [buffer for buffer, kind in enumerate(lasting) if kind == PARAM] * states:
        step.states[step.new(OPT_STATE)] = buffer
    step.lasting = len(step.kind)
    made = [step.new(INPUT if draw(st.booleans()) else ACTIVATION)]
    step.op("load", draw(part)._replace(luck=0), [], made)
    layers = [draw(part) for _ in range(draw(st.integers(1, max_layers)))]
    for drawn in layers:
        step.forward(drawn, made)
    gradient = -1
    for layer in reversed(range(len(layers) + 1)):
        gradient = step.backward(draw(part), layer, gradient)
    step.kind[gradient] = GRADIENT
    for buffer in range(step.lasting):
        if step.kind[buffer] == PARAM or (step.kind[buffer] != OPT_STATE and draw(st.integers(0, 3)) == 3):
            step.update(draw(part), buffer, gradient)
    turn = draw(st.one_of(st.just(0), st.just(0), st.integers(0, len(step.reads) - 1)))
    statistics_by = draw(st.sampled_from([BY_KIND, EXPLICIT, DENIED]))
    sizes_drawn = draw(st.lists(sizes, min_size=1, max_size=7))
    tail = draw(st.integers(0, 3))
    return step.trace(sizes_drawn, tail, turn, streams=streams, statistics_by=statistics_by)


@strict
def plans(trace: Trace, *, kinds: Sequence[type[Decision]] = (Swap, Recompute, Hold)) -> st.SearchStrategy[Plan]:
    """Draw a plan that `apply` carries out, however unwise.

    Parameters
    ----------
    trace : Trace
    kinds : sequence of decision types
        Any of `Swap`, `Recompute`, `Hold`.

    Returns
    -------
    SearchStrategy of Plan
        What `apply` refuses is left out decision by decision.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> from gpumem import check
    >>> @settings(max_examples=20, derandomize=True, database=None, deadline=None)
    ... @given(st.data())
    ... def values_are_kept(data):
    ...     trace = data.draw(steps())
    ...     check.data_flow(trace, data.draw(plans(trace)).apply(trace))
    >>> values_are_kept()
    """
    for kind in kinds:
        if kind not in (Swap, Recompute, Hold):
            raise ValueError(f"kinds: {kind!r} is none of Swap, Recompute and Hold")
    return _plans(trace, kinds)


@st.composite
def _plans(draw: st.DrawFn, trace: Trace, kinds: Sequence[type[Decision]]) -> Plan:
    idle, count = gaps(trace), trace.n
    places = sorted(draw(st.sets(st.integers(1, count), max_size=3)))  # where several come back at once
    chosen: list[list[Decision]] = []  # what stands or falls together
    for buffer, after, before in zip(idle.buffer.tolist(), idle.after.tolist(), idle.before.tolist()):
        how = draw(st.integers(0, 4))
        if how and Recompute in kinds and (how > 1 or Swap not in kinds):
            here = [place for place in places if after < place <= before]
            at = draw(st.sampled_from([*here, before])) if how < 4 else draw(st.integers(after + 1, before))
            later = Hold in kinds and at > after + 1 and draw(st.integers(0, 3)) == 3
            more = [Hold(buffer, draw(st.integers(after + 1, at - 1)), after)] if later else []
            chosen.append([Recompute(buffer, after, before, at), *more])
        elif how and Swap in kinds:
            release = draw(st.integers(after + 1, before))
            prefetch, out = draw(st.integers(release, before)), draw(st.integers(after, release - 1))
            chosen.append([Swap(buffer, after, before, release=release, prefetch=prefetch, out=out)])
    if Hold in kinds:
        chosen += [[hold] for hold in draw(_holds(trace, places))]
    return Plan.of(trace, _accepted(trace, [], draw(st.permutations(chosen))))


@st.composite
def _holds(draw: st.DrawFn, trace: Trace, places: Sequence[int]) -> list[Hold]:
    """Draw what ends later than its lifetime, or with its last access, and what is recomputed beside it."""
    buffers, count, touched, holds = trace.buffers, trace.n, trace.accesses().op.tolist(), list[Hold]()
    for buffer, (end, host) in enumerate(zip(buffers.end.tolist(), buffers.host.tolist())):
        if host:
            continue
        if end <= count and not trace.eternal[buffer] and draw(st.integers(0, 5)) == 5:
            least = touched[buffer][-1] if touched[buffer] and not buffers.persistent[buffer] else end
            holds.append(Hold(buffer, draw(st.integers(least, count))))
        while touched[buffer] and draw(st.integers(0, 4)) == 4:
            after = draw(st.sampled_from(touched[buffer]))
            here = [place for place in places if after < place < count]
            at = draw(st.sampled_from(here) if here else st.integers(after + 1, max(after + 1, count - 1)))
            if at < count:
                holds.append(Hold(buffer, draw(st.integers(at + 1, count)), after, at))
    return holds


def _accepted(trace: Trace, before: list[Decision], group: Sequence[list[Decision]]) -> list[Decision]:
    """Return `before` and what can be added of `group`, in order; only what is recomputed is ever refused."""
    together = [*before, *(decision for one in group for decision in one)]
    try:
        Plan.of(trace, together).apply(trace)
        return together
    except ValueError:
        if not any(
            isinstance(decision, Recompute) or (isinstance(decision, Hold) and decision.at >= 0)
            for decision in together
        ):
            raise
        if len(group) == 1:
            return before
        half = len(group) // 2
        return _accepted(trace, _accepted(trace, before, group[:half]), group[half:])
