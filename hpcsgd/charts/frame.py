"""The axes of a chart: frame, grid, ticks, titles."""

from dataclasses import dataclass

from hpcsgd.charts.looks import FAINT, GRID, INK
from hpcsgd.charts.model import Axis
from hpcsgd.charts.scales import Scale
from hpcsgd.charts.svg import SIZE, line, text, width_of


@dataclass(frozen=True)
class Frame:
    """Where on the picture the data are drawn."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """Of the inside."""
        return self.right - self.left


def axes(frame: Frame, x: Axis, y: Axis, across: Scale, up: Scale) -> str:
    """Everything but the data."""
    return "".join(
        (
            *(_grid_line(frame, across(t), True) for t in across.ticks),
            *(_grid_line(frame, up(t), False) for t in up.ticks),
            x_labels(frame, across),
            *(_y_label(frame, up, t) for t in up.ticks),
            line(frame.left, frame.bottom, frame.right, frame.bottom, stroke=INK),
            line(frame.left, frame.top, frame.left, frame.bottom, stroke=INK),
            x_title(frame, titled(x, across)),
            y_title(frame, titled(y, up)),
        )
    )


def titled(axis: Axis, scale: Scale) -> str:
    """The title with its unit: training time (ms)."""
    return f"{axis.title} ({scale.unit.word})" if scale.unit.word else axis.title


def x_labels(frame: Frame, scale: Scale) -> str:
    """The numbers below; those that would run into the one before are left out."""
    drawn, free = [], float("-inf")
    for tick in scale.ticks:
        said, place = scale.label(tick), scale(tick)
        if place - width_of(said) / 2 < free:
            continue
        free = place + width_of(said) / 2 + 6
        drawn.append(text(place, frame.bottom + 17, said, "middle", class_="x-tick"))
    return "".join(drawn)


def x_title(frame: Frame, said: str) -> str:
    """Below the numbers."""
    middle = (frame.left + frame.right) / 2
    return text(middle, frame.bottom + 37, said, "middle", class_="x-title")


def y_title(frame: Frame, said: str) -> str:
    """Above the axis and level, where nobody has to turn the head."""
    return text(8, frame.top - 12, said, class_="y-title")


def _grid_line(frame: Frame, place: float, upright: bool) -> str:
    if upright:
        return line(place, frame.top, place, frame.bottom, stroke=GRID)
    return line(frame.left, place, frame.right, place, stroke=GRID)


def _y_label(frame: Frame, scale: Scale, tick: float) -> str:
    place = scale(tick) + SIZE * 0.35
    said = scale.label(tick)
    return text(frame.left - 7, place, said, "end", class_="y-tick")


def note(x: float, y: float, said: str, anchor: str = "start") -> str:
    """Small print."""
    return text(x, y, said, anchor, fill=FAINT, font_size=11)
