"""Sphinx configuration of the documentation site: `make docs` builds it."""

import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "_extensions")]

import hpcsgd  # noqa: E402

project = "hpcsgd"
author = "The hpcsgd developers"
copyright = author
version = release = hpcsgd.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "notebooks",
    "reference",
    "signatures",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5"]
# Sphinx cannot keep what numbers a gallery in its cache.
suppress_warnings = ["config.cache"]

# Pages are Markdown that GitHub shows, too.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
smartquotes = False  # they would make one dash of the two of a flag
html_math_renderer = "mathml"

# Notebooks are run when they have changed; an error in a cell is an error of the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # its scripts are not of this site

# The API: numpydoc's sections, every member on the page of its class.
autosummary_generate = True
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Array", "Config")}
python_display_short_literal_types = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "abort_on_example_error": True,
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("hpcsgd",),
    "reference_url": {"hpcsgd": None},
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "write_computation_times": False,
    "remove_config_comments": True,
}
# Examples draw without a screen.
warnings.filterwarnings("ignore", message=".*is non-interactive", category=UserWarning)

html_theme = "pydata_sphinx_theme"
html_title = f"hpcsgd {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "hpcsgd"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navigation_depth": 3,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": []}
