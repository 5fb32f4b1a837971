"""What replicas may be told about how they agree."""

from dataclasses import dataclass

from hpcsgd.agreements import AGREEMENTS
from hpcsgd.agreements.averaging import BUFFERS
from hpcsgd.agreements.codecs import CODECS
from hpcsgd.agreements.more.scheduled import ORDERS
from hpcsgd.agreements.more.tick_tock import MODES
from hpcsgd.agreements.slowmo import BASES
from hpcsgd.errors import ConfigError
from hpcsgd.settings import setting

PEERS = ("all", "shift_one")  # whom the weights of a replica are mixed with
ROUNDS = ("clock", "full")  # what ends a round of any batch


@dataclass(frozen=True)
class AgreementConfig:
    """How replicas synchronise their weights or gradients."""

    method: str = setting(
        "",
        "named method that sets agreement, codec and the settings that belong to them"
        " (`hpcsgd info` lists the methods)",
    )
    kind: str = setting(
        "auto",
        "how replicas synchronise their weights or gradients (`hpcsgd info` lists the"
        " agreements)",
        choices=lambda: (*AGREEMENTS, "auto"),
    )
    codec: str = setting(
        "identity",
        "compression of the gradients that replicas send (`hpcsgd info` lists the"
        " codecs)",
        choices=lambda: tuple(CODECS),
    )
    bucket: float = setting(
        4.0,
        "MiB of gradient in one message; smaller buckets overlap better with"
        " computation",
    )
    accumulate: int = setting(
        1, "batches whose gradients are added up before they are sent"
    )
    momentum: str = setting(
        "average",
        "momentum buffers when replicas average their weights: averaged too, kept by"
        " each replica, or reset to 0",
        choices=BUFFERS,
    )
    switch: float = setting(
        1.0, "postlocal: epochs in which replicas agree after every exchange"
    )
    groups: str = setting(
        "node,all",
        "hierarchical: nested groups of replicas, from node, rack and all, or their"
        ' sizes, as "2,8"',
        is_count=True,
    )
    periods: str = setting(
        "",
        'hierarchical: exchanges between two averages of each group, as "1,16"; empty'
        " means 1 and the period of [schedule]",
        is_count=True,
    )
    fraction: float = setting(
        0.5, "fedavg: share of the replicas that train in a round"
    )
    base: str = setting(
        "average",
        "slowmo: agreement that slow momentum is added to",
        choices=tuple(BASES),
    )
    slow_rate: float = setting(
        1.0,
        "slowmo: slow learning rate α; a larger one follows the slow momentum further",
    )
    slow_momentum: float = setting(
        0.5,
        "slowmo: slow momentum coefficient β; 0 with slow_rate = 1 leaves the base"
        " agreement alone",
    )
    slow_period: int = setting(
        0,
        "slowmo: exchanges between two slow steps; 0 takes one at each agreement of"
        " the base",
    )
    slow_sharded: bool = setting(
        False, "slowmo: divide the slow state over the replicas to save memory"
    )
    hierarchical: str = setting(
        "off",
        "all-reduce of gradients in two levels: first inside a node, a rack, or"
        " groups of N replicas (node, rack or N); off uses one level",
        is_count=True,
    )
    peers: str = setting(
        "all",
        "decentralized: replicas that weights are mixed with, all of them or one"
        " other replica that changes (shift_one)",
        choices=PEERS,
    )
    resync: int = setting(
        0,
        "decentralized-low: exchanges between two messages of uncompressed weights; 0"
        " sends none",
    )
    delay: int = setting(
        1,
        "async-average: exchanges that an average takes to arrive; 0 makes it the"
        " agreement average",
    )
    warmup_steps: int = setting(
        100, "qadam: steps of uncompressed Adam before the second moment is frozen"
    )
    rounds: str = setting(
        "clock",
        "anybatch: what ends a round, a time limit (clock) or a full number of"
        " `accumulate` batches (full)",
        choices=ROUNDS,
    )
    deadline: float = setting(
        0.0,
        "anybatch: seconds of computation in a round; 0 measures them in the first"
        " round",
    )
    replay: str = setting(
        "", "anybatch: run folder, or its rounds.csv, whose rounds are repeated"
    )
    graph: str = setting(
        "ring",
        "anybatch: graph of the replicas: full, ring, rings, matching, or edges as"
        ' "0-1,1-2"',
    )
    mixing: int = setting(
        1,
        "anybatch: consensus iterations of a round; more bring the replicas closer"
        " together",
    )
    weighted: bool = setting(
        True, "anybatch: weight each replica by the rows of its round"
    )
    partition: float = setting(
        4.0, "scheduled: MiB of one message; smaller messages are overtaken more easily"
    )
    credit: float = setting(
        16.0, "scheduled: MiB that may be in flight; more keep the network busy"
    )
    order: str = setting(
        "forward",
        "scheduled: order in which tiles are computed: forward, backward or shuffled,"
        " the last two for tests",
        choices=tuple(ORDERS),
    )
    tune_schedule: bool = setting(
        False, "scheduled: tune partition and credit during the run"
    )
    mode: str = setting(
        "exact-sum",
        "ticktock: exact-sum takes the steps of SGD; delayed and independent are"
        " other methods",
        choices=tuple(MODES),
    )
    stage: int = setting(
        1,
        "sharded: what is divided over the replicas: optimizer state (1), also"
        " gradients (2), also weights (3)",
        choices=(1, 2, 3),
    )
    delay_after: int = setting(
        -1,
        "offload: exchanges after which steps are applied one exchange late; -1 never"
        " delays them",
    )
    tile: float = setting(
        64.0, "infinity: MiB of all buffers together; fewer need less memory"
    )
    store: str = setting(
        "", "infinity: folder of weights and states on disk; empty takes the run folder"
    )
    sync: bool = setting(
        True, "infinity: wait until data is on the drive; false is faster and less safe"
    )
    direct: bool = setting(
        False, "infinity: bypass the page cache if the drive supports it"
    )

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
