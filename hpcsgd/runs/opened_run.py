"""The opening of a run: names are resolved, ranks arranged in a grid, rows loaded."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcsgd.agreements.base import agreement_name
from hpcsgd.backends import compiled_calls, make_backend
from hpcsgd.backends.base import Backend, ColumnDraws, make_loss_scale
from hpcsgd.backends.compiled_calls import SOFTMAX
from hpcsgd.backends.task import Clip, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid, check_size, close_on_agreed_error
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.network_model import (
    DelayedCommunicator,
    EmulatedCommunicator,
    parse_network,
)
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.data.sampling import make_sampler
from hpcsgd.data.shard import Shard
from hpcsgd.data.stream import Route
from hpcsgd.errors import ConfigError
from hpcsgd.formats import get_format
from hpcsgd.glm import get_family, make_update
from hpcsgd.glm.families import Family, for_models
from hpcsgd.glm.penalties import Models
from hpcsgd.glm.updates import LinearUpdate
from hpcsgd.precision import Precision
from hpcsgd.products.base import make_clip
from hpcsgd.runs.checks import refuse_combinations, warn_of_one_replica
from hpcsgd.runs.gpu import open_gpu
from hpcsgd.runs.load import LoadedRows, load
from hpcsgd.runs.memory import check_memory

if TYPE_CHECKING:  # a run without a GPU needs none of it
    from hpcsgd.backends.cuda.device import Device

log = logging.getLogger(__name__)

# What a configuration names, before any data is seen.


@dataclass(frozen=True)
class ResolvedNames:
    """The objects that the names of a configuration stand for."""

    world: Communicator  # with the delays of run.network
    members: int
    family: Family
    precision: Precision
    backend: Backend
    update: LinearUpdate
    agreement: str
    latency: float  # least seconds of a message on run.network; 0 without


def resolve_names(config: RunConfig, world: Communicator) -> ResolvedNames:
    """Return the objects that `config` names; refuse unknown or unfit names."""
    refuse_combinations(config)
    world = _as_many(config, world)
    replicas = config.grid.replicas
    members = config.grid.members or max(world.size // max(replicas, 1), 1)
    check_size(world.size, replicas, members)
    warn_of_one_replica(config, replicas, world.size)
    precision = config.precision.resolve()
    update = config.update
    agreement = agreement_name(config)
    network = parse_network(config.run.network) if config.run.network else None
    # Ranks that wait for each other in shared memory would not see one die.
    shrinks = config.run.on_failure == "shrink"
    world.share_nodes("off" if shrinks else config.run.node_sharing)
    return ResolvedNames(
        world=emulate_network(config, world),
        members=members,
        family=_family(config),
        precision=precision,
        backend=make_backend(precision),
        update=make_update(
            update.kind,
            0.0 if update.kind == "sgd" else update.momentum,
            update.bits,
            config.agreement.proximal if agreement != "none" else 0.0,
        ),
        agreement=agreement,
        latency=network.alpha if network else 0.0,
    )


def emulate_network(config: RunConfig, world: Communicator) -> Communicator:
    """Return the world with the delays of the requested network.

    A world that has the delays of this network already is returned as it is.
    """
    if not config.run.network:
        return world
    network = parse_network(config.run.network)
    if isinstance(world, DelayedCommunicator) and world.network == network:
        return world
    return DelayedCommunicator(world, network)


def _as_many(config: RunConfig, world: Communicator) -> Communicator:
    """Return `world`; with --emulate-members, an emulated one that has this rank."""
    run = config.run
    grid = config.grid
    if not run.emulate_members:
        return world
    if world.size > 1 or run.out or run.resume != "no":
        raise ConfigError(
            "--emulate-members only times one rank and trains no model; start it on one"
            " rank, without --out and --resume"
        )
    members = grid.members or run.emulate_members // max(grid.replicas, 1)
    check_size(run.emulate_members, grid.replicas, members)
    return EmulatedCommunicator(
        run.emulate_members, (members, grid.replicas), world.ledger, world.reproducible
    )


def _family(config: RunConfig) -> Family:
    """Return the family of a run; on a GPU, refuse a family that has no kernels."""
    family = get_family(config.problem.family, vars(config.problem))
    if config.run.device != "cuda":
        return family
    from hpcsgd.backends.cuda import kernels

    if family.name not in (*kernels.FAMILIES, SOFTMAX):
        raise ConfigError(
            f"the family {family.name!r} has no kernels for a GPU; use --device cpu, or"
            f" one of the families {', '.join((*kernels.FAMILIES, SOFTMAX))}"
        )
    return family


# The ranks of a run, each with its block of the data.


@dataclass(frozen=True)
class OpenedRun:
    """A run that has no plan yet: its resolved names, its grid of ranks, its rows."""

    words: ResolvedNames
    grid: Grid
    loaded: LoadedRows
    device: "Device | None"

    @property
    def world(self) -> Communicator:
        """Return all ranks of the run."""
        return self.grid.world


def open_run(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> OpenedRun:
    """Resolve the names, arrange the ranks in a grid and load their rows. Collective.

    `reader` opens the rows on the ranks of a world. `setup` times the parts of the
    opening.
    """
    order = ("", *compiled_calls.SETS)
    own_place = order.index(world.together(compiled_calls.instructions))
    compiled_calls.settle([order[-world.max_flag(-own_place)]])
    _use_threads(config.run.threads, world)
    device, world = open_gpu(config, world)
    words = world.together(lambda: resolve_names(config, world))
    grid = Grid(words.world, config.grid.replicas, words.members)
    with close_on_agreed_error(grid.close):
        loaded = _load(config, words, grid, reader, setup)
    return OpenedRun(words, grid, loaded, device)


def _load(
    config: RunConfig,
    words: ResolvedNames,
    grid: Grid,
    reader: Callable[[Communicator], RowReader],
    setup: Clock,
) -> LoadedRows:
    """Return this rank's block of the rows that the reader opens. Collective."""
    opened = grid.world.together(lambda: reader(grid.world))
    streams = check_memory(
        grid, opened, config, words.precision, words.update.states * config.sweep.count
    )
    setup.lap("open")
    stays = streams or getattr(opened, "is_there", False)
    route = _router(config, grid.replica) if stays else None
    loaded = load(grid, opened, config, words.family, words.backend, route)
    setup.lap("read")
    return loaded


