"""How-to pages: one goal each, in one form, and none outside of their list."""

import re
from pathlib import Path

import pytest

from tests.helpers.figures import figures_of

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
INDEX = (HOWTO / "index.md").read_text()
NAMES = re.findall(r"(?m)^([a-z-]+)$", INDEX.partition("{toctree}")[2])
PAGES = [HOWTO / f"{name}.md" for name in NAMES if (HOWTO / f"{name}.md").exists()]
APART = ("serve", "gpu")  # written in a form of their own


def without_blocks(path):
    """Return the text of a page without its code."""
    return re.sub(r"(?ms)^```.*?^```\n", "", path.read_text())


def test_every_page_is_in_the_list_with_a_sentence():
    listed = set(re.findall(r"\]\(([a-z-]+)\.md\)", INDEX))
    assert set(NAMES) == listed
    assert {path.stem for path in HOWTO.glob("*.md")} <= {*NAMES, "index"}


@pytest.mark.parametrize(
    "path", [p for p in PAGES if p.stem not in APART], ids=lambda path: path.stem
)
class TestPage:
    def test_the_goal_is_in_the_first_sentence(self, path):
        title, _, first = path.read_text().partition("\n\n")
        assert title.startswith("# ")
        assert first.startswith("This page "), first[:80]

    def test_it_says_what_is_needed_what_goes_wrong_and_what_is_next(self, path):
        text = without_blocks(path)
        table = "| symptom | cause |"
        assert table in text
        assert re.search(r"(?m)^Next: \[", text)

    def test_it_fits_a_sitting(self, path):
        assert 60 <= len(path.read_text().splitlines()) <= 155

    def test_sentences_are_short(self, path):
        """Thirty words at most, in prose, items of lists and cells of tables."""
        text = re.sub(r"\]\([^)]*\)|`[^`]*`", "] code", without_blocks(path))
        text = re.sub(r"\(code[^)]*\)|<!--.*?-->", "", text)
        pieces = re.split(r"(?<=[.:;?!])\s+|\s*\|\s*|\n\s*\n|\n\s*(?=[*\d#])", text)
        long = [p for p in pieces if len(re.findall(r"[\w'’]+", p)) > 30]
        assert not long, long


def test_the_python_of_the_page_on_sweeps_runs(capsys):
    """All blocks of the page, one after the other, as a reader would type them."""
    text, names = (HOWTO / "sweep-penalties.md").read_text(), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "sweep-penalties.md", "exec"), names)
    assert "36 models" in capsys.readouterr().out
    assert names["rate"] > 0


def test_the_ratio_on_the_page_of_comparisons_is_that_of_the_file():
    (row,) = (
        row
        for row in figures_of("bench_network")
        if (row["network"], row["batch"], row["steps"]) == ("lan", 8, 8)
    )
    text = " ".join((HOWTO / "compare.md").read_text().split())
    assert (
        "CA-SGD (batches of 8 rows, s = 8, rows in bf16) was"
        f" {row['speedup']:.2f} times as fast as plain SGD in fp32 on two ranks"
    ) in text
