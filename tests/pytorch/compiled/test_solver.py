"""The solver for compiled models: what it says a split holds is what its graphs hold, counted while they run."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import networkx
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch._functorch import config, partitioners
from torch.profiler import ProfilerActivity, profile

from gpumem.torch import Solver, solver
from gpumem.torch.compiled.joint import JointGraph
from gpumem.torch.compiled.mincut import FlowNetwork
from gpumem.torch.internals.names import VERSION, later
from tests.pytorch.compiling import Ran, compiled, eager
from tests.pytorch.nets import NETS, data

# The graphs are the same before, but what calls them holds some of the values saved for longer.
counted = pytest.mark.skipif(not later(VERSION, "2.13"), reason="PyTorch 2.12 holds more than its graphs do")
BUDGETS = [step / 20 for step in range(1, 21)]


def mlp() -> torch.nn.Module:
    """Eight layers; torch's own solver holds as much at its least budget as without it."""
    return torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(32, 32), torch.nn.GELU())])


def net_of(name: str, batch: int = 64) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return (mlp(), torch.randn(4 * batch, 32)) if name == "mlp" else (NETS[name](), data(name, batch)[0])


def ran(net: torch.nn.Module, x: torch.Tensor, asked: Solver) -> Ran:
    found = compiled(net, x, asked.settings)
    (chosen,) = asked.chosen
    assert (found.peak, found.recomputed) == (chosen.peak, chosen.recomputed)
    return found


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b))


def check(name: str, budgets: list[float]) -> None:
    net, x = net_of(name)
    want, before = eager(net, x), None
    for budget in budgets:
        asked = solver(budget=budget)
        found, chosen = ran(net, x, asked), asked.chosen[0]
        assert same(found.gradients, want)
        assert found.peak <= chosen.asked == chosen.least + int(budget * (chosen.full - chosen.least))
        assert before is None or (found.peak >= before.peak and found.recomputed <= before.recomputed)
        before = found
    assert before is not None and before.peak == chosen.full


@counted
@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "mlp"])
def test_what_is_held_is_what_was_said_and_within_the_budget(name: str) -> None:
    """The GPT drops at random, the ResNet overwrites its statistics: gradients are those of the eager step."""
    check(name, [0.05, 1.0])


@counted
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "mlp"])
def test_peaks_fall_with_the_budget(name: str) -> None:
    check(name, BUDGETS)
    net, x = net_of(name)
    assert compiled(net, x, {}).peak == ran(net, x, solver(budget=1.0)).peak


def no_more_than_torchs(name: str, budgets: list[float]) -> None:
    net, x = net_of(name)
    for budget in budgets:
        theirs = compiled(net, x, {"activation_memory_budget": budget})
        ours = ran(net, x, solver(limit=theirs.peak))
        assert ours.peak <= theirs.peak and ours.recomputed <= theirs.recomputed, budget


@counted
def test_no_more_runs_again_than_by_torchs_own_solver() -> None:
    no_more_than_torchs("mlp", [0.1, 0.4])


@counted
@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "mlp"])
def test_no_more_runs_again_at_any_budget(name: str) -> None:
    no_more_than_torchs(name, BUDGETS)


@counted
def test_the_allocator_counts_the_same() -> None:
    """In a net whose kernels take nothing for themselves; 8 bytes are the loss, summed up outside of the graph."""
    net, x = net_of("mlp")
    asked = solver(budget=0.2)
    torch._dynamo.reset()
    with config.patch(asked.settings):
        step = torch.compile(net, backend="aot_eager")
        step(x).sum().backward()
    net.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        y = step(x)
        loss = y.sum()
        loss.backward()
    held = peak = sum(t.untyped_storage().nbytes() for t in [x, *net.parameters()])
    for size in allocated(profiled.profiler.kineto_results.experimental_event_tree()):
        held += size
        peak = max(peak, held)
    assert peak == asked.chosen[0].peak + 8
    del y, loss


def allocated(tree: Any) -> Any:
    for event in tree:
        if event.name == "[memory]":
            yield event.extra_fields.alloc_size
        yield from allocated(event.children)


