"""Train from Python: one call, on the ranks that the program was started with."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from hpcsgd.assembly.notices import settle_grid
from hpcsgd.auto_precision import settle_precision
from hpcsgd.backends.blas import one_thread
from hpcsgd.callbacks import Callback
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.run import CoordinateRun
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.data.readers import RowReader, open_reader
from hpcsgd.errors import ConfigError
from hpcsgd.result import Result
from hpcsgd.session import Session
from hpcsgd.start import Start
from hpcsgd.timing import Clock
from hpcsgd.unread import check_read


@one_thread()
def train(
    config: RunConfig | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train a generalized linear model.

    Minimises F(w) = (1/Σc) Σ c_i ℓ(a_i·w, y_i) + l1‖w‖₁ + (l2/2)‖w‖² by s-step SGD,
    or by one of the coordinate forms.

    Parameters
    ----------
    config : RunConfig or mapping of sections, what to do; defaults otherwise
    X : ndarray or scipy.sparse matrix, (n, d), the rows, the same on every rank;
        else `config.data.path`
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to train on; else those of the launcher
    callbacks : further callbacks, on this rank

    Returns
    -------
    Result

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> result = train({"rate": {"value": 0.5}}, X=X, y=X[:, 0] > 0)
    >>> result.weights.shape
    (3,)
    """
    began = time.perf_counter()
    if not isinstance(config, RunConfig):
        config = RunConfig.parse(config or {})
    if config.sweep.is_many:
        raise ConfigError("[sweep] asks for several models; use hpcsgd.sweep")
    check_read(config)
    reader = open_data(config, X, y, sample_weight, offset)
    run = config.run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    session = open_session(comm, config, reader, callbacks, began=began)
    result = session.run()
    # Not after an error: others may still be in a sum, and closing waits for them.
    if world is None:
        session.world.close()
    return result


def open_session(
    world: Communicator,
    config: RunConfig,
    reader: Callable[[Communicator], RowReader],
    callbacks: list[Callback] | None = None,
    start: Start | None = None,
    began: float | None = None,
) -> Session:
    """A run on the ranks of `world` with what `reader` opens there, ready to go."""
    began, setup = began or time.perf_counter(), Clock()
    config = settle_grid(config, world.size)
    if config.update.kind == COORDINATE:
        run = CoordinateRun(config, world, reader, callbacks or [], began, setup)
        run.start = start
        return run
    config, notes = settle_precision(config, world, reader)
    session = Session(config, world, reader, callbacks or [], began, setup, notes)
    session.start = start
    return session


def open_data(
    config: RunConfig, X: Any, y: Any, sample_weight: Any, offset: Any
) -> Callable[[Communicator], RowReader]:
    """What opens the rows: arrays that were given, or the file of `config`."""
    if X is not None and y is not None:
        from hpcsgd.data.memory import MemoryReader

        return lambda _: MemoryReader(X, y, sample_weight, offset)
    if X is not None or y is not None:
        raise ConfigError("give both X and y, or neither and a data path")
    if not config.data.path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path, or X and y")
    path = Path(config.data.path)
    if config.data.hdf5 == "mpio":
        return lambda world: open_reader(path, world.mpi_handle)
    return lambda _: open_reader(path)
