"""What the user asked for: frozen sections in, TOML out, nothing unknown accepted."""

import logging
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hpcsgd.agreements import AGREEMENTS, AUTO, settings_of
from hpcsgd.agreements.base import AgreementSettings
from hpcsgd.agreements.codecs import CODECS
from hpcsgd.agreements.codecs.base import AccordionConfig, CodecConfig
from hpcsgd.data.sampling import FoldSplit, SamplingConfig
from hpcsgd.data.shard import PARTITIONS
from hpcsgd.errors import ConfigError, did_you_mean, did_you_mean_file
from hpcsgd.files import numbers, open_entry, parse_toml, toml_literal, toml_value
from hpcsgd.glm.mirror_maps import MirrorConfig
from hpcsgd.glm.penalties import Models, ProblemConfig, SweepModel
from hpcsgd.glm.unrolling import Schedule
from hpcsgd.glm.updates import RateConfig
from hpcsgd.precision import PrecisionConfig
from hpcsgd.products.cost import ProductsConfig
from hpcsgd.settings import Condition, Setting, declarations, refuse
from hpcsgd.solvers.coordinate import CoordinateConfig
from hpcsgd.solvers.evaluation import MEASURES, AverageConfig, StopConfig
from hpcsgd.solvers.lbfgs import PolishConfig

# Sections of a configuration that no other module owns: data, update, grid, run.

CENTRES = ("none", "classes", "columns")
DEVICES = ("cpu", "cuda")
TRANSPORTS = ("auto", "nccl", "mpi-cuda", "mpi-host")
DRIVERS = ("independent", "mpio")
FIT, SGD = "fit", "sgd"
DEFAULTS = (SGD, FIT)  # of settings that are not named
MOST_EXCHANGES = 1_000_000  # between two looks
MOST_EMULATED = 2**20  # members


@dataclass(frozen=True)
class DataConfig:
    """The data file and how ranks read it."""

    path: str = ""
    partition: str = "auto"
    hdf5: str = "independent"

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
    momentum: float = 0.9
    beta1: float = 0.9  # adam: decay rate of the mean of the gradients
    beta2: float = 0.999  # adam: decay rate of the mean of their squares
    # adam and adagrad: small number added to the root that steps are divided by
    epsilon: float = 1e-08
    # momentum, adam and adagrad: bits of a word of optimizer state, 32 or 8; 8 needs an
    # agreement on gradients
    bits: int = 32
    snapshot: int = 1  # svrg: epochs between two full gradients
    # clipping of large gradients: by value, by norm, or at a percentile of the last
    # norms
    clip: str = "none"
    # largest value or norm, or the percentile; 0 takes 1, or the percentile 5
    clip_at: float = 0.0
    # what is clipped: the gradient of every step, or the mean gradient of an exchange,
    # which is another method (exchange)
    clip_over: str = "step"
    # mean that gradients lose: over classes, columns or none
    centre: str = "none"
    normalise: bool = False  # scale every gradient to norm 1
    # variance of the noise on gradients in the first step, which decays; 0 adds none
    noise: float = 0.0

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
    """Grid of R replicas of C members."""

    replicas: int = 1  # replicas, which divide the rows; each holds all weights
    # members of a replica, which divide the columns; 0 takes all ranks
    members: int = 0


