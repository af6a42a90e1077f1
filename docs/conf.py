"""How Sphinx builds the pages: `sphinx-build -W docs site`."""

project = "gpumem"
copyright = "The gpumem authors"

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "pydata_sphinx_theme"
html_title = "gpumem"
html_theme_options = {"navigation_with_keys": False, "show_prev_next": True}
html_static_path = ["_static"]
html_css_files = ["custom.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
