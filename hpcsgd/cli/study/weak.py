"""`hpcsgd study weak`: rows that grow with the ranks."""

from typing import Any

from hpcsgd.cli.study.running import add_study


def add_parser(actions: Any) -> None:
    """Add `weak`."""
    add_study(actions, "weak", "rows that grow with the ranks")
