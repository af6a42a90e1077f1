"""The figures on the pages of MO-SOS, the SNU thesis and AutoSwap are those of the files that benchmarks wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.page_tables import RESULTS, ROOT, Table, agrees, figures, table, tables

PAPERS = ROOT / "docs" / "papers"
NETS = {"VGG19": "vgg19_227_b144", "U-Net": "unet_256_b120"}
SIZES = {"256": 7.89, "512": 15.62}  # GiB that ResNet34 takes
WAYS = ["checkmate-auto", "str-auto", "mosos", "mosos, waits", "search", "mosos, started"]
pytestmark = pytest.mark.jit  # nothing is compiled


def page(name: str) -> Path:
    return PAPERS / f"{name}.md"


def filled(found: Table) -> list[list[str]]:
    """The rows of a table whose first cell stands for the ones below it as well."""
    rows, first = list[list[str]](), ""
    for cells in found.rows:
        first = cells[0] or first
        rows.append([first, *cells[1:]])
    return rows


def lines(file: str) -> list[str]:
    return (RESULTS / file).read_text().splitlines()


def printed(file: str, *cells: str) -> list[str]:
    """The lines of a result file that have these cells, apart by two spaces or more."""
    return [line for line in lines(file) if {*cells} <= {*re.split(r"  +", line)}]


def after(line: str, cell: str) -> str:
    return line.partition(f"  {cell}  ")[2]


def test_steps_of_mosos() -> None:
    found = [cells for cells in filled(table(page("mosos"), "net", "ratio", "limit")) if cells[1] != "no limit"]
    assert len(found) == 10
    for net, ratio, limit, *steps, status in found:
        for way, cell in zip(WAYS, steps, strict=True):
            (line,) = printed("bench_mosos.txt", NETS[net], ratio, f"{float(limit.split()[0]):.2f} GiB", way)[:1]
            step, _, rest = after(line, way).lstrip().partition(" s ")
            assert cell.split(" s")[0] == ("" if step.startswith("-") else step), (net, ratio, way)
            assert agrees(figures(cell.partition("(")[2]), rest) and (way != WAYS[-1] or status in rest)


def test_where_the_time_of_mosos_goes() -> None:
    found = filled(table(page("mosos"), "net", "ratio", "by"))
    assert len(found) == 15
    for net, ratio, by, convolutions, *rest in found:
        way = {"MO-SOS": "mosos", "MO-SOS, waits": "mosos, waits"}.get(by, by.lower())
        line = after(printed("bench_mosos.txt", NETS[net], ratio, way)[1], way)
        assert agrees(figures(convolutions), line) and agrees(figures(rest[-2]), line.replace("0 B", "0.0")), (net, by)


def test_by_how_much_mosos_is_faster() -> None:
    found = [row for row in filled(table(page("mosos"), "net", "ratio", "than Checkmate-Auto")) if row[0] in NETS]
    assert len(found) == 10
    for net, ratio, *cells in found:
        shown = [figure for k in (0, 1, 3, 4) for figure in figures(cells[k])]
        assert any(agrees(shown, line) for line in printed("bench_mosos.txt", NETS[net], ratio)), (net, ratio)


def test_snu_where_the_card_has_less() -> None:
    rows = [row for row in table(page("snu"), "batch", "capacity").rows if row[0].isdigit()]
    assert len(rows) == 5
    for batch, capacity, *cells in rows:
        base = "on-demand, by size" if "*" in cells[0] else "on-demand, by address"
        for way, cell in zip((base, "heuristic", "ilp", "certified least"), cells, strict=True):
            (line,) = printed("bench_snu_capacities.txt", f"resnet34_224_b{batch}", capacity, way)
            stall, over = figures(cell)[0], figures(cell)[1:]
            told = after(line, way)
            ns = float(figures(told)[0]) * {"s": 1000.0, "ms": 1.0, "ns": 0.0}[told.split()[1]]
            assert float(stall) == pytest.approx(ns, abs=0.51) and agrees(over, told), (batch, capacity, way)


def test_snu_figures_7_and_8() -> None:
    for batch, *cells in table(page("snu"), "batch", "memory, thesis").rows[1:]:
        for way, cell in zip(("on-demand, by address", "on-demand, by size", "on-demand"), cells[3:6], strict=True):
            (line,) = printed("bench_snu.txt", f"resnet34_224_b{batch}", way, f"{float(SIZES[batch]):.2f} GiB")
            stall, unit = re.findall(r"([\d.]+) (ms|s)\b", after(line, way))[1]
            seconds = float(stall) / (1000 if unit == "ms" else 1)
            assert float(figures(cell)[0]) == pytest.approx(seconds, abs=6e-3), (batch, way)
    for way, *cells in table(page("snu"), "way", "256: thesis").rows[:3]:
        name = {"integer program": "ilp"}.get(way, way)
        for batch, cell in zip(SIZES, cells[1::2], strict=True):
            (line,) = printed("bench_snu.txt", f"resnet34_224_b{batch}", name, f"{float(SIZES[batch]):.2f} GiB")
            assert agrees(figures(cell), line), (way, batch)


def spans(row: Sequence[str]) -> list[float | None]:
    """The least and the largest of a row of overheads, rounded as pages show them."""
    known = [float(cell) for cell in row if cell != "-"]
    return [min(known), max(known)] if known else [None, None]


@pytest.mark.parametrize(("head", "which"), [(("limit", "MB", "published"), 0), (("limit, with workspaces",), 1)])
def test_autoswap_figure_9(head: tuple[str, ...], which: int) -> None:
    text = "\n".join(lines("figure9.txt"))
    rows = {}
    for line in text.split("\nFigure 9: ")[1 + which].splitlines():
        cells = line.split()
        if len(cells) == 12 and re.fullmatch(r"[\d.]+", cells[0]):
            rows[float(cells[0])] = cells[2:]
    found = table(page("autoswap"), *head)
    shown = [row for row in found.rows if row[0] != "90 to 85"]
    assert len(shown) >= 9
    for limit, *cells in shown:
        got = rows[float(limit)]
        pairs = zip(cells[-4:], (got[5:9], got[9:], got[:4], got[4:5]), strict=True)
        for cell, measured in pairs:
            said, (low, high) = [float(x) for x in figures(cell)], spans(measured)
            want = [x for x in (low, high)[: max(len(said), 1)] if x is not None]
            assert said == pytest.approx(want, abs=0.0501) if said else low is None or not cell, (limit, cell)


def test_autoswap_reductions_of_the_footprint() -> None:
    text = "\n".join(lines("figure11.txt"))
    sections = {s.splitlines()[0]: s for s in re.split(r"\nFigure 11: [^\n]*quoted: ", text)[1:]}
    for net, name in (("VGG16", "vgg16_cifar_b100"), ("ResNet50", "resnet50_cifar_b100")):
        for planner, *cells in table(page("autoswap"), f"{net}, saved").rows:
            measured = [
                float(figures(line)[-1])
                for title in (name, f"{name}, fastest")
                for line in sections[title].splitlines()
                if line.startswith(planner.strip("`") + " ")
            ]
            for cell in cells if planner.startswith("`") else ():
                for figure in figures(cell):
                    assert any(abs(x - float(figure)) < 0.0501 for x in measured), (net, planner, cell)


def test_autoswap_what_could_be_avoided() -> None:
    rows = [row for one in tables(page("autoswap")) for row in one.rows]
    ((_, _, printed_, search),) = [row for row in rows if row[0].startswith("VI-B3: of that above")]
    for cell, planner in ((printed_, "bayes, as printed"), (search, "search, swaps alone")):
        found = [after(line, planner) for line in lines("optimality.txt") if f"  {planner}  " in line]
        assert len(found) == 2
        for shown, line in zip(figures(cell), found, strict=True):
            value, unit = re.findall(r"([\d.]+) (ms|us)", line)[2]
            assert float(shown) == pytest.approx(float(value) / (1000 if unit == "us" else 1), abs=0.0051)
