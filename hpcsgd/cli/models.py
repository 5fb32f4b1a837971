"""`hpcsgd evaluate`, `predict` and `inspect`."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch
from hpcsgd.cli.names import COMMANDS, PREDICTIONS
from hpcsgd.cli.parser import add_comm, add_json, add_ranks
from hpcsgd.comm import open_world
from hpcsgd.errors import DataError, did_you_mean_file
from hpcsgd.files import parse_json, parse_object, read_entry_text, reason, user_of

if TYPE_CHECKING:
    from hpcsgd.backends.task import Snapshot
    from hpcsgd.runs.result import Result


# `hpcsgd evaluate`: the quality of a model on the rows of a file.

MODEL_HELP = "run folder of `hpcsgd train`, or a model file (result.h5)"
TITLES = {
    "mean_loss": "mean loss",
    "clipped_scores": "clipped",
    "r2": "R^2",
    "mean_deviance": "mean deviance",
}


def add_evaluate_parser(commands: Any) -> None:
    """Add `evaluate` to the commands."""
    parser = commands.add_parser(
        "evaluate",
        help=COMMANDS["evaluate"],
        description="Compute the loss, the objective, and the accuracy or R^2 of a"
        " model on a data file.",
        example="hpcsgd evaluate runs/first rows.h5",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("data", metavar="DATA", help="data file with rows and targets")
    add_ranks(parser)
    add_comm(parser)
    add_json(parser)
    parser.set_defaults(run=run_evaluate)


def run_evaluate(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Evaluate a model, with --ranks under mpiexec; rank 0 prints the figures."""
    from hpcsgd.data.readers import open_reader
    from hpcsgd.runs.predict import evaluate_reader
    from hpcsgd.runs.result import load_result

    launch.check_readable(arguments.data)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv)
    world = open_world(arguments.comm)
    result = world.together(lambda: load_result(arguments.model))
    figures = evaluate_reader(result, lambda: open_reader(Path(arguments.data)), world)
    if world.rank == 0:
        document = {"model": arguments.model, "data": arguments.data}
        document |= {"ranks": world.size, **figures}
        print(_json(document) if arguments.json else table(document), flush=True)
    world.close()
    return 0


def _json(document: dict[str, Any]) -> str:
    from hpcsgd.files import finite

    return json.dumps(finite(document), indent=2, allow_nan=False)


def table(document: dict[str, Any]) -> str:
    """Return an evaluation as text: a line for each figure, and one for each label."""
    lines = []
    for key, value in document.items():
        if key == "errors_by_label":
            lines += [
                f"  label {label:7s} {entry['errors']} of {entry['rows']} rows wrong"
                for label, entry in value.items()
            ]
        else:
            lines.append(f"{TITLES.get(key, key):15s} {_evaluation_text(value)}")
    return "\n".join(lines)


def _evaluation_text(value: Any) -> str:
    if value is None:
        return "undefined: all targets are equal"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


# `hpcsgd predict`: predictions for the rows of a file, written into a file.


def add_predict_parser(commands: Any) -> None:
    """Add `predict` to the commands."""
    parser = commands.add_parser(
        "predict",
        help=COMMANDS["predict"],
        description="Write a prediction for every row of a data file. The file needs no"
        " targets.",
        example="hpcsgd predict runs/first rows.h5 --out predictions.csv",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("data", metavar="DATA", help="data file with rows")
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE.npy|.csv|.h5",
        help="file to write; its ending names the format",
    )
    parser.add_argument(
        "--what",
        choices=PREDICTIONS,
        default="mean",
        help="predicted quantity: the mean of the target, the score, the class, or the"
        " probability of each class",
    )
    add_json(parser)
    parser.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Predict block by block into a file; print its path, rows and columns.

    Under a launcher, only rank 0 predicts.
    """
    from hpcsgd.data.readers import open_reader
    from hpcsgd.data.writers import open_writer
    from hpcsgd.runs.predict import (
        check_what,
        column_names,
        model_of,
        predict_prepared,
        rows_for,
    )
    from hpcsgd.runs.result import load_result

    if not launch.is_rank_0_of_launcher():
        return 0  # one rank of a launcher is enough, and two would write one file
    result = load_result(arguments.model)
    what = arguments.what
    path = arguments.out
    model = model_of(result)
    check_what(model, what)
    reader, preparation = rows_for(model, open_reader(Path(arguments.data)))
    # The first block precedes the file, so that an error in the data leaves no file.
    blocks = predict_prepared(model, reader, what)
    block = next(blocks)
    names = column_names(model, what)
    facts = {"what": what, "family": model.family.name}
    facts |= {"weights_sha256": result.weights_sha256}
    with open_writer(Path(path), reader.rows, names, facts) as writer:
        writer.append(block)
        for block in blocks:
            writer.append(block)
    report = {"path": path, "rows": reader.rows, "columns": names, **facts}
    if preparation:
        report["preparation"] = preparation
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(f"{path}: {what} of {reader.rows} rows, {len(names)} column(s)")
        if preparation:
            print(preparation)
    return 0


# `hpcsgd inspect`: facts on a run folder, model or checkpoint, in a few lines.

LARGEST = 10  # weights shown
Facts = dict[str, Any]


def add_inspect_parser(commands: Any) -> None:
    """Add `inspect` to the commands."""
    parser = commands.add_parser(
        "inspect",
        help=COMMANDS["inspect"],
        description="Show status, loss, weights, settings and origin of a run folder, a"
        " model or a checkpoint.",
        example="hpcsgd inspect runs/first",
    )
    parser.add_argument(
        "path",
        metavar="RUN|MODEL|CHECKPOINT",
        help="run folder, model file (result.h5) or checkpoint",
    )
    add_json(parser)
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the facts on a run folder, a model file or a checkpoint."""
    from hpcsgd.files import finite

    facts = describe(Path(arguments.path))
    if arguments.json:
        print(json.dumps(finite(facts), indent=2, allow_nan=False))
    else:
        for key, value in facts.items():
            print(f"{key:13s} {_inspection_text(value)}")
    return 0


