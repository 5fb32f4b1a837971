"""Many models with one Gram, and races between rates."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.api import (
    Config,
    NamedSettings,
    named_settings,
    open_data,
    open_session,
    parse_settings,
)
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.backends.task import State
from hpcsgd.comm import open_world
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig, SweepConfig, rehearsal
from hpcsgd.data.readers import RowReader
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import finite, own_folder, write_text
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import Models, SweepModel
from hpcsgd.precision import AUTO
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.auto_rate import find_steepness, rate_of
from hpcsgd.runs.build import assemble_run
from hpcsgd.runs.checks import check_configuration, resolve_grid
from hpcsgd.runs.defaults import overlay_tables, to_number
from hpcsgd.runs.figures import COLOURS, html, new_axes, to_frame
from hpcsgd.runs.folder import SWEEP
from hpcsgd.runs.opened_run import OpenedRun, open_run
from hpcsgd.runs.result import (
    WORSE,
    Result,
    Status,
    is_worse,
    load_result,
    saving,
    traffic_text,
    work_text,
)
from hpcsgd.runs.session import RunSettings
from hpcsgd.runs.settle import EarlierChoice
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.solvers.evaluation import AverageConfig, is_good

# The result of a sweep: every model is a Result, and one is the best.

COLUMNS = ("model", "l2", "rate", "fold", "status", "loss", "held", "mean_held")


@dataclass(frozen=True)
class Sweep:
    """The models of `hpcsgd.sweep`, which were trained together.

    Attributes
    ----------
    outcome : Result
        All models side by side, as the run folder holds them.
    models : tuple of SweepModel
        The l2, rate and fold of each model. The fold is None for a model on all rows.
    weights : ndarray of shape (d, models) or (d, models, K)
        Weights.
    intercepts : ndarray of shape (models,) or (models, K), or None
        Intercepts; None without one.
    losses : ndarray of shape (models,)
        F of each model on its training rows, in float64.
    held : ndarray of shape (models,)
        Mean loss of each model on its held-out rows; NaN where it has none.
    mean_held : ndarray of shape (models,)
        The same, averaged over the folds with the same l2 and rate.
    best : int
        Number of the model to use.
    history : list of dict
        One record for each evaluation.
    ledger : dict
        Calls, words, bytes and seconds of all models together, by purpose.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> found = hpcsgd.sweep(l2=[1e-4, 1e-2], folds=2, X=X, y=X[:, 0] > 0)
    >>> hpcsgd.predict(found.result(found.best), X[:2], what="class").shape
    (2,)
    """

    outcome: Result

    def __repr__(self) -> str:
        """Return five lines: the models, the best one, losses, work and traffic."""
        number = self._best_or_none()
        best = "none: nothing was held out, or no loss is finite"
        if number is not None:
            model = self.models[number]
            loss = self.mean_held[number]
            best = f"model {number}: l2 {model.l2:g}, rate {model.rate:g}"
            best += f", held-out loss {loss:.6g}" if np.isfinite(loss) else ""
        family = self.outcome.config["problem"]["family"]
        losses = f"{np.nanmin(self.losses, initial=np.inf):.6g}"
        losses += f" to {np.nanmax(self.losses, initial=-np.inf):.6g}"
        return "\n".join(
            [
                f"Sweep: {len(self)} models of {family}, {self.outcome.status.value}",
                f"  best     {best}",
                f"  losses   {losses}",
                f"  work     {work_text(self.outcome)}",
                f"  traffic  {traffic_text(self.ledger)}",
            ]
        )

    @cached_property
    def models(self) -> tuple[SweepModel, ...]:
        """The l2, rate and fold of each model, in the order of the columns."""
        return tuple(SweepModel(**fields) for fields in self.outcome.report["models"])

    def __len__(self) -> int:
        return len(self.models)

    @property
    def weights(self) -> Array:
        """Weights of all models, (d, models), or (d, models, K) of K classes."""
        return self._apart(self.outcome.weights)

    @property
    def intercepts(self) -> Array | None:
        """Intercepts of all models, (models,) or (models, K); None without one."""
        intercepts = self.outcome.intercept
        return None if intercepts is None else self._apart(intercepts)

    @property
    def losses(self) -> Array:
        """F of each model on its training rows, (models,)."""
        return _values(self.outcome.report["losses"], len(self))

    @property
    def held(self) -> Array:
        """Mean loss of each model on its held-out rows, (models,); NaN without any."""
        return _values(self.outcome.report.get("held"), len(self))

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record for each evaluation, with `losses` and `held` of every model."""
        return self.outcome.history

    @property
    def ledger(self) -> dict[str, dict[str, Any]]:
        """Return calls, words, bytes and seconds of all models together, by purpose."""
        return self.outcome.ledger

    @property
    def mean_held(self) -> Array:
        """Held-out loss of each model's l2 and rate, (models,): a mean over folds."""
        losses = self.held
        settings = [(m.l2, m.rate) for m in self.models]
        means = np.full(len(self), np.nan)
        for setting in dict.fromkeys(settings):
            mask = np.array([other == setting for other in settings])
            seen = np.array([m.fold is not None for m in self.models]) & mask
            # A fold that diverged stays in the mean of its setting.
            means[mask] = losses[seen if seen.any() else mask].mean()
        return means

    @property
    def best(self) -> int:
        """Number of the model to use: the best setting, fitted on all rows.

        The best setting has the least mean loss on held-out rows. Without held-out
        rows, rates are compared by F. Penalties are not: a loss on the training rows
        always favours the smallest penalty.
        """
        if self._is_made_up:
            raise ConfigError(
                "this sweep has no best model, because the weights mean nothing with"
                " --emulate-members; sweep without this flag"
            )
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
        """Return True if one rank was timed as one of many (emulated ranks)."""
        return bool(self.outcome.report["emulated_members"])

    def status(self, number: int) -> Status:
        """Return how the training of one model ended.

        Parameters
        ----------
        number : int
            Number of the model, from 0, in the order of `models`.

        Returns
        -------
        Status
        """
        if self._is_made_up:
            return self.outcome.status
        first = float(self._first_losses[number])
        if not is_good(
            float(self.losses[number]), first if np.isfinite(first) else None
        ):
            return Status.DIVERGED
        return self.outcome.status

    def ending(self, number: int) -> str:
        """Return the status of one model in words.

        Parameters
        ----------
        number : int
            Number of the model, from 0, in the order of `models`.

        Returns
        -------
        str
            "worse" where F ended above where it began.
        """
        status = self.status(number)
        loss = float(self.losses[number])
        first = float(self._first_losses[number])
        return WORSE if status.is_good and is_worse(loss, first) else status.value

    @property
    def _first_losses(self) -> Array:
        """Return F of each model before the first step; NaN if it is unknown."""
        return _values(self.outcome.report["first_losses"] or None, len(self))

    def result(self, number: int) -> Result:
        """Return one model as a result of its own, for predict, evaluate and save.

        Parameters
        ----------
        number : int
            Number of the model, from 0, in the order of `models`.

        Returns
        -------
        Result
            Its ledger is that of the whole sweep.
        """
        model = self.models[number]
        outcome = self.outcome
        intercepts = self.intercepts
        held_out_loss = float(self.held[number])
        config = {name: dict(table) for name, table in outcome.config.items()}
        config["problem"]["l2"], config["rate"]["value"] = model.l2, model.rate
        del config["sweep"]
        left = ("models", "losses", "first_losses", "held")
        report = {k: v for k, v in outcome.report.items() if k not in left}
        report["model"] = vars(model) | {"number": number, "of": len(self)}
        if self._is_judged:
            report["held"] = held_out_loss
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
        """Return the table of all models as a list with a dict for each model.

        Returns
        -------
        list of dict
        """
        held_out_losses = self.held
        means = self.mean_held
        losses = self.losses
        return [
            dict(
                zip(
                    COLUMNS,
                    (
                        *(number, model.l2, model.rate, model.fold),
                        *(self.ending(number), float(losses[number])),
                        *(float(held_out_losses[number]), float(means[number])),
                    ),
                    strict=True,
                )
            )
            for number, model in enumerate(self.models)
        ]

    def json(self) -> str:
        """Return the table, the best model and the report as JSON.

        Returns
        -------
        str
        """
        document = {"best": self._best_or_none(), "models": self.rows()}
        return json.dumps(
            finite(document | {"run": self.outcome.as_dict()}),
            indent=2,
            allow_nan=False,
        )

    def csv(self) -> str:
        """Return the table as CSV.

        Returns
        -------
        str
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(finite(row) for row in self.rows())
        return text.getvalue()

    def to_frame(self) -> Any:
        """Return the table as a pandas.DataFrame, one row for each model."""
        return to_frame(self.rows(), index="model")

    def plot(self, ax: Any = None) -> Any:
        """Draw the loss of every setting with matplotlib.

        The horizontal axis is l2 if there are several, else the rate. The loss is that
        on held-out rows where there are any, else the objective. A ring marks the best
        model.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Without it there is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        ax = new_axes(ax)
        rows = [row for row in self.rows() if row["fold"] is None]
        is_judged = bool(np.isfinite([row["mean_held"] for row in rows]).any())
        loss = "mean_held" if is_judged else "loss"
        over, apart = (
            ("l2", "rate") if len({r["l2"] for r in rows}) > 1 else ("rate", "l2")
        )
        values = sorted({row[apart] for row in rows})
        for number, value in enumerate(values):
            line = sorted((r[over], r[loss]) for r in rows if r[apart] == value)
            colour = COLOURS[number % len(COLOURS)]
            mark = "os^Dvph"[number % 7]
            ax.plot(*zip(*line, strict=True), color=colour, marker=mark, markersize=3)
            ax.lines[-1].set_label(f"{apart} {value:g}")
        best = self._best_or_none()
        if best is not None:
            row = next(row for row in rows if row["model"] == best)
            ring = {"markersize": 11, "markerfacecolor": "none", "color": "0.4"}
            ax.plot(
                row[over], row[loss], "o", label=f"best: {over} {row[over]:.3g}", **ring
            )
        ax.set_xscale("log" if min(row[over] for row in rows) > 0 else "symlog")
        ax.set_xlabel({"l2": "ridge penalty l2", "rate": "learning rate"}[over])
        ax.set_ylabel("mean loss, held-out rows" if is_judged else "objective F")
        if best is not None or len(values) > 1:
            ax.legend(fontsize="small")
        return ax

    def _repr_html_(self) -> str:
        """Return the table and a picture for a notebook."""
        names = [name for name in COLUMNS if name not in ("fold", "held")]
        whole = [row for row in self.rows() if row["fold"] is None]
        rows = [{name: row[name] for name in names} for row in whole]
        best = self._best_or_none()
        note = "" if best is None else f"Best: model {best}."
        title = f"Sweep of {len(self)} models"
        return html(title, rows, lambda ax: self.plot(ax=ax), note)

    def save(self, folder: str | Path) -> Path:
        """Write sweep.csv, sweep.json, the result and, if there is a best model, best/.

        Parameters
        ----------
        folder : path-like
            The folder, which is made where it does not exist.

        Returns
        -------
        pathlib.Path
            The folder.
        """
        folder = Path(folder)
        self.outcome.save(folder)
        self.add_to(folder)
        return folder

    def add_to(self, folder: Path) -> None:
        """Write sweep.csv, sweep.json and, if there is a best model, its folder best/.

        Parameters
        ----------
        folder : pathlib.Path
            The run folder.
        """
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
        """Return `values` with the last axis split into models and scores (K > 1)."""
        each = values.shape[-1] // len(self)
        shape = (*values.shape[:-1], len(self), each)
        return values if each == 1 else values.reshape(shape)


