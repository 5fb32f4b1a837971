"""What a chart is, before anybody draws it."""

from dataclasses import dataclass, field
from math import isfinite

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
