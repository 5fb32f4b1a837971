"""Sections of a configuration that no other module owns: data, update, grid, run."""

import math
from dataclasses import dataclass

from hpcsgd.data.partition import PARTITIONS
from hpcsgd.errors import ConfigError
from hpcsgd.stopping import MEASURES

CENTRES = ("none", "classes", "columns")
DEVICES = ("cpu", "cuda")
TRANSPORTS = ("auto", "nccl", "mpi-cuda", "mpi-host")
DRIVERS = ("independent", "mpio")
MOST_EXCHANGES = 1_000_000  # between two looks
MOST_EMULATED = 2**20  # members


@dataclass(frozen=True)
class DataConfig:
    """Where rows come from."""

    path: str = ""
    # Columns to members: in equal numbers, or so that stored values are (sparse data).
    partition: str = "auto"
    hdf5: str = "independent"  # every rank reads for itself; "mpio" = through MPI-IO

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            raise ConfigError(
                f"[data] partition = {self.partition!r} must be one of"
                f" {', '.join(PARTITIONS)}"
            )
        if self.hdf5 not in DRIVERS:
            raise ConfigError(
                f"[data] hdf5 = {self.hdf5!r} must be one of {', '.join(DRIVERS)}"
            )


@dataclass(frozen=True)
class UpdateConfig:
    """How a gradient becomes a step."""

    kind: str = "sgd"
    momentum: float = 0.9  # momentum, nesterov, nesterov-classic
    beta1: float = 0.9  # adam: of the mean of gradients
    beta2: float = 0.999  # adam: of the mean of their squares
    epsilon: float = 1e-08  # adam, adagrad: beside the root that steps are divided by
    bits: int = (
        32  # 8: what momentum, adam and adagrad keep, where gradients are shared
    )
    snapshot: int = 1  # epochs between the full gradients of svrg
    clip: str = "none"  # too large gradients: by value, in norm, or of a percentile
    clip_at: float = 0.0  # the largest value or norm, 0 = 1; a percentile, 0 = 5
    clip_over: str = "step"  # exchange: the mean of s gradients, another method
    centre: str = "none"  # gradients less their mean over classes, or over columns
    normalise: bool = False  # gradients of length one
    noise: float = 0.0  # variance at the first step of noise on gradients; it fades

    def __post_init__(self) -> None:
        if self.snapshot < 1:
            raise ConfigError(
                f"[update] snapshot = {self.snapshot} must be at least 1; 1 is usual"
            )
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(
                    f"[update] {name} = {getattr(self, name)!r} must lie in [0, 1)"
                )
        self._check_shapes()
        if self.bits not in (8, 32):
            raise ConfigError(f"[update] bits = {self.bits!r} must be 8 or 32")
        if not 0.0 < self.epsilon < float("inf"):
            raise ConfigError(
                f"[update] epsilon = {self.epsilon!r} must be above 0; 1e-8 is usual"
            )

    def _check_shapes(self) -> None:
        if self.centre not in CENTRES:
            raise ConfigError(
                f"[update] centre = {self.centre!r} must be one of {', '.join(CENTRES)}"
            )
        if not 0.0 <= self.noise < float("inf"):
            raise ConfigError(
                f"[update] noise = {self.noise!r} must be at least 0; 0 is none"
            )
        if self.clip == "percentile" and not 0.0 < self.limit <= 100.0:
            raise ConfigError(
                f"[update] clip_at = {self.clip_at!r} is the percentile of the last"
                " norms and must lie in (0, 100]; 5 is usual"
            )

    @property
    def limit(self) -> float:
        """What is clipped to: the usual one where none was given."""
        return self.clip_at or (5.0 if self.clip == "percentile" else 1.0)

    @property
    def shapes(self) -> str:
        """What is done to gradients that only those who agree on them can do."""
        if self.clip == "percentile":
            return "clip"
        if self.bits == 8:
            return "bits"
        asked = {"centre": self.centre != "none", "normalise": self.normalise}
        return next((k for k, v in {**asked, "noise": self.noise}.items() if v), "")


@dataclass(frozen=True)
class GridConfig:
    """R × C; 0 members means all the ranks there are."""

    replicas: int = 1
    members: int = 0


