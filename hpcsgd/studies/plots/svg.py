"""Pictures of charts, drawn by matplotlib: SVG for pages, PNG for documents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import isfinite, log
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hpcsgd.runs.figures import Hint, blank, clean, finish, saved, settings
from hpcsgd.studies.plots.charts import (
    EMULATED,
    MARKS,
    Axis,
    Bars,
    Chart,
    Heat,
    Lines,
    Scale,
    Series,
    Unit,
    figures,
    make_scale,
    unit_for,
    with_unit,
)

# Lines and parts of bars differ in colour, and also in dashes, markers or hatches.
#
# The colours are those of Okabe and Ito, for every kind of colour vision. A page in
# dark mode replaces the colours that `DARK` lists.

INK, FAINT, GRID, GROUND = "#1a1a1a", "#5a5a5a", "#dcdcdc", "#ffffff"
BLACK, PALE = "#000000", "#f4f8fc"  # text on coloured areas, the same in both modes


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of one line."""

    colour: str
    dash: tuple[float, ...]  # lengths drawn and left out, in points; empty is solid
    marker: str  # of matplotlib


LOOKS = (
    Look("#0072b2", (), "o"),
    Look("#d55e00", (8, 4), "s"),
    Look("#007a5a", (2, 3), "^"),
    Look("#a8487f", (10, 3, 2, 3), "D"),
    Look("#9a6700", (5, 2), "v"),
    Look(INK, (12, 3, 2, 3, 2, 3), "p"),
    Look("#2f7fb8", (1, 4), "h"),
    Look("#6b6b6b", (14, 4), "X"),
)


@dataclass(frozen=True)
class Fill:
    """Colour and hatch of one part of bars, and the ink of text on it."""

    colour: str
    hatch: str  # of matplotlib
    ink: str


FILLS = (
    Fill("#0072b2", "", GROUND),
    Fill("#e69f00", "///", BLACK),
    Fill("#9ad0f0", "...", BLACK),
    Fill("#f2f2f2", "\\\\\\", BLACK),
    Fill("#cc79a7", "---", BLACK),
)

DARK = {
    GROUND: "#14171a",
    INK: "#e8e8e8",
    FAINT: "#a8adb2",
    GRID: "#353a40",
    "#0072b2": "#56b4e9",
    "#d55e00": "#ff8a4c",
    "#007a5a": "#3fc79a",
    "#a8487f": "#e08cc0",
    "#9a6700": "#dfae3a",
    "#2f7fb8": "#8cc8f0",
    "#6b6b6b": "#b4b4b4",
}


def look(number: int) -> Look:
    """Return the look of line `number` of a chart; after the last look they repeat."""
    return LOOKS[number % len(LOOKS)]


def heat_colour(share: float) -> tuple[str, str]:
    """Return (fill, ink) of a cell: the colour of its area, and that of its text.

    `share` is 0 for the smallest value (light) and 1 for the largest (dark).
    """
    low = (0xF4, 0xF8, 0xFC)
    high = (0x0B, 0x3C, 0x6F)
    mixed = [round(a + (b - a) * share) for a, b in zip(low, high, strict=True)]
    ink = PALE if _luminance(mixed) < 0.18 else BLACK
    return "#" + "".join(f"{c:02x}" for c in mixed), ink


def _luminance(colour: list[int]) -> float:
    """Return the luminance of a colour, from 0 (black) to 1 (white).

    Light text is better on a colour below 0.18.
    """
    linear = [(c / 255) ** 2.2 for c in colour]
    weight_by_rows = zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    return float(sum(a * b for a, b in weight_by_rows))


# A picture in a page takes its colours from the page, which may be in dark mode.

COLOURS = re.compile("|".join(DARK))


