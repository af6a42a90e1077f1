"""How Sphinx builds the pages: `sphinx-build -W docs site`."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE / "_ext")]

from gpumem.base.version import __version__  # noqa: E402

project = "gpumem"
release = __version__
copyright = "The gpumem authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "pictures",
    "packages",
    "source",
]
exclude_patterns = ["_*"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

highlight_language = "none"  # doctests are known by their prompt
suppress_warnings = ["misc.highlighting_failure"]  # console blocks hold whatever a command prints
default_role = "py:obj"  # a name between backticks is a link where it is one of ours
nitpicky = True
nitpick_ignore_regex = [  # code in backticks, what is not ours, type variables: they have no page
    ("py:obj", "(?s).*"),
    ("py:.*", r"(?!gpumem\.).*"),
    ("py:class", r"gpumem\..*\.[A-Z]"),
    (
        "py:class",
        r"gpumem\.torch\.run\..*|gpumem\.runtime\.residency\.background_planning\..*",
    ),  # what a managed run is made of
]
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["cuda", "numba.cuda", "numba_cuda", "torch"]
autodoc_type_aliases = {name: name for name in ("I64", "F64", "U64", "Bool", "Array", "ArrayLike", "Bytes", "NDArray")}
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "gpumem"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": False, "logo": {"text": f"gpumem {release}"}}
if repository := os.environ.get(
    "GITHUB_REPOSITORY"
):  # where the pages are built by a workflow, the bar has its repository
    html_theme_options["github_url"] = f"https://github.com/{repository}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
