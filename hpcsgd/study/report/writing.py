"""The page and the files of its figures."""

import logging
from pathlib import Path

from hpcsgd.charts.drawing import png, svg
from hpcsgd.charts.table import csv_text
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.files import write_text
from hpcsgd.study.report.contents import Report
from hpcsgd.study.report.page import page

log = logging.getLogger(__name__)


def write_page(report: Report, path: str | Path) -> Path:
    """Write the HTML, whole or not at all."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page(report))
    except OSError as error:
        raise ConfigError(
            f"cannot write the report {path}: {error.strerror}; choose a place that can"
            " be written"
        ) from error
    return path


def write_figures(report: Report, folder: str | Path) -> list[Path]:
    """Write every figure as .csv and, with matplotlib, as .svg and .png."""
    folder, written = Path(folder), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in report.charts:
            written.append(folder / f"{chart.name}.csv")
            write_text(written[-1], csv_text(chart))
        for chart in report.charts:
            write_text(folder / f"{chart.name}.svg", svg(chart))
            png(chart, folder / f"{chart.name}.png")
            written += [folder / f"{chart.name}{kind}" for kind in (".svg", ".png")]
    except MissingPackage as missing:
        log.info("only tables in %s: %s", folder, missing)
    except OSError as error:
        raise ConfigError(
            f"cannot write figures into {folder}: {error.strerror}; choose a folder"
            " that can be written"
        ) from error
    return written
