"""The page and the files of its figures."""

import logging
from pathlib import Path

from hpcsgd import plots
from hpcsgd.charts.drawing import csv_text, svg
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
    """Write every figure as .svg and .csv, and as .png where matplotlib is."""
    folder, written = Path(folder), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in report.charts:
            for suffix, text in ((".svg", svg(chart)), (".csv", csv_text(chart))):
                written.append(folder / f"{chart.name}{suffix}")
                write_text(written[-1], text)
    except OSError as error:
        raise ConfigError(
            f"cannot write figures into {folder}: {error.strerror}; choose a folder"
            " that can be written"
        ) from error
    return written + _pictures(report, folder)


def _pictures(report: Report, folder: Path) -> list[Path]:
    try:
        return [
            plots.chart(chart, folder / f"{chart.name}.png") for chart in report.charts
        ]
    except MissingPackage as missing:
        log.info("no .png in %s: %s", folder, missing)
        return []
