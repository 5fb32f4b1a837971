"""Several settings on the same data and ranks, interleaved, in one account."""

import json
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from hpcsgd.api import train
from hpcsgd.assembly.vocabulary import resolve
from hpcsgd.callbacks import Callback
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.checks import form_of
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.errors import ConfigError, HpcsgdError
from hpcsgd.files import write_text
from hpcsgd.result import Result, Status, finite
from hpcsgd.study.account import TRAFFIC
from hpcsgd.study.settings import (
    Setting,
    check_equal_batch,
    check_names,
    folder_name,
    is_equal_batch,
)

log = logging.getLogger(__name__)
FILES = ("compare.json", "compare.png", "report.html")


@dataclass(frozen=True)
class Row:
    """One setting: its run of median time, and the times of all its repeats."""

    setting: Setting
    result: Result
    times: tuple[float, ...]  # seconds_total of each repeat, in the order they ran

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.times)

    def traffic(self, figure: str) -> int:
        """Calls, words or bytes of rank 0, sent for products and agreements."""
        return sum(int(self.result.ledger[purpose][figure]) for purpose in TRAFFIC)


@dataclass(frozen=True)
class Comparison:
    """The rows in the order of the settings; the first is what others are held to."""

    rows: tuple[Row, ...]

    @property
    def is_equal_batch(self) -> bool:
        """True where every step of every setting sees as many rows."""
        return is_equal_batch([row.setting for row in self.rows])

    @property
    def diverged(self) -> list[str]:
        """The settings whose run diverged."""
        bad = Status.DIVERGED
        return [row.setting.name for row in self.rows if row.result.status is bad]

    def loss_gap(self, row: Row) -> float:
        """(loss − first loss) / |first loss|."""
        first = self.rows[0].result.loss
        return (row.result.loss - first) / abs(first) if first else float("nan")

    def speed_up(self, row: Row) -> float:
        """The first's seconds over this one's."""
        first = self.rows[0].seconds
        return first / row.seconds if row.seconds > 0 else float("nan")

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """name -> loss curve."""
        return {row.setting.name: row.result.history for row in self.rows}

    def as_dict(self) -> dict[str, Any]:
        """Everything but the weights, ready for JSON."""
        return {
            "ranks": self.rows[0].result.report["ranks"],
            "repeats": len(self.rows[0].times),
            "equal_global_batch": self.is_equal_batch,
            "settings": [self._figures(row) for row in self.rows],
        }

    def json(self) -> str:
        """One document; a number that is not finite is written as null."""
        return json.dumps(finite(self.as_dict()), indent=2, allow_nan=False)

    def save(self, folder: Path) -> None:
        """Write compare.json into `folder`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            put_aside(folder)
            write_text(folder / "compare.json", self.json() + "\n")
        except OSError as error:
            raise ConfigError(
                f"cannot write into --out {folder}: {error.strerror};"
                " choose a folder that can be written"
            ) from error

    def _figures(self, row: Row) -> dict[str, Any]:
        result, report = row.result, row.result.report
        return {
            "name": row.setting.name,
            "global_batch": row.setting.global_batch,
            "steps": report["schedule"]["steps"],
            "products": report["products"],
            "look_ahead": report["look_ahead"],
            "precision": row.setting.config.precision.recipe,
            "status": result.status.value,
            "loss": result.loss,
            "loss_gap": self.loss_gap(row),
            "synchronisations": row.traffic("calls"),
            "words": row.traffic("words"),
            "bytes": row.traffic("bytes"),
            "seconds": row.seconds,
            "seconds_of_repeats": list(row.times),
            "speed_up": self.speed_up(row),
            "iterations": result.iterations,
            "weights_sha256": result.weights_sha256,
            "ledger": result.ledger,
            "history": result.history,
            "config": result.config,
        }


def put_aside(folder: Path) -> None:
    """Give what an earlier comparison left here the next free number."""
    number = 1
    while any(folder.glob(f"compare-earlier-{number}.*")):
        number += 1
    for name in FILES:
        if (folder / name).exists():
            suffix = Path(name).suffix
            (folder / name).rename(folder / f"compare-earlier-{number}{suffix}")


def compare(
    settings: Sequence[Setting],
    *,
    repeats: int = 3,
    allow_unequal: bool = False,
    out: str | Path | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: Callable[[], list[Callback]] = list,
) -> Comparison:
    """Train every setting `repeats` times, in turns, on the same ranks.

    Turns (A, B, A, B, ...) let a machine that changes its pace hit all settings alike.

    Parameters
    ----------
    settings : the first is what the others are held to
    repeats : runs of each setting; its time is their median
    allow_unequal : compare settings with other global batches all the same
    out : folder of the runs, NAME-1, NAME-2, ... in it
    X : ndarray, (n, d), the rows; else the data path of the settings
    y : ndarray, (n,), targets
    world : the ranks to train on; else those of the launcher
    callbacks : makes the callbacks of one run, on this rank

    Returns
    -------
    Comparison
    """
    check(settings, repeats, allow_unequal)
    comm = world if world is not None else open_world(settings[0].config.run.comm)
    comm.together(lambda: _look_up(settings, comm))
    results: dict[str, list[Result]] = {setting.name: [] for setting in settings}
    for number in range(1, repeats + 1):
        for setting in settings:
            said = (setting.name, number, repeats)
            log.info("%s, run %d of %d", *said, extra={"on_all_ranks": True})
            config = _placed(setting, out, number)
            result = _run(setting.name, config, X, y, comm, callbacks())
            results[setting.name].append(result)
    if world is None:
        comm.close()
    return Comparison(tuple(_row(s, results[s.name]) for s in settings))


def check(settings: Sequence[Setting], repeats: int, allow_unequal: bool) -> None:
    """Refuse what cannot be compared, before anything is trained."""
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: at least 1 is needed; 3 is usual")
    check_names(settings)
    if not allow_unequal:
        check_equal_batch(settings)


def _look_up(settings: Sequence[Setting], world: Communicator) -> None:
    """Refuse what is unknown, or does not fit, before anything is trained."""
    for setting in settings:
        if setting.config.update.kind == COORDINATE:
            form_of(setting.config, world.size)
        else:
            resolve(setting.config, world)


def _placed(setting: Setting, out: str | Path | None, number: int) -> RunConfig:
    """The setting's configuration with the folder of this run in it."""
    place = str(Path(out) / f"{folder_name(setting.name)}-{number}") if out else None
    return replace(setting.config, run=replace(setting.config.run, out=place))


def _run(
    name: str, config: RunConfig, X: Any, y: Any, world: Communicator, callbacks: Any
) -> Result:
    try:
        return train(config, X=X, y=y, world=world, callbacks=callbacks)
    except HpcsgdError as error:
        error.args = (f"setting {name!r}: {error}",)
        raise


def _row(setting: Setting, results: list[Result]) -> Row:
    times = [result.report["seconds_total"] for result in results]
    middle = times.index(statistics.median_low(times))
    return Row(setting, results[middle], tuple(times))
