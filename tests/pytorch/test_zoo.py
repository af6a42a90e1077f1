"""The zoo: names, files, and its nets against traces that another program recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpumem import Trace
from gpumem.io import bundled, read
from gpumem.torch.zoo import TRACES, ZOO, recipe
from gpumem.torch.zoo.cli import main
from gpumem.trace.kinds import PARAM, STATISTICS
from tests.conftest import SHARED
from tests.pytorch.test_capture import described

# Ops whose bytes moved differ from the file's, by name and number, and why. All else is equal.
ONCE = "operands that are pieces of one storage: the file counts the first one alone, a kernel reads them all"
TABLE = "rows of a small table, read again and again: the file counts each time, we the whole table at most"
MOVED: dict[str, dict[str, tuple[int, str]]] = {
    "nasnet_331_b32": {"add.Tensor": (4, ONCE)},
    "bert_base_s128_b32": {"embedding.default": (1, TABLE)},
    "ddpm_unet_32_b64": {"cat.default": (1, ONCE)},
    "tacotron2_t40_b32": {"embedding.default": (1, TABLE), "mul.Tensor": (180, ONCE), "add.Tensor": (1, ONCE)},
}


KEPT = (PARAM, STATISTICS)  # what the files have names of


def check_equal(mine: Trace, theirs: Trace, moved: dict[str, tuple[int, str]]) -> None:
    """Name, operands (bytes and kind), flops and bytes moved of each op; the load; parameters, with their names."""
    ours, others = (described(trace) for trace in (mine, theirs))
    assert [row[:-1] for row in ours] == [row[:-1] for row in others]
    differ = Counter(a[0] for a, b in zip(ours, others) if a[-1] != b[-1])
    assert differ == {op: count for op, (count, why) in moved.items()}
    assert mine.peak == theirs.peak
    assert mine.load().tolist() == theirs.load().tolist()
    assert mine.ops.rng.tolist() == theirs.ops.rng.tolist()
    held, expected = (
        Counter((b.kind, b.size, b.shape, b.dtype, b.name * (b.kind in KEPT)) for b in trace.buffers)
        for trace in (mine, theirs)
    )
    assert held == expected


@pytest.mark.parametrize("name, file", [("mlp3_b128_sgd", "mlp3"), ("vgg16_cifar", "vgg16")])
def test_nets_of_torch_alone_are_what_another_recorder_saw(name: str, file: str) -> None:
    check_equal(recipe(name).record().trace, bundled(file), {})


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", TRACES)
def test_the_zoo_is_what_another_recorder_saw(name: str) -> None:
    path = SHARED / "traces" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("no shared traces")
    try:
        made = recipe(name)
    except ValueError as error:
        pytest.skip(str(error))
    check_equal(made.record().trace, read(path), MOVED.get(name, {}))


GENERIC = [
    "torchvision:efficientnet_b0_224",
    "mobilenetv2",
    "vit_b_16_160_foreach",
    "timm:vit_tiny_patch16_224",
    "regnet_y_400mf",
]
GENERIC += [
    "t5_2l128_s64_checkpoint",
    "opt_2l128_s64",
    "llama_2l128_s2048",
    "bert_large_2l128_s64_bf16",
    "gpt2_xl_2l128_s64",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GENERIC)
def test_many_other_nets_are_there(name: str) -> None:
    try:
        made = recipe(name, batch=2)
    except ValueError as error:
        pytest.skip(str(error))
    assert {"param", "gradient", "activation", "opt_state"} <= {*made.record().trace.buffers.kind}


def test_the_shared_traces_are_named_as_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.torch.zoo.names.check", lambda name, needs: None)
    assert [recipe(name).name for name in TRACES] == [*TRACES]
    assert len({*TRACES}) == 34
    files = {path.name.removesuffix(".json.gz") for path in SHARED.glob("traces/*.json.gz")}
    assert not files or files == {*TRACES}


def test_a_name_says_how_a_net_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.torch.zoo.names.check", lambda name, needs: None)
    cold = recipe("resnet18_224_b32_cold3")
    assert (cold.optimizer, cold.warmup, cold.iterations, cold.batch) == ("adam", 0, 3, 32)
    told = recipe("unet_64", optimizer="adam", foreach=True, batch=3)
    assert (told.name, told.net.inputs[0].shape) == ("unet_64_b3_adam_foreach", (3, 64, 64))
    assert recipe("llama_8l1024_b4_s1024_bf16").name == "llama_8l1024_s1024_b4_bf16"
    assert {recipe(name).batch for name in ZOO} <= {4, 8, 16, 32, 64, 100, 128}


def test_a_net_of_the_zoo_trains_for_real() -> None:
    step = recipe("vgg11_cifar_noinplace_adam", batch=2).make(device="cpu")
    step()


def test_the_command_writes_files_that_are_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mlp3", "vgg11_cifar", "--batch", "4", "--optimizer", "adam", "--out", str(tmp_path / "new")]) == 0
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert files == ["mlp3_b4_adam.json.gz", "vgg11_cifar_b4_adam.json.gz"]
    have, want = read(tmp_path / "new" / files[0]), recipe("mlp3_b4_adam").record().trace
    check_equal(have, want, {})
    assert (have.name, have.ops.module, have.ops.attributes) == (want.name, want.ops.module, want.ops.attributes)
    assert (have.buffers.shape, have.buffers.dtype) == (want.buffers.shape, want.buffers.dtype)
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == [files[0], str(want.n)]


def test_the_list_needs_no_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[1:-1]] == [*ZOO]


@pytest.mark.parametrize(
    "words, told",
    [
        ("unot --out x", "zoo: 'unot' is unknown; did you mean 'unet'? (--list shows the zoo)"),
        ("vgg16_cifar_adm --out x", "vgg16_cifar_adm: 'adm' is no part of a name; did you mean 'adam'?"),
        ("mlp3_224 --out x", "mlp3_224: takes no size; it takes batch, optimizer, foreach, cold"),
        ("mlp3 --batch 0 --out x", "mlp3: batch 0 is below 1"),
        ("mlp3_b0 --out x", "mlp3_b0: batch 0 is below 1"),
        (
            "mlp3 --optimizer adm --out x",
            "mlp3: optimizer: 'adm' is unknown; there are sgd, adam; did you mean 'adam'?",
        ),
        (
            "timn:resnet50 --out x",
            "timn:resnet50: library: 'timn' is unknown; there are torchvision, timm; did you mean 'timm'?",
        ),
        ("mlp3", "--out DIR is missing: where to write the files"),
        ("mlp3 --out /dev/null/x", "--out: /dev/null/x: cannot write here (Not a directory)"),
        ("mlp3 --bacth 3", "unrecognized arguments: --bacth 3; did you mean '--batch'? (see --help)"),
        ("mlp3 --batch x", "argument --batch: invalid int value: 'x' (see --help)"),
    ],
)
def test_what_is_wrong_is_one_line(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words.split())
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (status, out, err) == (2, "", f"python -m gpumem.torch.zoo: error: {told}\n")


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.torch.zoo.libraries.installed", lambda name: None)
    with pytest.raises(ValueError, match=r"^resnet50_224: needs torchvision, .*: pip install 'gpumem\[zoo\]'$"):
        recipe("resnet50_224")
