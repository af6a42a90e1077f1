"""A step without a device beside the same step on the host: equal where it must be, told where it is made otherwise."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from gpumem.cli.main import main
from gpumem.torch import WorkloadError, compare
from gpumem.torch.capture.by_backend import FORMS
from gpumem.torch.capture.explain import Unmatched, amounts, explain
from gpumem.torch.capture.op_lists import ComparedOp, in_common, rising
from tests.pytorch.nets import NETS, data
from tests.pytorch.odd_programs import CI, ODD

Step = Callable[[], None]


# the longest common part, held against the plain recurrence


def longest(a: str, b: str) -> int:
    lengths = [0] * (len(b) + 1)
    for x in a:
        before, lengths = lengths, [0]
        for j, y in enumerate(b):
            lengths.append(before[j] + 1 if x == y else max(before[j + 1], lengths[j]))
    return lengths[-1]


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_what_is_in_common_is_longest(a: str, b: str) -> None:
    pairs = in_common(a, b)
    assert len(pairs) == longest(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))


@given(st.lists(st.integers(0, 9), max_size=30))
def test_a_rising_part_is_longest(values: list[int]) -> None:
    at = rising(values)
    assert all(values[i] < values[j] and i < j for i, j in pairwise(at))
    best: list[int] = []
    for i, value in enumerate(values):
        best.append(1 + max((best[j] for j in range(i) if values[j] < value), default=0))
    assert len(at) == max(best, default=0)


# lists made different: each change is found, with as many ops as were changed

NAMES = ["addmm.default", "relu.default", "mul.Tensor", "bmm.default", "sum.default"]
OPS = st.builds(
    ComparedOp,
    st.sampled_from(["forward", "backward"]),
    st.sampled_from(["", "net.0", "net.1"]),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from([16, 64]), max_size=2).map(tuple),
    st.lists(st.sampled_from([16, 64]), max_size=2).map(tuple),
)


@given(st.lists(OPS, max_size=25), st.lists(OPS, max_size=25))
def test_nothing_is_explained_away(ops: list[ComparedOp], others: list[ComparedOp]) -> None:
    """No row of the table begins with these ops alone, so all that is not in common is left, on either side."""
    pairs = in_common(ops, others)
    device = Unmatched(ops, {*range(len(ops))} - {i for i, _ in pairs})
    host = Unmatched(others, {*range(len(others))} - {j for _, j in pairs})
    assert explain(device, host) == []
    assert Counter(ops[i] for i in device.left()) - Counter(others[j] for j in host.left()) == Counter(ops) - Counter(
        others
    )
    assert len(device.left()) + len(pairs) == len(ops) and len(host.left()) + len(pairs) == len(others)


def of_names(names: str, size: int = 64, phase: str = "forward") -> list[ComparedOp]:
    return [ComparedOp(phase, "net", f"{name}.default", (size,), (size,)) for name in names.split()]


def rest(mine: str, theirs: str, phase: str = "forward") -> tuple[list[str], list[str], list[tuple[str, int]]]:
    """What is left of both sides, and the rows that took the rest."""
    sides = [Unmatched(ops, range(len(ops))) for ops in (of_names(mine, 64, phase), of_names(theirs, 64, phase))]
    rows = [(row.what, row.units) for row in explain(*sides)]
    mine_left, theirs_left = ([side.ops[i].name.partition(".")[0] for i in side.left()] for side in sides)
    return mine_left, theirs_left, rows


DROPPED = "empty_like bernoulli_ div_ mul"


@pytest.mark.parametrize(
    ("mine", "theirs", "left"),
    [
        ("native_dropout", DROPPED, ("", "")),
        ("native_dropout", f"{DROPPED} mul", ("", "mul")),  # one more than the row has
        ("native_dropout native_dropout", DROPPED, ("native_dropout", "")),
        ("native_dropout", "empty_like bernoulli_ mul", ("native_dropout", "empty_like bernoulli_ mul")),
        ("_fused_rms_norm", "pow mean add_ rsqrt mul mul", ("", "")),
        ("_fused_rms_norm", "pow mean add_ rsqrt mul mul mul", ("", "mul")),
        ("mul", "", ("mul", "")),
        ("", "bmm bmm _safe_softmax", ("", "bmm bmm _safe_softmax")),
    ],
)
def test_a_row_takes_what_it_has_and_no_more(mine: str, theirs: str, left: tuple[str, str]) -> None:
    found, others, _ = rest(mine, theirs)
    assert (sorted(found), sorted(others)) == tuple(sorted(side.split()) for side in left)


def test_a_call_on_a_list_is_one_on_each_tensor_of_as_many_bytes() -> None:
    many = ComparedOp("optimizer", "", "_foreach_mul_.Scalar", (64, 128), (64, 128))

    def left(*sizes: int) -> tuple[int, int]:
        singles = [ComparedOp("optimizer", "", "mul.Tensor", (size,), (size,)) for size in sizes]
        sides = Unmatched([many], [0]), Unmatched(singles, range(len(singles)))
        explain(*sides)
        return len(sides[0].left()), len(sides[1].left())

    assert left(64, 128) == left(128, 64) == (0, 0)
    assert left(64, 128, 64) == (0, 1)
    assert left(64, 64) == (1, 2) and left(64) == (1, 1)


def test_each_row_says_why_and_takes_something() -> None:
    for form in FORMS:
        assert form.what and form.why and "\n" not in form.why
        assert any(amounts(spec) for spec in (*form.device, *form.host))
        # of others any difference in size would be explained
        assert {*form.device} & {*form.host} <= {"(counter)*", "_ctc_loss", "_ctc_loss_backward"}, form


# whole steps


@pytest.mark.parametrize("name", sorted(NETS))
def test_nets_part_by_backend_alone(name: str) -> None:
    def make(batch: int = 2) -> Step:
        net = NETS[name]()
        optimizer = torch.optim.AdamW(net.parameters())

        def step() -> None:
            x, y = data(name, batch)
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    found = compare(make)
    assert found.agrees and not found.partings, found.report()


KINDS = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]


@pytest.mark.parametrize("optimizer", KINDS)
def test_optimizers_part_by_backend_alone(optimizer: str) -> None:
    found = compare(plain(lambda x: x, getattr(torch.optim, optimizer)))
    assert found.agrees, found.report()


# On the host the averages are made one by one and copied, the copies in another phase: no row says so.
PARTS = pytest.mark.xfail(strict=True, raises=AssertionError)
ASKING = [
    pytest.param(
        name,
        marks=[
            *([] if name in CI else [pytest.mark.slow]),
            *([PARTS] if name == "averaged" else []),
        ],
    )
    for name in ODD
]


@pytest.mark.parametrize("name", ASKING)
def test_odd_programs_part_by_backend_alone(name: str) -> None:
    found = compare(ODD[name])
    assert found.agrees, found.report()
    assert found.device.trace.n > 5 and "backward" in found.device.phases


def plain(odd: Callable[[torch.Tensor], torch.Tensor], optimizer: Any = None) -> Callable[..., Step]:
    """Two layers, and in between whatever is odd."""

    def make(batch: int = 4) -> Step:
        first, second = nn.Linear(6, 8), nn.Linear(8, 3)
        net = nn.ModuleList([first, second])
        optimize = optimizer(net.parameters()) if optimizer else None

        def step() -> None:
            second(odd(first(torch.randn(batch, 6)).relu())).square().sum().backward()
            if optimize:
                optimize.step()
            net.zero_grad()

        return step

    return make


def test_the_same_ops_are_equal() -> None:
    found = compare(plain(lambda x: x))
    assert found.verdict == "equal" and found.same == found.device.trace.n == found.host.trace.n
    assert found.device.trace.peak_live_bytes == found.host.trace.peak_live_bytes


UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    lambda x: x * 2,
    lambda x: x[:2].repeat(2, 1),
    lambda x: x.clone().mul_(3),
    lambda x: torch.cat([x[:1], x[1:]]),
    lambda x: x.softmax(-1),
    lambda x: nn.functional.layer_norm(x, (8,)),
]


def chain(which: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        for k in which:
            x = UNARY[k](x)
        return x

    return run


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(UNARY) - 1), max_size=5), st.integers(1, 3), st.booleans())
def test_each_op_more_on_one_of_the_two_is_told(which: list[int], more: int, on_host: bool) -> None:
    """An oracle: ops with an exact count, and no gradient, that one of the two alone runs."""

    def odd(x: torch.Tensor) -> torch.Tensor:
        if x.is_meta != on_host:
            for _ in range(more):
                torch.full((7,), 1.0).cumsum(0)
        return chain(which)(x)

    assert compare(plain(chain(which))).verdict == "equal"
    found = compare(plain(odd))
    (parting,) = found.partings
    mine, theirs = ({}, {"full.default": more, "cumsum.default": more})[:: 1 if on_host else -1]
    assert (dict(parting.device), dict(parting.host)) == (mine, theirs) and not parting.sizes and not parting.order
    assert parting.phase == "forward" and not found.agrees
    names = found.device.trace.ops.name
    assert names[parting.at - 1] == "relu.default"
    assert found.same == min(found.device.trace.n, found.host.trace.n)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    "loss",
    ["mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"],
)
def test_a_loss_has_the_storage_that_its_kernel_leaves_it(loss: str, reduction: str) -> None:
    """Some work their terms out where the sum is to be, which keeps all of that storage."""

    def make() -> Step:
        x = torch.rand(5, 6, requires_grad=True)
        of = getattr(nn.functional, loss)
        return lambda: of(x, torch.rand(5, 6), reduction=reduction).sum().backward()

    assert compare(make).verdict == "equal"


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(2, 3, 1), (3, 2, 2), (1, 2, 3)])
def test_columns_keep_their_storage_as_an_image(channels: int, kernel: int, stride: int) -> None:
    def make() -> Step:
        x = torch.randn(2, channels, 8, 8, requires_grad=True)

        def step() -> None:
            y = nn.functional.unfold(x, kernel, stride=stride)
            nn.functional.fold(y.tanh(), (8, 8), kernel, stride=stride).square().sum().backward()

        return step

    assert compare(make).verdict == "equal"


@pytest.mark.parametrize("net_last", [False, True])
@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize(
    ("layers", "last"),
    [
        ((nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d), torch.channels_last),
        ((nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.MaxPool3d), torch.channels_last_3d),
    ],
)
def test_channels_last_go_through_convolutions(
    layers: tuple[Any, ...], last: torch.memory_format, net_last: bool, batch_last: bool
) -> None:
    """Else a copy of what they make is made before each view that needs it, and other gradients are copied."""
    conv, back, norm, pool = layers

    def make() -> Step:
        net = nn.Sequential(conv(3, 6, 3), norm(6), nn.ReLU(), conv(6, 6, 3, groups=6), pool(2), back(6, 4, 2))
        net = net.to(memory_format=last) if net_last else net
        shape = (2, 3, *[8] * (net[0].weight.dim() - 2))

        def step() -> None:
            x = torch.randn(shape)
            y = net(x.to(memory_format=last) if batch_last else x)
            y.movedim(1, -1).reshape(-1, 4).square().sum().backward()
            net.zero_grad()

        return step

    assert compare(make).verdict == "equal"


def test_gradients_of_layer_norm_are_laid_out_in_rows() -> None:
    """Else what follows copies them, as after Swin's last norm."""

    def make() -> Step:
        first, norm = nn.Linear(6, 6), nn.LayerNorm(6)
        net = nn.ModuleList([first, norm])

        def step() -> None:
            norm(first(torch.randn(2, 5, 6)) * 2).permute(0, 2, 1).square().flatten(1).sum().backward()
            net.zero_grad()

        return step

    assert compare(make).verdict == "equal"


