"""Links in the documents lead somewhere, and the tables say what the code has."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")]
)
DOCUMENTS = [d for d in DOCUMENTS if ".venv" not in d.parts]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_lengths_report(record_property):
    """A report, not a gate: the longest files and functions of the package."""
    files = {
        str(p.relative_to(ROOT)): len(p.read_text().splitlines())
        for p in (ROOT / "hpcsgd").rglob("*.py")
    }
    longest = sorted(files.items(), key=lambda item: -item[1])[:5]
    record_property("longest_files", longest)
    assert longest
