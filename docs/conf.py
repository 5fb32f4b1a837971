"""Sphinx configuration of the documentation site: `make docs` builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import hpcsgd  # noqa: E402

project = "hpcsgd"
author = "The hpcsgd developers"
version = release = hpcsgd.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"hpcsgd {release}"
exclude_patterns = ["_build"]