def test_operands_of_other_sizes_are_told() -> None:
    found = compare(plain(lambda x: x + torch.ones(8 if x.is_meta else 1)))
    forward = next(parting for parting in found.partings if parting.phase == "forward")
    assert dict(forward.sizes) == {"ones.default": 1, "add.Tensor": 1} and not forward.device and not forward.host


def test_another_order_is_told() -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        for make in (torch.zeros, torch.ones)[:: 1 if x.is_meta else -1]:
            make(5)
        return x

    (parting,) = compare(plain(odd)).partings
    assert (parting.order, parting.device, parting.host, parting.sizes) == (1, {}, {}, {})


def test_the_module_is_told() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.tanh() if x.is_meta else x

    def make() -> Step:
        net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Odd(), nn.Linear(4, 2)))
        return lambda: net(torch.randn(2, 4)).sum().backward()

    found = compare(make)
    assert [(p.module, p.phase, dict(p.device)) for p in found.partings] == [
        ("1.0", "forward", {"tanh.default": 1}),
        ("1.0", "backward", {"tanh_backward.default": 1}),
    ]
    assert found.verdict.startswith("parts at op 2 (forward in 1.0)")


def test_a_model_of_another_size_is_told() -> None:
    """RegNets compute how large they are."""

    def make() -> Step:
        width = 5 if torch.ones(1).is_meta else 6
        net = nn.Linear(4, width)
        return lambda: net(torch.randn(2, 4)).sum().backward()

    found = compare(make)
    mine, theirs = found.row()["device"], found.row()["host"]
    assert (mine["parameter_bytes"], theirs["parameter_bytes"]) == (4 * 25, 4 * 30) and not found.agrees


