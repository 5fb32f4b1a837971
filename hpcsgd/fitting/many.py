"""Several penalties and folds of one fit, through one Gram."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.callbacks import Callback
from hpcsgd.comm.base import Communicator
from hpcsgd.data.frames import is_wide, to_matrix
from hpcsgd.errors import ConfigError
from hpcsgd.fitting.given import open_data
from hpcsgd.fitting.runs import SLOWER, TRIES
from hpcsgd.fitting.settings import laid_over
from hpcsgd.fitting.start import make_start
from hpcsgd.fitting.wanted import EPOCHS, Wanted
from hpcsgd.session import Session
from hpcsgd.stopping import StopConfig
from hpcsgd.sweeps.api import with_sweep
from hpcsgd.sweeps.outcome import Sweep
from hpcsgd.timing import Clock

log = logging.getLogger(__name__)


def fit_many(
    wanted: Wanted,
    data: Any,
    sides: Mapping[str, Any],
    *,
    alphas: Sequence[float],
    folds: int,
    fold_of: Any = None,
    labels: Any = None,
    world: Communicator,
    layout: str = "replicated",
    callbacks: Sequence[Callback] = (),
    start: Any = None,
) -> Sweep:
    """A model for every alpha without each fold, and one on all rows.

    Parameters
    ----------
    wanted : arguments of `fit`, of which alpha is not looked at
    data, sides, layout : rows, and y, sample_weight and offset, as `fit` has them
    folds : their number; rows are dealt to them by `fold_of`, (n,) with 0..folds−1 or
        −1 for rows that are never held out; by number and seed where that is None
    labels : all there are, where the rows may lack some
    start : (weights, intercepts) to begin with, (d, models·K) and (models·K,)

    Returns
    -------
    Sweep
    """
    matrix = world.together(lambda: to_matrix(data))
    wide = bool(world.max_flag(int(is_wide(matrix.X))))
    epochs = EPOCHS["polished"] if wanted.epochs is None else wanted.epochs
    plain = replace(wanted, alpha=0.0, polish=False, epochs=epochs)
    config = world.together(lambda: plain.settings(matrix.path, wide))
    # Nobody waits for one of them: they are compared after as many epochs, at the end
    # of which the rate has gone to zero and with it what is not the model's but noise.
    config = replace(config, stop=StopConfig())
    if "kind" not in (laid_over({}, wanted.config).get("rate") or {}):
        config = replace(config, rate=replace(config.rate, kind="cosine"))
    asked = {"l2": alphas, "folds": folds, "fold_seed": config.sampling.seed}
    config = world.together(lambda: with_sweep(config, asked))
    given = world.together(lambda: open_data(matrix, sides, layout, config))
    given = given.knowing(labels=labels, fold_of=fold_of)
    for _ in range(TRIES):
        run = (config, world, given.opens, list(callbacks))
        session = Session(*run, time.perf_counter(), Clock())
        session.start = None if start is None else make_start(start)
        found = Sweep(session.run())
        if np.isfinite(found.mean_held).any() or not config.rate.is_open:
            return found
        rate = found.outcome.config["rate"]["value"] * SLOWER
        log.warning("every model diverged; again with a rate of %.3g", rate)
        config = replace(config, rate=replace(config.rate, value=rate))
    raise ConfigError(
        "every model diverged; scale the columns alike, or give a smaller rate"
    )
