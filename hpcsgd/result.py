"""How a run ended, and what it leaves behind."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError

Array = NDArray[Any]


class Status(Enum):
    """Endings carry advice."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    DIVERGED = "diverged"

    @property
    def advice(self) -> str:
        """What to do now, or nothing."""
        return _ADVICE[self]


_ADVICE = {
    Status.COMPLETED: "",
    Status.STOPPED: "a callback asked to stop; the weights are those of that moment",
    Status.DIVERGED: (
        "the loss grew without bound or is not finite; lower the rate"
        " (--rate, try a tenth) or widen the precision; the weights kept are the"
        " last ones with a good loss"
    ),
}


@dataclass(frozen=True)
class Result:
    """A trained model with everything needed to judge and repeat it.

    Attributes
    ----------
    weights : ndarray, (d,) or (d, K)
    intercept : ndarray, () or (K,); None without one
    loss : float, the full objective on all rows in float64
    history : list of dicts, one for each evaluation
    ledger : purpose -> calls, words, bytes, wire_bytes, seconds of rank 0
    """

    status: Status
    loss: float
    weights: Array
    intercept: Array | None
    iterations: int
    exchanges: int
    history: list[dict[str, Any]]
    ledger: dict[str, dict[str, Any]]
    config: dict[str, dict[str, Any]]
    report: dict[str, Any]  # seconds, grid, classes, versions, what ran how

    @property
    def weights_sha256(self) -> str:
        """A fingerprint of the model's bits."""
        digest = hashlib.sha256(np.ascontiguousarray(self.weights).tobytes())
        if self.intercept is not None:
            digest.update(np.ascontiguousarray(self.intercept).tobytes())
        return digest.hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Everything but the arrays, ready for JSON."""
        return {
            "status": self.status.value,
            "advice": self.status.advice,
            "loss": self.loss,
            "iterations": self.iterations,
            "exchanges": self.exchanges,
            **self.report,
            "ledger": self.ledger,
            "weights_sha256": self.weights_sha256,
            "history": self.history,
            "config": self.config,
        }

    def json(self) -> str:
        """One document; a number that is not finite is written as null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def save(self, folder: str | Path) -> Path:
        """Write result.h5 and result.json into `folder`, each whole or not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "result.h5"
        _replace(path, self._write_hdf5)
        _replace(folder / "result.json", lambda p: p.write_text(self.json() + "\n"))
        return path

    def _write_hdf5(self, path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            file.attrs["format"] = "hpcsgd-result"
            file.attrs["format_version"] = 1
            file["weights"] = self.weights
            if self.intercept is not None:
                file["intercept"] = self.intercept
            document = asdict(self) | {"status": self.status.value}
            for name in ("weights", "intercept"):
                document.pop(name)
            # Text, not attributes: those end at 64 KiB and a history does not.
            file["document"] = json.dumps(document)


def load_result(path: str | Path) -> Result:
    """Read a result back from result.h5 or from the folder that holds it."""
    import h5py

    path = Path(path)
    path = path / "result.h5" if path.is_dir() else path
    if not path.exists():
        raise DataError(f"{path} does not exist; name a run folder or its result.h5")
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != "hpcsgd-result":
                raise DataError(f"{path} is not a result of this package")
            document = json.loads(file["document"][()])
            intercept = file["intercept"][()] if "intercept" in file else None
            weights = file["weights"][()]
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read as a result: {error}") from error
    status = Status(document.pop("status"))
    return Result(status=status, weights=weights, intercept=intercept, **document)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    _replace(path, lambda temporary: temporary.write_text(text))


def _replace(path: Path, write: Any) -> None:
    """Write beside `path`, flush to disk, then take its name in one move."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """`value` with every float that JSON cannot say turned into None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