def themed(root: ElementTree.Element) -> ElementTree.Element:
    """Replace the colours that differ in dark mode by CSS variables of the page.

    The element `root` is changed in place and returned.
    """
    for element in root.iter():
        colours = [element.attrib.pop(key, None) for key in ("fill", "stroke")]
        pairs = zip(("fill", "stroke"), colours, strict=True)
        style = "; ".join(
            [f"{key}: {value}" for key, value in pairs if value]
            + [element.get("style", "")]
        ).rstrip("; ")
        if style:
            element.set("style", COLOURS.sub(_variable, style))
    return root


def dark_colours() -> str:
    """Return the CSS declarations of the colours of `themed` pictures in dark mode."""
    return " ".join(f"--c{light[1:]}: {dark};" for light, dark in DARK.items())


def _variable(found: re.Match[str]) -> str:
    return f"var(--c{found[0][1:]}, {found[0]})"


SIZE, SMALL = 12.0, 11.0  # of text, in points
BESIDE = 7.0  # between an axis and its numbers


def svg(chart: Chart, in_page: bool = False) -> str:
    """Return a chart as SVG text; with `in_page`, its colours are those of the page.

    They then follow the dark mode of the page.

    Raises
    ------
    MissingPackage
        If matplotlib is not installed.
    """
    file = BytesIO()
    with settings():
        picture = draw(chart)
        picture.figure.savefig(file, format="svg", metadata={"Date": None})
    named = chart.name, chart.title, chart.caption
    root = finish(file.getvalue(), *named, picture.hints)
    return ElementTree.tostring(themed(root) if in_page else root, encoding="unicode")


def png(chart: Chart, path: str | Path) -> Path:
    """Write a chart as PNG, whole or not at all; return the path."""
    with settings():
        return saved(draw(chart).figure, path, dpi=144)


