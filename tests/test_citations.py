"""The pages of the papers: each says what to cite, what of its figures we get, and where our code is."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

PAPERS = Path(__file__).parents[1] / "docs" / "papers"
NO_PAPER = {"index", "runtime"}  # `runtime` is the second page of SmartPool's paper
PAGES = {page.stem: page.read_text() for page in sorted(PAPERS.glob("*.md")) if page.stem not in NO_PAPER}
VERDICTS = {"Reproduced", "Partly reproduced", "Not reproduced"}
WIDTH = 90  # of a line of pseudocode
ENTRY = re.compile(r"^:::\{dropdown\} BibTeX\n```bibtex\n@\w+\{\w+,\n(.*?)^\}\n```\n:::$", re.M | re.S)
VERDICT = re.compile(r"^```\{admonition\} ([^\n]*)\n(.*?)^```$", re.M | re.S)
SOURCE = re.compile(r"\{source\}`([\w.]+)\.(\w+)`")


def test_each_page_has_what_to_cite() -> None:
    for name, text in PAGES.items():
        (entry,) = ENTRY.findall(text)
        fields = dict(re.findall(r"^  (\w+) += \{(.+)\},$", entry, re.M))
        assert all(fields.get(field, "").strip() for field in ("author", "title", "year")), name
        assert len(fields) == len(entry.splitlines()), name
        above, _ = text.split(":::", 1)
        for link in re.findall(r"https://(?:doi|arxiv)\.org/[^\s)]+", above):
            assert link.removeprefix("https://doi.org/").removeprefix("https://arxiv.org/abs/") in fields.values(), name


def test_each_page_has_a_verdict_that_the_index_repeats() -> None:
    index = (PAPERS / "index.md").read_text()
    for name, text in PAGES.items():
        ((title, said),) = VERDICT.findall(text)
        assert title in VERDICTS, name
        assert re.search(rf"^\|.*\({name}\.md\).*\| {title.lower()} \|$", index, re.M), name
        first, _, *rows = [line for line in said.splitlines() if line.startswith("|")]
        assert re.fullmatch(r"\| figure \| .*paper \| ours \| why they differ \|", first) and 1 <= len(rows) <= 5, name


def test_each_page_leads_to_code_that_is_there() -> None:
    for name, text in {**PAGES, "runtime": (PAPERS / "runtime.md").read_text()}.items():
        sources = SOURCE.findall(text)
        assert sources, name
        for module, defined in sources:
            assert getattr(importlib.import_module(module), defined).__module__ == module, (name, defined)
        for code in re.findall(r"^```text\n([^`]*)```\n\nIn the code: \{source\}", text, re.M):
            lines = code.splitlines()
            assert 6 <= len(lines) <= 16 and max(map(len, lines)) <= WIDTH, (name, lines[0])
