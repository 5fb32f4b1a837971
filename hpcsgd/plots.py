"""Figures, all but loss curves; the home of matplotlib."""

from collections.abc import Mapping
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

from hpcsgd.charts.looks import FILLS, Look, heat_colour, look
from hpcsgd.charts.model import EMULATED, Axis, Bars, Chart, Heat, Lines, Series
from hpcsgd.charts.scales import Unit, figures, number, unit_for, unit_of
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.files import replace_file

STYLES = ("-o", "--s", ":^", "-.d", "-x", "--v", ":*")  # that black ink can tell
MARKERS = {
    **{"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v"},
    **{"pentagon": "p", "hexagon": "h", "bow": "X"},
}
HATCHES = ("", "///", "...", "\\\\\\", "---")


def error_bars(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw bound and measured error of every field, and of every recipe, as bars.

    Parameters
    ----------
    report : the document of `hpcsgd precision`
    path : where the PNG goes
    """
    formats = list(dict.fromkeys(row["format"] for row in report["fields"]))
    figure, axes = make_figure(len(formats) + 1, columns=1)
    for name, (axis,) in zip(formats, axes, strict=False):
        rows = [row for row in report["fields"] if row["format"] == name]
        _bars(axis, [row["field"] for row in rows], rows)
        axis.set(title=f"one field in {name}, the others exact")
    rows = report["recipes"]
    _bars(axes[-1][0], [row["recipe"] for row in rows], rows)
    axes[-1][0].set(title="whole recipes")
    return saved(figure, path)


def predicted(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw seconds of a step over ranks, and what CA-SGD's are spent on.

    Parameters
    ----------
    report : the document of `hpcsgd study predict`
    path : where the PNG goes
    """
    figure, ((left, right),) = make_figure(1)
    points = report["points"]
    ranks = [point["ranks"] for point in points]
    for key, style in (("sgd_seconds", "--s"), ("ca_sgd_seconds", "-o")):
        name = {"sgd_seconds": "SGD", "ca_sgd_seconds": "CA-SGD"}[key]
        left.plot(ranks, [1e6 * point[key] for point in points], style, label=name)
    for name, style in zip(points[0]["terms"], cycle(STYLES), strict=False):
        shares = [p["terms"].get(name, 0.0) / p["ca_sgd_seconds"] for p in points]
        right.plot(ranks, shares, style, label=name)
    left.set(title=report["machine"]["name"], xlabel="ranks", ylabel="µs of a step")
    right.set(title="what CA-SGD's time goes into", xlabel="ranks", ylabel="share")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.legend(fontsize="small")
    left.set_yscale("log")
    return saved(figure, path)


def chart(drawn: Chart, path: str | Path) -> Path:
    """Draw a chart of a report.

    Parameters
    ----------
    drawn : what to draw
    path : where the PNG goes
    """
    figure, axes = make_figure(1, columns=1)
    axis = axes[0][0]
    if isinstance(drawn, Lines):
        _lines(axis, drawn)
    elif isinstance(drawn, Bars):
        _stack(axis, drawn)
    else:
        _heat(axis, drawn)
    # Text is text: a name with two dollars in it is no formula.
    axis.set_title(drawn.title, loc="left", parse_math=False)
    return saved(figure, path)


def _lines(axis: Any, drawn: Lines) -> None:
    axis.figure.set_size_inches(6.6, 4.2)
    every = [*drawn.series, *([drawn.ideal] if drawn.ideal else [])]
    x = unit_of(drawn.x, [v for one in every for v in one.x])
    y = unit_of(drawn.y, [v for one in every for v in (*one.y, *one.high)])
    for one in drawn.series:
        _line(axis, one, x, y)
    if drawn.ideal:
        points = _scaled(drawn.ideal.x, x), _scaled(drawn.ideal.y, y)
        axis.plot(*points, color="0.4", linewidth=0.8, label="ideal")
    _axis(axis.xaxis, axis.set_xscale, drawn.x, x)
    _axis(axis.yaxis, axis.set_yscale, drawn.y, y)
    if drawn.y.from_zero:
        axis.set_ylim(bottom=0)
    axis.grid(color="0.87")
    _legend(axis)


def _line(axis: Any, one: Series, x: Unit, y: Unit) -> None:
    style, bars = look(one.look), None
    dash = tuple(float(part) / 2 for part in style.dash.split())
    every = max(len(one.x) // 8, 1)
    if one.low:
        below = [(v - low) / y.size for v, low in zip(one.y, one.low, strict=True)]
        above = [(high - v) / y.size for v, high in zip(one.y, one.high, strict=True)]
        bars = [below, above]
    axis.errorbar(
        _scaled(one.x, x),
        _scaled(one.y, y),
        yerr=bars,
        color=style.colour,
        linestyle=(0, dash) if dash else "-",
        marker=MARKERS[style.marker],
        markevery=every,
        capsize=3,
        label=one.name,
    )
    for point, mark in enumerate(one.marks):
        if mark:
            place = one.x[point] / x.size, one.y[point] / y.size
            _marked(axis, place, style, mark)


def _marked(axis: Any, place: tuple[float, float], style: Look, mark: str) -> None:
    """A hollow point over the one of the line; emulated ones are rings with a dot."""
    shape = "o" if mark == EMULATED else MARKERS[style.marker]
    axis.plot(*place, shape, zorder=3, color=style.colour, markerfacecolor="white")
    if mark == EMULATED:
        axis.plot(*place, ".", zorder=4, color=style.colour, markersize=4)


def _axis(axis: Any, scale: Any, said: Axis, unit: Unit) -> None:
    """Title with unit; given ticks alone where there are some."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if said.log:
        scale("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    if said.ticks:
        axis.set_ticks(list(said.ticks), [number(tick) for tick in said.ticks])
        axis.set_minor_formatter(NullFormatter())
    title = f"{said.title} ({unit.word})" if unit.word else said.title
    axis.set_label_text(title, parse_math=False)


def _stack(axis: Any, drawn: Bars) -> None:
    unit = unit_for(drawn.axis.unit, [bar.whole for bar in drawn.bars])
    rows = range(len(drawn.bars))
    axis.figure.set_size_inches(9, 1.4 + 0.34 * len(drawn.bars))
    begin = [0.0] * len(drawn.bars)
    for part, name in enumerate(drawn.parts):
        fill, lengths = (
            FILLS[part % len(FILLS)],
            [bar.parts[part] for bar in drawn.bars],
        )
        axis.barh(
            rows,
            _scaled(lengths, unit),
            left=_scaled(begin, unit),
            color=fill.colour,
            hatch=HATCHES[part % len(HATCHES)],
            edgecolor="0.1",
            linewidth=0.6,
            label=name,
        )
        begin = [a + b for a, b in zip(begin, lengths, strict=True)]
    _whiskers(axis, drawn, unit)
    axis.set_yticks(rows, [bar.name for bar in drawn.bars], parse_math=False)
    axis.invert_yaxis()
    _axis(axis.xaxis, axis.set_xscale, drawn.axis, unit)
    if len(drawn.parts) > 1:
        _legend(axis)


def _whiskers(axis: Any, drawn: Bars, unit: Unit) -> None:
    """From the shortest to the longest of the repeats, below each bar."""
    for row, bar in enumerate(drawn.bars):
        if bar.low is not None and bar.high is not None:
            ends = _scaled((bar.low, bar.high), unit)
            axis.plot(ends, [row + 0.46] * 2, "|-", color="0.1", linewidth=0.8)


def _heat(axis: Any, drawn: Heat) -> None:
    unit, low, high = unit_for(drawn.unit, drawn.values), *_ends(drawn.values)
    for row, line in enumerate(drawn.cells):
        for column, value in enumerate(line):
            if value is not None:
                share = (value - low) / (high - low) if high > low else 0.0
                colour, ink = heat_colour(share)
                place = (column - 0.5, row - 0.5)
                _cell(axis, place, colour, ink, figures(value / unit.size))
    axis.figure.set_size_inches(2 + len(drawn.columns), 1.6 + 0.6 * len(drawn.rows))
    axis.set_xlim(-0.5, len(drawn.columns) - 0.5)
    axis.set_ylim(len(drawn.rows) - 0.5, -0.5)
    axis.set_xticks(range(len(drawn.columns)), drawn.columns)
    axis.set_yticks(range(len(drawn.rows)), drawn.rows)
    axis.set(
        xlabel=f"{drawn.x}   (values in {unit.word})".replace("   (values in )", "")
    )
    axis.set_ylabel(drawn.y)


def _cell(
    axis: Any, place: tuple[float, float], colour: str, ink: str, said: str
) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white"))
    middle = (place[0] + 0.5, place[1] + 0.5)
    axis.text(*middle, said, color=ink, ha="center", va="center")


def _ends(values: list[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (0.0, 1.0)


def _scaled(values: Any, unit: Unit) -> list[float]:
    return [value / unit.size for value in values]


def _legend(axis: Any) -> None:
    """Names as they are, also those that look like formulas."""
    for text in axis.legend(fontsize="small").get_texts():
        text.set_parse_math(False)


def _bars(axis: Any, names: list[str], rows: list[Mapping[str, Any]]) -> None:
    """Two bars a name on a logarithmic scale; what is 0 or has no bound has none."""
    for shift, key in ((-0.2, "bound"), (0.2, "measured")):
        sizes = [
            row[key] if 0 < row[key] < float("inf") else float("nan") for row in rows
        ]
        axis.bar([i + shift for i in range(len(rows))], sizes, 0.4, label=key)
    axis.set_yscale("log")
    axis.set_xticks(range(len(rows)), names, rotation=20)
    axis.set_ylabel("error / update")
    axis.legend()


def saved(figure: Any, path: str | Path) -> Path:
    """Write the figure, whole or not at all."""
    figure.tight_layout()
    picture = BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    try:
        replace_file(Path(path), picture.getbuffer())
    except OSError as error:
        raise ConfigError(
            f"cannot write the figure {path}: {error.strerror};"
            " choose a folder that exists and can be written"
        ) from error
    return Path(path)


def require() -> Any:
    """matplotlib, drawing into files; or the sentence that says how to get it."""
    try:
        import matplotlib
    except ImportError as missing:
        raise MissingPackage(
            "figures need matplotlib; install it with: pip install matplotlib"
        ) from missing
    matplotlib.use("Agg")
    return matplotlib


def make_figure(rows: int, columns: int = 2) -> tuple[Any, Any]:
    """A figure, and its axes as (rows, columns)."""
    require()
    from matplotlib import pyplot

    size = (4.5 * max(columns, 2), 3.4 * rows)
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False)
