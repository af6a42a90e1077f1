"""The figures on the pages of SmartPool, checkpointing, Capuchin, vDNN and DTR are those that benchmarks printed."""

from __future__ import annotations

from functools import partial

import pytest

from tests.page_tables import ROOT, cell, figures, table, unlike

PAPERS = ROOT / "docs" / "papers"
SMARTPOOL, CAPUCHIN = PAPERS / "smartpool.md", PAPERS / "capuchin.md"
NETS = {net: f"{net.lower()}_cifar_b100" for net in ("VGG11", "VGG16", "ResNet18", "ResNet50", "ResNet152")}
BOTH = "mean of VGG11 and VGG16"
BELOW_CNMEM = {  # row of a page -> how lines of Table I begin, and the column
    "below CnMem, VGG11, one pool": ("vgg11_cifar_b100", "below cnmem %"),
    "below CnMem, VGG11, SINGA's": ("vgg11_cifar_b100", "below SINGA's %"),
    f"below CnMem, {BOTH}, one pool": ("VGGs, mean of 2", "below cnmem %"),
    f"below CnMem, {BOTH}, SINGA's": ("VGGs, mean of 2", "below SINGA's %"),
}
pytestmark = pytest.mark.jit  # nothing is compiled


class Same(dict[str, str]):
    """Rows whose first cell is what the printed line begins with."""

    def __missing__(self, first: str) -> str:
        return f"{first} "


@pytest.mark.parametrize(
    ("page", "head", "file", "count"),
    [
        ("recompute", ("trace", "least"), "checkpoint.txt", 10),
        ("recompute", ("trace", "asked for"), "checkpoint.txt", 10),
        ("recompute", ("trace, gtx1080ti",), "checkpoint.txt", 4),
        ("capuchin", ("trace", "70 %"), "baselines.txt", 5),
        ("vdnn", ("trace", "`all`: load"), "baselines.txt", 5),
    ],
)
def test_each_row_was_printed(page: str, head: tuple[str, ...], file: str, count: int) -> None:
    found = table(PAPERS / f"{page}.md", *head)
    assert len(found.rows) == count and unlike(found.rows, file, Same()) == []


def test_ratios_without_swapping() -> None:
    rows = table(SMARTPOOL, "trace (CIFAR size, batch 100)").rows
    names = {net: f"{name} " for net, name in NETS.items()}
    assert len(rows) == 5 and unlike([row[:3] for row in rows], "pool.txt", names) == []
    assert all(better == min(best_fit, first_fit) for _, best_fit, first_fit, better in rows)


def test_below_cnmem() -> None:
    rows = {first: shown for first, _, *shown in table(SMARTPOOL, "", "published").rows}
    for row, (begins, head) in BELOW_CNMEM.items():
        measured = [cell("table1.txt", head, f"{begins}{rule} ", below="--workspaces") for rule in ("", ", fastest")]
        assert rows[row] == [f"{one} %" for one in measured], row


def test_worst_ratios() -> None:
    ratio = partial(cell, "table1.txt", "smartpool", below="--workspaces")
    plain, fastest = ([ratio(f"{name}{rule} ") for name in NETS.values()] for rule in ("", ", fastest"))
    apart = cell("table1.txt", "smartpool", "vgg16_cifar_b100_noinplace, fastest ", below="noinplace.json.gz")
    (shown,) = [row for row in table(SMARTPOOL, "", "published").rows if row[0].startswith("the worst ratio")]
    assert figures(shown[2])[0] == max(plain) and figures(shown[3])[:1] + figures(shown[3])[-1:] == [
        max(fastest),
        apart,
    ]


def saved(net: str, rule: str) -> list[float]:
    """In % below CnMem of one pool and below SINGA's, for nothing and at most 15 %: figure 10 at batch 100."""
    title = f"placed clock: {NETS[net]}{rule}\n"
    mib = {
        head: float(cell("figure10.txt", head, "1 ", below=title).split()[0])
        for head in ("cnmem", "SINGA's cnmem", "with autoswap, 0.5%", "with autoswap, 15.0%")
    }
    one_pool, singa, *swapped = mib.values()
    return [100 * (1 - held / pool) for held in swapped for pool in (one_pool, singa)]


@pytest.mark.parametrize("net", NETS)
def test_with_autoswap(net: str) -> None:
    (shown,) = [row for row in table(SMARTPOOL, "net", "for nothing: one pool").rows if row[0] == net]
    measured = saved(net, "") + saved(net, ", fastest")
    assert [float(one) for one in shown[1:]] == pytest.approx(measured, abs=0.1)  # a file has tenths of a MiB


def test_recomputing_before_and_now() -> None:
    rows = table(CAPUCHIN, "trace", "60 %, before").rows
    now = [[row[0], row[7], *row[2:7:2]] for row in rows]
    before = [[row[0], row[7], *row[1:7:2]] for row in rows]
    assert len(rows) == 6 and unlike(now, "recomputing.txt", Same()) == []
    assert unlike(before, "recomputing_before.txt", Same()) == []
