"""Descriptions of charts: values, labels, scales."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, log10, sqrt

# What a chart is, before anybody draws it.

Values = tuple[float, ...]
MEASURED, CROWDED, EMULATED = "", "crowded", "emulated"  # how a point was measured
MARKS = {
    CROWDED: "hollow: more ranks than cores",
    EMULATED: "ring with a dot: emulated",
}


@dataclass(frozen=True)
class Axis:
    """What is on it, in which unit, and how it is divided."""

    title: str
    unit: str = ""  # s, words, J, %: drawn with the prefix that fits
    log: bool = False
    ticks: Values = ()  # these alone, where they are given
    from_zero: bool = False
    shows_bars: bool = True  # False: bars of repeats may run out of it


@dataclass(frozen=True)
class Series:
    """One line: its points, and how far repeats were apart."""

    name: str
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()
    marks: tuple[str, ...] = ()
    look: int = 0  # one method has the same in all charts

    def mark(self, number: int) -> str:
        """How a point was measured."""
        return self.marks[number] if self.marks else MEASURED


@dataclass(frozen=True)
class Lines:
    """Lines over two axes; `ideal` is what is drawn thin behind them."""

    name: str  # of its files
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    ideal: Series | None = None


@dataclass(frozen=True)
class Bar:
    """One bar made of parts, and how far repeats of the whole were apart."""

    name: str
    parts: Values
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def whole(self) -> float:
        """The length of it."""
        return sum(self.parts)


@dataclass(frozen=True)
class Bars:
    """Lying bars, stacked of the parts that are named once."""

    name: str
    title: str
    caption: str
    axis: Axis
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Heat:
    """A value for each pair; None where there is none."""

    name: str
    title: str
    caption: str
    x: str
    y: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...] = field(default=())
    unit: str = ""

    @property
    def values(self) -> list[float]:
        """All that are there."""
        return [v for row in self.cells for v in row if v is not None and isfinite(v)]


Chart = Lines | Bars | Heat


# From values to places on an axis: ticks, prefixes, numbers as people write them.

PREFIXES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")),
    "words": (
        (1e9, "billion words"),
        (1e6, "million words"),
        (1e3, "thousand words"),
        (1.0, "words"),
    ),
}


@dataclass(frozen=True)
class Unit:
    """What a number is divided by, and the word behind it."""

    size: float = 1.0
    word: str = ""


def unit_for(unit: str, values: Iterable[float]) -> Unit:
    """The prefix with which the largest value reads best."""
    largest = max((abs(v) for v in values if isfinite(v)), default=0.0)
    known = PREFIXES.get(unit)
    if known is None:
        return Unit(1.0, unit)
    for size, word in known:
        if largest >= size:
            return Unit(size, word)
    return Unit(*known[-1])


def unit_of(axis: Axis, values: Sequence[float]) -> Unit:
    """Of a logarithmic axis the unit of its middle, else that of its end."""
    shown = [v for v in values if isfinite(v) and (v > 0 or not axis.log)]
    if axis.log and shown:
        shown = [sqrt(min(shown) * max(shown))]
    return unit_for(axis.unit, shown)


@dataclass(frozen=True)
class Scale:
    """Values low .. high onto places start .. stop; ticks are values."""

    low: float
    high: float
    start: float
    stop: float
    log: bool
    ticks: tuple[float, ...]
    unit: Unit

    def __call__(self, value: float) -> float:
        """The place of a value."""
        if self.log:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def label(self, tick: float) -> str:
        """A tick as it is written on the axis."""
        return number(tick / self.unit.size)


def make_scale(
    axis: Axis, values: Sequence[float], start: float, stop: float, most: int = 6
) -> Scale:
    """The scale of an axis that shows all the values, with about `most` ticks."""
    shown = [v for v in values if isfinite(v) and (v > 0 or not axis.log)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    unit = unit_of(axis, shown)
    if axis.log:
        low, high, ticks = _logarithmic(axis, low, high, unit, most)
    else:
        low, high, ticks = _linear(axis, low, high, unit, most)
    return Scale(low, high, start, stop, axis.log, ticks, unit)


Range = tuple[float, float, tuple[float, ...]]


def _linear(axis: Axis, low: float, high: float, unit: Unit, most: int) -> Range:
    low = min(low, 0.0) if axis.from_zero else low
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - (0.0 if axis.from_zero else pad), high + pad
    step = nice((high - low) / unit.size / max(most - 1, 1)) * unit.size
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = tuple(round(k * step, 12) for k in range(first, last + 1))
    return first * step, last * step, axis.ticks or ticks


def _logarithmic(axis: Axis, low: float, high: float, unit: Unit, most: int) -> Range:
    if axis.ticks:
        low, high = min(low, *axis.ticks), max(high, *axis.ticks)
    pad = max((high / low) ** 0.04, 1.05)
    low, high = low / pad, high * pad
    if axis.ticks:
        return low, high, axis.ticks
    found = [k * unit.size for k in log_ticks(low / unit.size, high / unit.size, most)]
    return low, high, tuple(found)


def nice(step: float) -> float:
    """The next number of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** floor(log10(step)) if step > 0 else 1.0
    return next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= step * 0.999)


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Ticks between the two: decades, or decades divided, or every so many of them."""
    first, last = floor(log10(low)), ceil(log10(high))
    for every in (1, 2, 3, 5):
        tens = [10.0**k for k in range(first, last + 1) if k % every == 0]
        if len([t for t in tens if low <= t <= high]) <= most:
            break
    for parts in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [k * t for t in tens for k in parts if low <= k * t <= high]
        if len(ticks) <= most:
            break
    return ticks if len(ticks) > 1 else _linear_ticks(low, high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Of a logarithmic axis that is so short that decades say nothing."""
    step = nice((high - low) / max(most - 1, 1))
    found = [
        round(k * step, 12) for k in range(ceil(low / step), floor(high / step) + 1)
    ]
    return [t for t in found if t > 0]


