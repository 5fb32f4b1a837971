"""`hpcsgd study strong`: the same data on all numbers of ranks."""

from typing import Any

from hpcsgd.cli.study.running import add_study


def add_parser(actions: Any) -> None:
    """Add `strong`."""
    add_study(actions, "strong", "the same data on all numbers of ranks")
