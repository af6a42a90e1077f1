"""Objects that show themselves: a line at a prompt, a small table in a notebook, a DataFrame with pandas."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

LONG = 200  # characters of a repr at most: two lines of a terminal. Not tuned
FEW = 3  # entries of a collection that are printed one by one: a shape, a range of limits. Not tuned

Facts = Mapping[str, object]


class Shown:
    """A base of dataclasses (`repr=False`) that are shown by their facts, and never by their columns.

    A class says what is worth printing in `_facts`: labels and values, the name under `""`. A count reads `40 ops`,
    anything else `peak live bytes 3.00 MiB`. Left out, the facts are the fields, in brief.
    """

    __slots__ = ()

    def _facts(self) -> Facts:
        return {f.name: brief(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        facts = dict(self._facts())
        name = clipped(str(facts.pop("", "")), 60)
        text = ", ".join(_fact(label, value) for label, value in facts.items())
        return clipped(f"{type(self).__name__}({': '.join(filter(None, (name, text)))})", LONG, end="...)")

    def _repr_html_(self) -> str:
        facts = dict(self._facts())
        title = f"{type(self).__name__} {clipped(str(facts.pop('', '')), LONG)}".strip()
        return table(title, ([label, value] for label, value in facts.items()))


def _fact(label: str, value: object) -> str:
    return f"{value} {label}" if isinstance(value, int) else f"{label} {value}"


def clipped(text: str, length: int, *, end: str = "...") -> str:
    """Return `text` on one line, cut where it is longer than `length`.

    >>> clipped("a" * 9, 6), clipped("short", 6)
    ('aaa...', 'short')
    """
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length else line[: length - len(end)] + end


def brief(value: object) -> str:
    """Write a value in few characters: columns and long collections by their type and length.

    >>> brief("name"), brief((1, 2)), brief(range(40)), brief(list(range(40)))
    ("'name'", '(1, 2)', 'range(0, 40)', 'list[40]')
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list, dict, set, frozenset)) and len(value) > FEW:
        return f"{type(value).__name__}[{len(value)}]"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return clipped(reprlib.repr(value) if isinstance(value, str | tuple | list | dict) else repr(value), 40)


def table(title: str, rows: Iterable[Iterable[object]], head: Iterable[object] = ()) -> str:
    """Return a small HTML table; everything in it is escaped.

    >>> table("a < b", [["ops", 4]])
    '<table><caption>a &lt; b</caption><tr><th>ops</th><td>4</td></tr></table>'
    """
    body = [f"<tr>{''.join(f'<th>{escape(str(cell))}</th>' for cell in head)}</tr>"] if head else []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in rest)
        body.append(f"<tr><th>{escape(str(first))}</th>{cells}</tr>")
    return f"<table><caption>{escape(title)}</caption>{''.join(body)}</table>"


def frame(
    columns: Mapping[str, Any], *, index: str = "", absent: int | None = None, integers: Iterable[str] = ()
) -> DataFrame:
    """Return a pandas DataFrame.

    Parameters
    ----------
    columns : mapping of str to sequence
    index : str
        What a row is.
    absent : int, optional
        What stands for no value in the columns `integers`; there it becomes `<NA>`.

    Raises
    ------
    ImportError
        pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f"to_pandas needs pandas: pip install 'gpumem[pandas]' ({error})") from error
    data = pandas.DataFrame({name: list(column) for name, column in columns.items()})
    data.index.name = index or None
    for name in integers:
        column = data[name].astype("Int64")
        data[name] = column.mask(column == absent)
    return data
