"""The pictures of the documentation are those that docs/figures/draw.py draws."""

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
LARGEST = 100_000  # bytes of a file
SVG = "{http://www.w3.org/2000/svg}"


def load_draw():
    """Return docs/figures/draw.py as a module."""
    path = FIGURES / "draw.py"
    spec = importlib.util.spec_from_file_location("docs_figures_draw", path)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


DRAW = load_draw()


@pytest.fixture(params=DRAW.PICTURES)
def picture(request):
    """The path of each picture."""
    return FIGURES / f"{request.param}.svg"


@pytest.mark.cases("all")
def test_a_picture_has_the_bytes_that_are_drawn_now(picture):
    drawn = DRAW.PICTURES[picture.stem]().svg()
    assert picture.read_text() == drawn, "run python docs/figures/draw.py"


@pytest.mark.cases("all")
def test_a_picture_describes_itself(picture):
    root = ElementTree.parse(picture).getroot()
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text and len(root.find(f"{SVG}desc").text) > 80


@pytest.mark.cases("all")
def test_a_picture_is_small_and_needs_nothing_from_outside(picture):
    text = picture.read_text()
    assert len(text.encode()) < LARGEST
    assert not re.search(r"(href|src|url)\W+https?:|<script|@import|<image", text)
    assert set(re.findall(r"https?://\S+?(?=[\"'])", text)) == {
        "http://www.w3.org/2000/svg"
    }


@pytest.mark.cases("all")
def test_a_picture_has_a_dark_scheme(picture):
    """Every class that colours something has a colour of its own in the dark."""
    style = ElementTree.parse(picture).getroot().find(f"{SVG}style").text
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    coloured = re.findall(r"(?:text)?\.([\w-]+)\{(?:fill|stroke):#", light)
    assert len(coloured) > 10
    assert not [name for name in coloured if f".{name}{{" not in dark]


def test_no_picture_is_left_over():
    """What is not drawn here is drawn by a file of benchmarks/, which names it."""
    scripts = "".join(path.read_text() for path in ROOT.glob("benchmarks/*.py"))
    found = {path.stem for path in FIGURES.glob("*.svg")}
    assert set(DRAW.PICTURES) <= found
    assert not [
        name for name in found - set(DRAW.PICTURES) if f"{name}.svg" not in scripts
    ]


def test_pictures_in_pages_are_there_and_have_words_for_who_cannot_see():
    """Each drawn picture is used, and each use has an alternative text."""
    used, offenders = set(), []
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", page.read_text()):
            path = (page.parent / target).resolve()
            used.add(path)
            if len(words) < 20 or not path.exists():
                offenders.append(f"{page.relative_to(ROOT)}: {target}")
    assert not offenders
    unused = {f"{name}.svg" for name in DRAW.PICTURES} - {path.name for path in used}
    assert not unused


def test_check_reports_a_picture_that_is_stale(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(DRAW, "HERE", tmp_path)
    assert DRAW.main(["--check"]) == 1
    assert "grid.svg is not as drawn now" in capsys.readouterr().out
    assert DRAW.main([]) == 0 and DRAW.main(["--check"]) == 0
