"""What a run says before it begins, of settings that do nothing and of its grid."""

import logging
from dataclasses import replace

from hpcsgd.config import RunConfig
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.sections import GridConfig

log = logging.getLogger(__name__)
# Agreements that do something on one replica, too, and what is no agreement.
ALONE = ("auto", "none", "growing", "offload", "infinity")


def settle_grid(config: RunConfig, ranks: int) -> RunConfig:
    """`config`, with a replica on each rank where it is about replicas and no grid was
    given: members of one would agree on nothing.
    """
    is_open = config.grid == GridConfig() and not config.run.emulate_members
    is_other = config.agreement.kind in ALONE or config.update.kind == COORDINATE
    if ranks == 1 or not is_open or is_other:
        return config
    rows = config.schedule.batch * config.agreement.accumulate
    is_timed = config.agreement.kind == "anybatch"
    log.info(
        "%s is for replicas and no grid was given: each of %d ranks is one (--grid"
        " %dx1), so that %s %d x %d rows",
        _name(config),
        ranks,
        ranks,
        "a round of all has at most" if is_timed else "a step of all has",
        ranks,
        rows,
        extra={"on_all_ranks": True},
    )
    return replace(config, grid=GridConfig(replicas=ranks, members=1))


def _name(config: RunConfig) -> str:
    asked = config.agreement
    return f"--method {asked.method}" if asked.method else f"--agreement {asked.kind}"


def warn_of_one_replica(config: RunConfig, replicas: int, ranks: int) -> None:
    """Methods are about replicas; ranks that are members of one agree on nothing."""
    asked = config.agreement
    if replicas > 1 or ranks == 1 or asked.kind in ALONE:
        return
    log.warning(
        "%s is for replicas, and all %d ranks are members of one, so that nothing is"
        " agreed on; use --grid %dx1 for a replica on each rank",
        *(_name(config), ranks, ranks),
        extra={"on_all_ranks": True},
    )
