"""The Extend pages show the code of the repository, and link it live."""

import ast
import re
from pathlib import Path

import pytest

from hpcsgd.agreements import AGREEMENTS
from hpcsgd.agreements.codecs import CODECS
from hpcsgd.glm import FAMILIES
from hpcsgd.products import PRODUCTS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "extend").glob("*.md"))
EXAMPLES = ROOT / "examples" / "extending"
WRITTEN = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)\n```\n", re.S)
INCLUDED = re.compile(r"```\{literalinclude\} (\S+)\n:pyobject: (\w+)\n```")
WHOLE = re.compile(r"```\{literalinclude\} \S+/examples/extending/(\S+)\n:language:")


def unlike(page):
    """Files of examples that a page shows otherwise than they are."""
    for name, text in WRITTEN.findall(page):
        file = EXAMPLES / name
        if file.exists() and file.read_text().rstrip("\n") != text:
            yield name


def dangling(page, folder):
    """Classes and functions that a page includes and the file lacks."""
    for target, name in INCLUDED.findall(page):
        path = (folder / target).resolve()
        nodes = ast.parse(path.read_text()).body if path.exists() else []
        if name not in {getattr(node, "name", "") for node in nodes}:
            yield f"{target}: {name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_the_files_say(path):
    page = path.read_text()
    assert list(unlike(page)) == []
    assert list(dangling(page, path.parent)) == []


def test_every_example_is_on_a_page():
    pages = [path.read_text() for path in PAGES]
    shown = {name for page in pages for name, _ in WRITTEN.findall(page)}
    shown |= {name for page in pages for name in WHOLE.findall(page)}
    assert {path.name for path in EXAMPLES.glob("*.py")} <= shown


def test_what_differs_is_found():
    page = (ROOT / "docs" / "extend" / "agreement.md").read_text()
    planted = page.replace("class Median", "class Middle").replace(
        ":pyobject: PostLocal", ":pyobject: Gone"
    )
    assert list(unlike(planted)) == ["median.py"]
    (found,) = dangling(planted, ROOT / "docs" / "extend")
    assert found.endswith("averaging.py: Gone")


def test_pages_use_names_that_are_free():
    """What they register is no name of the package."""
    assert "logcosh" not in FAMILIES
    assert "alternate" not in CODECS
    assert "median" not in AGREEMENTS
    assert "numpy" not in PRODUCTS