@dataclass(frozen=True)
class RunSection:
    """Behaviour of the run; only `defaults` changes what is learnt."""

    # defaults of the settings that are not named: those of SGD (sgd) or those of
    # hpcsgd.fit (fit)
    defaults: str = "sgd"
    out: str | None = None
    resume: str = "no"
    # memory in GiB that all ranks of one node may use together; 0 takes what the system
    # reports as free
    memory: float = 0.0
    network: str | None = None
    comm: str = "auto"
    reproducible: bool = False
    check_members: int = 0
    # exchanges between two checks for non-finite weights and for requests to stop
    check_every: int = 64
    # let ranks of one node share memory for their data: auto, on or off
    node_sharing: str = "auto"
    # epochs between two evaluations of the full loss; 0 evaluates at the start and at
    # the end only
    evaluate_every: int = 1
    # what an evaluation computes: loss, also the norm of the gradient (gradient), also
    # a bound of F − F* (gap), each with more passes over the rows
    evaluate: str = "loss"
    gap_every: int = 50
    # retry with safer settings after an alarm of the monitor or a divergence
    fall_back: bool = True
    record: int = 3
    on_failure: str = "stop"
    timeout: float = 20.0
    # 0 emulates none; N measures the time of one rank as one of N members, with weights
    # that mean nothing
    emulate_members: int = 0
    device: str = "cpu"
    transport: str = "auto"
    share_gpus: bool = False
    threads: int = 1
    profile: bool = False

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
        if self.defaults not in DEFAULTS:
            raise ConfigError(
                f"[run] defaults = {self.defaults!r}; known: {', '.join(DEFAULTS)}"
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
    """When a run with a run folder saves checkpoints; it always saves its end."""

    every: int = 0
    seconds: float = 300.0
    keep: int = 2  # checkpoints that are kept; older ones are removed

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


# Methods by name: an agreement, a codec and the settings that belong together.
#
# `--method NAME` sets what is left open. Settings that make the method what it is must
# not be given another value; the others are defaults that an explicit setting
# overrides.


@dataclass(frozen=True)
class MethodRow:
    """One row: what it says of itself, and section.key -> value."""

    says: str
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def ddp(codec: str, says: str, **defaults: Any) -> MethodRow:
    """The gradient agreement with one of the codecs, and defaults of [codec]."""
    fixed = {
        "agreement.kind": "gradient",
        "agreement.codec": codec,
        "schedule.steps": 1,
    }
    return MethodRow(says, fixed, {f"codec.{key}": v for key, v in defaults.items()})


def gradient_kind(kind: str, says: str) -> MethodRow:
    """One step an exchange, and what replicas tell each other beside it."""
    return MethodRow(says, {"agreement.kind": kind, "schedule.steps": 1})


def averaged(kind: str, says: str) -> MethodRow:
    """Replicas that take steps of their own, and agree on weights now and then."""
    return MethodRow(says, {"agreement.kind": kind}, LOCAL)


def sharded(stage: int, says: str) -> MethodRow:
    """ZeRO: what a step needs is held in slices, one of each tile a replica."""
    fixed = {"agreement.kind": "sharded", "agreement.stage": stage, "schedule.steps": 1}
    return MethodRow(says, fixed)


LOCAL = {"schedule.steps": 1, "schedule.period": 8}
METHODS = {
    "ddp": ddp("identity", "gradients are all-reduced in every step"),
    "fp16": ddp("fp16", "gradients are sent in fp16"),
    "bf16": ddp("bf16", "gradients are sent in bf16"),
    "fp8": ddp("fp8", "gradients are sent in 8 bits, with error feedback"),
    "topk": ddp("topk", "the largest words of a gradient, with error feedback"),
    "randomk": ddp("randomk", "random words, the same on all replicas, with feedback"),
    "threshold": ddp("threshold", "words above a threshold, with error feedback"),
    "wangni": ddp("wangni", "random words, large ones more often, unbiased"),
    "dgc": MethodRow(
        "top-k of momentum that each replica accumulates",
        {**ddp("dgc", "").fixed, "update.kind": "sgd"},
    ),
    "qsgd": ddp("qsgd", "random rounding to uniform levels, unbiased"),
    "sign": ddp("sign", "one bit for each word and a scale, with feedback"),
    "byte": ddp("byte", "8 bits from smallest to largest value, with feedback"),
    "bytegrad": ddp("bytegrad", "8 bits, all-reduced by shards, with feedback"),
    "nuqsgd": ddp("nuqsgd", "random rounding to powers of two, unbiased"),
    "alq": ddp("alq", "nuqsgd with levels that adapt to the gradients"),
    "amq": ddp("amq", "nuqsgd with powers of a base that adapts"),
    "powersgd": ddp("powersgd", "matrices of low rank, with error feedback"),
    "infinity": MethodRow(
        "weights and optimizer state on disk, read in tiles",
        {"agreement.kind": "infinity", "schedule.steps": 1},
        {"update.kind": "adam"},
    ),
    "accordion": ddp("accordion", "powersgd of higher rank while gradients change"),
    "bagua": ddp("bytegrad", "bytegrad without error feedback", feedback="off"),
    "decentralized": gradient_kind(
        "decentralized", "replicas mix weights while they compute gradients"
    ),
    "decentralized-low": gradient_kind(
        "decentralized-low", "ring neighbours send changes of weights in 8 bits"
    ),
    "qadam": MethodRow(
        "Adam that sends its momentum in 8 bits after a warm-up",
        {
            "agreement.kind": "qadam",
            "agreement.codec": "bytegrad",
            "update.kind": "adam",
            "schedule.steps": 1,
        },
        {"codec.feedback": "off"},
    ),
    "async-average": averaged(
        "async-average", "local, with averages that overlap with steps"
    ),
    "accordion-batch": MethodRow(
        "batches that grow when gradients change little",
        {"agreement.kind": "growing", "schedule.steps": 1},
        {"agreement.accumulate": 4},
    ),
    "bytescheduler": MethodRow(
        "gradients are sent by priority, hidden behind the next step",
        {"agreement.kind": "scheduled", "schedule.steps": 1},
    ),
    "wavelet": MethodRow(
        "half of a gradient is sent while the other is computed",
        {"agreement.kind": "ticktock", "schedule.steps": 1},
    ),
    "local": averaged("average", "weights are averaged every --period exchanges"),
    "postlocal": averaged(
        "postlocal", "averages after every exchange at first, then as local"
    ),
    "hierarchical": averaged(
        "hierarchical", "nested groups of replicas average at different periods"
    ),
    "fedavg": averaged("fedavg", "a random part of the replicas trains in each round"),
    "slowmo": averaged("slowmo", "local, with slow momentum at each average"),
    "anybatch": MethodRow(
        "rounds of a fixed time, with any number of rows each",
        {"agreement.kind": "anybatch", "schedule.steps": 1, "update.kind": "sgd"},
        {"agreement.accumulate": 8, "rate.kind": "inverse-sqrt", "rate.decay": 0.01},
    ),
    "zero1": sharded(1, "ddp with divided optimizer state"),
    "zero2": sharded(2, "ddp with divided optimizer state and gradient"),
    "zero3": sharded(3, "ddp with divided weights, gradient and state"),
    "offload": MethodRow(
        "zero2 with steps on the host, optionally one step late",
        {"agreement.kind": "offload", "schedule.steps": 1},
    ),
}


def get_method(name: str) -> MethodRow:
    """The method called `name`."""
    if name not in METHODS:
        raise ConfigError(
            f"[agreement] unknown method: {name!r}{did_you_mean(name, METHODS)}; known:"
            f" {list(METHODS)}"
        )
    return METHODS[name]


def with_method(
    tables: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Mapping[str, Any]]:
    """`tables` with what their method sets, where they name one."""
    agreement = tables.get("agreement")
    name = agreement.get("method") if isinstance(agreement, Mapping) else None
    if not isinstance(name, str) or not name:
        return tables
    method = get_method(name)
    for setting, value in method.fixed.items():
        _check(name, setting, value, tables)
    merged = {section: dict(table) for section, table in tables.items()}
    for setting, value in {**method.fixed, **method.defaults}.items():
        section, key = setting.split(".")
        table = merged.setdefault(section, {})
        if setting in method.fixed or key not in table:
            table[key] = value
    return merged


def _check(
    name: str, setting: str, value: Any, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    section, key = setting.split(".")
    given = tables.get(section, {}).get(key, "auto")
    if given not in ("auto", value):
        raise ConfigError(
            f"method {name} is [{section}] {key} = {value!r}, and {given!r} was given;"
            f" leave {setting} out, or choose another method"
        )


# The section `[sweep]`, and the models that it asks for.

MOST_MODELS = 4096  # of one run


@dataclass(frozen=True)
class SweepConfig:
    """Models that are trained together; empty lists train one model."""

    l2: tuple[float, ...] = ()  # ridge penalties; an empty list takes that of [problem]
    rate: tuple[float, ...] = ()  # learning rates; an empty list takes that of [rate]
    # folds of a cross-validation, each of which adds a model trained without its rows;
    # 0 trains without folds
    folds: int = 0
    fold_seed: int = 0  # seed of the random assignment of rows to folds

    def __post_init__(self) -> None:
        for name in ("l2", "rate"):
            _check_list(name, getattr(self, name))
        if self.folds < 0 or self.folds == 1:
            raise ConfigError(
                f"[sweep] folds = {self.folds} must be 0 or at least 2; 5 is usual"
            )
        if self.fold_seed < 0:
            raise ConfigError(
                f"[sweep] fold_seed = {self.fold_seed} must be at least 0; 0 will do"
            )
        if self.count > MOST_MODELS:
            raise ConfigError(
                f"[sweep] asks for {self.count} models at once; split the lists so that"
                f" each run has at most {MOST_MODELS}"
            )

    @property
    def count(self) -> int:
        """How many models that is."""
        each = self.folds + 1 if self.folds else 1
        return max(len(self.l2), 1) * max(len(self.rate), 1) * each

    @property
    def is_many(self) -> bool:
        """False where nothing differs."""
        return self.count > 1 or bool(self.l2 or self.rate)

    def models(self, l2: float, rate: float, scores: int = 1) -> Models:
        """Every penalty, for each every rate, for each every fold, then all rows.

        `l2` and `rate` are those of a run without a list.
        """
        folds = (*range(self.folds), None)
        each = tuple(
            SweepModel(*one)
            for one in product(self.l2 or (l2,), self.rate or (rate,), folds)
        )
        last = self.folds  # the column of weights that has all rows
        weights = tuple(last if m.fold is None else m.fold for m in each)
        return Models(each, scores, weights)


def _check_list(name: str, values: tuple[float, ...]) -> None:
    least = "at least 0" if name == "l2" else "above 0"
    for value in values:
        good = value >= 0.0 if name == "l2" else value > 0.0
        if not (good and value < float("inf")):
            raise ConfigError(
                f"[sweep] {name} has {value!r}; every value must be finite and {least}"
            )
    if len(set(values)) < len(values):
        raise ConfigError(f"[sweep] {name} names a value twice; name each once")


def split_of(sweep: SweepConfig, sampling: SamplingConfig) -> FoldSplit:
    """Which rows are trained on."""
    return FoldSplit(sweep.folds, sweep.fold_seed, sampling.hold_out, sampling.seed)


# Settings, and values of settings, that earlier versions had.
#
# A file that a run wrote with one of them is read without it; a configuration that a
# person writes is refused, because what it asks for does not happen.

log = logging.getLogger("hpcsgd")
# (section, key) -> what takes its place.
RETIRED = {
    ("precision", "recheck"): "--precision auto chooses before the run; the gap monitor"
    " (--gap-every) and --fall-back watch it",
    ("run", "comm"): "ranks communicate through MPI (mpiexec, srun --mpi=pmi2 or pmix,"
    " or --ranks N)",
}


def without_retired(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file that a run wrote, without those that are retired.

    One log line names them.
    """
    retired = [
        (section, key)
        for section, key in RETIRED
        if isinstance(tables.get(section), Mapping)
        and key in tables[section]
        and _is_retired(section, key, tables[section][key])
    ]
    if not retired:
        return dict(tables)
    _log_once(", ".join(f"{section}.{key}" for section, key in retired))
    kept = dict(tables)
    for section, key in retired:
        kept[section] = {k: v for k, v in kept[section].items() if k != key}
    return kept


def why_retired(section: str, key: str, value: Any = None) -> str | None:
    """Return the sentence for a setting that is retired, None for any other."""
    if not _is_retired(section, key, value):
        return None
    name = f"{key} = {value!r}" if (section, key) == ("run", "comm") else key
    instead = RETIRED[section, key]
    return f"[{section}] {name} is no setting any more: {instead}; leave it out"


def _is_retired(section: str, key: str, value: Any) -> bool:
    """Whether a setting is retired, of which some are with certain values alone."""
    if (section, key) == ("run", "comm"):
        return isinstance(value, str) and (value == "tcp" or value.startswith("file:"))
    return (section, key) in RETIRED


@cache
def _log_once(names: str) -> None:
    log.info("settings of an earlier version are ignored: %s", names)


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, in sections.

    Attributes
    ----------
    problem, data, schedule, products, agreement, codec, mirror, accordion : dataclass
        Sections; `docs/reference/settings` describes each setting.
    update, coordinate, rate, average, sampling, sweep, precision, grid : dataclass
        The same.
    checkpoint, stop, polish, run : dataclass
        The same.

    See Also
    --------
    train : Takes a RunConfig, a mapping, or a TOML file.

    Examples
    --------
    >>> from hpcsgd import RunConfig
    >>> config = RunConfig.parse({"schedule": {"batch": 16}})
    >>> config.schedule.batch, config.problem.family
    (16, 'logistic')
    """

    problem: ProblemConfig = field(default_factory=ProblemConfig)
    data: DataConfig = field(default_factory=DataConfig)
    schedule: Schedule = field(default_factory=Schedule)
    products: ProductsConfig = field(default_factory=ProductsConfig)
    agreement: AgreementSettings = field(default_factory=settings_of(AUTO))
    codec: CodecConfig = field(default_factory=CodecConfig)
    mirror: MirrorConfig = field(default_factory=MirrorConfig)
    accordion: AccordionConfig = field(default_factory=AccordionConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    coordinate: CoordinateConfig = field(default_factory=CoordinateConfig)
    rate: RateConfig = field(default_factory=RateConfig)
    average: AverageConfig = field(default_factory=AverageConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    polish: PolishConfig = field(default_factory=PolishConfig)
    run: RunSection = field(default_factory=RunSection)

    @classmethod
    def parse(cls, tables: Mapping[str, Mapping[str, Any]]) -> "RunConfig":
        """Make a RunConfig of a mapping.

        Parameters
        ----------
        tables : mapping of mappings
            Section -> key -> value. What is not named has its default.

        Returns
        -------
        RunConfig

        Raises
        ------
        ConfigError
            If a section, a key or a value is unknown, or has the wrong type.
        """
        tables, kinds = with_method(tables), _hints(cls)
        _reject_unknown("sections", tables, kinds)
        sections: dict[str, Any] = {}
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"{name} = {table!r} stands outside a section; write it below"
                    f" the one it belongs to: {sorted(kinds)}"
                )
            if name == AgreementSettings.section:
                sections[name] = _agreement(table)
            else:
                sections[name] = _section(name, kinds[name], table)
        return cls(**sections)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return section -> key -> value, without the settings that are None.

        Returns
        -------
        dict of dict
        """
        tables = {
            name: {k: _plain(v) for k, v in vars(section).items() if v is not None}
            for name, section in vars(self).items()
        }
        # A file names the settings of all kinds of agreement, as `defaults.toml` does.
        own = tables["agreement"]
        tables["agreement"] = {
            **shipped_defaults()["agreement"],
            **{key: value for key, value in own.items() if key != FOREIGN},
            **dict(self.agreement.foreign),
        }
        if not self.schedule.steps:
            tables["schedule"]["steps"] = "auto"
        if self.rate.is_open:
            tables["rate"]["value"] = "auto"
        return tables

    def toml(self) -> str:
        """Return the configuration as the text of a TOML file.

        Returns
        -------
        str
        """
        parts = []
        for name, table in self.tables().items():
            lines = [f"{key} = {toml_literal(value)}" for key, value in table.items()]
            parts.append("\n".join([f"[{name}]", *lines]))
        return "\n\n".join(parts) + "\n"


def read_toml(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a configuration file, which a run may have written."""
    is_of_a_run = Path(path).name == RESOLVED
    try:
        with open(open_entry(Path(path)) if is_of_a_run else path, "rb") as file:
            tables = parse_toml(file.read().decode())
        return without_retired(tables) if is_of_a_run else tables
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}"
            f"{did_you_mean_file(path)}; check the name"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if kind := _kind_of_data(Path(path)):
            raise ConfigError(
                f"{path} is {kind}, and a configuration is TOML; use --data for a data"
                f" file: --data {path}"
            ) from error
        raise ConfigError(f"{path} is not TOML: {error}; mend that line") from error


def _kind_of_data(path: Path) -> str:
    """Return what a file of rows is that was named in the place of a configuration."""
    with open(path, "rb") as file:
        is_hdf5 = file.read(len(HDF5)) == HDF5
    return "HDF5" if is_hdf5 else DATA_KINDS.get(path.suffix.lower(), "")


def chosen_settings(
    tables: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Mapping[str, Any]]:
    """Return `tables` without defaults that would be in the way of a method.

    `hpcsgd new` lists every setting. In a file that lists an empty method a default is
    no choice, so that --method can still make it; in one that names a method, those
    that this method fixes are none. Beside the defaults of `fit` all of them are
    choices.
    """
    run = tables.get("run")
    if isinstance(run, Mapping) and run.get("defaults") == FIT:
        return tables
    agreement = tables.get("agreement", {})
    name = agreement.get("method") if isinstance(agreement, Mapping) else None
    if name is None or (name and name not in METHODS):
        return tables
    usual = RunConfig().tables()

    def is_default(section: str, key: str, value: Any) -> bool:
        is_open = not name or f"{section}.{key}" in METHODS[name].fixed
        return is_open and usual.get(section, {}).get(key, tables) == value

    return {
        section: {k: v for k, v in table.items() if not is_default(section, k, v)}
        if isinstance(table, Mapping)
        else table
        for section, table in tables.items()
    }


def apply_settings(
    tables: Mapping[str, Mapping[str, Any]], settings: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """`tables` with every `section.key=value` of `settings` laid over them."""
    merged = {
        name: dict(table) if isinstance(table, Mapping) else table
        for name, table in tables.items()
    }
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise ConfigError(
                f"--set {setting}: write it as section.key=value,"
                " for example schedule.steps=16"
            )
        merged.setdefault(section, {})[key] = toml_value(text.strip())
    return merged


HDF5 = b"\x89HDF\r\n\x1a\n"  # the first bytes of such a file
DATA_KINDS = {".csv": "CSV", ".npy": "NumPy", ".npz": "NumPy", ".svm": "LIBSVM"}
RESOLVED = "resolved.toml"  # what a run writes into its folder
FOREIGN = "foreign"  # the field of AgreementSettings that is no setting
# Texts that may be a number, and then need no quotes.
COUNTS = {("agreement", key) for key in ("hierarchical", "groups", "periods")}
_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(kind: type[Any]) -> dict[str, Any]:
    """The types of its fields, which take long to find out."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


@cache
def shipped_defaults() -> dict[str, dict[str, Any]]:
    """Return the default of every setting, from the file that the package ships."""
    with open(Path(__file__).with_name("defaults.toml")) as file:
        return parse_toml(file.read())


def agreement_settings() -> dict[str, tuple[str, type[AgreementSettings]]]:
    """Return key -> the first kind of agreement that has it, and its settings class.

    In the order of a configuration file. All agreements are imported.
    """
    found: dict[str, tuple[str, type[AgreementSettings]]] = {}
    for kind in AGREEMENTS:
        settings = settings_of(kind)
        for key in declarations(settings):
            if key != FOREIGN:
                found.setdefault(key, (kind, settings))
    return found


def _agreement(table: Mapping[str, Any]) -> AgreementSettings:
    """Return the section [agreement] as its kind declares it.

    Keys of other kinds may stand in it. Their defaults are no choice; what has another
    value is kept beside the section, for `check_read` to refuse.
    """
    name = table.get("kind", AUTO)
    kind = settings_of(name if isinstance(name, str) else AUTO)
    own = {key: v for key, v in table.items() if key in declarations(kind)}
    others = {key: v for key, v in table.items() if key not in own or key == FOREIGN}
    found: AgreementSettings = _section("agreement", kind, own)
    usual = shipped_defaults()["agreement"]
    foreign = {k: v for k, v in others.items() if k not in usual or v != usual[k]}
    if not foreign:
        return found
    owners = agreement_settings()
    _reject_unknown("[agreement]", others, {*owners, *own})
    for key, value in foreign.items():
        foreign[key] = getattr(_section("agreement", owners[key][1], {key: value}), key)
    return replace(found, foreign=tuple(foreign.items()))


def _section(name: str, kind: type[Any], table: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    known = {f.name: hints[f.name] for f in fields(kind)}
    _reject_unknown(f"[{name}]", table, known)
    for key, value in table.items():
        if refusal := why_retired(name, key, value):
            raise ConfigError(refusal)
    return kind(**{k: _typed(name, k, known[k], v) for k, v in table.items()})


def _reject_unknown(place: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    for key in unknown:
        if said := why_retired(place.strip("[]"), key):
            raise ConfigError(said)
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(f"{place} unknown: {unknown}{hint}; known: {sorted(known)}")


def _typed(section: str, key: str, kind: Any, value: Any) -> Any:
    """`value` as `kind`; a whole number may stand for a real one, or for a text that
    counts something, and nothing else for anything else.
    """
    if (section, key) == ("schedule", "steps") and value in ("auto", 0):
        return _steps(value)
    if (section, key) == ("rate", "value") and value in ("auto", 0):
        return _rate(value)
    if (section, key) in COUNTS and type(value) is int:
        return str(value)
    if get_origin(kind) is tuple:
        return numbers(f"[{section}] {key}", value)
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and type(None) in kinds:
        return None
    if tuple[float, ...] in kinds and isinstance(value, list | tuple):
        return tuple(_typed(section, key, float, item) for item in value)
    if value == "" and type(None) in kinds and str not in kinds:
        return None  # TOML has no word for it
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(k.__name__ for k in kinds if k is not type(None))
        raise ConfigError(
            f"[{section}] {key} = {toml_literal(value)} must be of type {names};"
            f" {_remedy_of_type(key, kinds, value)}"
        )
    return value


def _remedy_of_type(key: str, kinds: tuple[Any, ...], value: Any) -> str:
    """Return how a value of another type is written in TOML."""
    if isinstance(value, str):
        meant = toml_value(value)
        if type(meant) in kinds or (float in kinds and type(meant) is int):
            return f"write {key} = {toml_literal(meant)} without quotes"
    if str in kinds and isinstance(value, bool | int | float):
        return f'write {key} = "{toml_literal(value)}" in quotes'
    if bool in kinds:
        return "write true or false"
    return "write a whole number" if int in kinds else "write a number"


def _plain(value: Any) -> Any:
    """As TOML and JSON have it, which know lists alone."""
    return list(value) if isinstance(value, tuple) else value


def _steps(value: Any) -> int:
    """`auto`, which is 0 inside; a 0 that somebody wrote is a mistake."""
    if value != "auto":
        raise ConfigError(
            f"[schedule] steps = {value!r} must be a whole number of at least 1, or"
            ' "auto"'
        )
    return 0


def _rate(value: Any) -> float:
    """`auto`, which is 0 inside; a 0 that somebody wrote is a mistake."""
    if value != "auto":
        raise ConfigError(
            f"[rate] value = {value!r} must be positive and finite, or auto; 0.1 is a"
            " cautious start"
        )
    return 0.0


# Settings that a run would not read: whoever wrote one meant another run.

Tables = Mapping[str, Mapping[str, Any]]
USUAL = RunConfig()
NOTHING = {"update.momentum": 0.0}  # what those who do not read it have
READS = "agreement.reads"  # what agreements read of other sections


def check_read(config: RunConfig, given: Tables | None = None) -> None:
    """Refuse the settings that somebody gave and nobody would read.

    `given`: the tables of somebody, where others have laid theirs below.
    """
    refuse(
        sentence
        for name, sentence in unread_settings(config).items()
        if given is None or is_in(name, given)
    )


def is_in(name: str, tables: Tables) -> bool:
    """Return whether tables give section.key a value."""
    section, key = name.split(".")
    return key in tables.get(section, {})


def unread_settings(config: RunConfig) -> dict[str, str]:
    """Return section.key -> why it is not read here, for all settings that were given a
    value.
    """
    given = [
        f"{section}.{key}"
        for section, settings in vars(config).items()
        for key in declarations(type(settings))
        if key != FOREIGN and _is_given(f"{section}.{key}", config)
    ]
    given += [f"agreement.{key}" for key, _ in config.agreement.foreign]
    found = {name: _why_unread(name, config) for name in given}
    return {name: why for name, why in found.items() if why} | _turned(config)


def is_read(name: str, config: RunConfig) -> bool:
    """Whether a run with `config` reads this setting, whatever its value."""
    return not _why_unread(name, config)


def is_conditional(name: str) -> bool:
    """Whether there are runs that do not read this setting."""
    section, key = name.split(".")
    if section == AgreementSettings.section:
        return key in AgreementSettings.ignores or key not in declarations(
            AgreementSettings
        )
    return bool(_declared(name, USUAL).read_if)


def value_of(name: str, config: RunConfig) -> Any:
    """Return the value of section.key; the default where its agreement has none."""
    section, key = name.split(".")
    found = getattr(config, section)
    if section == AgreementSettings.section and key not in declarations(type(found)):
        return dict(found.foreign).get(key, shipped_defaults()[section].get(key))
    return getattr(found, key)


def drop_unread_settings(tables: Tables, shared: Tables) -> dict[str, dict[str, Any]]:
    """Return `tables` without the settings of `shared` that the run would not read.

    What several runs share is for those of them that read it.
    """
    left = {section: dict(table) for section, table in tables.items()}
    try:
        names = list(unread_settings(RunConfig.parse(tables)))
    except ConfigError:
        return left  # whoever parses them says why
    for name in names:
        section, key = name.split(".")
        ours = left.get(section, {})
        if key in ours and ours[key] == shared.get(section, {}).get(key, ours):
            del ours[key]
    return left


def _is_given(name: str, config: RunConfig) -> bool:
    """Whether it has a value that neither the default nor the method would give it."""
    value = value_of(name, config)
    method = METHODS.get(config.agreement.method)
    usual = {} if method is None else {**method.defaults, **method.fixed}
    section, key = name.split(".")
    kind = type(getattr(config, section))
    true = [t[name] for t in (usual, NOTHING) if name in t]
    return value not in (true + [getattr(kind(), key)])


def _declared(name: str, config: RunConfig) -> Setting:
    section, key = name.split(".")
    return declarations(type(getattr(config, section))).get(key, Setting())


def _why_unread(name: str, config: RunConfig) -> str:
    """Return the sentence on a setting that is not read; "" for one that is."""
    section, key = name.split(".")
    conditions: tuple[Condition, ...] = ()
    if section == AgreementSettings.section:
        own = config.agreement
        if key not in declarations(type(own)) or key in own.ignores:
            return _sentence(name, "agreement.kind", _kinds_with(key), config)
        conditions = (own.conditions()[key],) if key in own.conditions() else ()
    conditions = conditions or _declared(name, config).read_if
    if not conditions or any(_holds(one, config) for one in conditions):
        return ""
    of, values = next(
        (of, values)
        for of, values in conditions[0].items()
        if not _holds({of: values}, config)
    )
    if of == READS:
        of, values = "agreement.kind", _kinds_that_read(values)
    return _sentence(name, of, [str(value) for value in values], config)


def _kinds_with(key: str) -> list[str]:
    """The kinds of agreement that read this setting of [agreement]."""
    classes = {kind: settings_of(kind) for kind in AGREEMENTS}
    return [
        kind
        for kind, settings in classes.items()
        if key in declarations(settings) and key not in settings.ignores
    ]


def _kinds_that_read(subjects: Iterable[Any]) -> list[str]:
    """The kinds of agreement that read one of these subjects of other sections."""
    return [kind for kind in AGREEMENTS if settings_of(kind).reads & set(subjects)]


def _holds(condition: Condition, config: RunConfig) -> bool:
    return all(
        bool(_in_force(of, config) & {str(value) for value in values})
        or _is_yours(of, config)
        for of, values in condition.items()
    )


def _in_force(of: str, config: RunConfig) -> set[str]:
    """Its value; a codec that wraps another is that, too."""
    if of == READS:
        return set(config.agreement.reads)
    found = {str(value_of(of, config))}
    if of == "agreement.codec" and found == {"accordion"}:
        found.add(config.accordion.codec)
    return found


def _is_yours(of: str, config: RunConfig) -> bool:
    """Whether it is a codec that was registered from outside: such may read all."""
    homes = [CODECS.get(name, "") for name in _in_force("agreement.codec", config)]
    return of == "agreement.codec" and not all(h.startswith("hpcsgd.") for h in homes)


def _sentence(name: str, of: str, values: Sequence[str], config: RunConfig) -> str:
    (section, key), (place, other) = name.split("."), of.split(".")
    *most, last = map(repr, values)
    one_of = f"{', '.join(most)} or {last}" if most else last
    return (
        f"[{section}] {key} = {value_of(name, config)!r} is for [{place}] {other} ="
        f" {one_of}, and {other} = {value_of(of, config)!r} does not read it; use"
        f" {_remedy(name, of, values[0], config)}, or leave {name} out"
    )


def _remedy(name: str, of: str, value: str, config: RunConfig) -> str:
    """The method of that kind, and best one that has this very value."""
    if of == "update.kind":
        return f"--update {value}"
    fits = [n for n, row in METHODS.items() if str(row.fixed.get(of)) == value]
    given = value_of(name, config)
    best = [n for n in fits if METHODS[n].fixed.get(name) == given]
    return f"--method {(best + fits)[0]}" if fits else f"--set {of}={value}"


def _turned(config: RunConfig) -> dict[str, str]:
    """Settings of [codec] that accordion has others for in both of its modes."""
    if config.agreement.codec != "accordion" or config.accordion.codec not in CODECS:
        return {}
    low, high = config.accordion.regimes(config.codec)
    found = {}
    for key, value in vars(config.codec).items():
        if value not in (getattr(low, key), getattr(high, key)):
            found[f"codec.{key}"] = (
                f"[codec] {key} = {value!r} is what accordion turns, between"
                f" {getattr(low, key)!r} and {getattr(high, key)!r}; set accordion.low"
                " and accordion.high, and leave it out"
            )
    return {name: said for name, said in found.items() if _is_given(name, config)}
