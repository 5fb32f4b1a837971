"""The table behind a chart, as CSV."""

import csv
import io

from hpcsgd.charts.model import Bars, Chart, Heat, Lines

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
