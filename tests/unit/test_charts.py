"""Charts: what is drawn is what was measured, and nobody's name becomes markup."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from math import log

import pytest

from hpcsgd.studies.plots.charts import (
    CROWDED,
    EMULATED,
    Axis,
    Bar,
    Bars,
    Heat,
    Lines,
    Series,
    csv_text,
    figures,
    log_ticks,
    make_scale,
    nice,
    number,
    unit_for,
    with_unit,
)
from hpcsgd.studies.plots.svg import (
    DARK,
    FILLS,
    GROUND,
    LOOKS,
    heat_colour,
    png,
    spread,
    svg,
)

NS = {"s": "http://www.w3.org/2000/svg"}
EVIL = '</text><script>alert("1")</script>&<b>\x00\x1b'

LINES = Lines(
    name="time-ranks",
    title="Time",
    caption="Over ranks",
    x=Axis("ranks", log=True, ticks=(1.0, 2.0, 4.0)),
    y=Axis("time", "s", log=True),
    series=(
        Series("SGD", (1.0, 2.0, 4.0), (0.03, 0.017, 0.5)),
        Series(
            "CA-SGD",
            (1.0, 2.0, 4.0),
            (0.02, 0.012, 0.008),
            low=(0.019, 0.012, 0.007),
            high=(0.021, 0.013, 0.009),
            marks=("", CROWDED, EMULATED),
            look=1,
        ),
    ),
    ideal=Series("ideal", (1.0, 4.0), (0.02, 0.005)),
)
CURVES = replace(LINES, x=Axis("steps", from_zero=True), y=Axis("loss"), ideal=None)
BARS = Bars(
    name="time-split",
    title="Split",
    caption="Parts",
    axis=Axis("time", "s"),
    parts=("compute", "network", "I/O", "Python"),
    bars=(
        Bar("SGD, 1 rank", (0.5, 0.25, 0.0, 0.25), 0.9, 1.2),
        Bar("CA-SGD", (0.125, 0.125, 0.0625, 0.0), note="> cores"),
    ),
)
HEAT = Heat(
    name="time-s-b-0",
    title="Time of a step",
    caption="Over s and b",
    x="batch b",
    y="steps s",
    columns=("16", "32"),
    rows=("2", "4"),
    cells=((0.004, 0.002), (None, 0.001)),
    unit="s",
)
ALL = (LINES, CURVES, BARS, HEAT)


def drawn(chart):
    return ElementTree.fromstring(svg(chart))


def of_class(tree, name):
    return [e for e in tree.iter() if e.get("class") == name]


def text_of(element):
    """The one text below an element."""
    (text,) = element.iter(f"{{{NS['s']}}}text")
    return text


def ticks(tree, name, axis):
    """(place, value) of the numbers on an axis."""
    texts = [text_of(e) for e in of_class(tree, name)]
    return [(float(e.get(axis)), float(e.text)) for e in texts if e.text]


def points(path):
    """The corners of a path of straight lines."""
    pairs = re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path.get("d"))
    return [(float(x), float(y)) for x, y in pairs]


def place(mark):
    """Where a marker is drawn."""
    use = next(mark.iter(f"{{{NS['s']}}}use"))
    return float(use.get("x")), float(use.get("y"))


def of_series(tree, kind, name):
    return [e for e in of_class(tree, kind) if e.get("data-name") == name]


def box(group):
    """(left, right, top, bottom) of a drawn rectangle."""
    xs, ys = zip(*points(next(group.iter(f"{{{NS['s']}}}path"))), strict=True)
    return min(xs), max(xs), min(ys), max(ys)


def back(place, marks, is_log):
    """The value at a place, from two labelled ticks: as a reader would."""
    (a, low), (b, high) = marks[0], marks[-1]
    share = (place - a) / (b - a)
    return low * (high / low) ** share if is_log else low + share * (high - low)


@pytest.mark.parametrize("chart", [LINES, CURVES], ids=["log", "linear"])
def test_points_lie_where_the_ticks_say(chart):
    """Read back from the picture, as with a ruler."""
    tree = drawn(chart)
    xs, ys = ticks(tree, "x-tick", "x"), ticks(tree, "y-tick", "y")
    ys = [(y - 4.56, value) for y, value in ys]  # text stands lower than its line
    word = text_of(of_class(tree, "y-title")[0]).text
    size = 1e-3 if "(ms)" in word else 1.0
    names = [e.get("data-name") for e in of_class(tree, "series")]
    assert names == ["SGD", "CA-SGD"]
    for series in chart.series:
        marks = of_series(tree, "mark", series.name)
        assert len(marks) == len(series.x)
        for mark, x, y in zip(marks, series.x, series.y, strict=True):
            across, up = place(mark)
            assert back(across, xs, chart.x.log) == pytest.approx(x, rel=1e-3)
            assert back(up, ys, chart.y.log) * size == pytest.approx(y, rel=1e-2)


def test_the_line_goes_through_its_points():
    tree = drawn(LINES)
    for line in of_class(tree, "series"):
        through = points(next(line.iter(f"{{{NS['s']}}}path")))
        marks = of_series(tree, "mark", line.get("data-name"))
        for mark, corner in zip(marks, through, strict=True):
            assert place(mark) == pytest.approx(corner, abs=0.01)


def test_every_point_says_its_value():
    tree = drawn(LINES)
    texts = [e.find("s:title", NS).text for e in of_series(tree, "mark", "CA-SGD")]
    assert texts == [
        "CA-SGD: time 20.00\u00a0ms at ranks 1.000",
        "CA-SGD: time 12.00\u00a0ms at ranks 2.000 (hollow: more ranks than cores)",
        "CA-SGD: time 8.000\u00a0ms at ranks 4.000 (ring with a dot: emulated)",
    ]


def test_lines_differ_without_colour():
    assert len({look.marker for look in LOOKS}) == len(LOOKS)
    assert len({look.dash for look in LOOKS}) == len(LOOKS)
    assert len({look.colour for look in LOOKS}) == len(LOOKS)


def test_how_a_point_was_measured_is_seen_and_said():
    tree = drawn(LINES)
    marks = of_series(tree, "mark", "CA-SGD")
    assert [m.get("data-mark") for m in marks] == [None, CROWDED, EMULATED]
    uses = [next(m.iter(f"{{{NS['s']}}}use")) for m in marks]
    hollow = ["fill: #ffffff" in use.get("style") for use in uses]
    assert hollow == [False, True, True]
    said = "".join(tree.itertext())
    assert "hollow: more ranks than cores" in said and "emulated" in said
    assert "hollow" not in "".join(drawn(CURVES_PLAIN).itertext())


CURVES_PLAIN = replace(CURVES, series=CURVES.series[:1])


def test_every_line_has_its_name_beside_it():
    labels = [text_of(e) for e in of_class(drawn(LINES), "label")]
    assert [e.text for e in labels] == ["SGD", "CA-SGD"]
    marks = of_class(drawn(LINES), "mark")
    begins = [float(e.get("x")) for e in labels]
    assert min(begins) > max(place(mark)[0] for mark in marks), "behind the line's end"


def test_labels_never_touch():
    levels = spread([100, 101, 102, 103, 180, 181], 0, 200)
    assert all(b - a >= 16.99 for a, b in zip(levels, levels[1:], strict=False))
    assert spread([5, 100], 0, 200) == [5, 100]


def test_parts_of_a_bar_are_as_long_as_their_share():
    tree = drawn(BARS)
    xs = ticks(tree, "x-tick", "x")
    size = 1e-3 if "(ms)" in text_of(of_class(tree, "x-title")[0]).text else 1.0
    for bar in BARS.bars:
        boxes = sorted(box(e) for e in of_series(tree, "part", bar.name))
        widths = [right - left for left, right, *_ in boxes]
        lengths = [part for part in bar.parts if part]
        unit = widths[0] / lengths[0]
        assert widths == pytest.approx([unit * v for v in lengths], abs=0.02)
        begins, after = [one[0] for one in boxes], [one[1] for one in boxes]
        assert begins[1:] == pytest.approx(after[:-1], abs=0.02), "one behind the other"
        assert back(begins[0], xs, False) * size == pytest.approx(0.0, abs=1e-3)
        assert back(after[-1], xs, False) * size == pytest.approx(bar.whole, rel=1e-2)
    assert "1.00\u00a0s" in "".join(tree.itertext())
    assert "> cores" in "".join(tree.itertext())


def test_parts_differ_without_colour():
    """Each fill has its own hatch."""
    tree = drawn(BARS)
    tiles = {
        pattern.find("s:path", NS).get("d")
        for pattern in tree.iter(f"{{{NS['s']}}}pattern")
    }
    plain = [fill for fill in FILLS if not fill.hatch]
    assert len(tiles) == len(BARS.parts) - 1 and len(plain) == 1


def test_bars_have_their_names_beside_them_and_a_legend():
    tree = drawn(BARS)
    texts = [e.text for e in tree.iter(f"{{{NS['s']}}}text")]
    for name in (*BARS.parts, *(bar.name for bar in BARS.bars)):
        assert texts.count(name) == 1


def test_cells_say_their_value_and_the_smallest_is_framed():
    tree = drawn(HEAT)
    cells = of_class(tree, "cell")
    assert len(cells) == 3
    said = "".join(tree.itertext())
    for text in ("4.00", "2.00", "1.00", "values in ms"):
        assert text in said
    (best,) = of_class(tree, "best")
    left, right, top, bottom = box(cells[-1])
    inside = (left + 1.5, right - 1.5, top + 1.5, bottom - 1.5)
    assert box(best) == pytest.approx(inside, abs=0.01)


def test_every_cell_stands_at_its_row_and_column():
    tree = drawn(HEAT)
    texts = list(tree.iter(f"{{{NS['s']}}}text"))
    across = {e.text: float(e.get("x")) for e in texts if e.text in HEAT.columns}
    down = {e.text: float(e.get("y")) for e in texts if e.text in HEAT.rows}
    for row, line in zip(HEAT.rows, HEAT.cells, strict=True):
        for column, value in zip(HEAT.columns, line, strict=True):
            if value is not None:
                (cell,) = [e for e in texts if e.text == f"{1e3 * value:.2f}"]
                middle = float(cell.get("x")), float(cell.get("y"))
                assert middle == pytest.approx((across[column], down[row]), abs=0.1)


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [
        v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts
    ]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_of_cells_fall_in_grey_and_text_is_legible():
    shares = [k / 50 for k in range(51)]
    colours = [heat_colour(share) for share in shares]
    falling = [luminance(fill) for fill, _ in colours]
    assert falling == sorted(falling, reverse=True)
    assert min(contrast(fill, ink) for fill, ink in colours) > 4.2
    assert min(contrast(look.colour, GROUND) for look in LOOKS) > 3.6


def test_lines_are_legible_in_dark_mode():
    colours = {look.colour for look in LOOKS}
    assert colours <= set(DARK), "each has one for a dark ground"
    assert min(contrast(DARK[colour], DARK[GROUND]) for colour in colours) > 5
    assert len({DARK[colour] for colour in colours}) == len(colours)


@pytest.mark.parametrize("chart", ALL, ids=["lines", "curves", "bars", "heat"])
def test_a_page_chooses_the_colours_of_dark_mode(chart):
    """Every colour that `DARK` lists is a variable that falls back on the light one."""
    text = svg(chart, in_page=True)
    plain = re.sub(r"var\(--c([0-9a-f]{6}), #\1\)", "", text)
    assert "var(--c" in text and not any(colour in plain for colour in DARK)
    assert "var(" not in svg(chart), "files of figures stand alone"


@pytest.mark.parametrize("chart", ALL, ids=["lines", "curves", "bars", "heat"])
@pytest.mark.cases(3)
def test_equal_charts_are_equal_files(chart, tmp_path):
    assert svg(chart) == svg(chart)
    one, other = png(chart, tmp_path / "1.png"), png(chart, tmp_path / "2.png")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("chart", ALL, ids=["lines", "curves", "bars", "heat"])
def test_pictures_of_one_page_share_no_names(chart):
    """Every id begins with the chart's name, and every reference is to one of them."""
    text = svg(chart)
    names = re.findall(r' id="([^"]*)"', text)
    used = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', text)
    assert len(set(names)) == len(names)
    assert all(name.startswith(f"{chart.name}-") for name in names)
    assert {a or b for a, b in used} <= set(names)


