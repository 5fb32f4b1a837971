"""The file of bench_methods: a method is a list, so that names are written once.

The columns stand ahead of the rows of each cell; `known` makes records of them again.
What follows from other figures (gaps to the row that a comparison holds all others to,
speed-ups) is left out, and floats have six digits.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.lines import rounded

Figures = dict[str, Any]
DIGITS = 6
POINT = ("epoch", "seconds", "messages", "words", "bytes", "loss")
CURVE = ("seconds", "messages", "bytes", "loss")
# The last ones are left out where they have no value: a refused row is two words.
ROW = (
    *("status", "reason", "loss", "gap_to_best_sgd", "seconds", "messages", "words"),
    *("bytes", "grid", "global_batch", "steps", "period", "products", "iterations"),
    "rate",
    "losses_of_rates",  # by the cell's parts_of_rate; null where it diverged
    *("seconds_of_repeats", "to_target", "curve"),
)
COLUMNS = {"row": list(ROW), "to_target": list(POINT), "curve": list(CURVE)}


def packed(cells: Figures) -> Figures:
    """What the file has of a shape: network -> cell."""
    return {
        network: {
            **{key: cell[key] for key in cell if key != "rows"},
            "columns": COLUMNS,
            "rows": {name: _listed(row) for name, row in cell["rows"].items()},
        }
        for network, cell in cells.items()
    }


def _listed(row: Figures) -> list[Any]:
    there = row.get("to_target")
    flat = row | {"to_target": there and [there[key] for key in POINT]}
    values = [flat.get(key) for key in ROW]
    while values[-1] is None:
        values.pop()
    return list(rounded(values, DIGITS))


def known(path: Path) -> Figures:
    """The document of a file, its methods as records."""
    document: Figures = json.loads(path.read_text())
    for cells in document["figures"].values():
        for cell in cells.values():
            columns = cell.pop("columns")
            cell["rows"] = {n: _record(columns, v) for n, v in cell["rows"].items()}
    return document


def _record(columns: dict[str, list[str]], values: list[Any]) -> Figures:
    names = columns["row"]
    row = dict.fromkeys(names) | dict(zip(names, values, strict=False))
    if row["to_target"]:
        row["to_target"] = dict(
            zip(columns["to_target"], row["to_target"], strict=True)
        )
    return row
