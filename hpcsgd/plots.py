"""What draws: the home of matplotlib, and figures of single commands."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
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