@pytest.mark.parametrize("chart", ALL, ids=["lines", "curves", "bars", "heat"])
def test_pictures_say_what_they_show_to_those_who_do_not_see(chart):
    tree = drawn(chart)
    assert tree.get("role") == "img"
    named = {e.get("id"): e.text for e in tree if e.get("id")}
    assert [named[key] for key in tree.get("aria-labelledby").split()] == [
        chart.title,
        chart.caption,
    ]


def evil(chart):
    """The same with names that want to be markup."""
    more = {"title": EVIL, "caption": EVIL}
    if isinstance(chart, Lines):
        series = tuple(replace(s, name=EVIL) for s in chart.series)
        more |= {"series": series, "x": replace(chart.x, title=EVIL)}
    elif isinstance(chart, Bars):
        bars = tuple(replace(b, name=EVIL, note=EVIL) for b in chart.bars)
        more |= {"bars": bars, "parts": (EVIL,) * 4}
    else:
        more |= {"x": EVIL, "y": EVIL, "rows": (EVIL, "4"), "columns": (EVIL, "32")}
    return replace(chart, **more)


@pytest.mark.parametrize("chart", ALL, ids=["lines", "curves", "bars", "heat"])
def test_names_are_text_and_never_markup(chart):
    tree = drawn(evil(chart))  # it parses
    names = {element.tag.partition("}")[2] for element in tree.iter()}
    assert "script" not in names and "b" not in names
    assert any("<script>" in (e.text or "") for e in tree.iter())
    for element in tree.iter():
        assert not any(key.startswith("on") for key in element.attrib)


