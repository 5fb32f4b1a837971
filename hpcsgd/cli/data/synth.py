"""`hpcsgd data synth`: a synthetic data set in the shape of a known one."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcsgd.cli import names
from hpcsgd.errors import ConfigError

# flag, what it does
KNOBS = (
    ("--condition", "of the columns' variances; default 1"),
    ("--correlation", "of neighbouring columns; default 0"),
    ("--density", "share of the values that are not 0; default 1"),
    ("--noise", "share of labels flipped, or spread added to log rates; default 0"),
    ("--balance", "share of the label 1; default: as the scores fall"),
)


def add_parser(actions: Any) -> None:
    """Add `synth`."""
    synth = actions.add_parser(
        "synth",
        help="write a synthetic data set in the shape of a known one",
        allow_abbrev=False,
    )
    synth.add_argument("--shape", required=True, choices=names.SHAPES)
    synth.add_argument("--rows", type=int, help="default: those of the shape")
    synth.add_argument("--cols", type=int, help="default: those of the shape")
    synth.add_argument("--out", required=True, metavar="FILE.h5")
    synth.add_argument("--seed", type=int, default=0)
    for flag, text in KNOBS:
        synth.add_argument(flag, type=float, metavar="X", help=text)
    synth.add_argument("--json", action="store_true", help="print one JSON document")
    synth.set_defaults(run=run_synth)


def run_synth(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the file, say what it holds."""
    from hpcsgd.data.synthetic import SHAPES, Knobs, write_synthetic

    shape = SHAPES[arguments.shape]
    rows = shape.rows if arguments.rows is None else arguments.rows
    cols = shape.cols if arguments.cols is None else arguments.cols
    if rows < 1 or cols < 1:
        raise ConfigError(
            f"--rows {rows} --cols {cols}: both must be at least 1;"
            " leave them out for those of the shape"
        )
    path = Path(arguments.out)
    given = {flag[2:]: getattr(arguments, flag[2:]) for flag, _ in KNOBS}
    knobs = Knobs(**{name: value for name, value in given.items() if value is not None})
    write_synthetic(path, arguments.shape, rows, cols, arguments.seed, knobs=knobs)
    said = {
        "path": str(path),
        "shape": arguments.shape,
        "rows": rows,
        "cols": cols,
        "seed": arguments.seed,
        **({} if knobs == Knobs() else asdict(knobs)),
        "bytes": path.stat().st_size,
    }
    if arguments.json:
        print(json.dumps(said, indent=2))
    else:
        print(f"{path}: {rows} rows x {cols} columns, {said['bytes'] / 2**20:.1f} MiB")
    return 0
