"""NVTX ranges around what is issued, with a stand-in for the package."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpumem.execute.backend import Work
from gpumem.execute.layout import Block
from gpumem.trace import COMPUTE, COPY_IN, RECOMPUTE
from tests import fake_cuda
from tests.conftest import Cli, absent, needs

pytestmark = pytest.mark.jit  # nothing of gpumem's is compiled

STAND_IN = """
class Domain:
    def __init__(self):
        self.said, self.made, self.open = [], 0, 0
    def get_event_attributes(self, message, color, category, payload):
        self.made += 1
        return message, category, payload
    def push_range(self, attributes):
        self.open += 1
        self.said.append(attributes)
    def pop_range(self):
        self.open -= 1

domains = {}
def get_domain(name):
    return domains.setdefault(name, Domain())
"""


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, in the place of the package."""
    needs(absent("cuda.core", "cuda.bindings"))
    module = SimpleNamespace()
    exec(STAND_IN, module.__dict__)
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return module


def work(op: int, name: str, role: int) -> Work:
    return Work(op, name, 0, role, None, False, ())


def test_a_range_says_name_role_and_bytes(nvtx: Any) -> None:
    from gpumem.execute.cuda.nvtx import ranged

    domain, block = nvtx.get_domain("gpumem"), Block(0, 0, False, 0, 3 * 2**20)
    submit = ranged(lambda *given: (*given, domain.open))
    for _ in range(2):
        assert submit(work(0, "matmul", COMPUTE), [block], [], [7]) == (work(0, "matmul", COMPUTE), [block], [], [7], 1)
        submit(work(1, "w in", COPY_IN), [block], [block], [])
        submit(work(2, "relu", RECOMPUTE), [block], [], [])
    expected = [("matmul", "compute", 0), ("w in (3.00 MiB)", "copy_in", 3 * 2**20), ("relu", "recompute", 0)]
    assert domain.said == expected * 2 and (domain.open, domain.made) == (0, 3)


def test_a_range_ends_where_the_op_cannot_be_started(nvtx: Any) -> None:
    from gpumem.execute.cuda.nvtx import ranged

    with pytest.raises(ZeroDivisionError):
        ranged(lambda *given: 1 / 0)(work(0, "add", COMPUTE), [], [], [])
    assert nvtx.get_domain("gpumem").open == 0


def test_without_the_package(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(absent("cuda.core", "cuda.bindings"))
    from gpumem.cli import doctor
    from gpumem.execute.cuda.nvtx import ranged

    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(ImportError, match=r"ranges need the package nvtx: pip install 'gpumem\[nvtx\]'"):
        ranged(lambda *given: None)
    assert "--ranges: it needs CUDA" in cli.refuses("run", "--ranges", "--device", "emulate")
    monkeypatch.setattr(doctor, "why_no_cuda", lambda: "")
    monkeypatch.setattr("gpumem.cli.run.find_spec", lambda name: None)
    assert "--ranges: it needs the package nvtx: pip install" in cli.refuses("run", "--ranges")


@pytest.mark.thorough
def test_ranges_of_a_run_on_the_fake_driver() -> None:
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = f"""
import json, sys, types
nvtx = sys.modules["nvtx"] = types.ModuleType("nvtx")
exec({STAND_IN!r}, nvtx.__dict__)
from gpumem import Machine, autoswap, best_fit, bundled
from gpumem.execute import prepare
from gpumem.execute.cuda import Cuda
trace = bundled("resnet18")
trace = autoswap(trace, Machine.named("v100"), trace.peak_live_bytes * 8 // 10).apply(trace)
for options in ({{}}, {{"ranges": True}}, {{"ranges": True, "graph": True}}):
    domain = nvtx.domains["gpumem"] = nvtx.Domain()
    with Cuda(**options) as backend:
        plain = "submit" not in vars(backend)  # without ranges no call has become longer
        prepare(trace, best_fit(trace), backend).run(3)
    roles = [category for _, category, _ in domain.said]
    moved = [payload for _, category, payload in domain.said if category in ("copy_out", "copy_in")]
    print(json.dumps([plain, domain.open, len(roles) / len(trace.ops), sum(moved)]))
print(sum(int(trace.buffers.size[op.reads[0]]) for op in trace.ops if op.role.startswith("copy")))
"""
    done = fake_cuda.run(code)
    assert done.returncode == 0, done.stderr
    off, on, graph, moved = map(json.loads, done.stdout.splitlines())
    assert moved > 0
    assert off == [True, 0, 0, 0]
    assert on == [False, 0, 3, 3 * moved]
    assert graph == [False, 0, 2, 2 * moved]  # the first iteration, and the capture