@pytest.mark.parametrize("chart", ALL, ids=["lines", "curves", "bars", "heat"])
def test_tables_hold_the_numbers_exactly(chart):
    rows = list(csv.reader(io.StringIO(csv_text(chart))))
    wanted = [["" if c is None else str(c) for c in row] for row in chart.table()]
    assert rows == wanted and len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " ="])
def test_a_name_is_no_formula_of_a_spreadsheet(start):
    name = f"{start}cmd|' /C calc'!A0"
    bars = replace(BARS, bars=(replace(BARS.bars[0], name=name),))
    rows = list(csv.reader(io.StringIO(csv_text(bars))))
    assert rows[1][0] == f"'{name}"


def test_values_that_are_no_numbers_are_left_out():
    series = (Series("SGD", (1.0, 2.0, 4.0), (0.03, float("nan"), 0.01)),)
    chart = replace(LINES, series=series, ideal=None)
    assert len(of_class(drawn(chart), "mark")) == 2 and "nan" not in svg(chart)


def test_a_name_that_looks_like_a_formula_is_text():
    chart = replace(LINES, series=(replace(LINES.series[0], name="$\\frac{$"),))
    (label,) = of_class(drawn(chart), "label")
    assert text_of(label).text == "$\\frac{$"


def test_one_value_alone_has_an_axis():
    for axis in (Axis("x"), Axis("x", log=True), Axis("x", from_zero=True)):
        for value in (0.7, 3e-6, 2e9):
            scale = make_scale(axis, [value], 0, 100)
            assert len(scale.ticks) > 1 or axis.log
            assert 0 <= scale(value) <= 100
            assert scale.low < scale.high


