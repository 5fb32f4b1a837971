"""`hpcsgd predict`: what a model says about the rows of a file, into a file."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcsgd.cli import launch
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.names import PREDICTIONS


def add_parser(commands: Any) -> None:
    """Add `predict` to the commands."""
    parser = commands.add_parser(
        "predict",
        help=COMMANDS["predict"],
        description="Predict every row of a file; targets are not needed.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="run folder or its result.h5")
    parser.add_argument("data", metavar="DATA", help="file with rows")
    parser.add_argument("--out", required=True, metavar="FILE.npy|.csv|.h5")
    parser.add_argument(
        "--what", choices=PREDICTIONS, default="mean", help="default: mean"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Predict block by block; say what was written."""
    from hpcsgd.data.readers import open_reader
    from hpcsgd.data.writers import open_writer
    from hpcsgd.prediction import (
        check_what,
        column_names,
        model_of,
        predict_prepared,
        rows_for,
    )
    from hpcsgd.result import load_result

    if not launch.speaks():
        return 0  # one rank of a launcher is enough, and two would write one file
    result, what, path = load_result(arguments.model), arguments.what, arguments.out
    model = model_of(result)
    check_what(model, what)
    reader, preparation = rows_for(model, open_reader(Path(arguments.data)))
    # The first block before the file: what is wrong with the data leaves no trace.
    blocks = predict_prepared(model, reader, what)
    block = next(blocks)
    names = column_names(model, what)
    facts = {"what": what, "family": model.family.name}
    facts |= {"weights_sha256": result.weights_sha256}
    with open_writer(Path(path), reader.rows, names, facts) as writer:
        writer.append(block)
        for block in blocks:
            writer.append(block)
    said = {"path": path, "rows": reader.rows, "columns": names, **facts}
    if preparation:
        said["preparation"] = preparation
    if arguments.json:
        print(json.dumps(said, indent=2))
    else:
        print(f"{path}: {what} of {reader.rows} rows, {len(names)} column(s)")
        if preparation:
            print(preparation)
    return 0
