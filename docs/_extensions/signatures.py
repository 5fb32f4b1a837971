"""Signatures with the name `ArrayLike` in place of the types that NumPy means by it."""

from typing import Any

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

LONG = {stringify_annotation(ArrayLike, mode) for mode in ("smart", "fully-qualified")}


def setup(app: Sphinx) -> dict[str, bool]:
    """Shorten what autodoc has found."""
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def shorten(*event: Any) -> tuple[str | None, str | None]:
    """Return the arguments and the result of a signature."""
    arguments, result = event[-2:]
    for long in LONG:
        arguments = arguments and arguments.replace(long, "ArrayLike")
    return arguments, result
