"""What all codecs may be told; each reads the keys that it knows."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError

FEEDBACKS = ("auto", "on", "off")


@dataclass(frozen=True)
class CodecConfig:
    """How the codec of the gradient agreement works."""

    feedback: str = "auto"  # error feedback: where the codec is biased, always, never

    def __post_init__(self) -> None:
        if self.feedback not in FEEDBACKS:
            raise ConfigError(
                f"[codec] feedback = {self.feedback!r}; known: {', '.join(FEEDBACKS)}"
            )
