"""`hpcsgd study sweep`: all settings, and all grids of hybrid, at given ranks."""

from typing import Any

from hpcsgd.cli.study.running import add_study


def add_parser(actions: Any) -> None:
    """Add `sweep`."""
    add_study(actions, "sweep", "all settings, and all grids of hybrid, at given ranks")
