"""Methods that begin as another one, and runs that are over before that changes."""

from collections.abc import Iterator
from typing import Any

AS_DENSE = "all words went as they are"
# codec -> what it is until its levels adapt
ADAPT = {
    "alq": "it was nuqsgd",
    "amq": "its levels were powers of 1/2",
}


def still_before(config: Any, exchanges: int) -> str:
    """What a run of so many exchanges never came to, in a sentence; "" if to all.

    `config` has the sections of a run.
    """
    if config.grid.replicas == 1:
        return ""
    first, epochs = config.accordion.interval + 1, config.schedule.epochs
    meanwhile = _until_a_look(config)
    if meanwhile and epochs <= first:
        return (
            f"{meanwhile} until accordion.interval + 1 = {first} epochs, and the run"
            f" had {epochs}"
        )
    for setting, first, meanwhile in _beginnings(config):
        if exchanges <= first:
            return (
                f"{meanwhile} until {setting} = {first} exchanges, and the run had"
                f" {exchanges}"
            )
    return ""


def _until_a_look(config: Any) -> str:
    """Return what it is before two looks at its gradients; "" if it does not look."""
    if config.agreement.kind == "growing":
        return "its batches were small"
    return "it compressed little" if config.agreement.codec == "accordion" else ""


def _beginnings(config: Any) -> Iterator[tuple[str, int, str]]:
    """(setting, exchanges until the method is itself, what it is before)."""
    asked, codec = config.agreement, config.codec
    name = config.accordion.codec if asked.codec == "accordion" else asked.codec
    if asked.kind == "qadam":
        yield "agreement.warmup_steps", asked.warmup_steps, "it was plain Adam"
    if name == "powersgd":
        yield "codec.start", codec.start, AS_DENSE
    if name in ADAPT:
        yield "codec.adapt", codec.adapt, ADAPT[name]
