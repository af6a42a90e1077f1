"""The figures on Waterwave's page are those of the result files that benchmarks wrote."""

from __future__ import annotations

import pytest

from tests.page_tables import ROOT, agrees, printed, table, unlike

PAGE = ROOT / "docs" / "papers" / "waterwave.md"
NETS = {
    "ResNet50": "resnet50_224_b64",
    "ResNet152": "resnet152_224_b64",
    "NasNet": "nasnet_331_b32",
    "InceptionV3": "inceptionv3_299_b2",
    "InceptionV3, batch 2": "inceptionv3_299_b2",
    "BERT-base": "bert_base_s128_b32",
    "Tacotron2": "tacotron2_t40_b32",
}
SAME = {net: net for net in NETS.values()}
TWICE = "resnet50_224_b64 + resnet50_224_b64 "
pytestmark = pytest.mark.jit  # nothing is compiled


@pytest.mark.parametrize(
    ("head", "file", "names", "words"),
    [
        (("net", "solo", "Waterwave-s", "Waterwave"), "bench_waterwave.txt", NETS, ("v100", "depth")),
        (("net", "solo", "Waterwave", "of solo"), "bench_waterwave_p100.txt", NETS, ("p100", "depth")),
        (("net", "solo", "flat", "wrapped"), "bench_waterwave_pool.txt", NETS, ("v100", "depth")),
        (("net", "two ends, at its largest batch"), "bench_waterwave_pool.txt", NETS, ("v100", "depth")),
        (("net", "rounds", "load"), "bench_waterwave_rounds.txt", NETS, ("v100",)),
        (("net", "one of it", "two in turn"), "turns.txt", SAME, ()),
        (("net", "one, scheduled", "completed"), "bench_waterwave_late.txt", NETS, ()),
        (("weights",), "bench_waterwave_balanced.txt", TWICE, ()),
        (("ResNet50 twice, of both peaks",), "bench_waterwave_sharing.txt", TWICE, ("0.5",)),
    ],
)
def test_each_row_was_printed(
    head: tuple[str, ...], file: str, names: dict[str, str] | str, words: tuple[str, ...]
) -> None:
    found = table(PAGE, *head)
    assert len(found.rows) > 3 and unlike(found.rows, file, names, *words) == []


def test_each_batch_over_the_split_size_was_printed() -> None:
    (_, *sizes), rows = table(PAGE, "net", "0.25", "0.5")
    assert len(rows) == 5
    for net, *batches in rows:
        for size, batch in zip(sizes, batches, strict=True):
            lines = printed("bench_waterwave.txt", NETS[net], "v100", "depth", size)
            assert any(agrees([size, batch], line) for line in lines), (net, size)


def test_a_row_that_was_not_printed_is_found() -> None:
    rows = [["ResNet50", "393", "223", "356"], ["ResNet152", "190", "116", "182"]]
    assert unlike(rows, "bench_waterwave.txt", NETS, "v100", "depth") == ["ResNet50"]
