"""The names that docs list as public."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stability.md"
NAME = re.compile(r"`(hpcsgd(?:\.\w+)+)`(?:\s\(((?:`\w+`[,\s]*)+)\))?")


def names_of(text):
    """The names that a page lists, in its order."""
    for match in NAME.finditer(text):
        base, members = match.group(1), re.findall(r"\w+", match.group(2) or "")
        yield from [f"{base}.{member}" for member in members] or [base]
