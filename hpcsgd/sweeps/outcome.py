"""What a sweep leaves behind: every model a result of its own, and which is best."""

import csv
import io
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.evaluation import is_good
from hpcsgd.files import own_folder, write_text
from hpcsgd.models import Model
from hpcsgd.result import (
    WORSE,
    Result,
    Status,
    finite,
    is_worse,
    load_result,
    saving,
)
from hpcsgd.run_folder import SWEEP

Array = NDArray[Any]
COLUMNS = ("model", "l2", "rate", "fold", "status", "loss", "held", "mean_held")


@dataclass(frozen=True)
class Sweep:
    """Models that were trained together.

    Attributes
    ----------
    outcome : Result, all of them side by side, as the run folder holds it
    models : tuple of Model, the l2, rate and fold of each
    weights : ndarray, (d, models) or (d, models, K)
    intercepts : ndarray, (models,) or (models, K); None without them
    losses : ndarray, (models,), F of each on the rows that it was trained on, float64
    held : ndarray, (models,), mean loss on its rows that were not; NaN without any
    history : list of dicts, one for each evaluation
    ledger : purpose -> calls, words, bytes, wire_bytes, seconds of rank 0
    """

    outcome: Result

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """In the order of their columns."""
        return tuple(Model(**one) for one in self.outcome.report["models"])

    def __len__(self) -> int:
        return len(self.models)

    @property
    def weights(self) -> Array:
        """(d, models), or (d, models, K) of softmax."""
        return self._apart(self.outcome.weights)

    @property
    def intercepts(self) -> Array | None:
        """(models,), or (models, K)."""
        found = self.outcome.intercept
        return None if found is None else self._apart(found)

    @property
    def losses(self) -> Array:
        """F of each."""
        return _values(self.outcome.report["losses"], len(self))

    @property
    def held(self) -> Array:
        """Mean loss of each on rows that it has not seen."""
        return _values(self.outcome.report.get("held"), len(self))

    @property
    def history(self) -> list[dict[str, Any]]:
        """With `losses` and `held` of every model in each record."""
        return self.outcome.history

    @property
    def ledger(self) -> dict[str, dict[str, Any]]:
        """What was sent, for all of them together."""
        return self.outcome.ledger

    @property
    def mean_held(self) -> Array:
        """The held loss of each model's setting: the mean over its folds."""
        held, settings = self.held, [(m.l2, m.rate) for m in self.models]
        means = np.full(len(self), np.nan)
        for setting in dict.fromkeys(settings):
            own = np.array([one == setting for one in settings])
            seen = np.array([m.fold is not None for m in self.models]) & own
            # A fold that diverged says what there is to say of its setting.
            means[own] = held[seen if seen.any() else own].mean()
        return means

    @property
    def best(self) -> int:
        """The number of the model to use: of the best setting, on all rows.

        The setting whose mean loss on held-out rows is least. Where nothing was held
        out, rates are compared by F; penalties cannot be, since a loss on the rows of
        the training always favours the smallest.
        """
        if self._is_made_up:
            raise ConfigError("one rank was timed as one of many, and learnt nothing")
        judged = self.mean_held
        if np.isfinite(judged).any():
            whole = [k for k, m in enumerate(self.models) if m.fold is None]
            return min(whole, key=lambda k: _order(float(judged[k])))
        if self._is_judged or not np.isfinite(self.losses).any():
            raise ConfigError("no model has a loss that is finite; use smaller rates")
        if len({model.l2 for model in self.models}) > 1:
            raise ConfigError(
                "no rows were held out, so nothing says which l2 is best; add folds"
                " (--folds 5) or sampling.hold_out"
            )
        return min(range(len(self)), key=lambda k: _order(float(self.losses[k])))

    @property
    def _is_judged(self) -> bool:
        return "held" in self.outcome.report

    @property
    def _is_made_up(self) -> bool:
        """True where one rank was timed as one of many."""
        return bool(self.outcome.report["emulated_members"])

    def status(self, number: int) -> Status:
        """How the training of one of them ended."""
        if self._is_made_up:
            return self.outcome.status
        first = float(self._first_losses[number])
        if not is_good(
            float(self.losses[number]), first if np.isfinite(first) else None
        ):
            return Status.DIVERGED
        return self.outcome.status

    def ending(self, number: int) -> str:
        """Return its status in words; `worse` where F ended above where it began."""
        status = self.status(number)
        loss, first = float(self.losses[number]), float(self._first_losses[number])
        return WORSE if status.is_good and is_worse(loss, first) else status.value

    @property
    def _first_losses(self) -> Array:
        """F of each before the first step; NaN where that is not known."""
        return _values(self.outcome.report["first_losses"] or None, len(self))

    def result(self, number: int) -> Result:
        """One of them as a run of its own, for predict, evaluate and save.

        Parameters
        ----------
        number : int, from 0 on, in the order of `models`

        Returns
        -------
        Result, whose ledger is that of the whole sweep
        """
        model, outcome = self.models[number], self.outcome
        intercepts, held = self.intercepts, float(self.held[number])
        config = {name: dict(table) for name, table in outcome.config.items()}
        config["problem"]["l2"], config["rate"]["value"] = model.l2, model.rate
        del config["sweep"]
        left = ("models", "losses", "first_losses", "held")
        report = {k: v for k, v in outcome.report.items() if k not in left}
        report["model"] = vars(model) | {"number": number, "of": len(self)}
        if self._is_judged:
            report["held"] = held
        return replace(
            outcome,
            status=self.status(number),
            loss=float(self.losses[number]),
            weights=np.ascontiguousarray(self.weights[:, number]),
            intercept=None if intercepts is None else intercepts[number].copy(),
            history=[_own(record, number) for record in outcome.history],
            config=config,
            report=report,
        )

    def rows(self) -> list[dict[str, Any]]:
        """A table, one row a model."""
        held, means, losses = self.held, self.mean_held, self.losses
        return [
            dict(
                zip(
                    COLUMNS,
                    (
                        *(number, model.l2, model.rate, model.fold),
                        *(self.ending(number), float(losses[number])),
                        *(float(held[number]), float(means[number])),
                    ),
                    strict=True,
                )
            )
            for number, model in enumerate(self.models)
        ]

    def json(self) -> str:
        """One document: the table, the best, and what the run says of itself."""
        document = {"best": self._best_or_none(), "models": self.rows()}
        return json.dumps(
            finite(document | {"run": self.outcome.as_dict()}),
            indent=2,
            allow_nan=False,
        )

    def csv(self) -> str:
        """The table as text; what is not there is empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(finite(row) for row in self.rows())
        return text.getvalue()

    def save(self, folder: str | Path) -> Path:
        """Write sweep.csv, sweep.json, result.h5, and the best model into best/."""
        folder = Path(folder)
        self.outcome.save(folder)
        self.add_to(folder)
        return folder

    def add_to(self, folder: Path) -> None:
        """Write beside result.h5 what a sweep has more."""
        table, document, best = (folder / name for name in SWEEP)
        for path, text in ((table, self.csv()), (document, self.json() + "\n")):
            with saving(path):
                write_text(path, text)
        number = self._best_or_none()
        if number is not None:
            with saving(best):
                own_folder(folder, best.name, make=True)
            self.result(number).save(best)

    def _best_or_none(self) -> int | None:
        try:
            return self.best
        except ConfigError:
            return None

    def _apart(self, values: Array) -> Array:
        """The last axis as models, and the scores of each where it has several."""
        each = values.shape[-1] // len(self)
        shape = (*values.shape[:-1], len(self), each)
        return values if each == 1 else values.reshape(shape)


def load_sweep(folder: str | Path) -> Sweep:
    """Read a sweep back from its run folder."""
    outcome = load_result(folder)
    if "models" not in outcome.report:
        raise DataError(
            f"{folder} holds one model and no sweep; read it with hpcsgd.load_result"
        )
    return Sweep(outcome)


def _values(values: list[float | None] | None, count: int) -> Array:
    """Numbers of a report as an array; None is NaN."""
    given = values if values is not None else [None] * count
    return np.array([np.nan if v is None else v for v in given], dtype=np.float64)


def _order(loss: float) -> float:
    return loss if np.isfinite(loss) else np.inf


def _own(record: dict[str, Any], number: int) -> dict[str, Any]:
    """What a record of the history says of one model."""
    kept = {k: v for k, v in record.items() if k not in ("losses", "held")}
    if "losses" in record:
        value = record["losses"][number]
        kept["loss"] = np.nan if value is None else value
    if "held" in record:
        kept["held"] = record["held"][number]
    return kept
