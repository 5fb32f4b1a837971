"""A network in two numbers: what it would charge, and how one is written."""

from dataclasses import dataclass, fields
from typing import Any

from hpcsgd.errors import ConfigError


@dataclass(frozen=True)
class Network:
    """Latency and bandwidth, and whom they are felt with."""

    alpha: float  # seconds per hop of a tree
    bandwidth: float  # bytes per second of one rank's link
    ranks: int = 0  # emulated number of ranks; 0 = those there are
    jitter: float = 0.0  # a charge grows by up to this share, drawn anew each time
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < float("inf") and self.bandwidth > 0):
            raise ConfigError(
                "a network needs alpha >= 0 and bandwidth > 0, as in"
                " alpha=5e-5,bandwidth=1.25e9"
            )
        if self.ranks < 0 or self.jitter < 0 or self.seed < 0:
            raise ConfigError(
                "a network's ranks, jitter and seed must be at least 0; leave them out"
                " for as many ranks as there are and no jitter"
            )


NETWORKS = {
    "hpc": Network(5e-6, 25e9),
    "lan": Network(50e-6, 1.25e9),
    "cloud": Network(200e-6, 1.25e9),
}


def parse_network(text: str) -> Network:
    """A preset's name, or alpha=5e-5,bandwidth=1.25e9[,ranks=64][,jitter=0.1]."""
    if text in NETWORKS:
        return NETWORKS[text]
    known = {field.name: field.type for field in fields(Network)}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in known:
            raise ConfigError(
                f"--network {text}: {part!r} is not known; name one of"
                f" {', '.join(NETWORKS)}, or give {', '.join(known)} as"
                " alpha=5e-5,bandwidth=1.25e9"
            )
        kind = int if name.strip() in ("ranks", "seed") else float
        try:
            values[name.strip()] = kind(value)
        except ValueError as error:
            raise ConfigError(
                f"--network {text}: {value!r} is no number; write it as in"
                " alpha=5e-5,bandwidth=1.25e9"
            ) from error
    if not {"alpha", "bandwidth"} <= set(values):
        raise ConfigError(
            f"--network {text}: both alpha and bandwidth are needed, as in"
            " alpha=5e-5,bandwidth=1.25e9"
        )
    return Network(**values)
