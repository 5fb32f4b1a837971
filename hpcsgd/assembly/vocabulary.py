"""What a configuration names, before any data is seen."""

from hpcsgd.agreement import AGREEMENTS
from hpcsgd.agreement.nested import plan_levels
from hpcsgd.agreement.slowmo import BASES
from hpcsgd.assembly.engine_parts import Vocabulary
from hpcsgd.assembly.gradient_checks import check as check_gradient
from hpcsgd.assembly.many import check_many
from hpcsgd.assembly.notices import warn_of_one_replica
from hpcsgd.assembly.proximal import check_steps
from hpcsgd.assembly.variance import check_svrg
from hpcsgd.backends import make_backend
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.delayed import Delayed
from hpcsgd.comm.emulated import EmulatedCommunicator
from hpcsgd.comm.grid import check_size
from hpcsgd.comm.network import parse_network
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.errors import ConfigError
from hpcsgd.families import get_family
from hpcsgd.products import get_product
from hpcsgd.updates import make_update


def resolve(config: RunConfig, world: Communicator) -> Vocabulary:
    """Look every name up; what is unknown or does not fit is refused here."""
    check_steps(config)
    if config.update.kind == COORDINATE:
        raise ConfigError(
            f"--update {COORDINATE} takes no steps of SGD, which this is about; use"
            " hpcsgd train for it, or another --update"
        )
    check_svrg(config)
    world, replicas = _as_many(config, world), config.grid.replicas
    members = config.grid.members or max(world.size // max(replicas, 1), 1)
    check_size(world.size, replicas, members)
    warn_of_one_replica(config, replicas, world.size)
    if config.products.kind != "auto":
        get_product(config.products.kind)
    precision, update = config.precision.resolve(), config.update
    check_gradient(config, precision)
    check_many(config)
    network = parse_network(config.run.network) if config.run.network else None
    # Ranks that wait for each other in shared memory would not see one die.
    shrinks = config.run.on_failure == "shrink"
    world.share_nodes("off" if shrinks else config.run.node_sharing)
    return Vocabulary(
        world=behind_network(config, world),
        members=members,
        family=get_family(config.problem.family),
        precision=precision,
        backend=make_backend(precision),
        update=make_update(
            update.kind,
            0.0 if update.kind == "sgd" else update.momentum,
            update.bits,
        ),
        agreement=_agreement(config),
        latency=network.alpha if network else 0.0,
    )


def behind_network(config: RunConfig, world: Communicator) -> Communicator:
    """The world, as slow as the network that is asked for."""
    if not config.run.network:
        return world
    return Delayed(world, parse_network(config.run.network))


def _as_many(config: RunConfig, world: Communicator) -> Communicator:
    """The world, or this rank as one of those that are emulated."""
    run, grid = config.run, config.grid
    if not run.emulate_members:
        return world
    if world.size > 1 or run.out or run.resume != "no":
        raise ConfigError(
            "--emulate-members times one rank and learns nothing: start it on one"
            " rank, without --out and --resume"
        )
    members = grid.members or run.emulate_members // max(grid.replicas, 1)
    check_size(run.emulate_members, grid.replicas, members)
    return EmulatedCommunicator(
        run.emulate_members, (members, grid.replicas), world.ledger, world.reproducible
    )


def _agreement(config: RunConfig) -> str:
    kind, replicas = config.agreement.kind, config.grid.replicas
    if kind == "auto":
        return "average" if replicas > 1 else "none"
    if kind not in AGREEMENTS:
        known = sorted([*AGREEMENTS, "auto"])
        raise ConfigError(f"[agreement] unknown kind: {kind!r}; known: {known}")
    if kind == "none" and replicas > 1:
        raise ConfigError(
            f"[agreement] kind = 'none' with {replicas} replicas trains as many"
            " unrelated models; use kind = 'average', or --grid 1xN"
        )
    _check_base(config, kind)
    return kind


def _check_base(config: RunConfig, kind: str) -> None:
    """What a row needs besides its own settings."""
    asked, base = config.agreement, config.agreement.base
    if kind == "slowmo":
        if base not in BASES:
            known = sorted(BASES)
            raise ConfigError(f"[agreement] unknown base: {base!r}; known: {known}")
        kind = base
    if kind != "hierarchical":
        return
    plan_levels(
        asked.groups, asked.periods, config.schedule.period, config.grid.replicas
    )
    if config.run.emulate_members:
        raise ConfigError(
            "--emulate-members knows no nested groups of replicas; use --agreement"
            " average"
        )
