"""Count the code blocks of the built pages: `docs/blocks.py site docs`. All are highlighted, all can be copied.

The button of `sphinx_copybutton` goes to every `div.highlight > pre`, so a block outside of one has none. A block
whose text was changed after it was parsed is rendered plain, which nobody sees in the source.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

PLAIN = {"text", "none"}  # drawings and formats: nothing to colour
FENCE = re.compile(r"^ *(?P<fence>`{3,})(?P<language>[a-z]+)\b.*?\n.*?^ *(?P=fence)$", re.M | re.S)
BUILT = re.compile(
    r'<div class="(?:doctest )?highlight-(?P<language>\w+) notranslate">'
    r'<div class="highlight"><pre>(?P<code>.*?)</pre>',
    re.S,
)


def wrong(source: Path, html: Path) -> list[str]:
    """Compare the blocks of a page's source with those of what was built of it; say what differs."""
    text, built = source.read_text(), html.read_text()
    written = Counter(block["language"] for block in FENCE.finditer(text))
    written["python"] += text.count("```{literalinclude}")
    shown = [(block["language"], block["code"]) for block in BUILT.finditer(built)]
    told = [
        f"{html}: plain: {code[:60]!r}"
        for language, code in shown
        if language not in PLAIN and "<span class=" not in code
    ]
    if +written != Counter(language for language, _ in shown if language not in {"none", "default"}):
        told.append(f"{html}: {dict(Counter(language for language, _ in shown))} of {dict(written)}")
    if bare := len(re.findall(r"<pre\b", built)) - len(re.findall(r'<div class="highlight"><pre>', built)):
        told.append(f"{html}: {bare} blocks without a button to copy")
    return told


def main(arguments: list[str]) -> int:
    """Print what is wrong; return 1 if anything is."""
    site, docs = map(Path, arguments)
    pages = [
        path.relative_to(docs).with_suffix("")
        for path in sorted(docs.rglob("*.md"))
        if not path.parts[1].startswith("_")
    ]
    problems = [told for page in pages for told in wrong(docs / f"{page}.md", site / f"{page}.html")]
    api = [
        (html, block["code"])
        for html in sorted((site / "reference" / "api").glob("*.html"))
        for block in BUILT.finditer(html.read_text())
    ]
    problems += [
        f"{html}: plain: {code[:60]!r}" for html, code in api if "&gt;&gt;&gt;" in code and "<span class=" not in code
    ]
    blocks = sum(len([*BUILT.finditer((site / f"{page}.html").read_text())]) for page in pages)
    print(
        *problems, f"{blocks} blocks on {len(pages)} pages, {len(api)} of the API, {len(problems)} problems", sep="\n"
    )
    return bool(problems) or not blocks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
