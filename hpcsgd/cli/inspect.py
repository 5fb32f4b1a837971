"""`hpcsgd inspect`: what a run folder, model or checkpoint is, in a few lines."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.errors import DataError
from hpcsgd.files import read_entry_text, reason
from hpcsgd.folder_lock import user_of
from hpcsgd.json_text import parse_json

if TYPE_CHECKING:
    from hpcsgd.checkpoint import Checkpoint
    from hpcsgd.result import Result

LARGEST = 10  # weights shown
Facts = dict[str, Any]


def add_parser(commands: Any) -> None:
    """Add `inspect` to the commands."""
    parser = commands.add_parser(
        "inspect",
        help=COMMANDS["inspect"],
        description="Status, loss, weights, settings and origin of what training left.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "path",
        metavar="RUN|MODEL|CHECKPOINT",
        help="run folder, result.h5 or checkpoint",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the facts of whatever it is."""
    from hpcsgd.result import finite

    facts = describe(Path(arguments.path))
    if arguments.json:
        print(json.dumps(finite(facts), indent=2, allow_nan=False))
    else:
        for key, value in facts.items():
            print(f"{key:13s} {_text(value)}")
    return 0


def describe(path: Path) -> Facts:
    """The facts of `path` by the first kind that knows it."""
    if not path.exists():
        raise DataError(f"{path} does not exist; name a run folder or its result.h5")
    for kind, (recognise, facts_of) in KINDS.items():
        if recognise(path):
            return {"kind": kind, "path": str(path), **facts_of(path)}
    known = " nor a ".join(KINDS)
    raise DataError(f"{path} is neither a {known}; name what training has written")


def is_run(path: Path) -> bool:
    """A folder that holds any file of a run."""
    from hpcsgd.run_folder import FILES

    return path.is_dir() and any((path / name).exists() for name in FILES)


def run_facts(path: Path) -> Facts:
    """The model, and whether the parts of the folder belong together."""
    from hpcsgd.result import load_result

    if not (path / "result.h5").exists():
        return _unfinished(path)
    result = load_result(path)
    return {**result_facts(result), "parts": agreement(path, result)}


def is_model(path: Path) -> bool:
    """A file that says it is a result."""
    from hpcsgd.sealed import is_sealed

    return is_sealed(path, "result")


def model_facts(path: Path) -> Facts:
    """The model alone."""
    from hpcsgd.result import load_result

    return result_facts(load_result(path))


def is_checkpoint(path: Path) -> bool:
    """A file that says it is a checkpoint."""
    from hpcsgd.sealed import is_sealed

    return is_sealed(path, "checkpoint")


def checkpoint_facts(path: Path) -> Facts:
    """Where a run stood when it was saved."""
    from hpcsgd.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(path)
    said = checkpoint.document
    return {
        "exchanges": f"{checkpoint.exchanges}, {said['exchanges_per_epoch']} an epoch",
        "loss": said["loss"],
        "family": said["config"]["problem"]["family"],
        "rows": said["rows"],
        "ran": f"{said['product']} on {said['ranks']} rank(s)",
        "replicas": said["replicas"],
        **held_facts(checkpoint),
        "resumes": said["resumes"],
        "settings": changed(said["config"]),
        "ledger": {k: v for k, v in said["ledger"].items() if v.get("calls")},
        "data": said["fingerprint"],
        "versions": said["versions"],
    }


def held_facts(checkpoint: "Checkpoint") -> Facts:
    """The weights that it holds, if they are not in files of their own."""
    import numpy as np

    from hpcsgd.checkpoint import ON_DISK

    if checkpoint.document.get(ON_DISK):
        where = "in the files of the run (agreement.store), checked where it goes on"
        return {"states": where}
    weights = checkpoint.arrays["weights"]
    return {
        "columns": weights.shape[1],
        "copies": f"{len(weights)} (one for each replica where they were apart)",
        "dtype": str(weights.dtype),
        "norm": float(np.linalg.norm(weights)),
        "arrays": sorted(checkpoint.arrays),
    }


# kind -> (does it know the path, what it says of it), asked in this order
KINDS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Facts]]] = {
    "run folder": (is_run, run_facts),
    "model file": (is_model, model_facts),
    "checkpoint": (is_checkpoint, checkpoint_facts),
}


