"""Charts as values: series, labels, scales, and the table of each chart as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, log10, sqrt

# The description of a chart is independent of matplotlib, which draws it.

Values = tuple[float, ...]
Row = list[object]  # of the table of a chart
# How a point was measured.
MEASURED = ""
CROWDED = "crowded"
EMULATED = "emulated"
MARKS = {
    CROWDED: "hollow: more ranks than cores",
    EMULATED: "ring with a dot: emulated",
}


@dataclass(frozen=True)
class Axis:
    """Title, unit and kind (linear or logarithmic) of one axis of a chart."""

    title: str
    unit: str = ""  # s, words, J, %: drawn with the prefix that fits
    log: bool = False
    ticks: Values = ()  # the ticks; empty to choose them by the values
    from_zero: bool = False
    shows_bars: bool = True  # whether the axis includes the bars of repeats

    @property
    def head(self) -> str:
        """Title with the unit, for the head of a table."""
        return _with_unit(self.title, self.unit)


@dataclass(frozen=True)
class Series:
    """One line of a chart: its points, and the range of the repeats of each."""

    name: str
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()
    marks: tuple[str, ...] = ()
    look: int = 0  # number of its colour and marker, the same in all charts

    def mark(self, number: int) -> str:
        """Return how a point was measured, a key of `MARKS` or ""."""
        return self.marks[number] if self.marks else MEASURED


@dataclass(frozen=True)
class Lines:
    """A chart of lines over two axes; `ideal` is a thin line behind the others."""

    draws_title = False
    name: str  # name of its files
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    ideal: Series | None = None

    def table(self) -> list[Row]:
        """Return the points as rows below a head."""
        rows: list[Row] = [
            ["series", self.x.head, self.y.head, "lowest", "highest", "mark"]
        ]
        for series in (*self.series, *([self.ideal] if self.ideal else [])):
            for n, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                ends: Row = [series.low[n], series.high[n]] if series.low else ["", ""]
                rows.append([series.name, x, y, *ends, series.mark(n)])
        return rows


@dataclass(frozen=True)
class Bar:
    """One bar made of parts, and the range of the repeats of the whole."""

    name: str
    parts: Values
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def whole(self) -> float:
        """Length of the bar."""
        return sum(self.parts)


@dataclass(frozen=True)
class Bars:
    """A chart of horizontal bars, each a stack of the same parts."""

    draws_title = False
    name: str
    title: str
    caption: str
    axis: Axis
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]

    def table(self) -> list[Row]:
        """Return the bars as rows below a head."""
        parts = [_with_unit(part, self.axis.unit) for part in self.parts]
        rows: list[Row] = [["bar", *parts, "lowest", "highest", "mark"]]
        rows += [[b.name, *b.parts, b.low, b.high, b.note] for b in self.bars]
        return rows


@dataclass(frozen=True)
class Heat:
    """A heat map: a value for each pair of a row and a column, or None."""

    draws_title = True
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
        """The finite values of all cells."""
        return [v for row in self.cells for v in row if v is not None and isfinite(v)]

    def table(self) -> list[Row]:
        """Return the cells with a value as rows below a head."""
        rows: list[Row] = [[self.y, self.x, _with_unit("value", self.unit)]]
        for row, line in zip(self.rows, self.cells, strict=True):
            for column, value in zip(self.columns, line, strict=True):
                if value is not None:
                    rows.append([row, column, value])
        return rows


Chart = Lines | Bars | Heat


def _with_unit(title: str, unit: str) -> str:
    return f"{title} [{unit}]" if unit else title


# A scale maps values to places on an axis, and has ticks with labels.

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
    """A unit with its prefix: the divisor of a value, and the word after the number."""

    size: float = 1.0
    word: str = ""


def unit_for(unit: str, values: Iterable[float]) -> Unit:
    """Return `unit` with its largest prefix that does not exceed the largest value.

    If all prefixes exceed it, the smallest one is taken.
    """
    largest = max((abs(v) for v in values if isfinite(v)), default=0.0)
    units = [Unit(size, word) for size, word in PREFIXES.get(unit, ((1.0, unit),))]
    return next((u for u in units if largest >= u.size), units[-1])


def unit_of(axis: Axis, values: Sequence[float]) -> Unit:
    """Return the unit of an axis, with the prefix that fits its largest value.

    On a logarithmic axis the prefix fits the geometric mean of its ends.
    """
    shown = [v for v in values if isfinite(v) and (v > 0 or not axis.log)]
    if axis.log and shown:
        shown = [sqrt(min(shown) * max(shown))]
    return unit_for(axis.unit, shown)


@dataclass(frozen=True)
class Scale:
    """A map from values, low to high, to positions, start to stop, with ticks."""

    low: float
    high: float
    start: float
    stop: float
    log: bool
    ticks: tuple[float, ...]
    unit: Unit

    def __call__(self, value: float) -> float:
        """Return the position of a value on the axis."""
        if self.log:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def label(self, tick: float) -> str:
        """Return the label of a tick, a number in the unit of the axis."""
        return number(tick / self.unit.size)


def make_scale(
    axis: Axis, values: Sequence[float], start: float, stop: float, most: int = 6
) -> Scale:
    """Return the scale of an axis that includes all values, with about `most` ticks.

    If the axis has ticks of its own, these are taken. Values that are not finite, or
    not positive on a logarithmic axis, do not count. The ends of the axis have the
    positions `start` and `stop`.
    """
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
        low = low - (0.0 if axis.from_zero else pad)
        high = high + pad
    step = nice((high - low) / unit.size / max(most - 1, 1)) * unit.size
    first = floor(low / step + 1e-9)
    last = ceil(high / step - 1e-9)
    ticks = tuple(round(k * step, 12) for k in range(first, last + 1))
    return first * step, last * step, axis.ticks or ticks


def _logarithmic(axis: Axis, low: float, high: float, unit: Unit, most: int) -> Range:
    if axis.ticks:
        low = min(low, *axis.ticks)
        high = max(high, *axis.ticks)
    pad = max((high / low) ** 0.04, 1.05)
    low = low / pad
    high = high * pad
    if axis.ticks:
        return low, high, axis.ticks
    ticks = [k * unit.size for k in log_ticks(low / unit.size, high / unit.size, most)]
    return low, high, tuple(ticks)


def nice(step: float) -> float:
    """Round a step up to 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(step)) if step > 0 else 1.0
    return next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= step * 0.999)


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return about `most` ticks of a logarithmic axis.

    They divide decades, or are at every decade, or at every k-th decade. If fewer than
    two of these are between `low` and `high`, the ticks are equidistant.
    """
    first = floor(log10(low))
    last = ceil(log10(high))
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
    """Return equidistant ticks, for a logarithmic axis shorter than a decade."""
    step = nice((high - low) / max(most - 1, 1))
    ticks = [
        round(k * step, 12) for k in range(ceil(low / step), floor(high / step) + 1)
    ]
    return [tick for tick in ticks if tick > 0]


def number(value: float) -> str:
    """Format a number as a person writes it: 0.05, 12.5, 4000, 2·10⁶.

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
    """Format a number with `digits` significant digits, never in E notation.

    A number that is not finite becomes "–".

    >>> [figures(v) for v in (0.0123456, 12.3456, 987.4)]
    ['0.0123', '12.3', '987']
    """
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "–"
    places = max(digits - 1 - floor(log10(abs(value))), 0)
    text = f"{float(f'{value:.{digits}g}'):,.{min(places, 12)}f}"
    return _minus(text.replace(",", "\u202f"))


def whole(value: float) -> str:
    """Format a count, with thin spaces between thousands."""
    return _minus(f"{value:,.0f}".replace(",", "\u202f"))


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """Format a measured number with the prefix that fits it: 3.21 ms."""
    best = unit_for(unit, [value])
    return f"{figures(value / best.size, digits)}\u00a0{best.word}".rstrip()


# The table of a chart is a CSV file.


def csv_text(chart: Chart) -> str:
    """Return the values of a chart as CSV, in units without prefix."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([safe(cell) for cell in row] for row in chart.table())
    return text.getvalue()


def safe(cell: object) -> object:
    """Return a cell with an apostrophe before text that could be a formula."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("=", "+", "-", "@"):
        return f"'{cell}"
    return cell