def number(value: float) -> str:
    """A number as a person writes it: 0.05, 12.5, 4000, 2·10⁶.

    >>> [number(v) for v in (0.05, 12.5, 4000.0, 2e6, 0.00002, 1e-5)]
    ['0.05', '12.5', '4000', '2·10⁶', '2·10⁻⁵', '10⁻⁵']
    """
    if value == 0:
        return "0"
    size = abs(value)
    if 1e-3 <= size < 1e5:
        return _minus(f"{value:.6g}")
    power = floor(log10(size) + 1e-9)
    front = f"{value / 10.0**power:.3g}"
    raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if front == "1" else _minus(f"{front}·10{raised}")


def figures(value: float, digits: int = 3) -> str:
    """A measured number with so many digits, never in E notation.

    >>> [figures(v) for v in (0.0123456, 12.3456, 987.4)]
    ['0.0123', '12.3', '987']
    """
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "–"
    places = max(digits - 1 - floor(log10(abs(value))), 0)
    text = f"{float(f'{value:.{digits}g}'):,.{min(places, 12)}f}"
    return _minus(text.replace(",", "\u202f"))


def whole(value: float) -> str:
    """A count, with thin spaces between thousands."""
    return _minus(f"{value:,.0f}".replace(",", "\u202f"))


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """A measured number with the prefix that fits it: 3.21 ms."""
    found = unit_for(unit, [value])
    return f"{figures(value / found.size, digits)}\u00a0{found.word}".rstrip()


# The table behind a chart, as CSV.

Row = list[object]


def csv_text(chart: Chart) -> str:
    """The numbers that are drawn, in units without prefix."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerows([safe(cell) for cell in row] for row in rows_of(chart))
    return written.getvalue()


def safe(cell: object) -> object:
    """Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("=", "+", "-", "@"):
        return f"'{cell}"
    return cell


def rows_of(chart: Chart) -> list[Row]:
    """The head and the rows."""
    if isinstance(chart, Lines):
        return _of_lines(chart)
    if isinstance(chart, Bars):
        return _of_bars(chart)
    return _of_heat(chart)


def _of_lines(chart: Lines) -> list[Row]:
    x, y = (_head(axis.title, axis.unit) for axis in (chart.x, chart.y))
    rows: list[Row] = [["series", x, y, "lowest", "highest", "mark"]]
    for one in (*chart.series, *([chart.ideal] if chart.ideal else [])):
        for n, (a, b) in enumerate(zip(one.x, one.y, strict=True)):
            ends: Row = [one.low[n], one.high[n]] if one.low else ["", ""]
            rows.append([one.name, a, b, *ends, one.mark(n)])
    return rows


def _of_bars(chart: Bars) -> list[Row]:
    head = [_head(part, chart.axis.unit) for part in chart.parts]
    rows: list[Row] = [["bar", *head, "lowest", "highest", "mark"]]
    for bar in chart.bars:
        ends: Row = [bar.low, bar.high]
        rows.append([bar.name, *bar.parts, *ends, bar.note])
    return rows


def _of_heat(chart: Heat) -> list[Row]:
    rows: list[Row] = [[chart.y, chart.x, _head("value", chart.unit)]]
    for row, line in zip(chart.rows, chart.cells, strict=True):
        for column, value in zip(chart.columns, line, strict=True):
            if value is not None:
                rows.append([row, column, value])
    return rows


def _head(title: str, unit: str) -> str:
    return f"{title} [{unit}]" if unit else title