def _unfinished(path: Path) -> Facts:
    """What a run that has not ended, or was cut off, has said so far."""
    from hpcsgd.config import read_toml

    facts: Facts = {"status": "unfinished: there is no result.h5", "run": _way_on(path)}
    if (path / "resolved.toml").exists():
        facts["settings"] = changed(read_toml(path / "resolved.toml"))
    history = path / "history.jsonl"
    if history.exists():
        facts["evaluated"] = _last_record(read_entry_text(history).splitlines())
    return facts


def _way_on(path: Path) -> str:
    """Who trains in the folder; where nobody does, how to go on."""
    from hpcsgd.checkpoint import Store

    user = user_of(path)
    if user:
        return f"under way: {user}"
    ended = "ended without a result"
    try:
        saved = Store(path, 1).paths()
    except OSError as error:
        return f"{ended}; its checkpoints cannot be read ({reason(error)})"
    if not saved:
        return f"{ended} and without a checkpoint; train again"
    return f"{ended}; --resume auto goes on from {saved[0].name}"


def _last_record(lines: list[str]) -> Any:
    """The last loss of a history; the very last line may be cut off."""
    for line in reversed(lines):
        try:
            record = parse_json(line)
        except json.JSONDecodeError:
            continue
        if "loss" in record:
            return record
    return "nothing yet"


def result_facts(result: "Result") -> Facts:
    """Everything about a model but the folder it lies in."""
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
        "versions": report["versions"],
    }


def preparation_facts(result: "Result") -> Facts:
    """What was done to the rows of the training, where they were not raw."""
    if result.preparation is None or result.preparation.is_raw:
        return {}
    return {"preparation": result.preparation.describe()}


def weight_facts(result: "Result") -> Facts:
    """Norm, intercept and the largest of the weights."""
    import numpy as np

    weights = np.asarray(result.weights, dtype=np.float64)
    intercept, models = result.intercept, "models" in result.report
    return {
        "dtype": str(result.weights.dtype),
        "norm": float(np.linalg.norm(weights)),
        "zeros": int(np.count_nonzero(weights == 0)),
        "intercept": None if intercept is None else np.asarray(intercept).tolist(),
        "largest": [] if models else largest(weights, result.report["labels"]),
        "sha256": result.weights_sha256,
    }


def largest(weights: Any, labels: list[float]) -> list[Facts]:
    """The weights of largest magnitude, first the largest; ties by their column."""
    import numpy as np

    flat = np.abs(weights).reshape(-1)
    order = np.argsort(-flat, kind="stable")[:LARGEST]
    found = []
    for place in order:
        column, *one_class = (int(i) for i in np.unravel_index(place, weights.shape))
        label = {"class": labels[one_class[0]]} if one_class else {}
        value = float(weights.reshape(-1)[place])
        found.append({"column": column, **label, "weight": value})
    return found


def changed(config: dict[str, dict[str, Any]]) -> Facts:
    """The settings that are not the defaults."""
    from hpcsgd.config import RunConfig

    defaults = RunConfig().tables()
    return {
        f"{section}.{key}": value
        for section, table in config.items()
        for key, value in table.items()
        if defaults.get(section, {}).get(key) != value
    }


def source_facts(source: Facts) -> Facts:
    """Where the rows came from, and whether that is still there."""
    if "path" not in source:
        return source
    return {**source, "found": Path(str(source["path"])).exists()}


def agreement(folder: Path, result: "Result") -> str:
    """Whether result.json and resolved.toml speak of the model in result.h5."""
    from hpcsgd.config import RunConfig, read_toml

    try:
        said = parse_json(read_entry_text(folder / "result.json"))["weights_sha256"]
    except FileNotFoundError:
        return "result.json is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return "result.json cannot be read"
    if said != result.weights_sha256:
        return "result.json is of another model than result.h5"
    if not (folder / "resolved.toml").exists():
        return "resolved.toml is missing"
    if RunConfig.parse(read_toml(folder / "resolved.toml")).tables() != result.config:
        return "resolved.toml is of another run than result.h5"
    return "agree"


def _text(value: Any) -> str:
    """A fact on one line."""
    if isinstance(value, dict) and "weight" in value:
        *place, weight = value.values()
        return f"[{', '.join(_text(v) for v in place)}] {weight:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        ends = "  " if value and isinstance(value[0], dict) else " "
        return ends.join(_text(v) for v in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.8g}"
    return "none" if value is None else str(value)