def test_which_of_the_two_failed_is_told() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing") if not x.is_meta else KeyError("gone")

    with pytest.raises(WorkloadError, match=r"on meta: .*gone"):
        compare(plain(fails))
    with pytest.raises(WorkloadError, match=r"on the host: .*not here"):
        compare(plain(lambda x: x if x.is_meta else x.new_tensor(int("not here"))))
    with pytest.raises(ValueError, match="device: 'cpu' is unknown"):
        compare(plain(lambda x: x), device="cpu")


# on the command line

FILE = """
import torch

def make(batch=4):
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.1))
    def step():
        net(torch.randn(batch, 6)).sum().backward()
    return step

def odd(batch=4):
    net = torch.nn.Linear(6, 8)
    def step():
        x = net(torch.randn(batch, 6))
        (x.tanh() if x.is_meta else x).sum().backward()
    return step
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(FILE)
    return str(tmp_path / "train.py")


def test_the_command_says_what_differs_by_backend(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", f"{file}:make", "--compare", "--batch", "3"]) == 0
    told = capsys.readouterr().out
    assert "equal but for what differs by backend" in told and "keeps a mask" in told and "looked at" not in told


def test_the_command_fails_where_there_is_something_to_look_at(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", f"{file}:odd", "--compare"]) == 3
    told = capsys.readouterr()
    assert "parts at op 2 (forward)" in told.err and "tanh.default" in told.out
    assert main(["capture", f"{file}:odd", "--compare", "--json", "--quiet"]) == 3
    row = json.loads(capsys.readouterr().out)
    assert row["partings"][0]["device"] == {"tanh.default": 1} and row["agrees"] is False
    assert row["device"]["ops"] == row["host"]["ops"] + 2


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "required"),
        (["--compare", "-o", "x.json"], "not allowed with"),
        (["--compare", "--device", "cpu"], "'cpu'"),
    ],
)
def test_wrong_lines_are_one(file: str, more: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["capture", f"{file}:make", *more])
    except SystemExit as end:  # of argparse
        status = int(end.code or 0)
    assert status == 2 and told in capsys.readouterr().err
