"""Several settings on the same data and ranks, interleaved, in one account."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from hpcsgd.files import own_folder, reason
from hpcsgd.result import Result
from hpcsgd.study.borrowed import borrowed
from hpcsgd.study.comparison import Comparison, row_of
from hpcsgd.study.line_up import Names, line_up
from hpcsgd.study.settings import (
    Entry,
    Refusal,
    Setting,
    Tables,
    check_equal_batch,
    check_names,
    check_shared,
    folder_name,
    on_ranks,
)
from hpcsgd.unread import check_read

log = logging.getLogger(__name__)


def compare(
    settings: Sequence[Entry],
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
    A method that cannot run as asked is refused, and the others run.

    Parameters
    ----------
    settings : the first is what the others are held to; among methods sgd is, or ddp
    repeats : runs of each setting; its time is their median
    allow_unequal : compare settings with other global batches all the same
    out : folder of the runs, NAME-1, NAME-2, ... in it
    X : ndarray or scipy.sparse matrix, (n, d), the rows; else the data path
    y : ndarray, (n,), targets
    world : the ranks to train on; else those of the launcher
    callbacks : makes the callbacks of one run, on this rank

    Returns
    -------
    Comparison
    """
    check_names(settings)
    comm = world if world is not None else open_world(_transport(_some(settings)))
    settings = [on_ranks(entry, comm.size) for entry in settings]
    check(settings, repeats, allow_unequal)
    entries = [_looked_up(entry, out, comm) for entry in settings]

    def run(setting: Setting, number: int) -> Result | Refusal:
        said = (setting.name, number, repeats)
        log.info("%s, run %d of %d", *said, extra={"on_all_ranks": True})
        return _run(setting, _placed(setting, out, number), X, y, comm, callbacks)

    found = _in_turns(entries, repeats, run)
    if world is None:
        comm.close()
    return found


def _in_turns(
    entries: list[Entry],
    repeats: int,
    run: Callable[[Setting, int], Result | Refusal],
) -> Comparison:
    """All runs; what one refuses is not asked again."""
    results: dict[str, list[Result]] = {entry.name: [] for entry in entries}
    for number in range(1, repeats + 1):
        for place, setting in enumerate(entries):
            if isinstance(setting, Refusal):
                continue
            found = run(setting, number)
            if isinstance(found, Refusal):
                entries[place] = found
            else:
                results[setting.name].append(found)
    return Comparison(
        tuple(
            row_of(one, results[one.name]) if isinstance(one, Setting) else one
            for one in _some(entries)
        )
    )


def compare_methods(
    methods: Names = "all",
    config: Tables | None = None,
    *,
    repeats: int = 3,
    out: str | Path | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    world: Communicator | None = None,
) -> Comparison:
    """Train every method on the same data and ranks, in turns.

    Parameters
    ----------
    methods : "all", "a,b,c" or a list: rows of `METHODS`, sgd, casgd and hybrid
    config : tables of `train` that all share; its batch is that of all replicas
    repeats : runs of each method; its time is their median
    out : folder of the runs
    X : ndarray or scipy.sparse matrix, (n, d), the rows; else the data path
    y : ndarray, (n,), targets
    world : the ranks to train on; else those of the launcher

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> found = compare_methods("sgd,ddp", X=X, y=X[:, 0] > 0, repeats=1)
    >>> [row.name for row in found.rows]
    ['sgd', 'ddp']
    """
    base = config or {}
    comm = world if world is not None else open_world(RunConfig.parse(base).run.comm)
    entries = line_up(methods, base, comm.size)
    check_shared(base, [one.config for one in entries if isinstance(one, Setting)])
    found = compare(entries, repeats=repeats, out=out, X=X, y=y, world=comm)
    if world is None:
        comm.close()
    return found


def check(settings: Sequence[Entry], repeats: int, allow_unequal: bool) -> None:
    """Refuse what cannot be compared, before anything is trained."""
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: at least 1 is needed; 3 is usual")
    check_names(settings)
    if not allow_unequal:
        check_equal_batch([one for one in _some(settings) if isinstance(one, Setting)])


def _some(entries: Sequence[Entry]) -> Sequence[Entry]:
    """All of them, unless nothing is left that could be trained."""
    refused = [one for one in entries if isinstance(one, Refusal)]
    if len(refused) == len(entries):
        raise ConfigError(
            f"nothing that was asked for can run here; {refused[0].name}:"
            f" {refused[0].why}"
        )
    return entries


def _transport(settings: Sequence[Entry]) -> str:
    """How ranks talk, which is one for all settings."""
    first = next(one for one in settings if isinstance(one, Setting))
    return first.config.run.comm


def _looked_up(entry: Entry, out: str | Path | None, world: Communicator) -> Entry:
    """Refuse what is unknown, or does not fit, before anything is trained."""
    if isinstance(entry, Refusal):
        return entry
    try:
        with borrowed(_placed(entry, out, 1), world) as config:
            world.together(lambda: _look_up(config, world))
    except ConfigError as error:
        if not entry.is_method:
            raise
        return Refusal(entry.name, str(error))
    return entry


def _look_up(config: RunConfig, world: Communicator) -> None:
    check_read(config)
    if config.update.kind == COORDINATE:
        form_of(config, world.size)
    else:
        resolve(config, world)


def _placed(setting: Setting, out: str | Path | None, number: int) -> RunConfig:
    """The setting's configuration with the folder of this run in it."""
    place = None
    if out:
        name = f"{folder_name(setting.name)}-{number}"
        try:
            place = str(own_folder(Path(out), name))
        except OSError as error:
            raise ConfigError(
                f"cannot write into --out {out}: {reason(error)}; remove that entry, or"
                " choose another folder"
            ) from error
    return replace(setting.config, run=replace(setting.config.run, out=place))


def _run(
    setting: Setting,
    config: RunConfig,
    X: Any,
    y: Any,
    world: Communicator,
    callbacks: Callable[[], list[Callback]],
) -> Result | Refusal:
    """One run; a method that these data do not suit, on all ranks alike, is refused."""
    try:
        with borrowed(config, world) as own:
            return train(own, X=X, y=y, world=world, callbacks=callbacks())
    except HpcsgdError as error:
        if _is_refusal(error, setting, world):
            return Refusal(setting.name, str(error))
        error.args = (f"setting {setting.name!r}: {error}",)
        raise


def _is_refusal(error: HpcsgdError, setting: Setting, world: Communicator) -> bool:
    """Whether all ranks know that this method does not suit, and can go on."""
    together = error.on_all_ranks or world.size == 1
    return setting.is_method and isinstance(error, ConfigError) and together
