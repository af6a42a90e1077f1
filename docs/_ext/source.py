"""A link to the line of the code: {source}`gpumem.pool.smartpool.offline.best_fit` leads to where that is defined.

The pages of the code are those of `sphinx.ext.viewcode`, which has one for each module whose names the API describes.
"""

from __future__ import annotations

import importlib
import posixpath
from typing import TYPE_CHECKING, Any

from docutils import nodes

if TYPE_CHECKING:
    from docutils.parsers.rst.states import Inliner
    from sphinx.application import Sphinx


def source(
    role: str, raw: str, text: str, line: int, inliner: Inliner, options: object = None, content: object = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Make the link; a name that its module does not have is an error of the build."""
    module, _, name = text.rpartition(".")
    if not hasattr(importlib.import_module(module), name):
        told = inliner.reporter.error(f"{text}: {module} has no {name}", line=line)
        return [inliner.problematic(raw, raw, told)], [told]
    page = inliner.document.settings.env.docname
    code = posixpath.relpath(f"_modules/{module.replace('.', '/')}.html", posixpath.dirname(page) or ".")
    return [nodes.reference(raw, "", nodes.literal(name, name), refuri=f"{code}#{name}")], []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("source", source)
    return {"parallel_read_safe": True}