def describe(path: Path) -> Facts:
    """Return the facts on `path`, by the first of `FILE_KINDS` that recognises it."""
    if not path.exists():
        raise DataError(
            f"{path} does not exist{did_you_mean_file(path)}; name a run folder or its"
            " result.h5"
        )
    for kind, (recognise, facts_of) in FILE_KINDS.items():
        if recognise(path):
            return {"kind": kind, "path": str(path), **facts_of(path)}
    kinds = " nor a ".join(FILE_KINDS)
    raise DataError(
        f"{path} is neither a {kinds}; name a folder or file that hpcsgd train wrote"
    )


def is_run(path: Path) -> bool:
    """Return whether `path` is a folder that contains a file of a run."""
    from hpcsgd.runs.folder import FILES

    return path.is_dir() and any((path / name).exists() for name in FILES)


def run_facts(path: Path) -> Facts:
    """Return the facts on a run: its model, and whether its files belong together.

    Without result.h5, they are its settings, its progress and how to continue it.
    """
    from hpcsgd.runs.result import load_result

    if not (path / "result.h5").exists():
        return _unfinished(path)
    result = load_result(path)
    return {**result_facts(result), "parts": agreement(path, result)}


def is_model(path: Path) -> bool:
    """Return whether `path` is a file of a result."""
    from hpcsgd.files import is_sealed

    return is_sealed(path, "result")


