"""What replicas may be told about how they agree."""

from dataclasses import dataclass

from hpcsgd.agreements.averaging import BUFFERS
from hpcsgd.agreements.more.scheduled import ORDERS
from hpcsgd.agreements.more.tick_tock import MODES
from hpcsgd.errors import ConfigError

PEERS = ("all", "shift_one")  # whom the weights of a replica are mixed with
ROUNDS = ("clock", "full")  # what ends a round of any batch


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
    rounds: str = "clock"  # anybatch: what ends them; full = accumulate batches each
    deadline: float = 0.0  # anybatch: seconds a round computes; 0 = by the first round
    replay: str = ""  # anybatch: the rounds.csv of a run, or its folder, to do again
    graph: str = "ring"  # anybatch: full, ring, rings, matching, or edges as "0-1,1-2"
    mixing: int = 1  # anybatch: consensus iterations of a round; larger = closer
    weighted: bool = True  # anybatch: replicas count by the rows of their round
    partition: float = 4.0  # scheduled: MiB of a message; smaller = can be overtaken
    credit: float = 16.0  # scheduled: MiB under way; larger = the network is never idle
    order: str = "forward"  # scheduled: in which tiles are computed; others for tests
    tune_schedule: bool = False  # scheduled: measures partition and credit as it runs
    mode: str = "exact-sum"  # ticktock: or delayed, another method than SGD
    stage: int = 1  # sharded: optimiser state; 2 and gradient; 3 and weights
    delay_after: int = -1  # offload: exchanges until steps are one late; -1 = never
    tile: float = 64.0  # infinity: MiB of all buffers; smaller = less memory
    store: str = ""  # infinity: folder of the states; none = that of the run
    sync: bool = True  # infinity: on the drive before it counts; false = faster
    direct: bool = False  # infinity: past the page cache, where the drive can

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
            ("deadline", 0.0 <= self.deadline < float("inf"), "at least 0 and finite"),
            ("mixing", self.mixing >= 1, "at least 1"),
            ("rounds", self.rounds in ROUNDS, f"one of {', '.join(ROUNDS)}"),
            ("partition", self.partition > 0.0, "above 0; 4 MiB is usual"),
            ("credit", self.credit > 0.0, "above 0; 16 MiB is usual"),
            ("order", self.order in ORDERS, f"one of {', '.join(ORDERS)}"),
            ("mode", self.mode in MODES, f"one of {', '.join(MODES)}"),
            ("stage", self.stage in (1, 2, 3), "1, 2 or 3"),
            ("delay_after", self.delay_after >= -1, "at least 0, or -1 for never"),
        ):
            if not holds:
                value = getattr(self, name)
                raise ConfigError(f"[agreement] {name} = {value!r} must be {wanted}")
        if not 0.0 < self.tile < float("inf"):
            raise ConfigError(
                f"[agreement] tile = {self.tile!r} MiB must be above 0; 64 is usual"
            )
        if not 0.0 < self.bucket < float("inf"):
            raise ConfigError(
                f"[agreement] bucket = {self.bucket!r} MiB must be above 0; 4 is usual"
            )
        if self.accumulate < 1:
            raise ConfigError(
                f"[agreement] accumulate = {self.accumulate} must be at least 1;"
                " 1 sends every gradient"
            )
