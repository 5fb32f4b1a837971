"""How far a fit has come: passes, records, and a warning where it did not arrive."""

from typing import Any

from hpcsgd.result import Result


def passes_of(result: Result) -> int:
    """Passes over the data, at least one."""
    return max(len(result.history) - 1, 1)


def history_of(result: Result, number: int | None) -> list[dict[str, Any]]:
    """Its records; those of one class against all others say which."""
    more = {} if number is None else {"class": number}
    return [{**more, **record} for record in result.history]


def warn_unless_converged(estimator: Any) -> None:
    """Say what to change."""