def test_by_torchs_budget_it_takes_no_more_than_torch_where_it_asks_nobody() -> None:
    net, x = net_of("mlp")
    peaks = []
    for budget in (0.1, 0.5, 0.7, 1.0):
        asked = solver()
        peaks.append(compiled(net, x, {**asked.settings, "activation_memory_budget": budget}).peak)
        assert len(asked.chosen) == (budget < 0.55)
    assert peaks == sorted(peaks)


def test_halves_are_cut_and_ordered_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, seen = partitioners.choose_saved_values_set, []

    def choose(graph: Any, info: Any, **options: Any) -> Any:
        saved, joint = theirs(graph, info, **options), JointGraph(graph, info)
        forward, backward, _ = joint.halves(joint.of[node] for node in saved)
        names = [[joint.nodes[i].name for i in half] for half in (forward, backward)]
        seen.append(dict(zip(("forward", "backward"), names)))
        return saved

    monkeypatch.setattr(partitioners, "choose_saved_values_set", choose)
    for name, budget in (("gpt", 0.05), ("resnet", 1.0), ("unet", 0.4)):
        assert compiled(*net_of(name, 2), {"activation_memory_budget": budget}).graphs == seen.pop()


@given(st.data())
@settings(max_examples=50)
def test_the_cut_is_the_one_that_networkx_finds(drawn: st.DataObject) -> None:
    """Of several least cuts, too: the one closest to the sink."""
    n = drawn.draw(st.integers(2, 7))
    capacity = st.sampled_from([0.0, 1.0, 2.0, 3.0, 3.0, float("inf")])
    graph = networkx.DiGraph()
    edges = {("source", f"{i}_in"): drawn.draw(capacity) for i in range(n) if drawn.draw(st.booleans())}
    edges |= {(f"{i}_out", "sink"): drawn.draw(capacity) for i in range(n) if drawn.draw(st.booleans())}
    edges |= {(f"{i}_in", f"{i}_out"): drawn.draw(capacity) for i in range(n)}
    edges |= {
        (f"{i}_out", f"{j}_in"): float("inf") for i in range(n) for j in range(i + 1, n) if drawn.draw(st.booleans())
    }
    edges |= {("source", "sink"): 0.0}
    opened = {b for a, b in edges if a == "source" and b != "sink" and drawn.draw(st.booleans())}
    for (a, b), c in edges.items():
        if not (a == "source" and b in opened):
            graph.add_edge(a, b, capacity=c)
    found = FlowNetwork((a, b, c) for (a, b), c in edges.items()).cut(opened)
    try:
        _, (left, right) = networkx.minimum_cut(graph, "source", "sink")
    except networkx.NetworkXUnbounded:
        assert found is None
        return
    cut = [a for a, b in graph.edges if a in left and b in right and a != "source"]
    assert found is not None and sorted(found) == sorted(cut)


@counted
def test_a_limit_that_nothing_reaches_is_told() -> None:
    net, x = net_of("unet", 2)
    asked = solver(limit="10%")
    with pytest.warns(UserWarning, match=r"limit .* the least that was found holds .* bytes"):
        ran(net, x, asked)
    assert asked.chosen[0].peak == asked.chosen[0].least > asked.chosen[0].asked
    assert "asked" in str(asked.chosen[0])


def test_what_is_asked_for_must_make_sense() -> None:
    with pytest.raises(ValueError, match=r"budget 1\.5 must be between 0"):
        solver(budget=1.5)
    with pytest.raises(ValueError, match="either says what is asked for"):
        solver(budget=0.5, limit="1GiB")
    with pytest.raises(ValueError, match="limit"):
        solver(limit="many")


def test_compiled_graphs_are_cached_by_what_is_asked_for() -> None:
    asked = [solver(), solver(budget=0.5), solver(limit="1GiB"), solver(limit="2GiB")]
    assert len({s.uuid() for s in asked}) == 4
    assert solver(budget=0.5).uuid() == asked[1].uuid() == pickle.loads(pickle.dumps(asked[1])).uuid()
    assert copy.deepcopy(asked[1]) is asked[1]
    assert repr(asked[2]) == "solver(limit='1GiB')"
