"""Two fits at once, each computing while the gradients of the other travel."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from hpcsgd.api import open_data, open_session
from hpcsgd.assembly.vocabulary import behind_network
from hpcsgd.backends.blas import one_thread
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.turns import Turns, in_turns, twin
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.result import Result
from hpcsgd.unread import check_read

Config = RunConfig | Mapping[str, Mapping[str, Any]]


@one_thread()
def tick_tock(
    first: Config,
    second: Config,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
) -> tuple[Result, Result]:
    """Two fits that share the ranks and nothing else, half a step out of phase.

    While the gradients of one travel, the other computes: at most twice as fast as one
    after the other, where computing takes as long as the transfers. Each has the bits
    that it would have alone. What hides is what travels while a run goes on: gradients
    (`ddp`, `bytescheduler`, codecs), not averages of weights.

    Parameters
    ----------
    first, second : RunConfig or mapping of sections, for the same ranks and network
    X : ndarray or scipy.sparse matrix, (n, d), the rows, the same on every rank;
        else the `data.path` of each
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to train on; else those of the launcher

    Returns
    -------
    (Result, Result)

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> weak, strong = tick_tock(
    ...     {"problem": {"l2": 0.01}}, {"problem": {"l2": 1.0}}, X=X, y=X[:, 0] > 0
    ... )
    >>> bool(abs(weak.weights[0]) > abs(strong.weights[0]))
    True
    """
    configs = [_parsed(one) for one in (first, second)]
    _check(*configs)
    run = configs[0].run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    if not comm.serves_threads:
        raise ConfigError(
            "tick_tock calls MPI from two threads in turns and this MPI allows one; set"
            " mpi4py.rc.thread_level = 'serialized' or 'multiple' before MPI starts"
        )
    # One network for both: what travels at the same time shares its bandwidth.
    there = behind_network(configs[0], comm)
    twins = [twin(there), twin(there)]
    reader = open_data(configs[0], X, y, sample_weight, offset)
    readers = [reader, open_data(configs[1], X, y, sample_weight, offset)]

    def work(own: int) -> Callable[[Turns], Result]:
        run = replace(configs[own].run, network="")
        config = replace(configs[own], run=run)

        def fit(turns: Turns) -> Result:
            twins[own].ledger.gives_way = lambda: turns.hand_over(own)
            return open_session(twins[own], config, readers[own]).run()

        return fit

    one, other = in_turns([work(0), work(1)])
    for group in twins:
        group.close()
    if world is None:
        comm.close()
    return one, other


def _parsed(config: Config) -> RunConfig:
    return config if isinstance(config, RunConfig) else RunConfig.parse(config)


def _check(first: RunConfig, second: RunConfig) -> None:
    if first.run.network != second.run.network or first.run.comm != second.run.comm:
        raise ConfigError(
            "tick_tock has one world for both fits, and [run] comm and network differ;"
            " give both the same"
        )
    if first.run.out and first.run.out == second.run.out:
        raise ConfigError(
            f"both fits of tick_tock would write to {first.run.out}; give each its own"
            " [run] out"
        )
    for config in (first, second):
        if config.run.emulate_members or config.run.on_failure == "shrink":
            raise ConfigError(
                "tick_tock knows neither --emulate-members nor --on-failure shrink;"
                " train the fits one after the other"
            )
        check_read(config)
        if config.run.device == "cuda":
            raise ConfigError(
                "tick_tock takes turns on processors, and both fits would queue on one"
                " stream of a GPU; use --device cpu, or train one after the other"
            )
        if config.sweep.is_many:
            raise ConfigError("[sweep] asks for several models; use hpcsgd.sweep")
