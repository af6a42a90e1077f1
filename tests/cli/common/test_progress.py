"""What a person is told while a command works: each thing once, on a line that stays where the terminal has one."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path

import pytest

from gpumem.base import work
from gpumem.cli.common.progress import Progress, tell, voice
from gpumem.cli.main import parser
from gpumem.io import Loaded, load
from tests.conftest import Cli


@pytest.mark.parametrize("command", ["plan", "pool"])
def test_a_long_command_says_what_it_is_at(
    cli: Cli, net_file: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    spoke = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        spoke.set()

    def slow(path: object) -> Loaded:  # until somebody has said something
        assert spoke.wait(60)
        return load(str(path))

    parser()  # which imports the commands: one that is imported later would keep what is patched here
    monkeypatch.setattr("gpumem.cli.common.progress.tell", tell)
    monkeypatch.setattr("gpumem.io.load", slow)
    monkeypatch.setattr("gpumem.cli.common.progress.Progress.__init__.__defaults__", (0.001,))
    assert cli(command, net_file).status == 0
    assert told[0] in ("working", f"{'reading' if command == 'plan' else 'placing'} {net_file}")


def test_progress_says_each_thing_once_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    progress, steps = Progress(2), iter(["one thing", "one thing", "another"])

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout == 2
            text = next(steps, None)
            if text is not None:
                progress(text)
            return text is None

    progress.done = Clock()
    progress._watch()
    assert capsys.readouterr().err == "gpumem: one thing\ngpumem: another\n"
    with Progress() as progress:
        assert not progress.done.is_set()
    assert progress.done.is_set()


class Terminal(io.StringIO):
    """What a terminal gets to see."""

    def isatty(self) -> bool:
        return True

    def shows(self, pattern: str) -> bool:
        end = time.monotonic() + 60
        while not re.search(pattern, self.getvalue()) and time.monotonic() < end:
            time.sleep(0.001)
        return bool(re.search(pattern, self.getvalue()))


def test_progress_on_a_terminal_is_one_line_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(0) as progress:
        for name in progress.over(["vgg16", "[mlp3]"]):  # a name is no markup
            with work.part(name):
                work.step(2, 4)
                work.tell("greedy")
            progress.begin = time.monotonic() - 75
            assert terminal.shows(re.escape(f"{progress.line()} "))
            left = "[34]:.." if name == "vgg16" else "0:[23]."
            assert terminal.shows(f" 1:.., about {left} left")
            tell(f"a line about {name}")
            assert f"a line about {name}\n" in terminal.getvalue()
    shown = terminal.getvalue()
    assert "1 of 2: vgg16: greedy" in shown and "2 of 2: [mlp3]: greedy" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("greedy")  # the cursor is there again, the line is not
    assert "\x1b[3" not in shown  # no colours


def test_a_share_is_counted_and_not_read_out_of_a_text() -> None:
    with Progress() as progress:
        work.tell("reading run 7 of 5.json")
        assert progress.share == 0
        for _ in progress.over("ab"):
            with work.part("search"):
                work.step(1, 2)
        assert progress.share == 0.75 and progress.line() == "reading run 7 of 5.json"


@pytest.mark.parametrize("kind", ["dumb", "quiet"])
def test_where_no_line_stays_there_are_lines_or_none(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "dumb" if kind == "dumb" else "xterm")
    monkeypatch.setattr(voice, "quiet", kind == "quiet")
    with Progress(0.001) as progress:
        progress("one thing")
        assert kind == "quiet" or terminal.shows("gpumem: one thing\n")
    assert "\x1b" not in terminal.getvalue() and (kind == "dumb" or not terminal.getvalue())


@pytest.mark.parametrize("where", ["before", "after"])
def test_who_asks_for_quiet_is_told_errors_only(cli: Cli, where: str) -> None:
    line = ["swap", "mlp3", "--load-limit", "30%", "--planner", "autoswap"]
    assert cli(*line).err
    ran = cli(*(["--quiet", *line] if where == "before" else [*line, "--quiet"]))
    assert (ran.status, ran.err) == (3, [])
    assert cli(*line).err  # the next line is not
    assert cli.refuses("--quiet", "info", "vgg").startswith("gpumem: error: vgg: ")
