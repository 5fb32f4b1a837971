"""Checkpoints on disk: where they lie, how many are kept, which is the last whole one.

One file holds the state of the whole run, not of a rank: a run may go on with other
ranks than it was saved by. `hpcsgd/capture.py` says what is in it.
"""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError
from hpcsgd.files import own_folder
from hpcsgd.retired import without_retired
from hpcsgd.sealed import (
    Damaged,
    Unreadable,
    check_schema,
    read_sealed,
    unreadable,
    write_sealed,
)

Array = NDArray[Any]
log = logging.getLogger(__name__)
KIND, VERSION = "checkpoint", 1
FOLDER = "checkpoints"
DAMAGED = ".damaged"  # behind the name of one that was passed over
ASKED = "asked"  # the settings before a run fell back
PRECISION_AUTO = "precision_auto"  # what pilots found, where they chose the recipe
ON_DISK = "on_disk"  # true where files of their own hold the states
MOST_EXCHANGES = 10**15  # of any run that ends
# Counted through, whatever a run was put back to: the newest is the highest number.
NAME = re.compile(r"(\d{6,12})-exchange-\d{9,18}\.h5")

# Arrays of each rank's own as bytes, (replicas, of all members), and how many of each.
KEPT, SIZES = "kept", "kept_sizes"
LOG = "log_"  # before names of what is counted, replica by replica, in every exchange

# What the document of a checkpoint says besides the arrays.
SCHEMA = {
    "config": {...: dict},
    "fingerprint": str,
    "rows": int,
    "replicas": int,
    "exchanges": int,
    "exchanges_per_epoch": int,
    "seconds": float,
    "loss": float,
    "history": [{"epoch": int, "exchanges": int, "loss": float, "seconds": float}],
    "ledger": {...: {...: float}},
    "phases": {...: float},
    "evaluation": {
        "first_loss": (float, None),
        "good_loss": (float, None),
        "measured_at": int,
        "clipped": int,
    },
    "mended": int,
    "resumes": int,
    "product": str,
    "ranks": int,
    "versions": dict,
}
# And what it may say: of a run to which nothing happened it need not.
OPTIONAL = {
    "events": [
        {"kind": str, "event": str, "exchange": int, "evaluations": int, "text": str}
    ],
    ASKED: {"schedule": dict, "precision": dict},
    ON_DISK: bool,
    PRECISION_AUTO: {"recipe": str, "considered": {...: dict}},
}


@dataclass(frozen=True)
class Checkpoint:
    """A state, and everything that was known at that moment."""

    document: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def exchanges(self) -> int:
        """Done when it was taken."""
        return int(self.document["exchanges"])


class Store:
    """The checkpoints of one run folder."""

    def __init__(self, run_folder: Path, keep: int) -> None:
        self.run_folder = run_folder
        self.folder = run_folder / FOLDER
        self.keep = keep

    def write(self, checkpoint: Checkpoint) -> Path:
        """Add one, then remove what is too old; OSError where there is no room."""
        own_folder(self.run_folder, FOLDER, make=True)
        for left in self.folder.glob(".*.part"):  # by a run that died while writing
            left.unlink(missing_ok=True)
        number = 1 + max(map(_number, self.paths()), default=0)
        name = f"{number:06d}-exchange-{checkpoint.exchanges:09d}.h5"
        path = self.folder / name
        write_sealed(path, KIND, VERSION, checkpoint.document, checkpoint.arrays)
        # Only now: the older ones stay until the new one is on disk.
        for old in self.paths()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Path]:
        """All there are, the newest first; OSError where that cannot be known."""
        found = [self.folder / name for name in self._names() if NAME.fullmatch(name)]
        return sorted(found, key=_number, reverse=True)

    def newest(self, tidies: bool = False) -> tuple[Path, Checkpoint] | None:
        """The newest whole one, or None in a folder that never had any.

        Those that are not whole are named and passed over; a folder that is ours to
        tidy has those renamed that are proven to be damaged. What cannot be read at
        all is left to the user: it may be whole, and newer than what we would take.
        """
        passed: dict[Path, DataError] = {}
        for path in self._readable_paths():
            try:
                found = read_checkpoint(path)
            except Unreadable:
                raise
            except DataError as error:
                passed[path] = error
            else:
                _say_what_was_passed(passed, tidies)
                return path, found
        self._check_never_had_any()
        return None

    def _readable_paths(self) -> list[Path]:
        try:
            return self.paths()
        except OSError as error:
            raise unreadable(self.folder, error) from error

    def _check_never_had_any(self) -> None:
        """Refuse to take a folder without a whole checkpoint for a new one."""
        count = sum(
            bool(NAME.fullmatch(name.removesuffix(DAMAGED))) for name in self._names()
        )
        if count:
            raise DataError(
                f"none of the {count} checkpoints in {self.folder} is whole;"
                " start anew with --resume no"
            )

    def _names(self) -> list[str]:
        try:
            return os.listdir(own_folder(self.run_folder, FOLDER))
        except FileNotFoundError:
            return []