@dataclass(frozen=True)
class RunSection:
    """How the run behaves, none of which changes what is learnt."""

    out: str | None = None  # run folder; nothing is written without one
    resume: str = "no"  # auto: from the newest checkpoint in out; or a path
    memory: float = 0.0  # GiB that the ranks of one node may use; 0 = what is free
    network: str | None = None  # lan, hpc, cloud or alpha=...,bandwidth=...
    comm: str = "auto"  # serial, mpi, or what the launcher says
    reproducible: bool = False  # every member holds the same bits, at a second message
    check_members: int = 0  # exchanges between comparisons of members; 0 = never
    check_every: int = 64  # exchanges between looks at non-finite weights and stops
    node_sharing: str = "auto"  # memory shared by ranks of a node: auto, on or off
    evaluate_every: int = 1  # epochs between full losses; 0 = only at the two ends
    evaluate: str = "loss"  # and the gradient, or a bound of F − F*: more passes
    gap_every: int = 50  # exchanges between looks at the recurrence; 0 = never
    fall_back: bool = True  # after an alarm or a divergence: go on more carefully
    record: int = 3  # exchanges kept for `hpcsgd verify`; 0 = none
    on_failure: str = "stop"  # shrink: go on with the ranks that are left (ULFM)
    timeout: float = 20.0  # seconds a rank waits for one that does nothing; 0 = ever
    emulate_members: int = 0  # this rank as one of so many, for times; 0 = no
    device: str = "cpu"  # cuda: exchanges on a GPU
    transport: str = "auto"  # of arrays on GPUs: nccl, mpi-cuda, mpi-host
    share_gpus: bool = False  # more ranks on a node than it has GPUs
    threads: int = 1  # of each rank, in compiled kernels; larger = ranks on more cores
    profile: bool = False  # report where the time went, on all ranks

    def __post_init__(self) -> None:
        for name, least, remedy in (
            ("check_members", 0, "0 never compares"),
            ("check_every", 1, "64 is usual"),
            ("gap_every", 0, "0 never looks"),
            ("record", 0, "0 keeps none"),
            ("emulate_members", 0, "0 emulates none"),
            ("threads", 1, "1 is one core a rank"),
            ("evaluate_every", 0, "0 measures at the two ends only"),
        ):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(
                    f"[run] {name} = {value} must be at least {least}; {remedy}"
                )
        if self.emulate_members > MOST_EMULATED:
            raise ConfigError(
                f"[run] emulate_members = {self.emulate_members} must be at most"
                f" {MOST_EMULATED}; no machine has more ranks"
            )
        if self.evaluate not in MEASURES:
            known = ", ".join(MEASURES)
            raise ConfigError(f"[run] evaluate = {self.evaluate!r}; known: {known}")
        if self.check_every > MOST_EXCHANGES:
            raise ConfigError(
                f"[run] check_every must be at most {MOST_EXCHANGES}; 64 is usual"
            )
        if not 0.0 <= self.memory < float("inf"):
            raise ConfigError(
                f"[run] memory = {self.memory!r} GiB must be at least 0;"
                " 0 asks the system"
            )
        if not 0.0 <= self.timeout < float("inf"):
            raise ConfigError(
                f"[run] timeout = {self.timeout!r} must be finite seconds, 0 = wait for"
                " ever"
            )
        if self.on_failure not in ("stop", "shrink"):
            raise ConfigError(
                f"[run] on_failure = {self.on_failure!r}; known: stop, shrink"
            )
        if self.device not in DEVICES:
            raise ConfigError(f"[run] device = {self.device!r}; known: cpu, cuda")
        if self.transport not in TRANSPORTS:
            raise ConfigError(
                f"[run] transport = {self.transport!r}; known: {', '.join(TRANSPORTS)}"
            )
        if self.node_sharing not in ("auto", "on", "off"):
            raise ConfigError(
                f"[run] node_sharing = {self.node_sharing!r}; known: auto, on, off"
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run with a run folder is saved; the last exchange always is."""

    every: int = 0  # exchanges; 0 = by time alone
    seconds: float = 300.0  # by time; 0 = by exchanges alone
    keep: int = 2  # older ones are removed; larger = more to fall back on

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigError(f"[checkpoint] every = {self.every} must be at least 0")
        if not 0.0 <= self.seconds < math.inf:
            raise ConfigError(
                f"[checkpoint] seconds = {self.seconds!r} must be finite and at least"
                " 0; 300 is usual, 0 goes by exchanges alone"
            )
        if self.keep < 1:
            raise ConfigError(f"[checkpoint] keep = {self.keep} must be at least 1")