def test_ticks_are_few_and_round():
    for low, high in ((1, 3), (0.7, 900), (1e-6, 1e6), (3, 3.4), (0.02, 0.5)):
        found = log_ticks(low, high, 6)
        assert 1 < len(found) <= 7 and all(low <= t <= high for t in found)
    for value in (0.3, 7.0, 1234.0):
        assert value * 0.999 <= nice(value) <= 2.5 * value
    scale = make_scale(Axis("x", from_zero=True), [0.0, 93.0], 0, 1)
    assert scale.ticks[0] == 0 and scale.ticks[-1] >= 93 and len(scale.ticks) <= 7


def test_numbers_as_people_write_them():
    assert [number(v) for v in (0, 0.05, -2.5, 4000, 2e6)] == [
        *("0", "0.05", "\u22122.5", "4000", "2·10⁶")
    ]
    assert with_unit(0.00321, "s") == "3.21\u00a0ms"
    assert with_unit(2.5e6, "words") == "2.50\u00a0million words"
    assert figures(1234567) == "1\u202f230\u202f000"
    assert figures(float("nan")) == "–"
    assert unit_for("J", [4200]).word == "kJ"


def test_a_logarithmic_scale_is_one():
    scale = make_scale(Axis("x", log=True), [1, 100], 0, 1)
    steps = scale(100) - scale(10), scale(10) - scale(1)
    assert steps[0] == pytest.approx(steps[1])
    assert scale(1) == pytest.approx(log(1 / scale.low) / log(scale.high / scale.low))


def test_bars_of_repeats_are_cut_off_at_the_frame():
    axis = Axis("efficiency", "%", from_zero=True, shows_bars=False)
    one = Series("SGD", (1.0, 2.0), (100.0, 90.0), (95.0, 80.0), (400.0, 95.0))
    tree = drawn(replace(LINES, y=axis, series=(one,), ideal=None))
    spreads = of_class(tree, "spread")
    assert len(spreads) == 2
    ys = [(y - 4.56, value) for y, value in ticks(tree, "y-tick", "y")]
    for group, low, high in zip(spreads, one.low, one.high, strict=True):
        line = group.find("s:path", NS)
        ends = [back(y, ys, False) for _, y in points(line)]
        assert ends[0] == pytest.approx(low, rel=1e-2)
        top = ys[-1][1]
        assert ends[1] > top if high > top else ends[1] == pytest.approx(high, rel=1e-2)
        assert line.get("clip-path"), "the frame cuts off what is outside"