@dataclass(frozen=True)
class Frame:
    """The rectangle of the data in a picture, in points from the upper left corner."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass
class Picture:
    """A figure, on whose axes `paper` texts and lines are drawn.

    Their coordinates are points from the upper left corner.
    """

    width: float
    height: float
    figure: Any = field(init=False)
    paper: Any = field(init=False)
    hints: dict[str, Hint] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.figure = blank(self.width, self.height)
        self.paper = self.figure.add_axes((0, 0, 1, 1), zorder=2)
        self.paper.set(xlim=(0, self.width), ylim=(self.height, 0))
        self.paper.set_axis_off()

    def axes(self, frame: Frame) -> Any:
        """Return axes that fill `frame`, without upper and right edge."""
        wide = frame.right - frame.left
        high = frame.bottom - frame.top
        corner = frame.left / self.width, 1 - frame.bottom / self.height
        axes = self.figure.add_axes((*corner, wide / self.width, high / self.height))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=INK, linewidth=1)
        axes.tick_params(length=0, pad=BESIDE, labelsize=SIZE, labelcolor=INK)
        axes.set_axisbelow(True)
        axes.patch.set_visible(False)
        return axes

    def text(
        self, x: float, y: float, text: str, anchor: str = "left", **look: Any
    ) -> None:
        """Write one line of text with its baseline at `y`.

        Its left end, or its middle if `anchor` is "center", is at `x`.
        """
        look = {"color": INK, "fontsize": SIZE} | look
        self.paper.text(
            x,
            y,
            clean(text),
            ha=anchor,
            va="baseline",
            parse_math=False,
            **look,
        )

    def hint(self, kind: str, text: str = "", **data: str) -> str:
        """Return a new id for an element, and store its kind, explanation and data."""
        name = f"hint-{len(self.hints)}"
        self.hints[name] = Hint(kind, text, data)
        return name

    def width_of(self, text: str, size: float = SIZE, weight: str = "normal") -> float:
        """Return the width of a text in points."""
        look = {"fontsize": size, "fontweight": weight}
        written = self.paper.text(0, 0, clean(text), parse_math=False, **look)
        wide = written.get_window_extent().width
        written.remove()
        return float(wide)

    def shortened(self, text: str, most: float, weight: str = "normal") -> str:
        """Return a text that is at most `most` points wide, with an ellipsis if cut."""
        if self.width_of(text, weight=weight) <= most:
            return text
        # A text may be very long, so that only its beginning is measured.
        text = text[: int(most)]
        while text and self.width_of(text + "…", weight=weight) > most:
            text = text[:-1]
        return text.rstrip() + "…"


def draw(chart: Chart) -> Picture:
    """Return the picture of a chart.

    The caller must be inside `with hpcsgd.runs.figures.settings()`.
    """
    if isinstance(chart, Lines):
        return _draw_lines(chart)
    if isinstance(chart, Bars):
        return _draw_bars(chart)
    return _draw_heat(chart)


# --- axes -----------------------------------------------------------------------------


def _set_x(picture: Picture, axes: Any, frame: Frame, scale: Scale, axis: Axis) -> None:
    """Draw the title and the labels of the x axis, without labels that overlap."""
    labels = []
    free = float("-inf")
    for tick in scale.ticks:
        label = scale.label(tick)
        place = scale(tick)
        half = picture.width_of(label) / 2
        labels.append(label if place - half >= free else "")
        free = place + half + 6 if labels[-1] else free
    _set_scale(picture, axes.xaxis, axes.set_xscale, scale, labels, "x-tick")
    axes.set_xlim(scale.low, scale.high)
    middle = (frame.left + frame.right) / 2
    hint = picture.hint("x-title")
    picture.text(middle, frame.bottom + 37, _titled(axis, scale), "center", gid=hint)


def _set_scale(
    picture: Picture,
    side: Any,
    set_scale: Any,
    scale: Scale,
    labels: Sequence[str],
    kind: str,
) -> None:
    if scale.log:
        set_scale("log")
    side.set_ticks(scale.ticks, labels=labels, parse_math=False)
    side.set_ticks([], minor=True)
    side.grid(color=GRID, linewidth=1)
    for label in side.get_ticklabels():
        label.set_gid(picture.hint(kind))


def _titled(axis: Axis, scale: Scale) -> str:
    """Return the title of an axis with its unit, as in "training time (ms)"."""
    return f"{axis.title} ({scale.unit.word})" if scale.unit.word else axis.title


# --- lines ----------------------------------------------------------------------------

LINES, TOP, FOOT = (560.0, 340.0), 40.0, 48.0  # size of the picture, margins
SAMPLE, MOST_LABEL, STEP = 34.0, 150.0, 17.0  # labels: line, name, distance
MANY = 14  # points of a line, above which only some carry their marker


def _draw_lines(chart: Lines) -> Picture:
    """Draw lines over two axes, with their names beside their ends."""
    width, height = LINES
    notes = [
        text
        for mark, text in MARKS.items()
        if any(mark in series.marks for series in chart.series)
    ]
    picture = Picture(width, height + 18 * len(notes))
    names = [
        picture.shortened(series.name, MOST_LABEL, "bold")
        for series in (*chart.series, *([chart.ideal] if chart.ideal else []))
    ]
    widest = max((picture.width_of(name, weight="bold") for name in names), default=0)
    frame = Frame(64, TOP, width - SAMPLE - 14 - widest, height - FOOT)
    across, up = _scales(chart, frame)

    # 1. the axes
    axes = picture.axes(frame)
    _set_x(picture, axes, frame, across, chart.x)
    labels = [up.label(tick) for tick in up.ticks]
    _set_scale(picture, axes.yaxis, axes.set_yscale, up, labels, "y-tick")
    axes.set_ylim(up.low, up.high)
    picture.text(8, TOP - 12, _titled(chart.y, up), gid=picture.hint("y-title"))

    # 2. the lines
    if chart.ideal:
        places = zip(*_shown(chart.ideal, across, up), strict=True)
        axes.plot(*places, color=FAINT, linewidth=1, gid=picture.hint("ideal"))
    for number in range(len(chart.series)):
        _draw_series(picture, axes, chart, number, across, up)

    # 3. names and notes
    _draw_labels(picture, chart, names, frame, across, up)
    for number, text in enumerate(notes):
        y = height + 8 + 16 * number
        picture.text(frame.left, y, text, color=FAINT, fontsize=SMALL)
    return picture


def _scales(chart: Lines, frame: Frame) -> tuple[Scale, Scale]:
    drawn = [*chart.series, *([chart.ideal] if chart.ideal else [])]
    xs = [v for series in drawn for v in series.x]
    ys = [v for series in drawn for v in series.y]
    if chart.y.shows_bars:
        ys += [v for series in drawn for v in (*series.low, *series.high)]
    return (
        make_scale(chart.x, xs, frame.left, frame.right),
        make_scale(chart.y, ys, frame.bottom, frame.top),
    )


def _shown(one: Series, across: Scale, up: Scale) -> list[tuple[float, float]]:
    """Return the points of a line that are finite, and positive on log axes."""
    return [
        (x, y)
        for x, y in zip(one.x, one.y, strict=True)
        if _fits(x, across) and _fits(y, up)
    ]


def _fits(value: float, scale: Scale) -> bool:
    return isfinite(value) and (value > 0 or not scale.log)


def _draw_series(
    picture: Picture, axes: Any, chart: Lines, number: int, across: Scale, up: Scale
) -> None:
    series = chart.series[number]
    style = look(series.look)
    axes.plot(
        *zip(*_shown(series, across, up), strict=True),
        color=style.colour,
        linestyle=(0, style.dash) if style.dash else "-",
        # Lines that lie on each other are seen below and above.
        linewidth=max(3.2 - 0.6 * number, 1.4),
        clip_on=False,
        gid=picture.hint("series", name=series.name),
    )
    for point in range(len(series.low)):
        _draw_spread(picture, axes, series, point, across, up)
    for point in _marked(series, number):
        x = series.x[point]
        y = series.y[point]
        mark = series.mark(point)
        if _fits(x, across) and _fits(y, up):
            text = f"{series.name}: {_value(chart.y, y)} at {_value(chart.x, x)}"
            text += f" ({MARKS[mark]})" if mark else ""
            hint = picture.hint("mark", text, mark=mark, name=series.name)
            size = 8 * max(1.2 - 0.13 * number, 0.7)
            _draw_marker(axes, (x, y), series.look, mark, size, hint)


def _draw_marker(
    axes: Any,
    place: tuple[float, float],
    number: int,
    mark: str = "",
    size: float = 8.0,
    hint: str | None = None,
) -> None:
    """Draw the marker of look `number` at `place`, in units of the data.

    It is filled if `mark` is "", hollow if there were more ranks than cores, and a ring
    with a dot if ranks were emulated.
    """
    style = look(number)
    axes.plot(
        [place[0]],
        [place[1]],
        linestyle="none",
        marker="o" if mark == EMULATED else style.marker,
        markersize=size,
        markerfacecolor=GROUND if mark else style.colour,
        markeredgecolor=style.colour,
        markeredgewidth=1.6,
        clip_on=False,
        zorder=3,
        gid=hint,
    )
    if mark == EMULATED:
        dot = {"markersize": 2.8, "markeredgewidth": 0, "color": style.colour}
        axes.plot([place[0]], [place[1]], "o", clip_on=False, zorder=4, **dot)


def _marked(one: Series, number: int) -> Sequence[int]:
    """Return the numbers of the points that get a marker.

    A line of more than `MANY` points has about eight markers, and one at its last
    point. `number` is that of the line, by which its first marker is moved.
    """
    count = len(one.x)
    if count <= MANY:
        return range(count)
    every = -(-count // 8)
    return sorted({*range(number * every // 4 % every, count, every), count - 1})


def _value(axis: Axis, value: float) -> str:
    return f"{axis.title} {with_unit(value, axis.unit, 4)}"


def _draw_spread(
    picture: Picture, axes: Any, one: Series, point: int, across: Scale, up: Scale
) -> None:
    """Draw a bar from the lowest to the highest repeat of a point.

    Nothing is drawn if they are equal, or if an axis cannot show them.
    """
    x = one.x[point]
    low = one.low[point]
    high = one.high[point]
    if not (_fits(x, across) and _fits(low, up) and _fits(high, up)) or low == high:
        return
    ends = {"marker": "_", "markersize": 8, "markeredgewidth": 1.2}
    ink = {"color": look(one.look).colour, "linewidth": 1.2, **ends}
    axes.plot([x, x], [low, high], gid=picture.hint("spread", name=one.name), **ink)


def _draw_labels(
    picture: Picture,
    chart: Lines,
    names: Sequence[str],
    frame: Frame,
    across: Scale,
    up: Scale,
) -> None:
    """Draw every name beside the end of its line, with space between names."""
    every = [*chart.series, *([chart.ideal] if chart.ideal else [])]
    ends = [_end(series, frame, across, up) for series in every]
    levels = spread([y for _, y in ends], frame.top + 4, frame.bottom - 4)
    begin = frame.right + 8
    for series, name, end, level in zip(every, names, ends, levels, strict=True):
        style = look(series.look)
        x = (begin, begin + SAMPLE - 8)
        if series is chart.ideal:
            picture.paper.plot(x, (level, level), color=FAINT, linewidth=1)
            picture.text(begin + SAMPLE, level + 4, name, color=FAINT)
            continue
        if end[0] > frame.right - 0.12 * (frame.right - frame.left):
            to = (end[0] + 6, begin - 1), (end[1], level)
            picture.paper.plot(*to, color=style.colour, alpha=0.45, linewidth=1)
        dash = (0, style.dash) if style.dash else "-"
        picture.paper.plot(
            x, (level, level), color=style.colour, linestyle=dash, linewidth=2
        )
        _draw_marker(picture.paper, (begin + SAMPLE / 2 - 4, level), series.look)
        hint = picture.hint("label", name=series.name)
        ink = {"color": style.colour, "fontweight": "bold"}
        picture.text(begin + SAMPLE, level + 4, name, gid=hint, **ink)


def _end(one: Series, frame: Frame, across: Scale, up: Scale) -> tuple[float, float]:
    shown = _shown(one, across, up)
    if not shown:
        return frame.left, frame.top
    x, y = shown[-1]
    return across(x), up(y)


def spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return levels near the wanted ones, in their order, at least a text line apart.

    The levels are those of labels, between `top` and `bottom` where they fit.

    >>> spread([50, 52, 100], 0, 200)
    [42.5, 59.5, 100.0]
    """
    order = sorted(range(len(wanted)), key=lambda n: (wanted[n], n))
    blocks: list[tuple[float, list[int]]] = []  # middle, members
    for number in order:
        blocks.append((float(wanted[number]), [number]))
        while len(blocks) > 1 and _touch(blocks[-2], blocks[-1]):
            (a, first), (b, last) = blocks[-2:]
            middle = (a * len(first) + b * len(last)) / (len(first) + len(last))
            blocks[-2:] = [(middle, first + last)]
    levels = [0.0] * len(wanted)
    for middle, members in blocks:
        half = (len(members) - 1) * STEP / 2
        middle = max(min(middle, bottom - half), top + half)
        for k, number in enumerate(members):
            levels[number] = middle - half + k * STEP
    # Blocks that were pushed back into the frame may touch others again.
    for before, after in zip(order, order[1:], strict=False):
        levels[after] = max(levels[after], levels[before] + STEP)
    return levels


