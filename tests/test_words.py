"""Words of our own that the field has better ones for do not come back: in names, sentences, messages and pages.

A sentence is what a reader sees: docstrings, comments, texts of errors and what commands print, and the pages. History
(`CHANGELOG.md`) and results of earlier runs keep their words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src/gpumem").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# What a sentence does not say (a regular expression), and what it says instead.
SENTENCES = {
    r"ma(?:k(?:e|es|ing)|de)(?: \w+)? again": "recompute, rematerialise",
    r"compute[ds]? again": "recompute",
    r"runs? again": "recompute, is recomputed",
    r"re-?runs?": "recompute, recomputation",
    r"re-?ran": "recomputed",
    r"knees?": "lowest zero-overhead limit",
    r"rooms of": "packages of",
    r"wings?": "package",
    r"houses?": "package",
    r"worlds?": "execution environment",
    r"doors?": "integration, entry point, public function",
    r"hand(?:s|ed|ing)?(?: (?:it|them|one|ops|the op))? over": "launch, enqueue",
    r"peak loads?": "peak live bytes",
    r"competitive ratios?": "fragmentation ratio",
    r"capacity clocks?": "byte-counting simulation",
    r"placed clocks?": "address-aware simulation",
    r"within a limit": "under a memory limit, memory-limited",
    r"spells?": "residency interval",
    r"strangers": "foreign threads",
    r"hollow": "storage without memory",
    r"twins?": "interchangeable buffers",
    r"standings?": "planner comparison, leaderboard",
    r"quoted": "published, reported",
    r"(?:is|are|was|were) away": "off the device",
    r"sen(?:d|ds|t) away": "evict",
    r"what nobody needs": "who does what to what",
    r"notebooks? of iterations": "iteration recorder",
    r"elsewhere on the device": "redirected device",
}
# What no name of the code is, nor a part of one between underscores, and what it could be.
NAMES = {
    "again": "recipe, recompute",
    "among": "compare_planners",
    "Among": "PlannerComparison",
    "as_cuda": "fake_cuda",
    "away": "off_device",
    "Book": "IterationRecorder",
    "bury": "reap",
    "coming": "in_flight",
    "Course": "RunLoop",
    "elsewhere": "redirect_device",
    "feeds": "dependents",
    "found": "what it is: placement, plan, candidates",
    "gone": "evicted, released",
    "handed": "host_spans",
    "handing": "host_costs",
    "hollow": "without_memory",
    "house": "package",
    "knee": "lowest_limit",
    "knees": "lowest_limits",
    "Learner": "RunLoop",
    "leaving": "restore",
    "MadeAgain": "RecomputableGaps",
    "mine": "own_...",
    "Need": "Requirement",
    "Notebook": "IterationRecorder",
    "outside": "storage_access",
    "payer": "what it is",
    "quoted": "published",
    "rerun": "recomputed_op, step",
    "Rerun": "RecomputedOp",
    "reruns": "recomputed_ops, recomputations",
    "reruns_of": "recomputed_variants",
    "said": "reported",
    "scene": "step_context",
    "secure": "recompute_dependents",
    "settle": "wait_for_copy, release_due, refine_limit, place_copies, propagate, commit: one name a sense",
    "settled": "has_converged, drop_finished, on_iteration",
    "settles": "stays_bounded",
    "shown": "printed, reported",
    "spell": "residency",
    "standings": "leaderboard",
    "Stays": "Residency",
    "strangers": "foreign_threads",
    "tells": "what it is",
    "told": "reported, known",
    "Tried": "Attempt",
    "twins": "interchangeable",
    "void": "uninitialised",
    "WAYS": "SHARING_POLICIES",
    "ways": "variants, operators, options",
    "wing": "package",
    "world": "environment",
    "worlds": "environments",
}


@cache
def printed() -> set[str]:
    """The lines of results of earlier runs, which pages quote as they were printed."""
    files = (ROOT / "benchmarks/results").glob("*.txt")
    return {line.strip() for file in files for line in file.read_text().splitlines()}


@cache
def sentences(path: Path) -> list[tuple[int, str]]:
    """What a reader sees, by the line that it begins at: a page, or the comments and texts of a module."""
    text = path.read_text()
    if path.suffix == ".md":
        return [(1, "\n".join("" if line.strip() in printed() else line for line in text.splitlines()))]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(start[0], string) for kind, string, start, _, _ in tokens if kind in (tokenize.COMMENT, tokenize.STRING)]


def said(path: Path, pattern: str) -> Iterator[tuple[int, str]]:
    """Where a phrase stands, also over the end of a line."""
    words = re.compile(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), re.IGNORECASE)
    for first, text in sentences(path):
        for match in words.finditer(text):
            yield first + text.count("\n", 0, match.start()), " ".join(match[0].split())


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Every name that a module gives to something: functions, classes, parameters, variables, fields."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def banned(name: str) -> str:
    """The name without underscores around it, or the first part of it, that should not be; else nothing."""
    whole = name.strip("_")
    return next((part for part in (whole, *whole.split("_")) if part in NAMES), "")


def test_the_lists_are_long_enough_to_say_something() -> None:
    assert len(SENTENCES) + len(NAMES) >= 60


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[2] for path in SOURCES}))
def test_names_of_the_code_are_the_fields(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}: {NAMES[banned(name)]}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[2] == folder
        for line, name in names(path)
        if banned(name)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pattern", SENTENCES)
def test_sentences_have_the_words_of_the_field(pattern: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {phrase}"
        for path in [*SOURCES, *PAGES]
        for number, phrase in said(path, pattern)
    ]
    assert not wrong, f"{SENTENCES[pattern]}\n" + "\n".join(wrong)


def test_a_word_of_our_own_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    lines = [
        "def settle(mine, *, ok):",
        '    """Make values',
        '    again."""',
        "    self.world = _found = all_told = 1  # reruns",
    ]
    module.write_text("\n".join(lines))
    assert sorted(name for _, name in names(module) if banned(name)) == [
        "_found",
        "all_told",
        "mine",
        "settle",
        "world",
    ]
    seen = {pattern: [number for number, _ in said(module, pattern)] for pattern in SENTENCES}
    assert {pattern: lines for pattern, lines in seen.items() if lines} == {
        r"ma(?:k(?:e|es|ing)|de)(?: \w+)? again": [2],
        r"re-?runs?": [4],
    }
