"""Calls on lists of tensors, split: the same bits as of the whole call, in ops that touch no more than asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gpumem import Trace
from gpumem.__main__ import main
from gpumem.swap.facts.limits import floor
from gpumem.torch import capture, fit, record
from gpumem.torch.step.foreach_chunks import joined, pieces

aten = torch.ops.aten
ROWS = 5
NUMBERS = ("aten::_foreach_max", "aten::_foreach_norm", "aten::_foreach_powsum")  # a number of each tensor comes out
NOT_BY_ROWS = {"_amp_foreach_non_finite_check_and_unscale.default"}  # it returns a number that is of all rows


def ops() -> dict[str, Any]:
    """Every op of PyTorch's that takes lists of tensors row by row, by its name."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        begins = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")
        if schema.name.startswith(begins) and "Tensor[]" in str(schema):
            op = getattr(getattr(aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")
            found[str(op).removeprefix("aten.")] = op
    return found


OPS = ops()


def made_for(argument: Any, k: int, full: bool) -> Any:
    """An argument by its type: lists of a number for each row, of matrices of several sizes and layouts."""
    kind, name = str(argument.type), argument.name
    if kind == "List[Tensor]":
        if name == "state_steps":
            return [torch.tensor(float(i + 1)) for i in range(ROWS)]
        if name == "max_exp_avg_sqs" and not full:
            return []
        rows = [torch.rand(i + 2, i + 2) * 0.8 + 0.1 for i in range(ROWS)]
        rows[2] = rows[2].t()
        if k == 0:
            rows[3][1, 1] = torch.inf
        return rows
    if kind == "List[number]":
        return [0.5 + i for i in range(ROWS)]
    if kind == "Tensor":
        return torch.rand(ROWS) + 0.5 if name == "scalars" else torch.tensor(0.0 if name == "found_inf" else 0.5)
    return {"number": 2, "float": 0.5, "bool": full and name == "amsgrad"}.get(kind)


def arguments(func: Any, full: bool) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(0)
    made = [(a, made_for(a, k, full)) for k, a in enumerate(func._schema.arguments)]
    named = {a.name: x for a, x in made if a.kwarg_only}
    if "out" in named and func._schema.name in NUMBERS:
        named["out"] = [torch.rand(()) for _ in range(ROWS)]
    return [x for a, x in made if not a.kwarg_only], named


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return flat([*value.values()])
    return [x for y in value for x in flat(y)] if isinstance(value, (list, tuple)) else []


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().reshape(-1).contiguous().view(torch.uint8)


def equal(a: Any, b: Any) -> bool:
    """Whether two nests of tensors are the same, bit by bit."""
    xs, ys = flat(a), flat(b)
    same = [x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride() for x, y in zip(xs, ys, strict=True)]
    return all(same) and all(torch.equal(bits(x), bits(y)) for x, y in zip(xs, ys))


@pytest.mark.parametrize("full", [False, True], ids=["a row each", "some rows each"])
@pytest.mark.parametrize("name", sorted(OPS))
def test_pieces_do_what_the_whole_call_does(name: str, full: bool) -> None:
    func = OPS[name]
    (args, kwargs), (same, kwsame) = arguments(func, full), arguments(func, full)
    some = 300 if func._schema.name in NUMBERS and "out" in kwargs else 700
    split = pieces(func, args, kwargs, some if full else 1)
    if name in NOT_BY_ROWS:
        assert split is None
        return
    assert split is not None and (1 < len(split) < ROWS if full else len(split) == ROWS)
    whole = func(*same, **kwsame)
    result = joined([func(*mine, **named) for mine, named in split])
    assert type(result) is type(whole)
    assert equal(result, whole)
    assert equal([args, kwargs], [same, kwsame])


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_pieces_are_consecutive_and_as_large_as_they_may_be(sizes: list[int], chunk: int) -> None:
    xs, ys = ([torch.empty(size, dtype=torch.uint8) for size in sizes] for _ in range(2))
    numbers = list(range(len(sizes)))
    split = pieces(aten._foreach_addcmul_.ScalarList, (xs, ys, xs, numbers), {}, chunk)
    if split is None:
        assert len(sizes) < 2 or 3 * sum(sizes) <= chunk
        return
    for k, whole in enumerate((xs, ys, xs, numbers)):
        assert [id(x) for args, _ in split for x in args[k]] == [id(x) for x in whole]
    rows = [[3 * x.nbytes for x in args[0]] for args, _ in split]
    assert len(split) > 1
    assert all(sum(row) <= chunk or len(row) == 1 for row in rows)
    assert all(sum(row) + following[0] > chunk for row, following in pairwise(rows))


def three(*sizes: int) -> list[torch.Tensor]:
    return [torch.rand(size) for size in sizes or (2, 3, 4)]


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.add.Tensor, (torch.ones(2), 1), {}),
        (aten.cat.default, (three(),), {}),
        (aten.meshgrid.default, (three(),), {}),
        (aten._foreach_add_.Scalar, ([], 1), {}),
        (aten._foreach_add_.Scalar, (three(9), 1), {}),
        (aten._foreach_add_.List, (three(2, 3), three()), {}),
        (aten._foreach_add_.List, (three(2, 3, 4), three()), {"alpha": 2}),
    ],
    ids=["no list", "one tensor comes out", "not by rows", "no rows", "one row", "two lengths", "small enough"],
)
def test_what_is_left_whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert pieces(func, args, kwargs, 72 if kwargs else 1) is None


