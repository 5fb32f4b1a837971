"""JSON of figures, a row or a curve in a line: small, and easy to compare by lines."""

import json
from typing import Any

WIDTH = 88


def in_lines(value: Any, depth: int = 0) -> str:
    """Each item on its own line, unless all of them fit one or are numbers and words.

    A list without records in it, of whatever length, is one line: a curve, a row of a
    table.
    """
    flat = json.dumps(value)
    if not isinstance(value, dict | list) or len(flat) + depth <= WIDTH:
        return flat
    if _is_plain(value):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, dict):
        opened, closed = "{}"
        items = [f"{json.dumps(k)}: {in_lines(v, depth + 1)}" for k, v in value.items()]
    else:
        opened, closed = "[]"
        items = [in_lines(v, depth + 1) for v in value]
    inner = "\n" + " " * (depth + 1)
    return f"{opened}{inner}{(',' + inner).join(items)}\n{' ' * depth}{closed}"


def _is_plain(value: Any) -> bool:
    """Whether nothing in it has names."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, dict)


def rounded(value: Any, digits: int) -> Any:
    """The same with so many significant digits of every float."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return value
