"""What pages show of the command line: the commands in their ```console blocks, and what those print.

    $ gpumem info tiny.csv          a command; what it prints follows, stdout and stderr as on a terminal
    ...                             lines that the page leaves out
    $ cat tiny.csv                  `ls`, `cat`, `head` and `echo $?` are known, and `cat <<END > FILE`
    $ python train.py               runs a file of the page, one that a command wrote, or one of `examples/`

One page is one terminal: its commands run in order, in one folder. A block may say what it needs: "```console slow"
runs only with `-m slow`, "```console torch" where PyTorch is (tests/pytorch), "```console zoo" where transformers is,
with `-m slow`. A block "```python" that begins with "# name.py" is a file there.
"""

from __future__ import annotations

import difflib
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from benchmarks.suites import parser as suites
from gpumem.cli.common.parser import Parser
from gpumem.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100  # of the terminal

_BLOCK = re.compile(r"^```console(?: (?P<needs>slow|torch|zoo))?\n(?P<text>.*?)^```$", re.M | re.S)
_FILE = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^\$ (?P<typed>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.M)
_NUMBER = re.compile(r"[-+]?\b\d[\d.]*( ?(ns|us|ms|s|B|[KMG]iB|%))?(?![\w.])")
_MEASURED = re.compile(r'(?<="seconds": )[\d.e-]+|(?<=^seconds ).*|(?<=^# (?:machine|gpumem |python )).*')
_LAST = re.compile(r" +(?:time|[\d.]+ (?:ns|us|ms|s))$")  # the times of a run, which are its table's last column


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, with the lines that it reads, and what the page shows, from its character `start` to `end`."""

    typed: str
    given: str = ""
    shown: Sequence[str] = ()
    start: int = 0
    end: int = 0
    line: int = 1
    needs: str = ""


def commands(page: str) -> Iterator[Command]:
    """Find the commands of a page, in order."""
    for block in _BLOCK.finditer(page):
        at = block.start("text")
        line = page.count("\n", 0, at) + 1
        assert block["text"].startswith("$ "), f"line {line}: a console block begins with a command"
        for m in _COMMAND.finditer(block["text"]):
            given = m["shown"][: m["shown"].index("END\n") + 4] if "<<END" in m["typed"] else ""
            start, end = at + m.start("shown") + len(given), at + m.end("shown")
            row = line + block["text"].count("\n", 0, m.start())
            yield Command(m["typed"], given[:-4], page[start:end].splitlines(), start, end, row, block["needs"] or "")


def differing(page: Path, needs: Collection[str], *, rewrite: bool = False) -> list[str]:
    """Type the commands of a page whose needs are among `needs`, in the working directory.

    Return what to say of each that printed something else than the page shows; with `rewrite` the page shows it then.
    """
    terminal, text, found = Terminal(), page.read_text(), []
    for file in _FILE.finditer(text):
        Path(file["name"]).write_text(file["text"])
    for command in commands(text):
        if command.needs in needs:
            printed = terminal.type(command)
            if not agree(command, printed):
                found.append((command, renewed(command, printed)))
    if rewrite:
        for command, printed in reversed(found):
            text = text[: command.start] + "".join(f"{row}\n" for row in printed) + text[command.end :]
        page.write_text(text)
        return []
    return [
        f"{page}:{command.line}: $ {command.typed}\n"
        + "\n".join(difflib.unified_diff(command.shown, printed, "shown", "printed", lineterm=""))
        for command, printed in found
    ]


def hold(page: Path, needs: Collection[str], folder: Path, request: pytest.FixtureRequest) -> None:
    """Hold what a page shows against what its commands print in a folder; with `--rewrite` make the page show it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", str(COLUMNS))
        told = differing(page, needs, rewrite=request.config.getoption("--rewrite"))
    if told:
        again = f"pytest {request.node.path.relative_to(request.config.rootpath)} --rewrite shows what is printed"
        pytest.fail("\n".join([*told, again]), pytrace=False)


