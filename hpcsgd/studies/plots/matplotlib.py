"""What draws: the home of matplotlib, and figures of single commands."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.files import replace_file

STYLES = ("-o", "--s", ":^", "-.d", "-x", "--v", ":*")  # that black ink can tell
# Equal charts are equal bytes, on every machine; text stays text.
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hpcsgd",
    "font.family": ["DejaVu Sans"],  # the one that matplotlib brings
    "lines.scale_dashes": False,
    "path.simplify": False,
    "hatch.linewidth": 0.9,
}


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


def saved(figure: Any, path: str | Path, dpi: int = 110) -> Path:
    """Write the figure as PNG, whole or not at all."""
    picture = BytesIO()
    figure.savefig(picture, dpi=dpi, format="png")
    try:
        replace_file(Path(path), picture.getbuffer())
    except OSError as error:
        raise ConfigError(
            f"cannot write the figure {path}: {error.strerror};"
            " choose a folder that exists and can be written"
        ) from error
    return Path(path)


def require() -> Any:
    """Return matplotlib, or raise the sentence that says how to get it."""
    try:
        import matplotlib
    except ImportError as missing:
        raise MissingPackage(
            "figures need matplotlib; install it with: pip install 'hpcsgd[plot]'"
        ) from missing
    return matplotlib


@contextmanager
def settings() -> Iterator[None]:
    """Draw and save inside of this what has to be the same everywhere."""
    with require().rc_context(SETTINGS), warnings.catch_warnings():
        # A name may be in letters that this font lacks; viewers have other fonts.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def blank(width: float, height: float) -> Any:
    """Return an empty figure of so many points."""
    require()
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def make_figure(rows: int, columns: int = 2) -> tuple[Any, Any]:
    """Return a figure, and its axes as (rows, columns)."""
    require().use("Agg")
    from matplotlib import pyplot

    size = (4.5 * max(columns, 2), 3.4 * rows)
    return pyplot.subplots(
        *(rows, columns), figsize=size, squeeze=False, layout="tight"
    )


# Loss curves over what they cost: epochs, seconds, words, messages.

History = Sequence[Mapping[str, Any]]
# key of a record -> what is written below the axis
COSTS = {
    "epoch": "epochs",
    "seconds": "seconds of training",
    "words": "words sent by rank 0",
    "messages": "messages of rank 0",
}
WITHIN = 6  # curves whose names fit into the first panel
IN_COLUMN = 20  # names beside the last one
APART = 20.0  # how many times one curve may be longer before the axis is logarithmic
ABOVE = 1.1  # times the loss at the start: how much of what diverges is shown


def loss_curves(
    panels: Mapping[str, Mapping[str, History]],
    path: str | Path,
    over: Sequence[str] = ("epoch", "seconds"),
) -> Path:
    """Draw loss over what it cost, a row for each panel and a column for each cost.

    Parameters
    ----------
    panels : panel title -> curve name -> history records
    path : where the PNG goes
    over : keys of COSTS
    """
    figure, axes = make_figure(len(panels), columns=len(over))
    for (title, curves), row in zip(panels.items(), axes, strict=True):
        for axis, cost in zip(row, over, strict=True):
            _draw(axis, curves, cost)
        # Names are text, also those that look like formulas.
        row[0].set_title(title, parse_math=False)
        row[0].set_ylabel("loss, all rows")
        _name_curves(row, len(curves))
    return saved(figure, path)


def _draw(axis: Any, curves: Mapping[str, History], cost: str) -> None:
    for style, (name, records) in zip(cycle(STYLES), curves.items(), strict=False):
        known = [r for r in records if cost in r]
        spent, losses = [r[cost] for r in known], [r["loss"] for r in known]
        axis.plot(spent, losses, style, label=name, markersize=3, linewidth=1)
    axis.set_xlabel(COSTS[cost])
    _scale(axis, [r[-1].get(cost, 0.0) for r in curves.values() if r])
    starts = [r[0]["loss"] for r in curves.values() if r]
    ends = [record["loss"] for r in curves.values() for record in r]
    if starts and not max(ends) <= ABOVE * max(starts):
        axis.set_ylim(top=ABOVE * max(starts))


def _scale(axis: Any, ends: Sequence[float]) -> None:
    """Logarithmic, from the shortest curve on, where that one would be a dot."""
    spent = [end for end in ends if end > 0]
    if spent and max(spent) > APART * min(spent):
        axis.set_xscale("symlog", linthresh=min(spent))


def _name_curves(row: Sequence[Any], count: int) -> None:
    """In the first panel where they are few, else at the right of the last."""
    if count <= WITHIN:
        legend = row[0].legend()
    else:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
        columns = ceil(count / IN_COLUMN)
        legend = row[-1].legend(**beside, ncols=columns, fontsize="x-small")
    for text in legend.get_texts():
        text.set_parse_math(False)
