"""Lines over two axes, with their names beside them."""

from collections.abc import Sequence
from math import isfinite

from hpcsgd.charts.frame import Frame, axes, note
from hpcsgd.charts.looks import FAINT, Look, look, marker
from hpcsgd.charts.model import MARKS, Axis, Lines, Series
from hpcsgd.charts.scales import Scale, make_scale, with_unit
from hpcsgd.charts.svg import (
    document,
    element,
    line,
    polyline,
    shortened,
    text,
    titled,
    width_of,
)

WIDTH, HEIGHT, TOP, FOOT = 560.0, 340.0, 40.0, 48.0
SAMPLE, MOST_LABEL, STEP = 34.0, 150.0, 17.0
BOLD = 1.14  # names are wider than plain text
MANY = 14  # points of a line, above which only some carry their marker


def draw_lines(chart: Lines) -> str:
    """The whole picture."""
    names = [shortened(one.name, MOST_LABEL) for one in chart.series]
    ideal = [chart.ideal.name] if chart.ideal else []
    widest = max((width_of(name) for name in [*names, *ideal]), default=0)
    room = SAMPLE + 14 + BOLD * widest
    notes = _notes(chart)
    height = HEIGHT + 18 * len(notes)
    frame = Frame(64, TOP, WIDTH - room, HEIGHT - FOOT)
    across, up = _scales(chart, frame)
    return document(
        *(WIDTH, height, chart.name, chart.title, chart.caption),
        axes(frame, chart.x, chart.y, across, up),
        _ideal(chart.ideal, across, up),
        *(_series(chart, n, across, up) for n in range(len(chart.series))),
        _labels(chart, names, frame, across, up),
        *(note(frame.left, HEIGHT + 8 + 16 * n, said) for n, said in enumerate(notes)),
    )


def _scales(chart: Lines, frame: Frame) -> tuple[Scale, Scale]:
    drawn = [*chart.series, *([chart.ideal] if chart.ideal else [])]
    xs = [v for one in drawn for v in one.x]
    ys = [v for one in drawn for v in one.y]
    if chart.y.shows_bars:
        ys += [v for one in drawn for v in (*one.low, *one.high)]
    return (
        make_scale(chart.x, xs, frame.left, frame.right),
        make_scale(chart.y, ys, frame.bottom, frame.top),
    )


def places(one: Series, across: Scale, up: Scale) -> list[tuple[float, float]]:
    """Of the points that can be drawn."""
    return [(across(x), up(y)) for x, y in shown(one, across, up)]


def shown(one: Series, across: Scale, up: Scale) -> list[tuple[float, float]]:
    """The points that are numbers, and positive where the axis needs that."""
    return [
        (x, y)
        for x, y in zip(one.x, one.y, strict=True)
        if _fits(x, across) and _fits(y, up)
    ]


def _fits(value: float, scale: Scale) -> bool:
    return isfinite(value) and (value > 0 or not scale.log)


def _series(chart: Lines, number: int, across: Scale, up: Scale) -> str:
    one = chart.series[number]
    style = look(one.look)
    drawn = [
        polyline(
            places(one, across, up),
            stroke=style.colour,
            # Lines that lie on each other are seen below and above.
            stroke_width=max(3.2 - 0.6 * number, 1.4),
            stroke_dasharray=style.dash or None,
            stroke_linejoin="round",
        ),
        *(_bar(one, k, across, up, style.colour) for k in range(len(one.low))),
        *(_point(chart, number, k, across, up) for k in _marked(one, number)),
    ]
    return element("g", *drawn, class_="series", data_name=one.name)


