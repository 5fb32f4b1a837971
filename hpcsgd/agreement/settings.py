"""What replicas may be told about how they agree."""

from dataclasses import dataclass

from hpcsgd.agreement.average import BUFFERS
from hpcsgd.errors import ConfigError

PEERS = ("all", "shift_one")  # whom the weights of a replica are mixed with


@dataclass(frozen=True)
class AgreementConfig:
    """How replicas agree."""

    method: str = ""  # a name that sets what this section and others leave open
    kind: str = "auto"  # average where there is more than one replica
    codec: str = "identity"  # of gradients on the wire (kind = "gradient")
    bucket: float = 4.0  # MiB of gradient that travel together; smaller = more overlap
    accumulate: int = 1  # batches whose gradients travel together
    momentum: str = "average"  # what becomes of it: or each keeps its own, or reset
    switch: float = 1.0  # postlocal: epochs of agreeing after every exchange
    groups: str = "node,all"  # hierarchical: of node, rack, all; or sizes, as "2,8"
    periods: str = ""  # hierarchical: one for each group, as "1,16"; none = 1 and τ
    fraction: float = 0.5  # fedavg: of the replicas, that train in a round
    base: str = "average"  # slowmo: the agreement below it
    slow_rate: float = 1.0  # slowmo: α; larger = further along the slow momentum
    slow_momentum: float = 0.5  # slowmo: β; 0 with α = 1 is the base alone
    slow_period: int = 0  # slowmo: exchanges; 0 = whenever the base agrees
    slow_sharded: bool = False  # slowmo: each replica keeps a part of the slow state
    hierarchical: str = "off"  # gradients: added on a node, a rack or N replicas first
    peers: str = "all"  # decentralized: whom weights are mixed with, or shift_one
    resync: int = 0  # decentralized-low: exchanges between weights as they are; 0 = off
    delay: int = 1  # async-average: exchanges that an average travels; 0 = average
    warmup_steps: int = 100  # qadam: of Adam, before v rests

    def __post_init__(self) -> None:
        if self.momentum not in BUFFERS:
            raise ConfigError(
                f"[agreement] momentum = {self.momentum!r} must be one of"
                f" {', '.join(BUFFERS)}"
            )
        for name, holds, wanted in (
            ("switch", 0.0 <= self.switch < float("inf"), "at least 0 and finite"),
            ("fraction", 0.0 < self.fraction <= 1.0, "above 0 and at most 1"),
            ("slow_rate", 0.0 < self.slow_rate < float("inf"), "above 0 and finite"),
            ("slow_momentum", 0.0 <= self.slow_momentum < 1.0, "in [0, 1)"),
            ("slow_period", self.slow_period >= 0, "at least 0"),
            ("peers", self.peers in PEERS, f"one of {', '.join(PEERS)}"),
            ("resync", self.resync >= 0, "at least 0"),
            ("delay", self.delay >= 0, "at least 0"),
            ("warmup_steps", self.warmup_steps >= 1, "at least 1: v is from them"),
        ):
            if not holds:
                value = getattr(self, name)
                raise ConfigError(f"[agreement] {name} = {value!r} must be {wanted}")
        if not 0.0 < self.bucket < float("inf"):
            raise ConfigError(
                f"[agreement] bucket = {self.bucket!r} MiB must be above 0; 4 is usual"
            )
        if self.accumulate < 1:
            raise ConfigError(
                f"[agreement] accumulate = {self.accumulate} must be at least 1;"
                " 1 sends every gradient"
            )