def test_a_call_that_fails_fails_in_pieces() -> None:
    for numbers in ([1, 2], [1, 2, 3, 4], torch.ones(()), torch.ones(4)):
        func = aten._foreach_addcmul_.Tensor if isinstance(numbers, torch.Tensor) else aten._foreach_addcmul_.ScalarList
        split = pieces(func, (three(), three(), three(), numbers), {}, 1)
        assert split is not None
        with pytest.raises(RuntimeError):
            func(*split[0][0])


def test_rows_that_a_gpu_takes_by_different_ways_stay_together() -> None:
    def split(*rows: tuple[torch.Tensor, torch.Tensor]) -> bool:
        xs, ys = zip(*rows)
        return pieces(aten._foreach_add_.List, ([*xs], [*ys]), {}, 1) is not None

    for device in ("meta", "cpu"):
        x, wide = (torch.ones(4, n, device=device) for n in (4, 8))
        plain, turned, number, half = (x, x), (x, x.t()), (x, x[0, 0]), (x.half(), x.half())
        gaps = (wide[:, ::2],) * 2
        for one, other in ((plain, plain), (plain, (x.t(), x.t())), (turned, turned), (number, turned), (gaps, gaps)):
            assert split(one, other)
        for one, other in ((plain, turned), (number, plain), (plain, half), (plain, gaps), (gaps, plain)):
            assert split(one, other) == (device == "cpu")  # there is one way only


Make = Callable[[], Callable[[], None]]


