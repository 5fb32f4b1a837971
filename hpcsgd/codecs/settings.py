"""What all codecs may be told; each reads the keys that it knows."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

FEEDBACKS = ("auto", "on", "off")
DENSE = ("auto", "never")


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
    masking: bool = False  # dgc: words that were sent forget their momentum
    clip: float = 0.0  # dgc: norm of a bucket's gradient, over √R each; 0 = never

    def __post_init__(self) -> None:
        for name, known in (("feedback", FEEDBACKS), ("dense", DENSE)):
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
        ):
            if not holds:
                value = getattr(self, name)
                raise ConfigError(f"[codec] {name} = {value!r} must be {wanted}")
