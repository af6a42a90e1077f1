"""The zoo on the command line: files that are read again, the list, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem.io import read
from gpumem.torch.zoo import ZOO, recipe
from gpumem.torch.zoo.cli import main
from tests.pytorch.described import check_equal


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
