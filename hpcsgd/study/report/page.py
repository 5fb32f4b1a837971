"""The report as one HTML page that needs nothing else: no network, no script."""

from collections.abc import Sequence
from html import escape as _escape

from hpcsgd.charts.drawing import svg
from hpcsgd.charts.model import Chart, Heat
from hpcsgd.charts.svg import clean
from hpcsgd.errors import MissingPackage
from hpcsgd.study.report.contents import Part, Report
from hpcsgd.study.report.css import CSS
from hpcsgd.study.report.tables import Table

LONG = 48  # characters from which a cell may break into lines


def page(report: Report) -> str:
    """Return the whole document; without matplotlib it has tables and no figures."""
    several = len(report.parts) > 1
    try:
        parts = "".join(_part(part, several, _figures(part)) for part in report.parts)
    except MissingPackage as missing:
        note = f'<p class="lead">{escape(capitalized(missing))}</p>\n'
        parts = "".join(_part(part, several, note) for part in report.parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Pages that ask for nothing: a browser tells whoever breaks that.
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(report.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(report.title)}</h1>\n"
        f'<p class="lead">{escape(report.lead)}</p></header>\n<main>\n{parts}'
        f"<section><h2>{escape(report.machine.title)}</h2>{_table(report.machine)}"
        f"</section>\n</main>\n<footer>{escape(report.foot)}</footer>\n</body>\n</html>\n"
    )


def escape(said: str) -> str:
    """Text of anybody as HTML."""
    return _escape(clean(said), quote=True)


def capitalized(missing: MissingPackage) -> str:
    """Return what is missing as a sentence that stands alone."""
    text = str(missing)
    return f"{text[:1].upper()}{text[1:]}"


def _part(part: Part, with_title: bool, figures: str) -> str:
    """One problem: what is best, the figures, the tables."""
    title = part.problem.title if with_title else "Result"
    return (
        f"<section><h2>{escape(title)}</h2>\n"
        f'<p class="verdict">{_unbroken(part.verdict)}</p>\n{figures}'
        + "".join(
            f"<h3>{escape(table.title)}</h3>{_table(table)}" for table in part.tables
        )
        + "</section>\n"
    )


def _figures(part: Part) -> str:
    """Curves and bars, then maps."""
    curves = [c for c in part.charts if not isinstance(c, Heat)]
    maps = [c for c in part.charts if isinstance(c, Heat)]
    return _in_rows(curves, "figures") + _in_rows(maps, "maps")


def _unbroken(said: str) -> str:
    """A sentence whose words with hyphens stay on one line."""
    words = (escape(word) for word in said.split(" "))
    return " ".join(f"<span>{w}</span>" if "-" in w else w for w in words)


def _in_rows(charts: Sequence[Chart], kind: str) -> str:
    figures = "".join(_figure(chart) for chart in charts)
    return f'<div class="{kind}">{figures}</div>\n' if figures else ""


def _figure(chart: Chart) -> str:
    # What says its title itself needs none above it.
    title = "" if isinstance(chart, Heat) else f"<h3>{escape(chart.title)}</h3>"
    kind = type(chart).__name__.lower()
    return (
        f'<figure id="{escape(chart.name)}" class="{kind}">{title}'
        f"{svg(chart, in_page=True)}"
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>\n"
    )


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class(table, column)}>{escape(cell)}</th>'
        for column, cell in enumerate(table.head)
    )
    rows = "".join(_row(table, number) for number in range(len(table.rows)))
    return (
        '<div class="scroll" tabindex="0" role="group"'
        f' aria-label="{escape(table.title)}">'
        f"<table><caption>{escape(table.caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n"
    )


def _row(table: Table, number: int) -> str:
    cells = []
    for column, cell in enumerate(table.rows[number]):
        name = _class(table, column, cell, (number, column) in table.marked)
        if column == 0:
            cells.append(f'<th scope="row"{name}>{escape(cell)}</th>')
        else:
            cells.append(f"<td{name}>{escape(cell)}</td>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _class(table: Table, column: int, cell: str = "", marked: bool = False) -> str:
    names = ["word"] if column < table.texts else []
    names += ["long"] if len(cell) > LONG and column < table.texts else []
    names += ["marked"] if marked else []
    return f' class="{" ".join(names)}"' if names else ""
