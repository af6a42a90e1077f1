"""Check every link of the built pages, and of the Markdown that GitHub shows: `docs/links.py site README.md ...`.

A link must lead to a file that is there, and its anchor to an id in it. Other sites are not asked. (LinkChecker, the
library for this, parses a page again for every anchor into it: these pages take it longer than ten minutes.)
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin


class Page(HTMLParser):
    """The ids of a page, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what an element is called and what it refers to."""
        for name, value in attrs:
            if name in ("id", "name"):
                self.ids.add(value or "")
            elif name in ("href", "src"):
                self.links.add(value or "")


@cache
def page(path: Path) -> Page:
    """Read HTML, or Markdown with the ids that GitHub gives to its headings."""
    text = path.read_text()
    return Page(
        MarkdownIt().enable("table").use(anchors_plugin, max_level=6).render(text) if path.suffix == ".md" else text
    )


def wrong(path: Path, link: str) -> str:
    """Say what is wrong with a link of the page at `path`; nothing where all is well."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return ""
    target = (path.parent / unquote(url.path)).resolve() if url.path else path.resolve()
    if not target.exists():
        return f"{path}: {link}: no such file"
    anchor = unquote(url.fragment)
    if anchor and target.suffix in (".html", ".md") and anchor not in page(target).ids:
        return f"{path}: {link}: no such anchor"
    return ""


def built(site: Path) -> list[Path]:
    """Return the pages of a site, without the theme's own files, and the code, whose links back viewcode guesses."""
    return [file for file in sorted(site.rglob("*.html")) if not {"_static", "_modules"} & {*file.parts}]


def main(arguments: list[str]) -> int:
    """Print what is wrong; return 1 if anything is."""
    given = [Path(argument) for argument in arguments]
    pages = [file for path in given for file in (built(path) if path.is_dir() else [path])]
    found = [(path, link) for path in pages for link in sorted(page(path).links)]
    problems = [problem for path, link in found if (problem := wrong(path, link))]
    print(*problems, f"{len(pages)} pages, {len(found)} links, {len(problems)} of them broken", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