def model_facts(path: Path) -> Facts:
    """Return the facts on the model of a file."""
    from hpcsgd.runs.result import load_result

    return result_facts(load_result(path))


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` is a file of a checkpoint."""
    from hpcsgd.files import is_sealed

    return is_sealed(path, "checkpoint")


def checkpoint_facts(path: Path) -> Facts:
    """Return the facts on a checkpoint: progress, sizes, weights and settings."""
    from hpcsgd.runs.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(path)
    document = checkpoint.document
    return {
        "exchanges": f"{checkpoint.exchanges},"
        f" {document['exchanges_per_epoch']} an epoch",
        "loss": document["loss"],
        "family": document["config"]["problem"]["family"],
        "rows": document["rows"],
        "ran": f"{document['product']} on {document['ranks']} rank(s)",
        "replicas": document["replicas"],
        **weight_state_facts(checkpoint),
        "resumes": document["resumes"],
        "settings": changed(document["config"]),
        "ledger": {k: v for k, v in document["ledger"].items() if v.get("calls")},
        "data": document["fingerprint"],
        "versions": document["versions"],
    }


def weight_state_facts(checkpoint: "Snapshot") -> Facts:
    """Return the facts on the weights of a checkpoint.

    If the run keeps its weights in files of its own, the only fact is where they are.
    """
    import numpy as np

    from hpcsgd.runs.checkpoint import ON_DISK

    if checkpoint.document.get(ON_DISK):
        where = "in the files of the run (agreement.store), checked at a resume"
        return {"states": where}
    weights = checkpoint.arrays["weights"]
    return {
        "columns": weights.shape[1],
        "copies": f"{len(weights)} (one for each replica where they were apart)",
        "dtype": str(weights.dtype),
        "norm": float(np.linalg.norm(weights)),
        "arrays": sorted(checkpoint.arrays),
    }


# kind -> (recognises a path, facts on the path), tried in this order
FILE_KINDS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Facts]]] = {
    "run folder": (is_run, run_facts),
    "model file": (is_model, model_facts),
    "checkpoint": (is_checkpoint, checkpoint_facts),
}


def _unfinished(path: Path) -> Facts:
    """Return the facts on a run without a result: settings and the last evaluation."""
    from hpcsgd.config import read_toml

    facts: Facts = {"status": "unfinished: there is no result.h5", "run": _way_on(path)}
    if (path / "resolved.toml").exists():
        facts["settings"] = changed(read_toml(path / "resolved.toml"))
    history = path / "history.jsonl"
    if history.exists():
        facts["evaluated"] = _last_record(read_entry_text(history).splitlines())
    return facts


def _way_on(path: Path) -> str:
    """Return the process that trains in the folder, or else how to continue the run."""
    from hpcsgd.runs.checkpoint import CheckpointStore

    user = user_of(path)
    if user:
        return f"under way: {user}"
    ended = "ended without a result"
    try:
        saved = CheckpointStore(path, 1).paths()
    except OSError as error:
        return f"{ended}; its checkpoints cannot be read ({reason(error)})"
    if not saved:
        return f"{ended} and without a checkpoint; train again"
    return f"{ended}; --resume auto goes on from {saved[0].name}"


def _last_record(lines: list[str]) -> Any:
    """Return the last record with a loss, or "nothing yet".

    Lines that are no complete record are skipped.
    """
    for line in reversed(lines):
        record = parse_object(line)
        if record and "loss" in record:
            return record
    return "nothing yet"


def result_facts(result: "Result") -> Facts:
    """Return the facts on a model, without those on its folder."""
    report = result.report
    return {
        "status": result.status.value,
        "loss": result.loss,
        "family": result.config["problem"]["family"],
        "rows": report["rows"],
        "columns": report["columns"],
        "classes": report["labels"],
        **({"models": len(report["models"])} if "models" in report else {}),
        "steps": f"{result.iterations} in {result.exchanges} exchanges",
        "ran": f"{report['products']} on {report['ranks']} rank(s),"
        f" {report['transport']}",
        **weight_facts(result),
        "settings": changed(result.config),
        "ledger": {k: v for k, v in result.ledger.items() if v["calls"]},
        "source": source_facts(report["source"]),
        **preparation_facts(result),
        **category_facts(report),
        "versions": report["versions"],
    }


def preparation_facts(result: "Result") -> Facts:
    """Return the preparation of the rows of the training; empty if they were raw."""
    if result.preparation is None or result.preparation.is_raw:
        return {}
    return {"preparation": result.preparation.describe()}


def category_facts(report: Facts) -> Facts:
    """Return the columns of text of the training data and their levels, if any."""
    categories = report.get("categories")
    return {"categories": categories} if categories else {}


def weight_facts(result: "Result") -> Facts:
    """Return dtype, norm, zeros, intercept and the largest weights of a model."""
    import numpy as np

    weights = np.asarray(result.weights, dtype=np.float64)
    intercept = result.intercept
    models = "models" in result.report
    return {
        "dtype": str(result.weights.dtype),
        "norm": float(np.linalg.norm(weights)),
        "zeros": int(np.count_nonzero(weights == 0)),
        "intercept": None if intercept is None else np.asarray(intercept).tolist(),
        "largest": [] if models else result.largest_weights(LARGEST),
        "sha256": result.weights_sha256,
    }


def changed(config: dict[str, dict[str, Any]]) -> Facts:
    """Return section.key -> value of the settings that differ from their defaults."""
    from hpcsgd.config import RunConfig

    defaults = RunConfig().tables()
    return {
        f"{section}.{key}": value
        for section, table in config.items()
        for key, value in table.items()
        if defaults.get(section, {}).get(key) != value
    }


def source_facts(source: Facts) -> Facts:
    """Return the source of the rows, and whether its file still exists."""
    if "path" not in source:
        return source
    return {**source, "found": Path(str(source["path"])).exists()}


def agreement(folder: Path, result: "Result") -> str:
    """Return "agree" if result.json and resolved.toml match `result`, else why not."""
    from hpcsgd.config import RunConfig, read_toml

    try:
        checksum = parse_json(read_entry_text(folder / "result.json"))["weights_sha256"]
    except FileNotFoundError:
        return "result.json is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return "result.json cannot be read"
    if checksum != result.weights_sha256:
        return "result.json is of another model than result.h5"
    if not (folder / "resolved.toml").exists():
        return "resolved.toml is missing"
    resolved = RunConfig.parse(read_toml(folder / "resolved.toml"))
    if resolved != RunConfig.parse(
        result.config
    ):  # earlier versions had fewer settings
        return "resolved.toml is of another run than result.h5"
    return "agree"


def _inspection_text(value: Any) -> str:
    """Return a fact as text on one line."""
    if isinstance(value, dict) and "weight" in value:
        *place, weight = value.values()
        return f"[{', '.join(_inspection_text(v) for v in place)}] {weight:.6g}"
    if isinstance(value, dict):
        return (
            ", ".join(f"{k} {_inspection_text(v)}" for k, v in value.items()) or "none"
        )
    if isinstance(value, list):
        ends = "  " if value and isinstance(value[0], dict) else " "
        return ends.join(_inspection_text(v) for v in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.8g}"
    return "none" if value is None else str(value)