def _touch(upper: tuple[float, list[int]], lower: tuple[float, list[int]]) -> bool:
    return lower[0] - upper[0] < STEP * (len(upper[1]) + len(lower[1])) / 2


# --- bars -----------------------------------------------------------------------------

BARS, ROW, THICK = 640.0, 27.0, 17.0  # width of the picture, rows, bars in them
MOST_NAME, BEHIND = 210.0, 140.0  # room for names, and for lengths behind bars


def _draw_bars(chart: Bars) -> Picture:
    """Draw horizontal stacks of parts, with names before and lengths after them."""
    top = 34.0 if len(chart.parts) > 1 else 12.0
    bottom = top + ROW * len(chart.bars) + 4
    picture = Picture(BARS, bottom + 48)
    names = [picture.shortened(bar.name, MOST_NAME) for bar in chart.bars]
    left = 14 + max((picture.width_of(name) for name in names), default=0)
    frame = Frame(left, top, BARS - BEHIND, bottom)
    lengths = [v for bar in chart.bars for v in (bar.whole, bar.high or 0.0)]
    scale = make_scale(chart.axis, [0.0, *lengths], frame.left, frame.right)

    axes = picture.axes(frame)
    axes.spines["bottom"].set_visible(False)
    _set_x(picture, axes, frame, scale, chart.axis)
    axes.set_ylim((bottom - top) / ROW, 0)
    middles = [number + 0.5 for number in range(len(names))]
    axes.set_yticks(middles, [clean(name) for name in names], parse_math=False)
    handles = [
        _draw_part(picture, axes, chart, part, scale)
        for part in range(len(chart.parts))
    ]
    for number, bar in enumerate(chart.bars):
        _draw_whisker(axes, bar.low, bar.high, number)
        text = f"{with_unit(bar.whole, chart.axis.unit)}  {bar.note}".rstrip()
        y = top + ROW * (number + 0.5) + 4
        picture.text(scale(bar.whole) + 7, y, text, gid=picture.hint("length"))
    if len(chart.parts) > 1:
        _draw_legend(axes, handles, chart)
    return picture


