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
    """How replicas synchronise their weights or gradients."""

    method: str = ""
    kind: str = "auto"
    codec: str = "identity"
    # MiB of gradient in one message; smaller buckets overlap better with computation
    bucket: float = 4.0
    accumulate: int = 1  # batches whose gradients are added up before they are sent
    # momentum buffers when replicas average their weights: averaged too, kept by each
    # replica, or reset to 0
    momentum: str = "average"
    # postlocal: epochs in which replicas agree after every exchange
    switch: float = 1.0
    # hierarchical: nested groups of replicas, from node, rack and all, or their sizes,
    # as "2,8"
    groups: str = "node,all"
    # hierarchical: exchanges between two averages of each group, as "1,16"; empty means
    # 1 and the period of [schedule]
    periods: str = ""
    fraction: float = 0.5  # fedavg: share of the replicas that train in a round
    base: str = "average"  # slowmo: agreement that slow momentum is added to
    # slowmo: slow learning rate α; a larger one follows the slow momentum further
    slow_rate: float = 1.0
    # slowmo: slow momentum coefficient β; 0 with slow_rate = 1 leaves the base
    # agreement alone
    slow_momentum: float = 0.5
    # slowmo: exchanges between two slow steps; 0 takes one at each agreement of the
    # base
    slow_period: int = 0
    # slowmo: divide the slow state over the replicas to save memory
    slow_sharded: bool = False
    # all-reduce of gradients in two levels: first inside a node, a rack, or groups of N
    # replicas (node, rack or N); off uses one level
    hierarchical: str = "off"
    # decentralized: replicas that weights are mixed with, all of them or one other
    # replica that changes (shift_one)
    peers: str = "all"
    # decentralized-low: exchanges between two messages of uncompressed weights; 0 sends
    # none
    resync: int = 0
    # async-average: exchanges that an average takes to arrive; 0 makes it the agreement
    # average
    delay: int = 1
    # qadam: steps of uncompressed Adam before the second moment is frozen
    warmup_steps: int = 100
    # anybatch: what ends a round, a time limit (clock) or a full number of `accumulate`
    # batches (full)
    rounds: str = "clock"
    # anybatch: seconds of computation in a round; 0 measures them in the first round
    deadline: float = 0.0
    # anybatch: run folder, or its rounds.csv, whose rounds are repeated
    replay: str = ""
    # anybatch: graph of the replicas: full, ring, rings, matching, or edges as
    # "0-1,1-2"
    graph: str = "ring"
    # anybatch: consensus iterations of a round; more bring the replicas closer together
    mixing: int = 1
    weighted: bool = True  # anybatch: weight each replica by the rows of its round
    # scheduled: MiB of one message; smaller messages are overtaken more easily
    partition: float = 4.0
    # scheduled: MiB that may be in flight; more keep the network busy
    credit: float = 16.0
    # scheduled: order in which tiles are computed: forward, backward or shuffled, the
    # last two for tests
    order: str = "forward"
    tune_schedule: bool = False  # scheduled: tune partition and credit during the run
    # ticktock: exact-sum takes the steps of SGD; delayed and independent are other
    # methods
    mode: str = "exact-sum"
    # sharded: what is divided over the replicas: optimizer state (1), also gradients
    # (2), also weights (3)
    stage: int = 1
    # offload: exchanges after which steps are applied one exchange late; -1 never
    # delays them
    delay_after: int = -1
    tile: float = 64.0  # infinity: MiB of all buffers together; fewer need less memory
    # infinity: folder of weights and states on disk; empty takes the run folder
    store: str = ""
    # infinity: wait until data is on the drive; false is faster and less safe
    sync: bool = True
    direct: bool = False  # infinity: bypass the page cache if the drive supports it

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
