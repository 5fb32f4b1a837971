"""`hpcsgd data`: make data sets."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcsgd.data.synthetic import SHAPES, write_synthetic
from hpcsgd.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Add `data` and its own commands."""
    parser = commands.add_parser("data", help="make data sets", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    synth = actions.add_parser(
        "synth",
        help="write a synthetic data set in the shape of a known one",
        allow_abbrev=False,
    )
    synth.add_argument("--shape", required=True, choices=list(SHAPES))
    synth.add_argument("--rows", type=int, help="default: those of the shape")
    synth.add_argument("--cols", type=int, help="default: those of the shape")
    synth.add_argument("--out", required=True, metavar="FILE.h5")
    synth.add_argument("--seed", type=int, default=0)
    synth.add_argument("--json", action="store_true", help="print one JSON document")
    synth.set_defaults(run=run_synth)


def run_synth(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the file, say what it holds."""
    shape = SHAPES[arguments.shape]
    rows = shape.rows if arguments.rows is None else arguments.rows
    cols = shape.cols if arguments.cols is None else arguments.cols
    if rows < 1 or cols < 1:
        raise ConfigError(
            f"--rows {rows} --cols {cols}: both must be at least 1;"
            " leave them out for those of the shape"
        )
    path = Path(arguments.out)
    write_synthetic(path, arguments.shape, rows, cols, arguments.seed)
    said = {
        "path": str(path),
        "shape": arguments.shape,
        "rows": rows,
        "cols": cols,
        "seed": arguments.seed,
        "bytes": path.stat().st_size,
    }
    if arguments.json:
        print(json.dumps(said, indent=2))
    else:
        print(f"{path}: {rows} rows x {cols} columns, {said['bytes'] / 2**20:.1f} MiB")
    return 0
