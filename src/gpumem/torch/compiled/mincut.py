"""The least cut of a network, as PyTorch's partitioner asks for it: the one that lies closest to the sink."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpumem.base.jit import assign, inner, jit

I64 = NDArray[np.int64]


class FlowNetwork:
    """Arcs with capacities between named vertices; arcs out of the source can be left out.

    Arc `2 e` is edge `e`, arc `2 e + 1` goes back. An infinite capacity is one more than all finite ones together.
    """

    def __init__(self, edges: Iterable[tuple[str, str, float]], source: str = "source", sink: str = "sink") -> None:
        edges = list(edges)
        self.names = list(dict.fromkeys(name for tail, head, _ in edges for name in (tail, head)))
        self.of = {name: number for number, name in enumerate(self.names)}
        self.source, self.sink = self.of[source], self.of[sink]
        self.infinite = 1 + int(sum(capacity for *_, capacity in edges if capacity != np.inf))
        self.capacity = np.zeros(2 * len(edges), np.int64)
        self.capacity[::2] = [self.infinite if capacity == np.inf else int(capacity) for *_, capacity in edges]
        ends = np.array([(self.of[tail], self.of[head]) for tail, head, _ in edges], np.int64)
        self.to = ends[:, ::-1].reshape(-1)
        tails = ends.reshape(-1)
        self.arcs = np.argsort(tails, kind="stable")
        self.first = np.searchsorted(tails[self.arcs], np.arange(len(self.names) + 1))
        self._opens = {head: 2 * edge for edge, (tail, head, _) in enumerate(edges) if tail == source}

    @property
    def kept(self) -> list[str]:
        """The vertices that the source has arcs to."""
        return [*self._opens]

    def cut(self, opened: Iterable[str] = ()) -> list[str] | None:
        """Return the tails of the edges of the least cut, without the source's arcs to `opened`; None if infinite.

        Of all least cuts it is the one closest to the sink, whichever way the flow took. O(V^2 E) at worst (Dinic).
        """
        left = self.capacity.copy()
        left[[self._opens[name] for name in opened if name in self._opens]] = 0
        behind = np.zeros(len(self.names), np.bool_)
        flow = _flow(
            first=self.first,
            arcs=self.arcs,
            to=self.to,
            left=left,
            source=self.source,
            sink=self.sink,
            behind=behind,
        )
        if flow >= self.infinite:
            return None
        tails, heads = self.to[1::2], self.to[::2]
        crosses = ~behind[tails] & behind[heads]
        return [self.names[vertex] for vertex in tails[crosses].tolist() if vertex != self.source]


# Dinic's algorithm: each phase finds the distances to the sink over arcs with capacity left, then pushes along shortest
# paths until none is left. The distance grows with each phase, so there are at most as many as vertices.
@jit
def _flow(  # noqa: PLR0917  compiled: no keyword-only parameters
    first: I64, arcs: I64, to: I64, left: I64, source: int, sink: int, behind: NDArray[np.bool_]
) -> int:
    """Push flow until none is left; mark in `behind` what can still reach the sink. `left` has capacities left."""
    vertices = first.size - 1
    total = 0
    depth = np.empty(vertices, np.int64)
    at = np.empty(vertices, np.int64)  # of each vertex: the first arc that may still lead on in this phase
    path = np.empty(vertices, np.int64)
    while _depths(first, arcs, to, left, sink, depth)[source] >= 0:
        assign(at, first[:vertices])
        length, vertex = 0, source
        while True:
            if vertex == sink:
                pushed, cut = _push(path, length, left)
                total += pushed
                vertex, length = to[path[cut] ^ 1], cut  # go on from where the first full arc left
                continue
            _advance(vertex, first, arcs, to, left, depth, at)
            if at[vertex] < first[vertex + 1]:
                path[length] = arcs[at[vertex]]
                vertex, length = to[path[length]], length + 1
            elif vertex == source:
                break
            else:  # a dead end: step back, and pass over the arc that led here
                length -= 1
                vertex = to[path[length] ^ 1]
                at[vertex] += 1
    for vertex in range(vertices):
        behind[vertex] = depth[vertex] >= 0
    return total


@inner
def _push(path: I64, length: int, left: I64) -> tuple[int, int]:
    """Push along a path as much as all of its arcs can take; return how much, and the place of its first full arc."""
    least = left[path[0]]
    for place in range(1, length):
        least = min(least, left[path[place]])
    cut = 0
    for place in range(length - 1, -1, -1):
        left[path[place]] -= least
        left[path[place] ^ 1] += least
        if left[path[place]] == 0:
            cut = place
    return least, cut


@inner
def _advance(  # noqa: PLR0917  compiled: no keyword-only parameters
    vertex: int, first: I64, arcs: I64, to: I64, left: I64, depth: I64, at: I64
) -> None:
    """Move on to the vertex's next arc that has capacity and leads nearer to the sink."""
    while at[vertex] < first[vertex + 1]:
        arc = arcs[at[vertex]]
        if left[arc] > 0 and depth[to[arc]] == depth[vertex] - 1:
            break
        at[vertex] += 1


@inner
def _depths(  # noqa: PLR0917  compiled: no keyword-only parameters
    first: I64, arcs: I64, to: I64, left: I64, sink: int, depth: I64
) -> I64:
    """Return how many arcs each vertex is from the sink, over arcs with capacity left; -1 where there is no path."""
    depth[:] = -1
    depth[sink] = 0
    queue = np.empty(depth.size, np.int64)
    queue[0] = sink
    begin, end = 0, 1
    while begin < end:
        vertex = queue[begin]
        begin += 1
        for slot in range(first[vertex], first[vertex + 1]):
            arc = arcs[slot]
            neighbour = to[arc]
            if depth[neighbour] < 0 and left[arc ^ 1] > 0:
                depth[neighbour] = depth[vertex] + 1
                queue[end] = neighbour
                end += 1
    return depth
