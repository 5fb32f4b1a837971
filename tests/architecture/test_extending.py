"""docs/extending.md shows code to the byte: files, or classes of them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
SHOWN = re.compile(r"<!-- (\S+\.py)(:\w+)? -->\n(?:\n```python\n.*?\n```\n)?", re.S)


def renewed(page):
    """The page with the files that it names behind their names."""

    def block(match):
        name = match[2] or ""
        source = shown_source(match[1], name.removeprefix(":"))
        return f"<!-- {match[1]}{name} -->\n\n```python\n{source}\n```\n"

    return SHOWN.sub(block, page)


def shown_source(file, name):
    """The text of a class in a file, of all the file without a name."""
    text = (ROOT / file).read_text().rstrip("\n")
    if not name:
        return text
    nodes = (n for n in ast.parse(text).body if getattr(n, "name", "") == name)
    return ast.get_source_segment(text, next(nodes))


def test_the_page_shows_what_the_files_say():
    """To mend it: python -m tests.architecture.test_extending"""
    assert PAGE.read_text() == renewed(PAGE.read_text())


def test_it_shows_a_codec_and_an_agreement_of_each_kind():
    names = [match[1] for match in SHOWN.finditer(PAGE.read_text())]
    folders = {str(Path(name).parent) for name in names}
    assert folders == {
        "hpcsgd/agreements/codecs",
        "hpcsgd/agreements",
        "examples/extending",
    }
    assert len(names) == len(set(names)) == 5


def test_a_word_that_is_not_in_the_file_is_seen():
    page = PAGE.read_text()
    assert renewed(page.replace("class Median", "class Middle")) == page
    assert renewed(page) == renewed(renewed(page))


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
