"""Every command that a page shows runs here, and prints what the page shows (`--rewrite` makes the page show it)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.suites import SUITES
from gpumem.simulator.machine import PRESETS
from tests import shown

pytestmark = pytest.mark.jit  # what is compiled is tested elsewhere

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COMMANDS = ROOT / "docs" / "reference" / "commands.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _pages() -> list[object]:
    """The pages with commands: with `-m slow` all of them run, and otherwise those that are not slow."""
    marks = {"": (), "slow": (pytest.mark.slow,)}
    return [
        pytest.param(page, needs, id=f"{page.relative_to(ROOT)}{' slow' * (needs == 'slow')}", marks=marks[needs])
        for page in PAGES
        for needs in sorted({command.needs for command in shown.commands(page.read_text())} & {*marks})
    ]


@pytest.mark.parametrize("page, needs", _pages())
def test_pages_show_what_commands_print(page: Path, needs: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shown.hold(page, {"", needs}, tmp_path, request)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_console_blocks(page: Path) -> None:
    """What is typed in another block (`sh`: to install) is not run, so it shows no output; a page has the synopsis."""
    for fence in re.finditer(r"^ *```(?!console|\s)([^\n]*)\n(.*?)^ *```$", page.read_text(), re.M | re.S):
        typed = re.findall(r"^(?:\$ )?gpumem .*", fence[2], re.M)
        assert not typed or (page == COMMANDS and fence[1] == "text"), typed
    assert not re.search(r"^ +```console", page.read_text(), re.M), "a console block stands at the margin"


def test_what_a_page_quotes_from_a_result_is_there() -> None:
    """A text block whose first line is that of a result is a piece of it, where `...` stands for lines left out."""
    results = [path.read_text() for path in sorted((ROOT / "benchmarks" / "results").glob("*.txt"))]
    for page in PAGES:
        for quoted in re.findall(r"^```text\n(.*?)^```$", page.read_text(), re.M | re.S):
            first, *_ = rows = quoted.splitlines()
            made = [text for text in results if f"\n{first}\n" in text]
            assert not made or any(re.search(shown.pattern(["", *rows]), text) for text in made), (page.name, first)


def _helps(*command: str, program: str = "gpumem") -> str:
    return "\n".join(shown.Terminal().type(shown.Command(" ".join([program, *command, "--help"]))))


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def test_the_synopsis_is_that_of_the_parsers() -> None:
    (synopsis,) = re.findall(r"^```text\n(gpumem .*?)^```$", COMMANDS.read_text(), re.M | re.S)
    lines = [line.split(maxsplit=3) for line in re.sub(r"\n +", " ", synopsis).splitlines()]
    assert {name for _, name, *_ in lines} == set(re.findall(r"^ +([a-z]+) {2,}", _helps(), re.M))
    for _, name, *rest in lines:
        assert _options(" ".join(rest)) <= _options(_helps(name)), name


def test_options_and_machines_that_pages_name_exist() -> None:
    """But for those of a page's own scripts."""
    commands = [(), *((name,) for name in re.findall(r"^ +([a-z]+) {2,}", _helps(), re.M))]
    suites = [_options(_helps(suite.name, program="python -m benchmarks")) for suite in SUITES]
    exist = set.union(*suites, *(_options(_helps(*command)) for command in commands))
    for page in PAGES:
        text = re.sub(
            r"^```(?:sh|python)\n.*?^```$|(?<=--script )[^`\n]*|`[^`]*(?:pytest|benchmarks[/.]|sphinx)[^`]*`",
            "",
            page.read_text(),
            flags=re.M | re.S,
        )
        assert _options(text) <= exist, page.name
    assert all(re.search(rf"[` ]{name}[` ]", COMMANDS.read_text()) for name in PRESETS)


def test_a_terminal_and_what_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = """```console
$ cat <<END > tiny.csv
id,lower,upper,size
x,0,2,4
END
$ gpumem pool \\
  tiny.csv
file      planner  buffers  peak live bytes  footprint   ratio  seconds  fits
...
$ head -1 tiny.csv
id,lower,upper,size
$ gpumem swap
...
$ echo $?
2
```
"""
    monkeypatch.chdir(tmp_path)
    terminal, typed = shown.Terminal(), list(shown.commands(page))
    assert [command.line for command in typed] == [2, 6, 10, 12, 14]
    printed = [terminal.type(command) for command in typed]
    assert [shown.agree(command, lines) for command, lines in zip(typed, printed)] == [True, False, True, True, True]
    assert shown.renewed(typed[1], printed[1]) == [printed[1][0], "..."]
    assert not shown.agree(typed[2], ["id"])
    seconds = shown.masked(
        "gpumem pool", [*printed[1], "", "seconds  1.5", '"seconds": 1.5, "bytes": 2', "# python 3", "3.5"]
    )
    assert list(seconds)[-5:] == ["", "seconds *", '"seconds": *, "bytes": 2', "# python *", "3.5"]