def read_checkpoint(path: Path) -> Checkpoint:
    """A whole checkpoint whose parts fit together; DataError for anything else."""
    document, arrays = read_sealed(path, KIND, VERSION)
    also = {key: wanted for key, wanted in OPTIONAL.items() if key in document}
    check_schema(path, document, SCHEMA | also)
    if not _fits(document, arrays):
        raise DataError(
            f"{path} holds arrays that make no state; take an earlier checkpoint"
        )
    for name in {"config", ASKED} & set(document):
        document[name] = without_retired(document[name])
    return Checkpoint(document, arrays)


def _say_what_was_passed(passed: Mapping[Path, DataError], tidies: bool) -> None:
    """Now that there is one to fall back on, and not before."""
    for path, error in passed.items():
        log.warning("%s; falling back to the checkpoint before it", error)
        if tidies and isinstance(error, Damaged):
            # Out of the way of `paths`, and still there for whoever wants to look.
            with suppress(OSError):
                path.rename(path.with_name(path.name + DAMAGED))


def _number(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _fits(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bool:
    """One state for all replicas or one for each, all of them floats and finite.

    Where the states are on disk anyway, it is only said how far they are.
    """
    if document.get(ON_DISK):
        return not arrays and 0 <= document["exchanges"] <= MOST_EXCHANGES
    kept, sizes = (arrays.get(name) for name in (KEPT, SIZES))
    logs = [array for name, array in arrays.items() if name.startswith(LOG)]
    arrays = {
        name: array
        for name, array in arrays.items()
        if name not in (KEPT, SIZES) and not name.startswith(LOG)
    }
    weights = arrays.get("weights")
    if weights is None or any(a.dtype.kind != "f" for a in arrays.values()):
        return False
    copies = (1, document["replicas"])
    private = [a for name, a in arrays.items() if not name.startswith("good_")]
    good = arrays.get("good_weights")
    return (
        _are_packed(kept, sizes, document["replicas"])
        and all(_is_log(log, document) for log in logs)
        and 0 <= document["exchanges"] <= MOST_EXCHANGES
        and 1 <= document["replicas"] <= document["rows"]
        and document["exchanges_per_epoch"] >= 1
        and weights.size > 0
        and all(a.ndim == 3 and len(a) in copies for a in private)
        and all(a.ndim == 2 for name, a in arrays.items() if name.startswith("good_"))
        and (good is None or good.shape == weights.shape[1:])
        and (good is None) == (document["evaluation"]["good_loss"] is None)
        and all(_is_finite(a, "losses" in _last(document)) for a in arrays.values())
    )


def _are_packed(kept: Array | None, sizes: Array | None, replicas: int) -> bool:
    """Both or neither, and as many bytes as they say."""
    if kept is None or sizes is None:
        return kept is sizes
    integers = kept.dtype == np.uint8 and sizes.dtype.kind == "i"
    shaped = kept.ndim == 2 and len(kept) == replicas and sizes.ndim == 1
    return bool(
        integers and shaped and (sizes >= 0).all() and sizes.sum() == kept.shape[1]
    )


def _is_log(log: Array, document: Mapping[str, Any]) -> bool:
    """Counts of every replica, in every exchange so far."""
    shape = document["replicas"], document["exchanges"]
    return log.dtype.kind == "i" and log.shape == shape and bool((log >= 0).all())


def _last(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The newest record of its history."""
    found: Mapping[str, Any] = document["history"][-1] if document["history"] else {}
    return found


def _is_finite(array: Array, is_of_many: bool) -> bool:
    """Of several models some may have diverged, while others go on."""
    good = np.isfinite(array)
    return bool(good.all() or (is_of_many and good.all(axis=-2).any()))
