"""From values to places on an axis: ticks, prefixes, numbers as people write them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10, sqrt

from hpcsgd.charts.model import Axis

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

    >>> [figures(v) for v in (0.0123456, 12.3456, 1234567.0)]
    ['0.0123', '12.3', '1 230 000']
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
