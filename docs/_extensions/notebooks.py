"""Notebooks of examples/notebooks as pages: they are copied to docs/notebooks."""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

HEAD = "# Notebooks\n\nYou can run each notebook from examples/notebooks.\n\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy before Sphinx looks for pages."""
    app.connect("builder-inited", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def copy(app: Sphinx) -> None:
    """Make docs/notebooks what examples/notebooks is, with a page that lists them."""
    docs = Path(app.srcdir)
    target = docs / "notebooks"
    sources = sorted((docs.parent / "examples" / "notebooks").glob("*.ipynb"))
    target.mkdir(exist_ok=True)
    for old in set(target.iterdir()) - {target / source.name for source in sources}:
        old.unlink()
    for source in sources:
        shutil.copy2(source, target)
    names = "\n".join(source.stem for source in sources)
    text = f"{HEAD}```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    (target / "index.md").write_text(text)
