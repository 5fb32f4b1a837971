"""A value for each pair, as colour and as a number."""

from math import log

from hpcsgd.charts.frame import note
from hpcsgd.charts.looks import FAINT, INK, heat_colour
from hpcsgd.charts.model import Heat
from hpcsgd.charts.scales import Unit, figures, unit_for
from hpcsgd.charts.svg import document, element, text, width_of
from hpcsgd.charts.svg import titled as hinted

CELL, TALL, TOP = 76.0, 40.0, 46.0
CLEAR = 1.02  # largest over smallest


def draw_heat(chart: Heat) -> str:
    """The whole picture; the smallest value has a thick frame."""
    unit = unit_for(chart.unit, chart.values)
    left = 22 + max(width_of(name) for name in chart.rows)
    bottom = TOP + TALL * len(chart.rows)
    right = left + CELL * len(chart.columns)
    width = max(right + 14, 250.0, 1.15 * width_of(chart.title) + 20)
    cells = [
        _cell(chart, r, c, left, unit)
        for r in range(len(chart.rows))
        for c in range(len(chart.columns))
    ]
    said = "; ".join(_legend(chart, unit))
    return document(
        *(max(width, 20 + 1.08 * width_of(said, 11)), bottom + 62),
        *(chart.name, chart.title, chart.caption),
        text(8, 16, chart.title, font_weight="bold"),
        text(8, 36, chart.y, fill=FAINT),
        *(_row_name(chart, r, left) for r in range(len(chart.rows))),
        *(_column_name(chart, c, left, bottom) for c in range(len(chart.columns))),
        *cells,
        _best(chart, left, unit),
        text((left + right) / 2, bottom + 36, chart.x, "middle"),
        note(8, bottom + 55, said),
    )


def _legend(chart: Heat, unit: Unit) -> list[str]:
    values = f"values in {unit.word}" if unit.word else "values as they are"
    return [values, "dark = large", "thick frame = smallest"]


def _row_name(chart: Heat, row: int, left: float) -> str:
    return text(left - 8, TOP + TALL * (row + 0.5) + 4, chart.rows[row], "end")


def _column_name(chart: Heat, column: int, left: float, bottom: float) -> str:
    return text(
        left + CELL * (column + 0.5), bottom + 17, chart.columns[column], "middle"
    )


def _cell(chart: Heat, row: int, column: int, left: float, unit: Unit) -> str:
    value = chart.cells[row][column]
    x, y = left + CELL * column, TOP + TALL * row
    size = {"x": x, "y": y, "width": CELL, "height": TALL}
    if value is None:
        return element("rect", fill="#ffffff", stroke="#dcdcdc", **size)
    colour, ink = heat_colour(_share(value, chart.values))
    box = element("rect", fill=colour, stroke="#ffffff", class_="cell", **size)
    said = _said(chart, value, unit)
    box += text(x + CELL / 2, y + TALL / 2 + 4, said, "middle", fill=ink)
    where = f"{chart.y} {chart.rows[row]}, {chart.x} {chart.columns[column]}"
    return hinted(box, f"{where}: {said} {unit.word}".rstrip())


def _share(value: float, values: list[float]) -> float:
    """0 for the smallest, 1 for the largest; by ratios where all are positive.

    Values that hardly differ look so: the whole range of colours begins at CLEAR.
    """
    low, high = min(values), max(values)
    if high <= low:
        return 0.0
    if low > 0:
        return log(value / low) / max(log(high / low), log(CLEAR))
    return (value - low) / (high - low)


def _best(chart: Heat, left: float, unit: Unit) -> str:
    """A frame around the smallest value, and around those that read the same."""
    if len(chart.values) < 2:
        return ""
    least = _said(chart, min(chart.values), unit)
    return "".join(
        element(
            "rect",
            fill="none",
            stroke=INK,
            class_="best",
            x=left + CELL * column + 1.5,
            y=TOP + TALL * row + 1.5,
            width=CELL - 3,
            height=TALL - 3,
            stroke_width=3,
        )
        for row, line in enumerate(chart.cells)
        for column, value in enumerate(line)
        if value is not None and _said(chart, value, unit) == least
    )


def _said(chart: Heat, value: float, unit: Unit) -> str:
    """Losses differ less than times."""
    return figures(value / unit.size, 3 if chart.unit else 4)
