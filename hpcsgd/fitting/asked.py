"""What the `config` of a fit asks of replicas, before it is parsed."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.agreement.kinds import is_on_disk, takes_gradients
from hpcsgd.methods import with_method


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


def _agreement(config: Any) -> Mapping[str, Any]:
    """With what its method sets; of a whole configuration nothing is left open."""
    if not isinstance(config, Mapping):
        return {}
    if not all(isinstance(table, Mapping) for table in config.values()):
        return {}  # which is said where it is parsed
    return with_method(config).get("agreement", {})
