"""The page of a report, and its figures: whole, safe, drawn without overlaps."""

import errno
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from hpcsgd.errors import ConfigError
from hpcsgd.runs import figures
from hpcsgd.studies.plots.svg import png, svg
from hpcsgd.studies.report import make_report, write_figures, write_page
from hpcsgd.studies.report.charts import scaling_charts
from hpcsgd.studies.report.page import page
from tests.helpers.html_reader import Reader
from tests.helpers.studies import (
    STRONG,
    made_up,
    only_problem,
    strong_lines,
    sweep_lines,
    write_study,
)

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
ODD = (
    None,
    "",
    -1,
    0,
    1e308,
    -1e308,
    0.5,
    [],
    {},
    [None],
    {"a": None},
    "x" * 300,
    True,
)


@pytest.fixture(scope="module")
def lines():
    return strong_lines()


@pytest.fixture(scope="module")
def strong(tmp_path_factory, lines):
    return write_study(tmp_path_factory.mktemp("studies") / "strong", lines)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("studies") / "sweep", sweep_lines())


@pytest.mark.cases(1)
@pytest.mark.parametrize("key", sorted({*made_up(), "ledger", "load", "expected"}))
def test_no_value_of_any_key_breaks_the_page(tmp_path, key):
    """A file may hold anything; the report says what it can."""
    folders = []
    for number, value in enumerate(ODD):
        lines = [made_up("sgd", r, 1.0 / r) for r in (1, 2)]
        lines.append(made_up("casgd", 2, 2.0) | {key: value})
        folders.append(write_study(tmp_path / str(number), lines))
    for some in (folders[::2], folders[1::2]):
        text = page(make_report(some))
        Reader(text)
        for picture in re.findall(r"<svg.*?</svg>", text, re.S):
            ElementTree.fromstring(picture)


def test_the_page_needs_nothing_else(strong, sweep):
    """No script, no request, all figures in it; every reference is to itself."""
    text = page(make_report([strong, sweep]))
    reader = Reader(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert reader.tags.count("svg") == reader.tags.count("figure") >= 8
    assert reader.tags.count("figcaption") == reader.tags.count("figure")
    for _, name, value in reader.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "action", "data"):
            assert value.startswith("#"), f"{name}={value}"
    style = re.search(r"<style>(.*?)</style>", text, re.S).group(1)
    assert "url(" not in style and "@import" not in style and "@media print" in style
    assert {m[:1] for m in re.findall(r"url\(([^)]*)\)", text)} == {"#"}
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_every_picture_of_the_page_parses(strong, sweep):
    for found in re.findall(r"<svg.*?</svg>", page(make_report([strong, sweep])), re.S):
        ElementTree.fromstring(found)


def extent(element):
    """From where to where a text goes, in the widest font that may be there."""
    style, x = element.get("style"), float(element.get("x"))
    (size,) = re.findall(r"font: [^']*?([\d.]+)px|font-size: ([\d.]+)px", style)
    weight = "bold" if re.search(r"font(-weight)?: (700|bold)", style) else "normal"
    font = FontProperties("DejaVu Sans", weight=weight, size=float("".join(size)))
    measure = text_to_path.get_text_width_height_descent
    wide = measure(element.text or "", font, ismath=False)[0]
    anchor = re.search(r"text-anchor: (\w+)", style)
    share = {"middle": 0.5, "end": 1.0}.get(anchor and anchor[1], 0.0)
    return x - share * wide, x + (1 - share) * wide


def test_no_text_leaves_its_picture(strong, sweep, tmp_path):
    long = [made_up(f"{k} {'long name ' * 9}", 1, 1.0 + k) for k in range(5)]
    folders = [strong, sweep, write_study(tmp_path / "s", long)]
    for chart in make_report(folders).charts:
        tree = ElementTree.fromstring(svg(chart))
        for element in tree.iter("{http://www.w3.org/2000/svg}text"):
            left, right = extent(element)
            assert left >= 0 and right <= float(tree.get("width")) + 1, element.text
            assert 0 < float(element.get("y")) < float(tree.get("height"))


def test_no_two_texts_touch(strong, sweep):
    for chart in make_report([strong, sweep]).charts:
        tree, seen = ElementTree.fromstring(svg(chart)), []
        for element in tree.iter("{http://www.w3.org/2000/svg}text"):
            (left, right), y = extent(element), float(element.get("y"))
            for a, b, other, said in seen:
                near = abs(other - y) < 9
                assert not (near and left < b - 2 and a < right - 2), (
                    chart.name,
                    element.text,
                    said,
                )
            seen.append((left, right, y, element.text))


def test_what_data_call_themselves_is_text(tmp_path):
    """Names, errors, hosts and keys from anybody's file."""
    evil = [
        made_up(EVIL, ranks, 1.0 / ranks, data=EVIL, network=EVIL, host=EVIL)
        | {
            "product": EVIL,
            "recipe": EVIL,
            "versions": {EVIL: EVIL},
            "key": f"a{ranks}",
        }
        for ranks in (1, 2)
    ]
    evil += [{"key": EVIL, "status": EVIL, "error": EVIL, "study": EVIL, "data": EVIL}]
    folder = write_study(tmp_path / "x<script>y", evil)
    reader = Reader(page(make_report([folder])))
    assert not {"script", "img"} & set(reader.tags)
    assert not any(name.startswith("on") for _, name, _ in reader.attributes)
    assert "<script>alert(1)</script>" in reader.text


def test_figures_are_written_as_svg_png_and_csv(strong, tmp_path):
    written = write_figures(make_report([strong]), tmp_path / "f")
    kinds = ("svg", "csv", "png")
    names = sorted(path.name for path in written)
    assert names == sorted(f"{name}.{kind}" for name in STRONG for kind in kinds)
    for path in written:
        assert path.stat().st_size > 100
        if path.suffix == ".svg":
            ElementTree.parse(path)
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_are_tables_and_a_sentence(
    strong, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = make_report([strong])
    text = page(report)
    reader = Reader(text)
    assert "svg" not in reader.tags and reader.tags.count("table") >= 3
    assert text.count("Figures need matplotlib") == 1
    assert "pip install 'hpcsgd[plot]'" in reader.text
    written = write_figures(report, tmp_path / "f")
    assert sorted(p.name for p in written) == sorted(f"{name}.csv" for name in STRONG)
    assert sorted(p.name for p in written) == sorted(os.listdir(tmp_path / "f"))


def test_a_marked_point_is_drawn_in_a_png(tmp_path):
    marked = only_problem(
        *(made_up("sgd", r, 8.0 / r, cores=2) for r in (1, 2, 4)),
        *(made_up("sgd", 1, 1.0, emulated=n) for n in (16, 64)),
    )
    path = png(scaling_charts(marked)[0], tmp_path / "marked.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written_is_a_sentence(strong, tmp_path):
    (tmp_path / "file").write_text("")
    report = make_report([strong])
    with pytest.raises(ConfigError, match="cannot write the report"):
        write_page(report, tmp_path / "file" / "report.html")
    with pytest.raises(ConfigError, match="cannot write figures"):
        write_figures(report, tmp_path / "file" / "f")


def test_a_figure_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "p.png"
    path.write_text("earlier")
    monkeypatch.setattr(os, "fsync", full)
    figure, _ = figures.make_figure(1)
    with pytest.raises(ConfigError, match="cannot write the figure .*: No space left"):
        figures.saved(figure, path)
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]
    assert path.read_text() == "earlier"
