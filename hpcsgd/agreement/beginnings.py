"""Methods that begin as another one, and runs that are over before that changes."""

from collections.abc import Iterator
from typing import Any

AS_DENSE = "all words went as they are"
ADAPT = ("alq", "amq")


def still_before(config: Any, exchanges: int) -> str:
    """What a run of so many exchanges never came to, in a sentence; "" if to all.

    `config` has the sections of a run.
    """
    if config.grid.replicas == 1:
        return ""
    for setting, first, meanwhile in _beginnings(config):
        if exchanges <= first:
            return (
                f"{meanwhile} until {setting} = {first} exchanges, and the run had"
                f" {exchanges}"
            )
    return ""


def _beginnings(config: Any) -> Iterator[tuple[str, int, str]]:
    """(setting, exchanges until the method is itself, what it is before)."""
    asked, codec = config.agreement, config.codec
    name = config.accordion.codec if asked.codec == "accordion" else asked.codec
    if asked.kind == "qadam":
        yield "agreement.warmup_steps", asked.warmup_steps, "it was plain Adam"
    if name == "powersgd":
        yield "codec.start", codec.start, AS_DENSE
    if name in ADAPT:
        yield "codec.adapt", codec.adapt, "it was nuqsgd"
