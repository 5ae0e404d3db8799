"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import os

from torchsan import __version__

project = "torchsan"
author = "the torchsan developers"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"torchsan {__version__}"

# Links into PyTorch's own documentation need the network, and pages must build without it: ask for them.
if os.environ.get("TORCHSAN_DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
