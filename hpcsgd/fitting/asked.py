"""What the `config` of a fit asks of replicas, before it is parsed."""

import logging
from collections.abc import Mapping
from typing import Any

from hpcsgd.agreement.kinds import is_on_disk, takes_gradients
from hpcsgd.assembly.notices import ALONE
from hpcsgd.methods import with_method

log = logging.getLogger(__name__)


def agrees_on_gradients(config: Any) -> bool:
    """Whether it names an agreement whose replicas do, in every step."""
    return takes_gradients(str(_agreement(config).get("kind")))


def never_whole(config: Any) -> str:
    """The agreement that it names, if no rank ever holds all weights there."""
    asked = _agreement(config)
    if is_on_disk(str(asked.get("kind"))):
        return "--agreement infinity"
    is_third = (asked.get("kind"), asked.get("stage")) == ("sharded", 3)
    return "stage 3" if is_third else ""


def has_section(config: Any, name: str) -> bool:
    """Whether its writer said something there."""
    return isinstance(config, Mapping) and name in config


def grid_on(ranks: int, grid: Any, config: Any) -> Any:
    """`grid`, or a replica on each rank where there is none and it names a method of
    replicas.
    """
    kind = str(_agreement(config).get("kind", "auto"))
    if ranks == 1 or grid is not None or kind in ALONE or has_section(config, "grid"):
        return grid
    said = "no grid was given for a method of replicas: each of %d ranks is one"
    log.info(said, ranks, extra={"on_all_ranks": True})
    return ranks, 1


def _agreement(config: Any) -> Mapping[str, Any]:
    """With what its method sets; of a whole configuration nothing is left open."""
    if not isinstance(config, Mapping):
        return {}
    if not all(isinstance(table, Mapping) for table in config.values()):
        return {}  # which is said where it is parsed
    return with_method(config).get("agreement", {})
