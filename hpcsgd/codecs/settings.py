"""What all codecs may be told; each reads the keys that it knows."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

FEEDBACKS = ("auto", "on", "off")
DENSE = ("auto", "never")
NORMS = ("max", "l2")
BITS = 2, 32


@dataclass(frozen=True)
class CodecConfig:
    """How the codec of the gradient agreement works."""

    feedback: str = "auto"  # error feedback: where the codec is biased, always, never
    share: float = 0.01  # of the words of a bucket, that sparse codecs send
    warm_up: int = 0  # epochs in which the share falls to that, from near 1
    dense: str = "auto"  # all words as they are, where sparse records would be larger
    threshold: float = 0.0  # threshold: words at least so large; 0 = from the share
    budget: float = 0.0  # wangni: Σ E C(a)² ≤ (1 + budget) Σ a²; 0 = from the share
    momentum: float = 0.9  # dgc: of every replica; 0 = none
    nesterov: bool = False  # dgc: a step along what momentum will be
    masking: bool = False  # dgc: words that were sent forget their momentum
    clip: float = 0.0  # dgc: norm of gradients, of which a replica has 1/√R; 0 = never
    bits: int = 4  # of a word, its sign included (quantisers)
    chunk: int = 1024  # words that share a norm (quantisers, byte)
    norm: str = "max"  # what levels are parts of: max |v| of a chunk, or its l2 norm
    adapt: int = 100  # exchange when levels adapt, then at 20 and every 100 times that
    rank: int = 1  # of the matrices that travel (powersgd)
    start: int = 10  # exchanges that are sent dense at first (powersgd)
    min_rate: float = 2.0  # dense where it saves less than this factor; 0: never

    def __post_init__(self) -> None:
        lists = (("feedback", FEEDBACKS), ("dense", DENSE), ("norm", NORMS))
        for name, known in lists:
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(
                    f"[codec] {name} = {value!r}; known: {', '.join(known)}"
                )
        for name, holds, wanted in (
            ("share", 0.0 < self.share <= 1.0, "above 0 and at most 1"),
            ("warm_up", self.warm_up >= 0, "at least 0"),
            ("threshold", 0.0 <= self.threshold < float("inf"), "at least 0, finite"),
            ("budget", 0.0 <= self.budget < float("inf"), "at least 0, finite"),
            ("momentum", 0.0 <= self.momentum < 1.0, "in [0, 1)"),
            ("clip", 0.0 <= self.clip < float("inf"), "at least 0, finite"),
            ("bits", BITS[0] <= self.bits <= BITS[1], f"from {BITS[0]} to {BITS[1]}"),
            ("chunk", self.chunk >= 1, "a positive number of words"),
            ("adapt", self.adapt >= 1, "a positive number of exchanges"),
            ("rank", self.rank >= 1, "at least 1"),
            ("start", self.start >= 0, "at least 0"),
            ("min_rate", self.min_rate >= 0.0, "at least 0"),
        ):
            if not holds:
                value = getattr(self, name)
                raise ConfigError(f"[codec] {name} = {value!r} must be {wanted}")
