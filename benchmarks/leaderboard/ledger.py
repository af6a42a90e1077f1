"""The file of a long run: a line an answer, so that whoever stops loses one answer at most.

The first line says what the file is. Each further line is an answer as JSON, written whole; the last one to a question
counts. A line that was cut off at the end is left out, and the next answer takes its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from gpumem.base.arguments import strict

Row = dict[str, Any]

FORMAT = "gpumem.planners/1"
ASKED = ("content", "machine_content", "limit", "planner", "options", "version")  # what an answer depends on


class Ledger:
    """Answers by question, in memory and, where there is a path, in a file.

    Parameters
    ----------
    path : path, optional
        It is read if it is there, and made if not.
    again : collection of str
        Planners whose answers in the file do not count.
    tell : callable
        Told where the file ends in a broken line.

    Raises
    ------
    ValueError
        The file cannot be read or written, is something else or of another version, or has a broken line before its
        last one.

    Examples
    --------
    >>> import tempfile
    >>> row = dict.fromkeys(ASKED, 0) | {"status": "planned", "planner": "search"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Ledger(folder + "/rows.jsonl").keep(row)
    ...     Ledger(folder + "/rows.jsonl").get(row) == row, Ledger(folder + "/rows.jsonl", ["search"]).get(row)
    (True, None)
    """

    @strict
    def __init__(
        self,
        path: str | Path | None = None,
        again: Collection[str] = (),
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.rows: dict[str, Row] = {}
        if self.path is not None:
            self._open(self.path, again, tell)

    def get(self, asked: Row) -> Row | None:
        """Return the answer to a question, None where there is none or it says `failed`."""
        row = self.rows.get(_key(asked))
        return None if row is None or row["status"] == "failed" else row

    def keep(self, row: Row) -> None:
        """Keep an answer."""
        self.rows[_key(row)] = row
        if self.path is not None:
            _append(self.path, json.dumps(row))

    def _open(self, path: Path, again: Collection[str], tell: Callable[[str], None]) -> None:
        if not str(path) or path.is_dir():
            raise ValueError(f"{path}: cannot write here (Is a directory)")
        if not path.exists():
            _append(path, json.dumps({"format": FORMAT}))
            return
        try:
            whole = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        *lines, last = whole.split(b"\n")
        if not lines or _format(lines[0]) != FORMAT:
            raise ValueError(f"{path}: {_what(_format((lines or [last])[0]))}; it is no results file of this version")
        for number, line in enumerate(lines[1:], 2):
            row = _row(line)
            if row is None:
                raise ValueError(f"{path}: line {number} is no answer: {line[:40]!r}")
            if row["planner"] not in again:
                self.rows[_key(row)] = row
        if last:
            tell(f"{path}: the last line was cut off ({len(last)} bytes); it is asked for again")
            os.truncate(path, len(whole) - len(last))


def _key(row: Row) -> str:
    """What makes two questions the same."""
    return json.dumps([row[name] for name in ASKED], sort_keys=True)


def _append(path: Path, line: str) -> None:
    """Write a whole line by one call, so that neither a reader nor another writer sees a part of it."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line.encode() + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        raise ValueError(f"{path}: cannot write here ({error.strerror})") from error


def _format(line: bytes) -> object:
    try:
        head = json.loads(line)
    except ValueError:
        return None
    return head.get("format") if isinstance(head, dict) else None


def _what(given: object) -> str:
    return "it does not say what it is" if given is None else f"format {given!r:.60} is not {FORMAT!r}"


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and {*ASKED, "status"} <= row.keys()
    return row if whole else None
