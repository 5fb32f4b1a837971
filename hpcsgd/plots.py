"""Every figure; the home of matplotlib."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, MissingPackage

STYLES = ("-o", "--s", ":^", "-.d", "-x", "--v", ":*")  # that black ink can tell


def loss_curves(
    panels: Mapping[str, Mapping[str, list[dict[str, Any]]]], path: str | Path
) -> Path:
    """Draw loss over epochs and over seconds, a row for each panel.

    Parameters
    ----------
    panels : panel title -> curve name -> history records
    path : where the PNG goes
    """
    figure, axes = _figure(len(panels))
    for (title, curves), (left, right) in zip(panels.items(), axes, strict=True):
        styles = cycle(("-o", "--s", ":^", "-.d"))
        for style, (name, records) in zip(styles, curves.items(), strict=False):
            losses = [record["loss"] for record in records]
            left.plot([r["epoch"] for r in records], losses, style, label=name)
            right.plot([r["seconds"] for r in records], losses, style, label=name)
        left.set(title=title, xlabel="epochs", ylabel="loss, all rows")
        right.set(title=title, xlabel="seconds of training")
        left.legend()
    return _saved(figure, path)


def error_bars(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw bound and measured error of every field, and of every recipe, as bars.

    Parameters
    ----------
    report : the document of `hpcsgd precision`
    path : where the PNG goes
    """
    formats = list(dict.fromkeys(row["format"] for row in report["fields"]))
    figure, axes = _figure(len(formats) + 1, columns=1)
    for name, (axis,) in zip(formats, axes, strict=False):
        rows = [row for row in report["fields"] if row["format"] == name]
        _bars(axis, [row["field"] for row in rows], rows)
        axis.set(title=f"one field in {name}, the others exact")
    rows = report["recipes"]
    _bars(axes[-1][0], [row["recipe"] for row in rows], rows)
    axes[-1][0].set(title="whole recipes")
    return _saved(figure, path)


def predicted(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draw seconds of a step over ranks, and what CA-SGD's are spent on.

    Parameters
    ----------
    report : the document of `hpcsgd study predict`
    path : where the PNG goes
    """
    figure, ((left, right),) = _figure(1)
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
    return _saved(figure, path)


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


def _saved(figure: Any, path: str | Path) -> Path:
    """Write the figure."""
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110, format="png")
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


def _figure(rows: int, columns: int = 2) -> tuple[Any, Any]:
    require()
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(9, 3.4 * rows), squeeze=False)
