"""Sphinx configuration of the documentation site: `make docs` builds it."""

import re
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
# The docstrings list the members of a class, which autodoc then shows; and signatures
# keep the names of types.
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Array", "Config")}
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
python_display_short_literal_types = True
html_theme = "furo"
html_title = f"hpcsgd {release}"
exclude_patterns = ["_build"]


def setup(app):
    """Show the aliases of types by their names, in unions too."""

    def by_name(app, what, name, item, options, *texts):
        alias = r"TypeAliasForwardRef\('(\w+)'\)"
        return tuple(text and re.sub(alias, r"\1", text) for text in texts)

    app.connect("autodoc-process-signature", by_name)
