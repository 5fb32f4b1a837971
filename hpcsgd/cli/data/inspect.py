"""`hpcsgd data inspect`: what a file of rows is like."""

import argparse
import json
from pathlib import Path
from typing import Any


def add_parser(actions: Any) -> None:
    """Add `inspect`."""
    parser = actions.add_parser(
        "inspect",
        help="shape, labels, row norms and a first step size",
        allow_abbrev=False,
    )
    parser.add_argument("data", metavar="DATA", help="a file that training reads")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Read it once, say what was seen."""
    from hpcsgd.data.inspection import inspect
    from hpcsgd.data.readers import open_reader

    reader = open_reader(Path(arguments.data))
    try:
        said = inspect(reader)
    finally:
        reader.close()
    print(json.dumps(said, indent=2) if arguments.json else text(said))
    return 0


def text(said: dict[str, Any]) -> str:
    """As a person reads it."""
    norm = said["row_norm"]
    lines = [
        f"{said.get('path', 'data')}: {said['rows']} rows x {said['columns']} columns"
        f" of {said['element']}, density {said['density']:.3g}",
        f"row norms: largest {norm['max']:.6g}, mean {norm['mean']:.6g}",
    ]
    prepared = said["preparation"]
    if prepared["columns"] != "raw":
        lines.append(f"columns: {prepared['columns']}; the file keeps their moments")
    if prepared["unit_rows"]:
        lines.append("rows: of length 1")
    if said["not_finite"]:
        lines.append(f"not finite: {said['not_finite']} values; training refuses them")
    if said["queries"]:
        groups = said["queries"]
        lines.append(
            f"queries: {groups['distinct']} distinct, {groups['min']} to"
            f" {groups['max']}; training does not look at them"
        )
    lines += [*_labels(said["labels"]), *_rows(said)]
    return "\n".join(lines + _advice(said["suggested"]))


def _labels(labels: dict[str, Any] | None) -> list[str]:
    if labels is None:
        return ["labels: none; good for predictions only"]
    head = (
        f"labels: {labels['distinct']} distinct, {labels['min']:g} to {labels['max']:g}"
    )
    histogram = labels["histogram"] or {}
    return [head, *(f"  {label:>8}  {n}" for label, n in histogram.items())]


def _rows(said: dict[str, Any]) -> list[str]:
    more = ", ..." if said["columns"] > len(said["first_rows"][0]["x"]) else ""
    return [
        f"row {number}: y = {row['y']}, x = "
        + ", ".join(f"{value:.5g}" for value in row["x"])
        + more
        for number, row in enumerate(said["first_rows"])
    ]


def _advice(suggested: dict[str, Any] | None) -> list[str]:
    if suggested is None:
        return []
    family = f"try: --family {suggested['family']} ({suggested['because']})"
    if suggested["rate"] is None:
        return [family, "no step size follows: this family's curvature has no bound"]
    return [family, f"     --rate {suggested['rate']:.3g}, which is 1/L"]
