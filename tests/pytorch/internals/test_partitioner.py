"""The network that PyTorch cuts is had from its own function, of which nothing is swapped that others see."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import networkx
import pytest
from torch._functorch import partitioners

from gpumem.torch.internals import partitioner as seam
from gpumem.torch.internals.partitioner import NoSolver, networks

EDGES = [("source", "a", 2.0), ("a", "sink", float("inf"))]


def imports_when_it_runs(graph: Any, info: Any, options: Any) -> Any:
    """As PyTorch up to 2.14. Older ones catch all that is raised, to draw it by a package that may not be there."""
    import networkx as nx

    network = nx.DiGraph()
    for a, b, capacity in graph:
        network.add_edge(a, b, capacity=capacity)
    try:
        return nx.minimum_cut(network, "source", "sink")
    except nx.NetworkXUnbounded:
        raise
    except Exception:
        raise ModuleNotFoundError("pydot") from None


def has_one_of_its_own(graph: Any, info: Any, options: Any, *, sink: str = "sink") -> Any:
    """As PyTorch since 2.15."""
    network = networkx.DiGraph()
    for a, b, capacity in graph:
        network.add_edge(a, b, capacity=capacity)
    return minimum_cut(network, "source", sink)


def minimum_cut(network: Any, source: str, sink: str) -> Any:
    raise AssertionError("nobody is to cut it")


def solved_by(monkeypatch: pytest.MonkeyPatch, solve: Callable[..., Any]) -> None:
    monkeypatch.setattr(seam, "partitioner", lambda: type("", (), {"solve_min_cut": staticmethod(solve)}))


@pytest.mark.parametrize("solve", [imports_when_it_runs, has_one_of_its_own])
def test_the_network_is_had_before_it_is_cut(monkeypatch: pytest.MonkeyPatch, solve: Callable[..., Any]) -> None:
    solved_by(monkeypatch, solve)
    assert networks(EDGES, None, None) == EDGES


def test_nothing_is_swapped_that_others_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """While PyTorch makes its network, whoever else cuts one, in whatever thread, has it cut."""
    cuts: list[float] = []

    def looks(graph: Any, info: Any, options: Any) -> Any:
        import networkx as nx

        network = nx.DiGraph()
        network.add_edge("source", "sink", capacity=3.0)
        thread = Thread(target=lambda: cuts.append(networkx.minimum_cut(network, "source", "sink")[0]))
        thread.start()
        thread.join()
        return nx.minimum_cut(network, "source", "sink")

    solved_by(monkeypatch, looks)
    assert networks(None, None, None) == [("source", "sink", 3.0)] and cuts == [3.0]


def test_a_torch_that_splits_graphs_another_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    solved_by(monkeypatch, lambda *_: None)
    with pytest.raises(NoSolver, match="does not split graphs by a minimum cut"):
        networks(None, None, None)
    monkeypatch.undo()
    monkeypatch.delattr(partitioners, "solve_min_cut")
    with pytest.raises(NoSolver, match=r"PyTorch .* splits graphs another way: .*solve_min_cut"):
        seam.partitioner()