def _router(config: RunConfig, replica: int) -> Callable[[int], Route | None]:
    """Return a function from the number of rows of a replica to its `Route`.

    A route is the order in which the rows are read. The function returns None if a GPU
    stores all rows, or if they are read by tiles.
    """
    if config.run.device == "cuda" or config.agreement.on_disk:
        return lambda rows: None
    return lambda rows: Route(
        make_sampler(config.sampling, rows, replica), config.schedule.most_epochs
    )


def _use_threads(count: int, world: Communicator) -> None:
    """Set the number of threads of the compiled kernels; warn of too few cores."""
    compiled_calls.use(count)
    if count > 1:
        compiled_calls.warn(
            count, world.exchange_objects(compiled_calls.place()), world.rank
        )


# The task of a rank: what its exchanges know of the run.


def make_task(config: RunConfig, opened: OpenedRun) -> Task:
    """Return the task of this rank, without a monitor and without an agreement."""
    words = opened.words
    grid = opened.grid
    loaded = opened.loaded
    models = many_models(config, loaded.columns)
    family: Any = words.family
    if models is not None:
        family = for_models(words.family, len(models), loaded.columns)
    _set_rounding(words.backend, config, grid.replica, loaded.shard)
    return Task(
        shard=loaded.shard,
        backend=words.backend,
        members=grid.members,
        family=family,
        precision=words.precision,
        columns=score_columns(config, loaded.columns),
        states=words.update.states,
        probe=words.update.probe(),
        clock=Clock(),
        clip=_clip(config, words.backend),
        anchored=words.update.is_anchored,
        models=models,
    )


def many_models(config: RunConfig, scores: int) -> Models | None:
    """Return the models of [sweep], with `scores` scores a row each.

    Return None if the run has one model.
    """
    if not config.sweep.is_many:
        return None
    return config.sweep.models(config.problem.l2, config.rate.value, scores)


def score_columns(config: RunConfig, scores: int) -> int:
    """Return the number of scores of a row, of all models; each has `scores` scores."""
    models = many_models(config, scores)
    return scores if models is None else models.columns


def _set_rounding(
    backend: Backend, config: RunConfig, replica: int, shard: Shard
) -> None:
    """Set how the backend rounds weights and scales residuals.

    Refuse stochastic rounding of weights in a wide format.
    """
    weights = get_format(backend.precision.weights)
    draws = config.precision.rounding == "stochastic"
    if draws and weights.is_wide:
        raise ConfigError(
            f"[precision] rounding = 'stochastic' has no effect on weights in"
            f" {weights.name}; leave it out, or set precision.weights to a narrow"
            " format, as bf16"
        )
    if draws:
        seed = config.sampling.seed
        backend.dice = ColumnDraws(seed, replica, shard.columns, shard.total_columns)
    if backend.loss_scale is not None:
        scale = config.precision
        backend.loss_scale = make_loss_scale(
            scale.loss_scale, scale.loss_scale_start, scale.loss_scale_growth
        )


def _clip(config: RunConfig, backend: Backend) -> Clip | None:
    update = config.update
    clip = make_clip(update.clip, update.limit)
    if config.agreement.shares_gradients:
        return None  # the agreement clips the gradient of all replicas
    weights = get_format(backend.precision.weights)
    if clip is not None and not weights.is_wide:
        raise ConfigError(
            f"[update] clip = {update.clip!r} cannot be used with weights in"
            f" {weights.name}; leave it out, or use --set precision.weights=fp32"
        )
    return clip