def _marked(one: Series, number: int) -> Sequence[int]:
    """The points that carry a marker; lines begin at other ones, so none hides two."""
    count = len(one.x)
    if count <= MANY:
        return range(count)
    every = -(-count // 8)
    return sorted({*range(number * every // 4 % every, count, every), count - 1})


def _point(chart: Lines, number: int, point: int, across: Scale, up: Scale) -> str:
    one = chart.series[number]
    style, size = look(one.look), max(1.2 - 0.13 * number, 0.7)
    x, y = one.x[point], one.y[point]
    if not (_fits(x, across) and _fits(y, up)):
        return ""
    mark = one.mark(point)
    drawn = marker(style.marker, style.colour, across(x), up(y), mark, size)
    said = f"{one.name}: {_said(chart.y, y)} at {_said(chart.x, x)}"
    return titled(drawn, f"{said} ({MARKS[mark]})" if mark else said)


def _said(axis: Axis, value: float) -> str:
    return f"{axis.title} {with_unit(value, axis.unit, 4)}"


def _bar(one: Series, point: int, across: Scale, up: Scale, colour: str) -> str:
    """From the lowest to the highest of the repeats."""
    x, low, high = one.x[point], one.low[point], one.high[point]
    if not (_fits(x, across) and _fits(low, up) and _fits(high, up)) or low == high:
        return ""
    place, a, b = across(x), up(max(low, up.low)), up(min(high, up.high))
    # One that runs out of the frame has no end there.
    inside = [end for end, v in ((a, low), (b, high)) if up.low <= v <= up.high]
    ends = (line(place - 4, end, place + 4, end, stroke=colour) for end in inside)
    return line(place, a, place, b, stroke=colour, stroke_width=1.2) + "".join(ends)


def _ideal(one: Series | None, across: Scale, up: Scale) -> str:
    if one is None:
        return ""
    return polyline(
        places(one, across, up), stroke=FAINT, stroke_width=1, class_="ideal"
    )


def _labels(
    chart: Lines, names: Sequence[str], frame: Frame, across: Scale, up: Scale
) -> str:
    """Every name beside its line's end, pushed apart where two would touch."""
    ends = [_end(one, frame, across, up) for one in chart.series]
    wanted = [(end[1], number) for number, end in enumerate(ends)]
    if chart.ideal:
        wanted.append((_end(chart.ideal, frame, across, up)[1], -1))
    levels = spread([level for level, _ in wanted], frame.top + 4, frame.bottom - 4)
    drawn = []
    for (_, number), level in zip(wanted, levels, strict=True):
        if number < 0:
            drawn.append(_ideal_label(chart.ideal, frame, level))
        else:
            own = look(chart.series[number].look)
            drawn.append(_label(names[number], own, ends[number], frame, level))
    return "".join(drawn)


def _end(one: Series, frame: Frame, across: Scale, up: Scale) -> tuple[float, float]:
    found = places(one, across, up)
    return found[-1] if found else (frame.left, frame.top)


def _label(
    name: str, style: Look, end: tuple[float, float], frame: Frame, level: float
) -> str:
    """A piece of the line with its marker, and the name."""
    begin = frame.right + 8
    ink = {"stroke": style.colour, "stroke_dasharray": style.dash or None}
    leader = ""
    if end[0] > frame.right - 0.12 * frame.width:
        leader = line(
            *(end[0] + 6, end[1], begin - 1, level), stroke=style.colour, opacity=0.45
        )
    return element(
        "g",
        leader,
        line(begin, level, begin + SAMPLE - 8, level, stroke_width=2, **ink),
        marker(style.marker, style.colour, begin + SAMPLE / 2 - 4, level),
        text(begin + SAMPLE, level + 4, name, fill=style.colour, font_weight="bold"),
        class_="label",
    )


def _ideal_label(one: Series | None, frame: Frame, level: float) -> str:
    begin = frame.right + 8
    return line(begin, level, begin + SAMPLE - 8, level, stroke=FAINT) + text(
        begin + SAMPLE, level + 4, one.name if one else "", fill=FAINT
    )


def spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Levels near the wanted ones, in their order, a line of text apart.

    >>> spread([50, 52, 100], 0, 200)
    [42.5, 59.5, 100.0]
    """
    order = sorted(range(len(wanted)), key=lambda n: (wanted[n], n))
    blocks: list[tuple[float, list[int]]] = []  # middle, who
    for number in order:
        blocks.append((float(wanted[number]), [number]))
        while len(blocks) > 1 and _touch(blocks[-2], blocks[-1]):
            (a, first), (b, last) = blocks[-2:]
            middle = (a * len(first) + b * len(last)) / (len(first) + len(last))
            blocks[-2:] = [(middle, first + last)]
    levels = [0.0] * len(wanted)
    for middle, who in blocks:
        half = (len(who) - 1) * STEP / 2
        middle = max(min(middle, bottom - half), top + half)
        for k, number in enumerate(who):
            levels[number] = middle - half + k * STEP
    return _apart(levels, order)


def _touch(upper: tuple[float, list[int]], lower: tuple[float, list[int]]) -> bool:
    return lower[0] - upper[0] < STEP * (len(upper[1]) + len(lower[1])) / 2


def _apart(levels: list[float], order: Sequence[int]) -> list[float]:
    """Blocks that were pushed back into the frame may touch others again."""
    for before, after in zip(order, order[1:], strict=False):
        levels[after] = max(levels[after], levels[before] + STEP)
    return levels


def _notes(chart: Lines) -> list[str]:
    """What hollow points mean, where there are some."""
    used = {mark for one in chart.series for mark in one.marks}
    return [said for mark, said in MARKS.items() if mark in used]
