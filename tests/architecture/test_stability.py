"""docs/reference/stability.md names what users may lean on: each name is there."""

import re
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stability.md"
NAME = re.compile(r"`(hpcsgd(?:\.\w+)+)`(?:\s\(((?:`\w+`[,\s]*)+)\))?")


def missing(text):
    """Names on a page that cannot be imported from where it says."""
    for match in NAME.finditer(text):
        base, members = match.group(1), re.findall(r"\w+", match.group(2) or "")
        for name in [f"{base}.{member}" for member in members] or [base]:
            module, _, attribute = name.rpartition(".")
            if not hasattr(import_module(module), attribute):
                yield name


def test_every_name_of_the_page_is_there():
    assert list(missing(PAGE.read_text())) == []


def test_a_name_that_left_is_found():
    planted = "`hpcsgd.comm.open_world`, `hpcsgd.studies` (`strong`, `never_there`)"
    assert list(missing(planted)) == ["hpcsgd.studies.never_there"]
