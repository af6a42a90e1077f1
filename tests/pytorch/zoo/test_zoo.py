"""The zoo: names, files, and its nets against traces that another program recorded."""

from __future__ import annotations

import pytest

from gpumem.io import bundled, read
from gpumem.torch.zoo import TRACES, ZOO, recipe
from tests.conftest import SHARED
from tests.pytorch.described import check_equal

# Ops whose bytes moved differ from the file's, by name and number, and why. All else is equal.
ONCE = "operands that are pieces of one storage: the file counts the first one alone, a kernel reads them all"
TABLE = "rows of a small table, read again and again: the file counts each time, we the whole table at most"
MOVED: dict[str, dict[str, tuple[int, str]]] = {
    "nasnet_331_b32": {"add.Tensor": (4, ONCE)},
    "bert_base_s128_b32": {"embedding.default": (1, TABLE)},
    "ddpm_unet_32_b64": {"cat.default": (1, ONCE)},
    "tacotron2_t40_b32": {"embedding.default": (1, TABLE), "mul.Tensor": (180, ONCE), "add.Tensor": (1, ONCE)},
}


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


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.torch.zoo.libraries.installed", lambda name: None)
    with pytest.raises(ValueError, match=r"^resnet50_224: needs torchvision, .*: pip install 'gpumem\[zoo\]'$"):
        recipe("resnet50_224")