def _draw_part(
    picture: Picture, axes: Any, chart: Bars, part: int, scale: Scale
) -> Any:
    """Draw part `part` of every bar after the parts before it.

    Return what matplotlib has drawn, for the legend.
    """
    fill = FILLS[part % len(FILLS)]
    drawn = axes.barh(
        [number + 0.5 for number in range(len(chart.bars))],
        [max(bar.parts[part], 0.0) for bar in chart.bars],
        THICK / ROW,
        left=[sum(bar.parts[:part]) for bar in chart.bars],
        color=fill.colour,
        hatch=fill.hatch,
        edgecolor=BLACK,
        linewidth=0.8,
    )
    for number, bar in enumerate(chart.bars):
        length = bar.parts[part]
        if length <= 0:
            drawn[number].set_visible(False)
            continue
        share = f"{100 * length / bar.whole:.0f} %"
        text = f"{bar.name}: {chart.parts[part]} {with_unit(length, chart.axis.unit)}"
        text += f", {share}" if len(bar.parts) > 1 else ""
        drawn[number].set_gid(picture.hint("part", text, name=bar.name))
        begin = sum(bar.parts[:part])
        wide = scale(begin + length) - scale(begin)
        if len(bar.parts) > 1 and wide > picture.width_of(share, SMALL) + 8:
            # On a plain ground where a hatch would run through it.
            ground = {"facecolor": fill.colour, "edgecolor": "none", "pad": 1.5}
            axes.text(
                begin + length / 2,
                number + 0.5,
                share,
                ha="center",
                va="center_baseline",
                color=fill.ink,
                fontsize=SMALL,
                bbox=ground if fill.hatch else None,
            )
    return drawn


