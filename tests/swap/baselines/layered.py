"""Nets of layers, by the names of their ops."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from gpumem.trace import Buffers, Ops, Trace
from tests.strategies import traces


def net(names: list[str]) -> Trace:
    """A chain of k layers: op i makes map i of map i - 1, op 2k - 1 - i is its backward and needs map i - 1 again."""
    k = len(names)
    reads = [[], *([i] for i in range(k - 1)), [k - 1, k - 2], *([2 * k - i - 2, i - 1] for i in range(k - 2, 0, -1))]
    reads.append([2 * k - 2])
    ops = Ops.make(
        reads,
        [[i] for i in range(2 * k)],  # buffer k + j is the gradient that backward op k + j makes
        name=[*names, *(f"{name}_backward" for name in names[::-1])],
        duration=[20] * 2 * k,
    )
    end = [*(2 * k - 1 - i for i in range(k - 1)), k + 1, *range(k + 2, 2 * k + 1), 2 * k]
    kind = ["activation"] * k + ["act_grad"] * k
    return Trace(Buffers.make([8] * k + [2] * k, range(2 * k), end, kind=kind), ops)


@st.composite
def nets(draw: st.DrawFn) -> Trace:
    """A random trace whose buffers and ops are called as in a net."""
    trace = draw(traces(max_ops=12))
    kinds = tuple(draw(st.sampled_from(["activation", "activation", "param", "act_grad"])) for _ in trace.buffers)
    names = tuple(draw(st.sampled_from(["conv", "relu"])) for _ in trace.ops)
    return replace(trace, buffers=replace(trace.buffers, kind=kinds), ops=replace(trace.ops, name=names))