def load_sweep(folder: str | Path) -> Sweep:
    """Read a sweep back from its run folder.

    Parameters
    ----------
    folder : path-like
        The folder that `Sweep.save` or a run with `run.out` has written.

    Returns
    -------
    Sweep
        The models.

    Raises
    ------
    DataError
        If the folder holds no sweep.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> found = hpcsgd.sweep(l2=[1e-4, 1e-2], X=X, y=X[:, 0] > 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = hpcsgd.load_sweep(found.save(folder))
    >>> len(again)
    2
    """
    outcome = load_result(folder)
    if "models" not in outcome.report:
        raise DataError(
            f"{folder} holds one model and no sweep; read it with hpcsgd.load_result"
        )
    return Sweep(outcome)


def _values(values: list[float | None] | None, count: int) -> Array:
    """Return `count` numbers of a report as a float64 array, with NaN for None."""
    numbers = values if values is not None else [None] * count
    return np.array([np.nan if v is None else v for v in numbers], dtype=np.float64)


def _order(loss: float) -> float:
    return loss if np.isfinite(loss) else np.inf


def _own(record: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a record of the history as that of model `number` alone."""
    model_record = {k: v for k, v in record.items() if k not in ("losses", "held")}
    if "losses" in record:
        value = record["losses"][number]
        model_record["loss"] = np.nan if value is None else value
    if "held" in record:
        model_record["held"] = record["held"][number]
    return model_record


# Train many models for the messages of one.


@one_thread()
def sweep(
    config: Config | None = None,
    *,
    l2: Sequence[float] | None = None,
    rate: Sequence[float] | None = None,
    folds: int | None = None,
    fold_seed: int | None = None,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Sweep:
    """Train a model for every penalty, rate and fold with one Gram matrix. Collective.

    Each model is what `hpcsgd.train` gives for its penalty, its rate, and sample
    weights of 0 for the rows of its fold. All ranks must call it.

    Parameters
    ----------
    config : RunConfig, mapping or path-like, optional
        The settings: {"section": {"key": value}}, or a TOML file of them. Without it
        every setting has its default.
    l2 : sequence of float, optional
        Ridge penalties; they override the setting `sweep.l2`.
    rate : sequence of float, optional
        First learning rates; they override the setting `sweep.rate`.
    folds : int, optional
        Folds of a cross-validation, 0 or at least 2. Every penalty and rate then has a
        model without each fold, and one on all rows.
    fold_seed : int, optional
        Seed that deals the rows to the folds.
    X : array, frame or sparse matrix of shape (n, d), optional
        The rows, the same on every rank. Without X the file `data.path` of `config` is
        read.
    y : array-like of shape (n,), optional
        The targets, where X is given.
    sample_weight : array-like of shape (n,), optional
        Weights c_i ≥ 0 of the rows.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores.
    world : Communicator, optional
        The ranks. Without it they are those of the launcher (mpiexec, srun), or this
        process alone.
    callbacks : list of Callback, optional
        Called during the run, on this rank.

    Returns
    -------
    Sweep
        The models, the same on all ranks.

    Raises
    ------
    ConfigError
        If a setting cannot work, or if there are neither penalties nor rates nor folds.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> found = hpcsgd.sweep(l2=[1e-4, 1e-2], rate=[0.5], folds=4, X=X, y=X[:, 0] > 0)
    >>> len(found), found.weights.shape
    (10, (3, 10))
    >>> found.models[found.best].l2
    0.0001
    """
    setup = Clock()
    arguments = {"l2": l2, "rate": rate, "folds": folds, "fold_seed": fold_seed}
    config = with_sweep(named_settings(config), arguments)
    check_configuration(config)
    reader = open_data(config, X, y, sample_weight, offset)
    run = config.run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    session = open_session(comm, RunSettings(config), reader, callbacks, setup=setup)
    result = Sweep(session.run())
    if config.run.out and "unsaved" not in result.outcome.report:
        ranks, out = session.world, Path(config.run.out)
        ranks.together(lambda: result.add_to(out) if ranks.rank == 0 else None)
    # Not after an error: others may still be in a sum, and closing waits for them.
    if world is None:
        session.world.close()
    return result


def with_sweep(named: NamedSettings, asked: Mapping[str, Any]) -> RunConfig:
    """Return all settings of a sweep: those in `named`, and in [sweep] those `asked`.

    What is None in `asked` is not asked for. `l2` and `rate` may be a number, an array
    or a sequence of numbers. Raise ConfigError if the sweep has neither l2 nor rates
    nor folds.
    """
    settings = {name: value for name, value in asked.items() if value is not None}
    for name in ("l2", "rate"):
        if name in settings:
            numbers = np.ravel(settings[name]).tolist()
            settings[name] = tuple(to_number(name, value) for value in numbers)
    if settings:
        named = overlay_tables(overlay_tables({}, named), {"sweep": settings})
    config = named if isinstance(named, RunConfig) else RunConfig.parse(named)
    if not config.sweep.is_many:
        raise ConfigError(
            "a sweep needs more than one model; give several --l2 or --rates, or"
            " --folds, or use hpcsgd train for one model"
        )
    return config


# Several rates raced in one run; the worse half is dropped until one is left.
#
# All of them share rows, Gram and messages, and those that are left continue from their
# weights: a race costs little more than the part of an epoch that it takes.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks log the same
WAYS = 8  # rates in a race: every round halves them
RACED = ("sgd", "momentum", "nesterov", "nesterov-classic")
SHARE = 0.5  # of an epoch, for the whole race


@one_thread()
def race(
    config: Config | None = None,
    *,
    rates: tuple[float, ...] = (),
    share: float = SHARE,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
) -> float:
    """Return the learning rate that lowers F most in a part of an epoch. Collective.

    All rates train together, with one Gram matrix. After each round the worse half
    leaves, and rates that diverge leave first. All ranks must call it.

    Parameters
    ----------
    config : RunConfig, mapping or path-like, optional
        The settings: {"section": {"key": value}}, or a TOML file of them. Without it
        every setting has its default.
    rates : tuple of float, optional
        The rates to compare. Without them there are eight: the rate of `config`, or the
        one derived from the data where that is "auto", times 1/16, 1/8, ... 8.
    share : float, default=0.5
        The part of an epoch that the whole race takes, above 0 and at most 1.
    X : array, frame or sparse matrix of shape (n, d), optional
        The rows, the same on every rank. Without X the file `data.path` of `config` is
        read.
    y : array-like of shape (n,), optional
        The targets, where X is given.
    sample_weight : array-like of shape (n,), optional
        Weights c_i ≥ 0 of the rows.
    offset : array-like of shape (n,), optional
        Numbers that are added to the scores.
    world : Communicator, optional
        The ranks. Without it they are those of the launcher (mpiexec, srun), or this
        process alone.

    Returns
    -------
    float
        The best rate, the same on all ranks and in every call.

    Raises
    ------
    ConfigError
        If a setting cannot work, or if every rate diverges.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(256, 3))
    >>> config = {"problem": {"family": "gaussian"}}
    >>> hpcsgd.race(config, rates=(1e-4, 0.1, 1e3), X=X, y=X[:, 0])
    0.1
    """
    config = parse_settings(config)
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"share = {share!r} must lie in (0, 1]; {SHARE} is usual")
    reader = open_data(config, X, y, sample_weight, offset)
    run = config.run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    config = resolve_grid(config, comm.size)
    best = race_on(config, comm, reader, rates, share)
    if world is None:
        comm.close()
    return best


@one_thread()
def race_on(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    rates: tuple[float, ...] = (),
    share: float = SHARE,
) -> float:
    """Return the best rate, as `race` does, on given ranks and rows. Collective.

    `reader` opens the rows on the ranks of `world`.
    """
    _check(config)
    with _counted_apart(world):
        opened = open_run(_for_race(config), world, reader, Clock())
        try:
            around = rates or _around(config, opened)
            return _Race(config, opened, share).run(around)
        finally:
            opened.grid.close()


def _check(config: RunConfig) -> None:
    kind = config.update.kind
    if kind not in RACED:
        raise ConfigError(
            f"a race of rates cannot be used with update.kind = {kind!r}, but only with"
            f" {', '.join(RACED)}; give a rate, or rate = 'auto'"
        )
    agreement = config.agreement
    if agreement.requires.one_model:
        raise ConfigError(
            "a race of rates trains several models together, and"
            f" {agreement.method or agreement.kind} trains one; give a rate, or rate ="
            " 'auto'"
        )


def _around(config: RunConfig, opened: OpenedRun) -> tuple[float, ...]:
    """Return `WAYS` rates: the rate of `config` times 1/16, 1/8, ... 8.

    If that is "auto", the rate derived from the data takes its place.
    """
    family = opened.words.family
    steepness = find_steepness(config, opened.grid, opened.loaded, family)
    middle = rate_of(config, steepness).value
    return tuple(middle * 2.0**k for k in range(-4, WAYS - 4))


def _for_race(config: RunConfig, rates: tuple[float, ...] = ()) -> RunConfig:
    """Return the settings of a race, whose choice is the same in every call.

    `rates` are those that train together, once they are known.
    """
    recipe = config.precision.recipe
    recipe = "fp32" if recipe == AUTO else recipe  # pilots would take longer
    values = {
        "run.device": "cpu",
        "run.reproducible": True,
        "schedule.epochs": 1,
        "rate.kind": "constant",
        "rate.warmup": 0,
        "precision.recipe": recipe,
    }
    sections: dict[str, Any] = {"average": AverageConfig()}
    if rates:
        # The rates are those of the sweep: none is derived from the data.
        values |= {"rate.value": 1.0, "rate.per_batch": 0}
        sections["sweep"] = SweepConfig(rate=rates)
    return rehearsal(config, values, **sections)


@contextmanager
def _counted_apart(world: Communicator) -> Iterator[None]:
    """Return a context for a race: no ledger entries, and sums in rank order."""
    counted = world.ledger.as_dict()
    try:
        with world.ordered_sums():
            yield
    finally:
        world.ledger.clear()
        world.ledger.add(counted)


@dataclass
class _Race:
    """A race: rounds of training, with F evaluated after each of them."""

    config: RunConfig  # of the run that the race is for
    opened: OpenedRun
    share: float

    def run(self, rates: tuple[float, ...]) -> float:
        """Run all rounds; return the best of the rates."""
        left = rates
        live = assemble_run(_for_race(self.config, left), self.opened, [])
        losses = first = self._losses(live)
        rounds = max(ceil(np.log2(len(left))), 1)
        each = live.feed.exchanges_per_epoch
        length = max(ceil(self.share * each / rounds), 1)
        while len(left) > 1:
            with np.errstate(all="ignore"):
                done = live.view.exchanges
                live.run_exchanges(live.feed.groups(done), length)
                live.product.finish()
            losses = self._losses(live)
            survivors = _better_half(losses, first)
            log.debug("race: %s", dict(zip(left, losses, strict=True)), extra=ONCE)
            if not survivors:
                raise ConfigError(
                    "every rate that was left in the race diverged, even the"
                    f" smallest, {min(left):g}; call hpcsgd.race with smaller rates"
                )
            left = tuple(left[k] for k in survivors)
            first = first[survivors]
            losses = losses[survivors]
            if len(left) > 1:
                live = self._fewer(live, left, survivors)
        if is_worse(float(losses[0]), float(first[0])):
            log.warning(
                "no rate of the race lowered the loss, and %g ended with the lowest;"
                " call hpcsgd.race with smaller rates, or with a larger `share`",
                left[0],
                extra=ONCE,
            )
        return float(left[0])

    def _losses(self, live: AssembledRun) -> Array:
        """Return F of every rate, at the consensus of the replicas. Collective."""
        seen = live.agreement.consensus(live.state, live.view.exchanges)
        own_columns = live.evaluation.own
        columns = live.task.columns
        intercept = None if seen.intercept is None else seen.intercept[0]
        with np.errstate(all="ignore"):
            losses = live.evaluation.objective.measure(
                seen.weights[own_columns, :columns], intercept
            )
        return losses.each

    def _fewer(
        self, live: AssembledRun, left: tuple[float, ...], kept: list[int]
    ) -> AssembledRun:
        """Return the run of the rates `left`, in the state of the models `kept`."""
        chosen = live.chosen
        earlier = EarlierChoice(
            chosen.product, chosen.steps, chosen.look_ahead, live.task.members.size
        )
        settings = _for_race(self.config, left)
        fewer = assemble_run(settings, self.opened, [], earlier)
        assert live.task.models is not None
        _take_columns(live.state, fewer.state, live.task.models, kept)
        view = fewer.view
        before = live.view
        view.exchanges = before.exchanges
        view.steps = before.steps
        view.rows = 0
        return fewer


def _better_half(losses: Array, first: Array) -> list[int]:
    """Return the numbers of the models that remain, in ascending order.

    At most half of the models remain, and none that diverged. `losses` and `first`,
    (models,), are F now and before the first step.
    """
    good = [
        k
        for k, (loss, start) in enumerate(zip(losses, first, strict=True))
        if is_good(float(loss), float(start))
    ]
    best = sorted(good, key=lambda k: (losses[k], k))[: max(len(losses) // 2, 1)]
    return sorted(best)


def _take_columns(before: State, after: State, models: Models, kept: list[int]) -> None:
    """Copy weights, optimizer state and intercept of the models `kept` to `after`.

    The columns of `before` contain the scores of each of `models` in turn, for the
    weights and then for each array of the update rule.
    """
    whole = np.arange(before.weights.shape[1]).reshape(-1, len(models), models.scores)
    after.weights[...] = before.weights[:, whole[:, kept].reshape(-1)]
    if before.intercept is not None and after.intercept is not None:
        columns = whole[0, kept].reshape(-1)
        after.intercept[...] = before.intercept[:, columns]
