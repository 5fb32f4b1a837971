"""Signatures with the names of types in place of what they stand for."""

import re
from typing import Any

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

LONG = {stringify_annotation(ArrayLike, mode) for mode in ("smart", "fully-qualified")}
ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")  # in a union


def setup(app: Sphinx) -> dict[str, bool]:
    """Shorten what autodoc has found."""
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def shorten(*event: Any) -> tuple[str | None, ...]:
    """Return the arguments and the result of a signature."""
    return tuple(text and _shorten(text) for text in event[-2:])


def _shorten(text: str) -> str:
    for long in LONG:
        text = text.replace(long, "ArrayLike")
    return ALIAS.sub(r"\1", text)