def _draw_whisker(axes: Any, low: float | None, high: float | None, row: int) -> None:
    """Draw a line from the shortest to the longest repeat below the bar."""
    if low is not None and high is not None and low != high:
        level = row + (ROW + THICK) / 2 / ROW + 0.1
        axes.plot(
            [low, high], [level, level], "|-", color=INK, linewidth=1, markersize=6
        )


def _draw_legend(axes: Any, handles: Sequence[Any], chart: Bars) -> None:
    legend = axes.legend(
        handles,
        [clean(part) for part in chart.parts],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.5,
        borderpad=0,
        ncols=len(handles),
        frameon=False,
        fontsize=SIZE,
        labelcolor=INK,
        handlelength=1.1,
        handleheight=1.1,
        handletextpad=0.4,
        columnspacing=1.4,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


# --- heat maps ------------------------------------------------------------------------

CELL, TALL, ABOVE = 76.0, 40.0, 46.0  # width and height of cells, room above them
CLEAR = 1.02  # largest over smallest


def _draw_heat(chart: Heat) -> Picture:
    """Draw a coloured cell for each value; the smallest values have a thick frame."""
    unit = unit_for(chart.unit, chart.values)
    legend = "; ".join(
        [
            f"values in {unit.word}" if unit.word else "values as they are",
            "dark = large",
            "thick frame = smallest",
        ]
    )
    measure = Picture(1, 1)
    left = 22 + max(measure.width_of(name) for name in chart.rows)
    right = left + CELL * len(chart.columns)
    bottom = ABOVE + TALL * len(chart.rows)
    title = measure.width_of(chart.title, weight="bold")
    texts = title, measure.width_of(legend, SMALL), measure.width_of(chart.y)
    width = max(right + 14, 250.0, *(20 + text for text in texts))
    picture = Picture(width, bottom + 62)

    axes = picture.axes(Frame(left, ABOVE, right, bottom))
    axes.spines[:].set_visible(False)
    axes.set(xlim=(0, len(chart.columns)), ylim=(len(chart.rows), 0))
    for side, names in ((axes.xaxis, chart.columns), (axes.yaxis, chart.rows)):
        places = [number + 0.5 for number in range(len(names))]
        side.set_ticks(places, labels=[clean(n) for n in names], parse_math=False)
    for text in axes.get_yticklabels():
        text.set_va("center_baseline")
    _draw_cells(picture, axes, chart, unit)

    picture.text(8, 16, chart.title, fontweight="bold")
    picture.text(8, 36, chart.y, color=FAINT)
    picture.text((left + right) / 2, bottom + 36, chart.x, "center")
    picture.text(8, bottom + 55, legend, color=FAINT, fontsize=SMALL)
    return picture


def _draw_cells(picture: Picture, axes: Any, chart: Heat, unit: Unit) -> None:
    """Draw every cell with its value, and a frame around the smallest values.

    These are all values with the digits of the smallest one. A single value has no
    frame.
    """
    # Losses differ less than times.
    digits = 3 if chart.unit else 4
    least = figures(min(chart.values, default=0.0) / unit.size, digits)
    for row, line in enumerate(chart.cells):
        for column, value in enumerate(line):
            place = row, column
            if value is None:
                _draw_cell(axes, place, GROUND, GRID)
                continue
            text = figures(value / unit.size, digits)
            where = f"{chart.y} {chart.rows[row]}, {chart.x} {chart.columns[column]}"
            hint = picture.hint("cell", f"{where}: {text} {unit.word}".rstrip())
            colour, ink = heat_colour(_share(value, chart.values))
            _draw_cell(axes, place, colour, GROUND, gid=hint)
            look = {"color": ink, "fontsize": SIZE, "va": "center_baseline"}
            axes.text(column + 0.5, row + 0.5, text, ha="center", **look)
            if text == least and len(chart.values) > 1:
                best = {"linewidth": 3, "zorder": 2, "gid": picture.hint("best")}
                _draw_cell(axes, place, "none", BLACK, inset=1.5, **best)


def _draw_cell(
    axes: Any,
    place: tuple[int, int],
    fill: str,
    edge: str,
    inset: float = 0.0,
    **more: Any,
) -> None:
    (row, column), x, y = place, inset / CELL, inset / TALL
    size = {"width": 1 - 2 * x, "height": 1 - 2 * y, "left": column + x}
    axes.barh(row + 0.5, facecolor=fill, edgecolor=edge, **size, **more)


def _share(value: float, values: list[float]) -> float:
    """Return the position of a value on the colour scale, from 0 (smallest) to 1.

    Positive values are compared by their ratios. If the largest is less than CLEAR
    times the smallest, only a part of the colours is used.
    """
    low = min(values)
    high = max(values)
    if high <= low:
        return 0.0
    if low > 0:
        return log(value / low) / max(log(high / low), log(CLEAR))
    return (value - low) / (high - low)
