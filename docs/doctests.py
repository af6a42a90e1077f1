"""How the API pages show doctests: as code, also where no heading `Examples` is above them."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences the doctests of a docstring, which were quotes in Markdown, and their lists links."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Put each doctest above the heading `Examples`, below which Griffe does it, between fences."""
    above, heading, below = text.partition("\nExamples\n----")
    parts = (f"```pycon\n{part}\n```" if part.startswith(">>> ") else part for part in above.split("\n\n"))
    return "\n\n".join(parts) + heading + below