def mlp(optimizer: str, **how: Any) -> tuple[Make, list[bytes]]:
    """A workload that clips, scales its gradients and trains; what it trained, bit by bit, after each step."""
    seen: list[bytes] = []

    def make() -> Callable[[], None]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
        opt = getattr(torch.optim, optimizer)(net.parameters(), **how)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)  # type: ignore[attr-defined]

        def step() -> None:
            scaler.scale(net(torch.randn(4, 16)).square().sum()).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=True)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            states = [x for state in opt.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
            with torch.utils._python_dispatch._disable_current_modes():
                seen.append(b"".join(x.detach().numpy().tobytes() for x in [*net.parameters(), *states]))

        return step

    return make, seen


@pytest.mark.parametrize(
    ("optimizer", "how"),
    [
        ("SGD", {"momentum": 0.9, "foreach": True}),
        ("SGD", {"momentum": 0.9, "fused": True}),
        ("Adam", {"amsgrad": True, "foreach": True}),
        ("AdamW", {"foreach": True}),
        ("AdamW", {"fused": True}),
        ("Adagrad", {"fused": True}),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_training_in_pieces_changes_no_bit(optimizer: str, how: dict[str, Any]) -> None:
    make, plain = mlp(optimizer, **how)
    step = make()
    for _ in range(5):
        step()
    make, seen = mlp(optimizer, **how)
    split = record(make, "cpu", iterations=4, chunk=3 * 16 * 16 * 4).trace
    assert seen == plain
    assert split.n > capture(mlp(optimizer, **how)[0], "cpu").n + 3


def adam(size: int = 64) -> Callable[[], None]:
    """Eight layers under Adam: 16 rows."""
    net = torch.nn.Sequential(*[torch.nn.Linear(size, size) for _ in range(8)])
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)

    def step() -> None:
        net(torch.randn(4, size)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def touched(trace: Trace) -> int:
    """The most bytes that an op of the optimizer reads and writes."""
    size = trace.buffers.size
    return max(int(sum(size[[*{*op.reads, *op.writes}]])) for op in trace.ops if "_foreach" in op.name)


def test_ops_hold_less_and_the_step_holds_the_same() -> None:
    row = 64 * 64 * 4
    whole, least = (capture(adam, chunk=chunk) for chunk in (None, 1))
    assert touched(whole) > 8 * 3 * row and touched(least) == 3 * row
    for chunk in (4 * row, 10 * row):
        split = capture(adam, chunk=chunk)
        assert 3 * row <= touched(split) <= chunk and whole.n < split.n < least.n
        assert floor(split)[1] < floor(whole)[1]
        assert split.peak_live_bytes == whole.peak_live_bytes
        assert split.ops.moved.sum() == whole.ops.moved.sum()
        assert {op.name for op in split.ops} == {op.name for op in whole.ops}
    assert touched(capture(adam, "cpu", chunk="64KiB")) == touched(capture(adam, chunk=64 * 1024))


def test_an_optimizer_that_alone_holds_too_much_fits_in_pieces() -> None:
    limit = floor(capture(adam))[1] - 1
    whole, split = (
        fit(adam, "rtx4090", limit=limit, planner="search", chunk=chunk, seconds=20) for chunk in (None, "48KiB")
    )
    assert not whole.fits_planned and "must hold" in str(whole.tried[0])
    assert split.fits_planned


@pytest.mark.parametrize(
    ("chunk", "why"),
    [("70%", "chunk: '70%': of what is not known"), (0, "chunk: 0 is 0 bytes, it must be at least 1"), (-1, "-1")],
)
def test_chunks_are_bytes(chunk: int | str, why: str) -> None:
    for ask in (lambda: capture(adam, chunk=chunk), lambda: fit(adam, "rtx4090", chunk=chunk)):
        with pytest.raises(ValueError, match=why):
            ask()


def test_the_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script := tmp_path / "net.py").write_text(
        "import torch\n\n\ndef make():\n"
        "    xs = [torch.nn.Parameter(torch.ones(64)) for _ in range(4)]\n"
        "    optimizer = torch.optim.SGD(xs, foreach=True)\n\n"
        "    def step():\n        sum(x.sum() for x in xs).backward()\n        optimizer.step()\n\n    return step\n"
    )

    def count(*options: str) -> int:
        assert main(["capture", str(script), "-o", str(tmp_path / "t.json"), "--json", *options]) == 0
        return int(json.loads(capsys.readouterr().out)["ops"])

    assert count("--chunk", "1KiB") == count() + 1
    assert main(["fit", str(script), "--chunk", "1KiB"]) == 0
    assert "--chunk 1KiB" in capsys.readouterr().out