class Terminal:
    """A folder (the working directory), and what is typed there."""

    def __init__(self) -> None:
        self.status = 0

    def type(self, command: Command) -> list[str]:
        """Carry a command out; return the lines that it prints."""
        words = shlex.split(command.typed)
        to = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if to else words
        printed = self._run(words, command.given)
        if to:
            Path(to).write_text(printed)
            return []
        return [line.rstrip() for line in printed.rstrip().splitlines()]

    def _run(self, words: list[str], given: str) -> str:
        match words:
            case ["gpumem", *args]:
                return self._gpumem(args)
            case ["python", "-m", "benchmarks", *args]:
                return self._gpumem(args, suites)
            case ["python", script]:
                return self._python(script)
            case ["ls", *folder]:
                return "  ".join(sorted(path.name for path in Path(*folder).iterdir()))
            case ["cat", "<<END"]:
                return given
            case ["cat", name]:
                return Path(name).read_text()
            case ["head", count, name]:
                return "\n".join(Path(name).read_text().splitlines()[: -int(count)])
            case ["echo", "$?"]:
                return str(self.status)
        raise AssertionError(f"{shlex.join(words)}: no command of this terminal")

    def _gpumem(self, args: list[str], of: Callable[[], Parser] | None = None) -> str:
        screen = StringIO()
        with redirect_stdout(screen), redirect_stderr(screen):
            try:
                self.status = main(args, of)
            except SystemExit as stop:
                self.status = int(stop.code or 0)
        return screen.getvalue()

    def _python(self, script: str) -> str:
        """Run a file as Python would, but here; what comes from this folder, or another page's, is forgotten."""
        screen, self.status = StringIO(), 0
        self._forget()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(screen), redirect_stderr(screen):
            patch.syspath_prepend(Path.cwd())
            try:
                runpy.run_path(script if Path(script).exists() else str(ROOT / script), run_name="__main__")
            except Exception:
                self.status = 1
                traceback.print_exc()
        self._forget()
        return screen.getvalue()

    @staticmethod
    def _forget() -> None:
        for name, module in [*sys.modules.items()]:
            file = Path(getattr(module, "__file__", None) or "/")
            if file.parent == Path.cwd() or not file.is_absolute():  # as a command names it
                del sys.modules[name]


def agree(command: Command, printed: Sequence[str]) -> bool:
    """Tell whether a command has printed what the page shows, but for figures of the machine and lines left out."""
    shown, printed = (list(masked(command.typed, lines)) for lines in (command.shown, printed))
    return re.fullmatch(pattern(shown), "".join(f"{line}\n" for line in printed)) is not None


def pattern(shown: Sequence[str]) -> str:
    """Return what text with these lines looks like, where `...` stands for any lines."""
    return "".join(r"(?:.*\n)*?" if line == "..." else re.escape(f"{line}\n") for line in shown)


def masked(command: str, lines: Sequence[str]) -> Iterator[str]:
    """Put `*` for what differs between machines: seconds, versions, times of scripts, figures of `run`, `doctor`."""
    if command.startswith(("gpumem run", "gpumem doctor")) and "--help" not in command:
        yield from (re.sub(" +", " ", _NUMBER.sub("*", line)) for line in lines)
        return
    if command.startswith("python "):
        lines = [_LAST.sub(" *", line) for line in lines]
    column: tuple[int, int] | None = None  # where the seconds of this table are
    for line in lines:
        if header := re.search(r"(?<= )seconds\b", line):
            column = header.span()
        elif not line:
            column = None
        elif column:
            line = f"{line[: column[0]]}*{line[column[1] :]}"
        line = re.sub(r"(--[a-z-]+) [A-Z]+(?=, --)", r"\1", line)  # as help has it from Python 3.13 on
        yield _MEASURED.sub("*", line)


def renewed(command: Command, printed: Sequence[str]) -> list[str]:
    """Return what the page should show: what was printed, less the lines that it leaves out.

    As many lines as the page shows stay above `...` and below. Lines that agree stay as they are.
    """
    shown = list(command.shown)
    known = dict(zip(masked(command.typed, shown), shown))
    lines = [known.get(line, new) for line, new in zip(masked(command.typed, printed), printed)]
    if "..." not in shown:
        return lines
    above, below = shown.index("..."), len(shown) - 1 - shown.index("...")
    return [*lines[:above], "...", *lines[max(above, len(lines) - below) :]]
