"""What accordion may be told: what it turns, between which settings, and when."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.errors import ConfigError

# codec -> [codec] settings of low and of high compression
SETTINGS = {
    "powersgd": ("rank=2", "rank=1"),
    "topk": ("share=0.99", "share=0.1"),
    "randomk": ("share=0.99", "share=0.1"),
    "threshold": ("share=0.99", "share=0.1"),
    "dgc": ("share=0.99", "share=0.1"),
    "qsgd": ("bits=8", "bits=4"),
    "nuqsgd": ("bits=8", "bits=4"),
}
BOTH = ("feedback",)  # settings that there is one of, whatever is turned


@dataclass(frozen=True)
class AccordionConfig:
    """Less is saved while gradients change, more while they do not."""

    codec: str = "powersgd"  # whose settings turn (codec accordion)
    low: str = ""  # its settings while gradients change, as "rank=2"; none = usual ones
    high: str = ""  # and while they do not, as "rank=1, min_rate=0"
    eta: float = 0.5  # change of the norm that is critical; larger = saves more
    interval: int = 10  # epochs from one look to the next; larger = turns later
    scale_rate: bool = True  # with the batch (agreement growing)

    def __post_init__(self) -> None:
        if self.codec == "accordion":
            raise ConfigError(
                "[accordion] codec = 'accordion' turns itself; use powersgd or topk"
            )
        if not self.eta >= 0.0:
            raise ConfigError(
                f"[accordion] eta = {self.eta!r} must be at least 0; 0.5 is usual"
            )
        if self.interval < 1:
            raise ConfigError(
                f"[accordion] interval = {self.interval} must be at least 1 epoch"
            )

    def ways(self, config: CodecConfig) -> tuple[CodecConfig, CodecConfig]:
        """[codec] as it is for low and for high compression."""
        usual = SETTINGS.get(self.codec, ("", ""))
        low, high = (
            replace(config, **_read(key, said or other))
            for key, said, other in zip(
                ("low", "high"), (self.low, self.high), usual, strict=True
            )
        )
        if low == high:
            raise ConfigError(
                f"[accordion] codec = {self.codec!r} has the same settings for both low"
                " and high compression; set accordion.low and accordion.high, or use"
                f" one of {', '.join(SETTINGS)}"
            )
        return low, high


def _read(key: str, said: str) -> Mapping[str, Any]:
    """`name=value, name=value` as [codec] settings of the right kind."""
    kinds = {f.name: type(f.default) for f in fields(CodecConfig)}
    found = {}
    for item in filter(None, (part.strip() for part in said.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in kinds or name in BOTH:
            known = ", ".join(name for name in kinds if name not in BOTH)
            raise ConfigError(
                f"[accordion] {key} = {said!r} must be settings of [codec], as"
                f" 'rank=2, start=0'; known: {known}"
            )
        found[name] = _value(key, item, kinds[name], value)
    return found


def _value(key: str, item: str, kind: Any, value: str) -> Any:
    if kind is bool and value in ("true", "false"):
        return value == "true"
    try:
        if kind is not bool:
            return kind(value)
    except ValueError:
        pass
    wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise ConfigError(f"[accordion] {key}: {item!r} must be {wanted}")
