"""One file."""

from typing import Any


def save(estimator: Any, path: Any) -> None: ...
