"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build`."""

project = "Ringfence"
author = "The Ringfence authors"
project_copyright = "The Ringfence authors"
version = "0.1"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Ringfence"
html_static_path = ["_static"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
