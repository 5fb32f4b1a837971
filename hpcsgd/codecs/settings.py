"""What all codecs may be told; each reads the keys that it knows."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

FEEDBACKS = ("auto", "on", "off")
NORMS = ("max", "l2")
BITS = 2, 32


@dataclass(frozen=True)
class CodecConfig:
    """How the codec of the gradient agreement works."""

    feedback: str = "auto"  # error feedback: where the codec is biased, always, never
    bits: int = 4  # of a word, its sign included (quantisers)
    chunk: int = 1024  # words that share a norm (quantisers, byte)
    norm: str = "max"  # what levels are parts of: max |v| of a chunk, or its l2 norm
    adapt: int = 100  # exchange when levels adapt, then at 20 and every 100 times that
    rank: int = 1  # of the matrices that travel (powersgd)
    start: int = 10  # exchanges that are sent dense at first (powersgd)
    min_rate: float = 2.0  # dense where it saves less than this factor; 0: never

    def __post_init__(self) -> None:
        if self.feedback not in FEEDBACKS:
            raise ConfigError(
                f"[codec] feedback = {self.feedback!r}; known: {', '.join(FEEDBACKS)}"
            )
        if self.norm not in NORMS:
            raise ConfigError(
                f"[codec] norm = {self.norm!r}; known: {', '.join(NORMS)}"
            )
        low, high = BITS
        if not low <= self.bits <= high:
            raise ConfigError(
                f"[codec] bits = {self.bits}: choose a number from {low} to {high}"
            )
        if self.chunk < 1:
            raise ConfigError(
                f"[codec] chunk = {self.chunk}: choose a positive number of words"
            )
        if self.adapt < 1:
            raise ConfigError(
                f"[codec] adapt = {self.adapt}: choose a positive number of exchanges"
            )
        if self.rank < 1 or self.start < 0 or not self.min_rate >= 0:
            raise ConfigError(
                f"[codec] rank = {self.rank}, start = {self.start}, min_rate ="
                f" {self.min_rate}: rank is at least 1, the others not negative"
            )
