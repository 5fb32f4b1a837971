"""Every figure; the home of matplotlib."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, MissingPackage


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


def _figure(rows: int) -> tuple[Any, Any]:
    require()
    from matplotlib import pyplot

    return pyplot.subplots(rows, 2, figsize=(9, 3.4 * rows), squeeze=False)
