"""Several rates raced in one run; the worse half is dropped until one is left.

All of them share rows, Gram and messages, and those that are left go on from where
they stand: a race costs little more than the part of an epoch that it takes.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcsgd.api import open_data
from hpcsgd.assembly.engine_parts import Earlier, Live
from hpcsgd.assembly.notices import settle_grid
from hpcsgd.auto_rate import settle_rate
from hpcsgd.averaging import AverageConfig
from hpcsgd.backends.blas import one_thread
from hpcsgd.build import Opened, open_all, put_together
from hpcsgd.comm import open_world
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.ledger import Ledger
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import is_good
from hpcsgd.models import Models
from hpcsgd.polish.settings import PolishConfig
from hpcsgd.precision import AUTO
from hpcsgd.products.base import State
from hpcsgd.result import is_worse
from hpcsgd.stopping import StopConfig
from hpcsgd.sweeps.settings import SweepConfig
from hpcsgd.timing import Clock

Array = NDArray[Any]
log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike
WAYS = 8  # rates in a race: every round halves them
RACED = ("sgd", "momentum", "nesterov", "nesterov-classic")
SHARE = 0.5  # of an epoch, for the whole race


@one_thread()
def race(
    config: RunConfig | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    rates: tuple[float, ...] = (),
    share: float = SHARE,
    X: Any = None,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    world: Communicator | None = None,
) -> float:
    """The rate that lowers F most in a part of an epoch.

    Parameters
    ----------
    config : RunConfig or mapping of sections, the run that the rate is for
    rates : floats, who takes part; if empty, eight powers of two around the rate of
        `config`, from its sixteenth to its eightfold; around that of the data where
        `config` says "auto"
    share : float in (0, 1], the part of an epoch that the whole race takes
    X : ndarray or scipy.sparse matrix, (n, d), the rows, the same on every rank;
        else `config.data.path`
    y : ndarray, (n,), targets
    sample_weight : ndarray, (n,), c_i >= 0
    offset : ndarray, (n,), added to every score
    world : Communicator, the ranks to race on; else those of the launcher

    Returns
    -------
    float, the same on all ranks and every time; rates that diverge leave first

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(256, 3))
    >>> config = {"problem": {"family": "gaussian"}}
    >>> race(config, rates=(1e-4, 0.1, 1e3), X=X, y=X[:, 0])
    0.1
    """
    if not isinstance(config, RunConfig):
        config = RunConfig.parse(config or {})
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"share = {share!r} must lie in (0, 1]; {SHARE} is usual")
    reader = open_data(config, X, y, sample_weight, offset)
    run = config.run
    comm = open_world(run.comm, timeout=run.timeout) if world is None else world
    config = settle_grid(config, comm.size)
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
    """The same on ranks and rows that are at hand; called by all of them together."""
    _check(config)
    with _counted_apart(world):
        opened = open_all(_for_race(config), world, reader, Clock())
        try:
            around = rates or _around(config, opened)
            found = replace(_for_race(config), sweep=SweepConfig(rate=around))
            return _Race(found, opened, share).run()
        finally:
            opened.grid.close()


def _check(config: RunConfig) -> None:
    kind = config.update.kind
    if kind not in RACED:
        raise ConfigError(
            f"a race is of steps of SGD, and update.kind = {kind!r} takes others; give"
            " the rate, or rate = 'auto'"
        )


def _around(config: RunConfig, opened: Opened) -> tuple[float, ...]:
    """Powers of two around the rate of the run; around that of the data where open."""
    found = opened.words, opened.grid, opened.loaded
    middle = settle_rate(config, found[1], found[2], found[0].family).rate.value
    return tuple(middle * 2.0**k for k in range(-4, WAYS - 4))


def _for_race(config: RunConfig) -> RunConfig:
    """The run that is asked about, in silence; what it chooses is always the same."""
    recipe = config.precision.recipe
    recipe = "fp32" if recipe == AUTO else recipe  # pilots would take longer
    return replace(
        config,
        schedule=replace(config.schedule, epochs=1),
        rate=replace(config.rate, kind="constant", warmup=0),
        polish=PolishConfig(),
        stop=StopConfig(),
        average=AverageConfig(),
        precision=replace(config.precision, recipe=recipe),
        run=replace(
            config.run,
            device="cpu",
            out=None,
            resume="no",
            reproducible=True,
            gap_every=0,
            check_members=0,
            fall_back=False,
            on_failure="stop",
        ),
    )


@contextmanager
def _counted_apart(world: Communicator) -> Iterator[None]:
    """What a race sends is no part of the run after it."""
    before, counted = world.reproducible, world.ledger.as_dict()
    world.reproducible = True
    try:
        yield
    finally:
        world.reproducible = before
        world.ledger.entries = Ledger().entries
        world.ledger.add(counted)


@dataclass
class _Race:
    """Rounds of training, a look at F after each."""

    config: RunConfig
    opened: Opened
    share: float

    def run(self) -> float:
        """All rounds."""
        left = self.config.sweep.rate
        live = put_together(self.config, self.opened, [])
        losses = first = self._losses(live)
        rounds = max(ceil(np.log2(len(left))), 1)
        each = live.engine.pace.exchanges_per_epoch
        length = max(ceil(self.share * each / rounds), 1)
        while len(left) > 1:
            with np.errstate(all="ignore"):
                done = live.engine.view.exchanges
                live.engine.rehearse(live.state, live.feed.groups(done), length)
                live.product.finish()
            losses = self._losses(live)
            kept = _better_half(losses, first)
            log.debug("race: %s", dict(zip(left, losses, strict=True)), extra=ONCE)
            if not kept:
                raise ConfigError(
                    f"every rate of the race diverged, the least of them {min(left):g};"
                    " start it from a smaller one"
                )
            left, first = tuple(left[k] for k in kept), first[kept]
            losses = losses[kept]
            if len(left) > 1:
                live = self._fewer(live, left, kept)
        if is_worse(float(losses[0]), float(first[0])):
            log.warning(
                "no rate of the race ended below where it began; %g ended lowest, so"
                " start it from smaller ones, or give it a larger share",
                left[0],
                extra=ONCE,
            )
        return float(left[0])

    def _losses(self, live: Live) -> Array:
        """F of every rate; replicas that have not agreed yet do so for the look."""
        seen = live.engine.agreement.consensus(live.state, live.engine.view.exchanges)
        own, columns = live.engine.evaluation.own, live.task.columns
        intercept = None if seen.intercept is None else seen.intercept[0]
        with np.errstate(all="ignore"):
            found = live.engine.evaluation.objective.measure(
                seen.weights[own, :columns], intercept
            )
        return found.each

    def _fewer(self, live: Live, left: tuple[float, ...], kept: list[int]) -> Live:
        """The same run with the columns of those that are left."""
        config = replace(self.config, sweep=SweepConfig(rate=left))
        chosen = live.chosen
        earlier = Earlier(
            chosen.product, chosen.steps, chosen.look_ahead, live.task.members.size
        )
        fewer = put_together(config, self.opened, [], earlier)
        assert live.task.models is not None
        _take_columns(live.state, fewer.state, live.task.models, kept)
        view, before = fewer.engine.view, live.engine.view
        view.exchanges, view.steps, view.rows = before.exchanges, before.steps, 0
        return fewer


def _better_half(losses: Array, first: Array) -> list[int]:
    """Those that go on, in their order: at most half, none that diverged."""
    good = [
        k
        for k, (loss, start) in enumerate(zip(losses, first, strict=True))
        if is_good(float(loss), float(start))
    ]
    best = sorted(good, key=lambda k: (losses[k], k))[: max(len(losses) // 2, 1)]
    return sorted(best)


def _take_columns(before: State, after: State, models: Models, kept: list[int]) -> None:
    """Of every state the columns of those that are kept."""
    whole = np.arange(before.weights.shape[1]).reshape(-1, len(models), models.scores)
    after.weights[...] = before.weights[:, whole[:, kept].reshape(-1)]
    if before.intercept is not None and after.intercept is not None:
        own = whole[0, kept].reshape(-1)
        after.intercept[...] = before.intercept[:, own]
