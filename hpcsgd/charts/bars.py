"""Lying bars made of parts, their names on the left and their length behind them."""

from hpcsgd.charts.frame import Frame, titled, x_labels, x_title
from hpcsgd.charts.looks import FILLS, GRID, INK, patterns
from hpcsgd.charts.model import Bar, Bars
from hpcsgd.charts.scales import Scale, make_scale, with_unit
from hpcsgd.charts.svg import (
    document,
    element,
    line,
    shortened,
    text,
    width_of,
)
from hpcsgd.charts.svg import titled as hinted

WIDTH, ROW, THICK, TOP = 640.0, 27.0, 17.0, 34.0
MOST_NAME, BEHIND = 210.0, 130.0


def draw_bars(chart: Bars) -> str:
    """The whole picture."""
    names = [shortened(bar.name, MOST_NAME) for bar in chart.bars]
    left = 14 + 1.08 * max((width_of(name) for name in names), default=0)
    top = TOP if len(chart.parts) > 1 else 12.0
    bottom = top + ROW * len(chart.bars) + 4
    frame = Frame(left, top, WIDTH - BEHIND, bottom + 2)
    lengths = [v for bar in chart.bars for v in (bar.whole, bar.high or 0.0)]
    scale = make_scale(chart.axis, [0.0, *lengths], frame.left, frame.right)
    return document(
        *(WIDTH, bottom + 48, chart.name, chart.title, chart.caption),
        patterns(chart.name, len(chart.parts)),
        _legend(chart, left) if len(chart.parts) > 1 else "",
        *(line(scale(t), top, scale(t), bottom, stroke=GRID) for t in scale.ticks),
        *(_row(chart, n, names[n], frame, scale) for n in range(len(names))),
        line(left, top, left, bottom, stroke=INK),
        x_labels(frame, scale),
        x_title(frame, titled(chart.axis, scale)),
    )


def _legend(chart: Bars, left: float) -> str:
    drawn = []
    for number, part in enumerate(chart.parts):
        drawn.append(_box(chart, number, left, 8.0, 13.0, 13.0))
        drawn.append(text(left + 18, 19, part))
        left += 18 + width_of(part) + 18
    return "".join(drawn)


def _row(chart: Bars, number: int, name: str, frame: Frame, scale: Scale) -> str:
    bar, top = chart.bars[number], frame.top + ROW * number + (ROW - THICK) / 2 + 2
    middle = top + THICK / 2 + 4
    drawn, begin = [], 0.0
    for part, length in enumerate(bar.parts):
        drawn.append(_part(chart, bar, part, begin, top, scale))
        begin += length
    end = scale(begin)
    return element(
        "g",
        text(frame.left - 7, middle, name, "end"),
        *drawn,
        _whisker(bar, top + THICK + 4, scale),
        text(end + 7, middle, _length(chart, bar), class_="length"),
        class_="bar",
        data_name=bar.name,
    )


def _length(chart: Bars, bar: Bar) -> str:
    said = with_unit(bar.whole, chart.axis.unit)
    return f"{said}  {bar.note}".rstrip()


def _part(
    chart: Bars, bar: Bar, part: int, begin: float, top: float, scale: Scale
) -> str:
    length = bar.parts[part]
    if length <= 0:
        return ""
    left, right = scale(begin), scale(begin + length)
    box = _box(chart, part, left, top, right - left, THICK)
    share = f"{100 * length / bar.whole:.0f} %"
    middle = (left + right) / 2
    if len(bar.parts) > 1 and right - left > width_of(share, 11) + 8:
        box += _plate(chart, part, middle, top, share)
    said = f"{bar.name}: {chart.parts[part]} {with_unit(length, chart.axis.unit)}"
    return hinted(box, f"{said}, {share}" if len(bar.parts) > 1 else said)


def _plate(chart: Bars, part: int, middle: float, top: float, said: str) -> str:
    """The share, on a plain ground where a hatch would run through it."""
    fill, half = FILLS[part % len(FILLS)], width_of(said, 11) / 2 + 2
    back = ""
    if fill.hatch:
        size = {"width": 2 * half, "height": THICK - 4}
        back = element("rect", x=middle - half, y=top + 2, fill=fill.colour, **size)
    inside = text(middle, top + 12.5, said, "middle", fill=fill.ink, font_size=11)
    return back + inside


def _box(
    chart: Bars, part: int, x: float, y: float, width: float, height: float
) -> str:
    size = {"width": width, "height": height}
    fill = f"url(#{chart.name}-fill-{part})"
    edge = {"stroke": INK, "stroke_width": 0.8}
    return element("rect", x=x, y=y, fill=fill, class_="part", **size, **edge)


def _whisker(bar: Bar, level: float, scale: Scale) -> str:
    """From the shortest to the longest of the repeats, below the bar."""
    if bar.low is None or bar.high is None or bar.low == bar.high:
        return ""
    a, b = scale(bar.low), scale(bar.high)
    ends = "".join(line(x, level - 3, x, level + 3, stroke=INK) for x in (a, b))
    return line(a, level, b, level, stroke=INK) + ends
