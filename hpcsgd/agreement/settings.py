"""What replicas may be told about how they agree."""

from dataclasses import dataclass

from hpcsgd.errors import ConfigError


@dataclass(frozen=True)
class AgreementConfig:
    """How replicas agree."""

    method: str = ""  # a name that sets what this section and others leave open
    kind: str = "auto"  # average where there is more than one replica
    codec: str = "identity"  # of gradients on the wire (kind = "gradient")
    bucket: float = 4.0  # MiB of gradient that travel together; smaller = more overlap
    accumulate: int = 1  # batches whose gradients travel together

    def __post_init__(self) -> None:
        if not 0.0 < self.bucket < float("inf"):
            raise ConfigError(
                f"[agreement] bucket = {self.bucket!r} MiB must be above 0; 4 is usual"
            )
        if self.accumulate < 1:
            raise ConfigError(
                f"[agreement] accumulate = {self.accumulate} must be at least 1;"
                " 1 sends every gradient"
            )
