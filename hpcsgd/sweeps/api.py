"""Train many models for the messages of one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcsgd.api import open_data
from hpcsgd.assembly.many import check_many
from hpcsgd.assembly.notices import settle_grid
from hpcsgd.backends.blas import one_thread
from hpcsgd.callbacks import Callback
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.session import Session
from hpcsgd.sweeps.outcome import Sweep
from hpcsgd.timing import Clock
from hpcsgd.unread import check_read


@one_thread()
def sweep(
    config: RunConfig | Mapping[str, Mapping[str, Any]] | None = None,
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
    """Train a model for every penalty, rate and fold, with one Gram for all of them.

    Each model is what `hpcsgd.train` gives for its penalty, its rate, and sample
    weights of 0 for the rows of its fold.

    Parameters
    ----------
    config : RunConfig or mapping of sections, what to do; defaults otherwise
    l2 : sequence of float, ridge penalties, in the place of `config.sweep.l2`
    rate : sequence of float, first rates, in the place of `config.sweep.rate`
    folds : int, parts of a cross-validation, 0 or at least 2; for every penalty and
        rate there is then a model without each part, and one on all rows
    fold_seed : int, which rows belong together
    X : ndarray or scipy.sparse matrix, (n, d), the rows, the same on every rank;
        else `config.data.path`
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to train on; else those of the launcher
    callbacks : further callbacks, on this rank

    Returns
    -------
    Sweep

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> found = sweep(l2=[1e-4, 1e-2], rate=[0.5], folds=4, X=X, y=X[:, 0] > 0)
    >>> len(found), found.weights.shape
    (10, (3, 10))
    >>> found.models[found.best].l2
    0.0001
    """
    began, setup = time.perf_counter(), Clock()
    if not isinstance(config, RunConfig):
        config = RunConfig.parse(config or {})
    asked = {"l2": l2, "rate": rate, "folds": folds, "fold_seed": fold_seed}
    config = with_sweep(config, asked)
    check_read(config)
    reader = open_data(config, X, y, sample_weight, offset)
    run = config.run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    config = settle_grid(config, comm.size)
    session = Session(config, comm, reader, callbacks or [], began, setup)
    found = Sweep(session.run())
    if config.run.out and "unsaved" not in found.outcome.report:
        ranks, out = session.world, Path(config.run.out)
        ranks.together(lambda: found.add_to(out) if ranks.rank == 0 else None)
    # Not after an error: others may still be in a sum, and closing waits for them.
    if world is None:
        session.world.close()
    return found


def with_sweep(config: RunConfig, asked: Mapping[str, Any]) -> RunConfig:
    """`config` with what was `asked` in its section, checked."""
    given: dict[str, Any] = {
        name: tuple(np.ravel(value).astype(float).tolist())
        if name in ("l2", "rate")
        else value
        for name, value in asked.items()
        if value is not None
    }
    config = replace(config, sweep=replace(config.sweep, **given))
    if not config.sweep.is_many:
        raise ConfigError(
            "a sweep of one model: give several --l2 or --rates, or --folds; hpcsgd"
            " train trains one"
        )
    check_many(config)
    return config
