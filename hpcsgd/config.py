"""Settings of a run, as frozen dataclasses that are read from and written to TOML."""

import os
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hpcsgd.agreements import AGREEMENTS, AUTO, settings_of
from hpcsgd.agreements.base import AgreementSettings
from hpcsgd.agreements.codecs import CODECS
from hpcsgd.agreements.codecs.base import AccordionConfig, CodecConfig
from hpcsgd.comm import COMMUNICATORS, choose
from hpcsgd.comm.network_model import NETWORKS
from hpcsgd.data.sampling import FoldSplit, SamplingConfig
from hpcsgd.data.shard import PARTITIONS
from hpcsgd.errors import (
    ConfigError,
    did_you_mean,
    did_you_mean_file,
    either,
    reject_unknown,
)
from hpcsgd.files import (
    names_in,
    numbers,
    open_entry,
    parse_toml,
    toml_literal,
    toml_value,
)
from hpcsgd.glm import ADAPTIVE, UPDATES
from hpcsgd.glm.mirror_maps import MirrorConfig
from hpcsgd.glm.penalties import Models, ProblemConfig, SweepModel
from hpcsgd.glm.unrolling import Schedule
from hpcsgd.glm.updates import RateConfig
from hpcsgd.precision import PrecisionConfig
from hpcsgd.products.base import OVERS, WAYS
from hpcsgd.products.cost import ProductsConfig
from hpcsgd.settings import (
    READS,
    Condition,
    Resolved,
    RunFacts,
    Setting,
    Settings,
    declarations,
    refuse,
    refuse_together,
    remembered,
    setting,
    why_retired,
    without_retired,
)
from hpcsgd.solvers.coordinate import COORDINATE, CoordinateConfig
from hpcsgd.solvers.evaluation import MEASURES, AverageConfig, StopConfig
from hpcsgd.solvers.lbfgs import PolishConfig

# Sections of a configuration that no other module owns: data, update, grid, run.

CENTRES = ("none", "classes", "columns")
DEVICES = ("cpu", "cuda")
TRANSPORTS = ("auto", "nccl", "mpi-cuda", "mpi-host")
DRIVERS = ("independent", "mpio")
FIT = "fit"
SGD = "sgd"
MOMENTUM_RULES = ("momentum", "nesterov", "nesterov-classic")  # of [update] kind
DEFAULTS = (SGD, FIT)  # of settings that are not named
MOST_EXCHANGES = 1_000_000  # between two checks
MOST_EMULATED = 2**20  # members


def automatic_partition(facts: RunFacts) -> Resolved:
    """Return what "auto" means for `data.partition`, "equal" or "stored", and why."""
    if facts.members == 1:
        return "equal", "one member holds all columns"
    if facts.is_sparse:
        return "stored", "the rows are sparse"
    return "equal", "the rows are dense"


def automatic_node_sharing(facts: RunFacts) -> Resolved:
    """Return what "auto" means for `run.node_sharing`, "off" or "by size", and why."""
    if facts.ranks == 1:
        return "off", "there is one rank"
    return "by size", "large copies share memory on a node, large sums if there is one"


@dataclass(frozen=True)
class DataConfig(Settings, section="data"):
    """The data file and how ranks read it."""

    path: str = setting("", "HDF5 file with the rows /X and the targets /y")
    partition: str = setting(
        "auto",
        "distribution of the columns over the members: equal numbers of columns"
        " (equal), or equal numbers of stored values, for sparse data (stored)",
        choices=PARTITIONS,
        becomes=automatic_partition,
    )
    hdf5: str = setting(
        "independent",
        "HDF5 driver: every rank reads on its own (independent), or all ranks read"
        " through MPI-IO (mpio)",
        choices=DRIVERS,
    )


@dataclass(frozen=True)
class UpdateConfig(Settings, section="update"):
    """How a gradient becomes a step."""

    kind: str = setting(
        "sgd",
        "update rule that turns a gradient into a step",
        choices=(*UPDATES, *ADAPTIVE, COORDINATE),
    )
    momentum: float = setting(
        0.9,
        "momentum coefficient of the update rules momentum, nesterov and"
        " nesterov-classic",
        at_least=0,
        below=1,
        remedy="0.9 is usual",
        read_if={"update.kind": MOMENTUM_RULES},
    )
    beta1: float = setting(
        0.9,
        "adam: decay rate of the mean of the gradients",
        at_least=0,
        below=1,
        remedy="0.9 is usual",
        read_if={"update.kind": ("adam",)},
    )
    beta2: float = setting(
        0.999,
        "adam: decay rate of the mean of the squared gradients",
        at_least=0,
        below=1,
        remedy="0.999 is usual",
        read_if={"update.kind": ("adam",)},
    )
    epsilon: float = setting(
        1e-08,
        "adam and adagrad: small number added to the root that steps are divided by",
        above=0,
        remedy="1e-8 is usual",
        read_if={"update.kind": ("adam", "adagrad")},
    )
    bits: int = setting(
        32,
        "momentum, adam and adagrad: bits of a word of optimizer state, 32 or 8; 8"
        " needs an agreement on gradients",
        choices=(32, 8),
        read_if={"update.kind": (*MOMENTUM_RULES, "adam", "adagrad")},
    )
    snapshot: int = setting(
        1,
        "svrg: epochs between two full gradients",
        at_least=1,
        remedy="1 is usual",
        read_if={"update.kind": ("svrg",)},
    )
    clip: str = setting(
        "none",
        "clipping of large gradients: by value, by norm, or at a percentile of the last"
        " norms",
        choices=WAYS,
    )
    clip_at: float = setting(
        0.0,
        "largest value or norm, or the percentile; 0 takes 1 for clip value and norm,"
        " and 5 for percentile",
        at_least=0,
        remedy="0 takes 1 for clip value and norm, and 5 for percentile",
        becomes=lambda facts: (facts.config.update.limit, "usual for this clip"),
        read_if={"update.clip": ("norm", "value", "percentile")},
    )
    clip_over: str = setting(
        "step",
        "what is clipped: the gradient of every step, or the mean gradient of an"
        " exchange, which is another method (exchange)",
        choices=OVERS,
        read_if={"update.clip": ("norm", "value", "percentile")},
    )
    centre: str = setting(
        "none",
        "mean that is subtracted from gradients: over classes, over columns, or none",
        choices=CENTRES,
    )
    normalise: bool = setting(False, "scale every gradient to norm 1")
    trust: float = setting(
        0.0,
        "trust coefficient, which scales the steps of weights and of intercept to their"
        " norms: LARS, and with adam LAMB; 0 scales none",
        at_least=0,
        remedy="0.001 is usual, and with adam 1",
        read_if={"update.kind": ("sgd", "momentum", "nesterov", "adam")},
    )
    noise: float = setting(
        0.0,
        "variance of the Gaussian noise on gradients in the first step; in step t it is"
        " divided by (1 + t)^0.55; 0 adds none",
        at_least=0,
        remedy="0 is none",
    )

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence if `clip_at` must be a percentile and is out of range."""
        if self.clip == "percentile" and not 0.0 < self.limit <= 100.0:
            yield (
                f"[update] clip_at = {self.clip_at!r} is the percentile of the last"
                " norms and must lie in (0, 100]; 5 is usual"
            )

    @property
    def limit(self) -> float:
        """Return the largest value or norm, or the percentile, at which to clip.

        It is `clip_at` unless that is 0, which stands for 1 if `clip` is value or norm,
        and for 5 if it is percentile.
        """
        return self.clip_at or (5.0 if self.clip == "percentile" else 1.0)


OF_PRIVACY = {"privacy.kind": ("dp-sgd",)}


@dataclass(frozen=True)
class PrivacyConfig(Settings, section="privacy"):
    """How a model hides each row that it was trained on (differential privacy)."""

    kind: str = setting(
        "none",
        "privacy of the rows: DP-SGD clips the gradient of each row and adds noise to"
        " their sum (dp-sgd), or none",
        choices=("none", "dp-sgd"),
    )
    clip: float = setting(
        1.0,
        "largest norm of the gradient of one row, the norm C of DP-SGD",
        above=0,
        remedy="1 is usual",
        read_if=OF_PRIVACY,
    )
    noise: float = setting(
        0.0,
        "standard deviation of the noise on a sum of gradients, in multiples of clip; 0"
        " takes the least with which privacy.epsilon is kept",
        at_least=0,
        remedy="1 is usual, 0 takes the least for privacy.epsilon",
        read_if=OF_PRIVACY,
    )
    epsilon: float = setting(
        0.0,
        "largest privacy loss ε of the whole run at privacy.delta; 0 sets no limit",
        at_least=0,
        remedy="1 to 10 is usual, 0 sets no limit",
        read_if=OF_PRIVACY,
    )
    delta: float = setting(
        1e-05,
        "probability δ with which the privacy loss may exceed ε",
        above=0,
        below=1,
        remedy="less than one divided by the rows is usual",
        read_if=OF_PRIVACY,
    )
    draws: str = setting(
        "poisson",
        "how a step takes its rows: each is drawn independently (poisson), which spends"
        " least privacy, or batches of the row order take each row once an epoch"
        " (shuffled), which needs more noise",
        choices=("poisson", "shuffled"),
        read_if=OF_PRIVACY,
    )

    @property
    def is_on(self) -> bool:
        """Return whether gradients of rows are clipped and disturbed."""
        return self.kind != "none"

    @property
    def is_poisson(self) -> bool:
        """Return whether each step draws each row independently."""
        return self.is_on and self.draws == "poisson"

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence if neither the noise nor a limit of ε is given."""
        if self.is_on and not self.noise and not self.epsilon:
            yield (
                "[privacy] kind = 'dp-sgd' needs a noise, or a limit of ε that the"
                " noise is found for; set privacy.epsilon, 3 is usual, or privacy.noise"
            )


@dataclass(frozen=True)
class GridConfig(Settings, section="grid"):
    """Grid of R replicas of C members."""

    replicas: int = setting(
        1, "replicas, which divide the rows; each holds all weights"
    )
    members: int = setting(
        0,
        "members of a replica, which divide the columns; 0 divides all ranks among"
        " the replicas",
        becomes=lambda facts: (facts.members, "all ranks of a replica"),
    )


@dataclass(frozen=True)
class RunSection(Settings, section="run"):
    """How the run behaves: its files, ranks, checks and limits."""

    defaults: str = setting(
        "sgd",
        "defaults of the settings that are not named: those of SGD (sgd) or those of"
        " hpcsgd.fit (fit)",
        choices=DEFAULTS,
    )
    out: str | None = setting(
        None,
        "run folder for the model, the history and the checkpoints; without it nothing"
        " is written",
    )
    model: str = setting(
        "trained",
        "number format of the weights of the final model: as they were trained"
        " (trained), or 8-bit integers with one scale for 256 columns (int8)",
        choices=("trained", "int8"),
    )
    resume: str = setting(
        "no",
        "resume from the newest checkpoint in the run folder if there is one (auto), or"
        " from the checkpoint with this path",
    )
    memory: float = setting(
        0.0,
        "memory in GiB that all ranks of one node may use together; 0 takes what the"
        " system reports as free",
        at_least=0,
        remedy="0 asks the system",
    )
    network: str | None = setting(
        None,
        f"emulate a slower network by waiting in each message: {', '.join(NETWORKS)} or"
        " alpha=5e-5,bandwidth=1.25e9 (seconds and bytes per second)",
    )
    comm: str = setting(
        "auto",
        "how ranks communicate: through MPI (mpi), not at all on a single rank"
        " (serial), or as the variables of the launcher indicate (auto)",
        choices=lambda: ("auto", *COMMUNICATORS),
        becomes=lambda _: choose(os.environ),
    )
    reproducible: bool = setting(
        False,
        "give all ranks the same bits of every sum, at the price of a second message"
        " for most sums",
    )
    check_members: int = setting(
        0,
        "exchanges between two comparisons of the arrays that should be equal on all"
        " members, or on replicas that share gradients; 0 never compares",
        at_least=0,
        remedy="0 never compares",
    )
    check_every: int = setting(
        64,
        "exchanges between two checks for non-finite weights and for requests to stop",
        at_least=1,
        at_most=MOST_EXCHANGES,
        remedy="64 is usual",
    )
    node_sharing: str = setting(
        "auto",
        "memory that ranks of a node share for sums and for arrays that are equal on"
        " them: for large ones, and sums only if all ranks are on one node (auto), for"
        " all (on), or for none (off)",
        choices=("auto", "on", "off"),
        becomes=automatic_node_sharing,
    )
    evaluate_every: int = setting(
        1,
        "epochs between two evaluations of the full loss; 0 evaluates at the start and"
        " at the end only",
        at_least=0,
        remedy="0 evaluates at the start and at the end only",
    )
    evaluate: str = setting(
        "loss",
        "what an evaluation computes: loss, also the norm of the gradient (gradient),"
        " also a bound of F − F* (gap), each with more passes over the rows",
        choices=MEASURES,
    )
    gap_every: int = setting(
        50,
        "exchanges between two checks of the recurrence error by the numerics monitor;"
        " 0 switches the monitor off",
        at_least=0,
        remedy="0 switches the monitor off",
    )
    fall_back: bool = setting(
        True,
        "retry with safer settings after an alarm of the monitor or a divergence",
    )
    record: int = setting(
        3,
        "number of exchanges that are recorded for `hpcsgd verify`",
        at_least=0,
        remedy="0 keeps none",
    )
    on_failure: str = setting(
        "stop",
        "reaction to the loss of a rank: stop, or continue with the remaining ranks"
        " (shrink), which needs an MPI with fault tolerance (ULFM)",
        choices=("stop", "shrink"),
    )
    timeout: float = setting(
        20.0,
        "seconds that a rank waits for a rank that makes no progress before it aborts"
        " the run; 0 waits for ever",
        at_least=0,
        remedy="0 waits for ever",
    )
    emulate_members: int = setting(
        0,
        "measure the time of one rank as one of N ranks, which are members unless"
        " grid.replicas says otherwise; its weights mean nothing; 0 emulates none",
        at_least=0,
        at_most=MOST_EMULATED,
        remedy="0 emulates none, and no machine has more ranks",
    )
    device: str = setting(
        "cpu",
        "device that computes the exchanges: processor (cpu) or GPU (cuda)",
        choices=DEVICES,
    )
    transport: str = setting(
        "auto",
        "how ranks send arrays that are on GPUs: NCCL, an MPI that reads GPU memory"
        " (mpi-cuda), or copies through the host (mpi-host)",
        choices=TRANSPORTS,
    )
    share_gpus: bool = setting(False, "allow more ranks on a node than it has GPUs")
    threads: int = setting(
        1,
        "threads of each rank in the compiled kernels; more than 1 uses several cores"
        " for each rank",
        at_least=1,
        remedy="1 is one core a rank",
    )
    profile: bool = setting(
        False, "report how the time divides into phases, over all ranks"
    )
    plugins: tuple[str, ...] = setting(
        (),
        "modules that every rank imports before the settings are read; they register"
        " agreements, codecs and families of your own",
    )


@dataclass(frozen=True)
class CheckpointConfig(Settings, section="checkpoint"):
    """When a run with a run folder saves checkpoints; it always saves its end."""

    every: int = setting(
        0,
        "exchanges between two checkpoints; 0 saves by time only",
        at_least=0,
        remedy="0 saves by time only",
    )
    seconds: float = setting(
        300.0,
        "seconds between two checkpoints; 0 saves by exchanges only",
        at_least=0,
        remedy="300 is usual, 0 saves by exchanges only",
    )
    keep: int = setting(
        2,
        "checkpoints that are kept; older ones are removed",
        at_least=1,
        remedy="2 is usual",
    )


# Methods by name: an agreement, a codec and the settings that belong together.
#
# `--method NAME` sets what is left open. Settings that make the method what it is must
# not be given another value; the others are defaults that an explicit setting
# overrides.


@dataclass(frozen=True)
class MethodRow:
    """One method: its description, and its settings as section.key -> value.

    A user may override `defaults`, but not `fixed` settings.
    """

    says: str
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def ddp(codec: str, says: str, **defaults: Any) -> MethodRow:
    """Return a method that sums gradients over replicas in every step.

    `codec` encodes them, `says` describes the method, and `defaults` are its defaults
    in the section [codec].
    """
    fixed = {
        "agreement.kind": "gradient",
        "agreement.codec": codec,
        "schedule.steps": 1,
    }
    return MethodRow(says, fixed, {f"codec.{key}": v for key, v in defaults.items()})


def gradient_kind(kind: str, says: str) -> MethodRow:
    """Return a method of the agreement `kind` with one step in each exchange."""
    return MethodRow(says, {"agreement.kind": kind, "schedule.steps": 1})


def averaged(kind: str, says: str) -> MethodRow:
    """Return a method whose replicas take local steps between averages of weights.

    `kind` is its agreement. By default an average comes after every 8 steps.
    """
    return MethodRow(says, {"agreement.kind": kind}, LOCAL)


def sharded(stage: int, says: str) -> MethodRow:
    """Return the method of ZeRO `stage`, in which replicas divide what they store.

    Stage 1 divides the optimizer state, 2 also the gradient, 3 also the weights.
    """
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
    "vote": ddp("vote", "the sign that most replicas have, as signSGD"),
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
    "onebit-adam": MethodRow(
        "Adam that sends its momentum in 1 bit after a warm-up, with feedback",
        {
            "agreement.kind": "qadam",
            "agreement.codec": "sign",
            "update.kind": "adam",
            "schedule.steps": 1,
        },
        {"agreement.frozen_correction": True},
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
        "each gradient is sent while the next one is computed, and is one step late",
        {"agreement.kind": "ticktock", "schedule.steps": 1},
        {"agreement.mode": "delayed"},
    ),
    "sgp": averaged("gossip", "half of the weights to one other replica, by push-sum"),
    "local-adam": MethodRow(
        "local, with steps of Adam by the gradients of each replica",
        {"agreement.kind": "local-steps", "schedule.steps": 1},
        {"update.kind": "adam", "schedule.period": 8},
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
    """Return the method called `name`; raise ConfigError if there is none."""
    if name not in METHODS:
        raise ConfigError(
            f"[agreement] unknown method: {name!r}{did_you_mean(name, METHODS)}; known:"
            f" {list(METHODS)}"
        )
    return METHODS[name]


def with_method(
    tables: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Mapping[str, Any]]:
    """Return `tables` with the settings of the method that they name, if any.

    Its defaults are added where `tables` have no value, and its fixed settings always.
    Raise ConfigError if a setting that the method fixes has another value.
    """
    agreement = tables.get("agreement")
    name = agreement.get("method") if isinstance(agreement, Mapping) else None
    if not isinstance(name, str) or not name:
        return tables
    method = get_method(name)
    for place, value in method.fixed.items():
        _check(name, place, value, tables)
    merged = {section: dict(table) for section, table in tables.items()}
    for place, value in {**method.fixed, **method.defaults}.items():
        section, key = place.split(".")
        table = merged.setdefault(section, {})
        if place in method.fixed or key not in table:
            table[key] = value
    return merged


def _check(
    name: str, place: str, value: Any, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    section, key = place.split(".")
    choice = tables.get(section, {}).get(key, "auto")
    if choice not in ("auto", value):
        raise ConfigError(
            f"method {name} fixes [{section}] {key} = {value!r}, and {choice!r} was"
            f" given; leave {place} out, or choose another method"
        )


# The section `[sweep]`, and the models that it asks for.

MOST_MODELS = 4096  # of one run


@dataclass(frozen=True)
class SweepConfig(Settings, section="sweep"):
    """Models that are trained together; empty lists train one model."""

    l2: tuple[float, ...] = setting(
        (), "ridge penalties; an empty list takes that of [problem]"
    )
    rate: tuple[float, ...] = setting(
        (), "learning rates; an empty list takes that of [rate]"
    )
    folds: int = setting(
        0,
        "folds of a cross-validation, each of which adds a model trained without its"
        " rows; 0 trains without folds",
    )
    fold_seed: int = setting(
        0,
        "seed of the random assignment of rows to folds",
        at_least=0,
        remedy="0 will do",
    )

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with the lists, the folds and the number of models."""
        for name in ("l2", "rate"):
            yield from _list_refusals(name, getattr(self, name))
        if self.folds < 0 or self.folds == 1:
            yield f"[sweep] folds = {self.folds} must be 0 or at least 2; 5 is usual"
        if self.count > MOST_MODELS:
            yield (
                f"[sweep] asks for {self.count} models at once; split the lists, or use"
                f" fewer folds, so that each run has at most {MOST_MODELS}"
            )

    @property
    def count(self) -> int:
        """Return the number of models."""
        each = self.folds + 1 if self.folds else 1
        return max(len(self.l2), 1) * max(len(self.rate), 1) * each

    @property
    def is_many(self) -> bool:
        """Return whether the sweep has several models, or names a list of values."""
        return self.count > 1 or bool(self.l2 or self.rate)

    def models(self, l2: float, rate: float, scores: int = 1) -> Models:
        """Return the models of all combinations of penalty, rate and fold.

        For each penalty and rate, there is a model for each fold, trained without its
        rows, and then one that is trained on the rows of all folds. `l2` and `rate` are
        used where the sweep lists none; `scores` is the number of scores of a row.
        """
        folds = (*range(self.folds), None)
        each = tuple(
            SweepModel(*combination)
            for combination in product(self.l2 or (l2,), self.rate or (rate,), folds)
        )
        last = self.folds  # the column of weights that has all rows
        weights = tuple(last if m.fold is None else m.fold for m in each)
        return Models(each, scores, weights)


def _list_refusals(name: str, values: tuple[float, ...]) -> Iterator[str]:
    least = "at least 0" if name == "l2" else "above 0"
    for value in values:
        is_good = value >= 0.0 if name == "l2" else value > 0.0
        if not (is_good and value < float("inf")):
            yield (
                f"[sweep] {name} has {value!r}; every value must be finite and {least}"
            )
    if len(set(values)) < len(values):
        yield f"[sweep] {name} names a value twice; name each once"


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, in sections.

    Attributes
    ----------
    problem, data, schedule, products, agreement, codec, mirror, accordion : dataclass
        Sections; `docs/reference/settings` describes each setting.
    update, privacy, coordinate, rate, average, sampling, sweep, precision : dataclass
        More sections, described on the same page.
    grid, checkpoint, stop, polish, run : dataclass
        More sections, described on the same page.

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
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
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
            Section -> key -> value. What is not named has the value of the method that
            `agreement.method` names, if any, else its default.

        Returns
        -------
        RunConfig

        Raises
        ------
        ConfigError
            If a section, a key or a value is unknown, or has the wrong type.
        """
        import_plugins(tables.get("run"))
        return cls()._with_tables(with_method(tables))

    @property
    def split(self) -> FoldSplit:
        """Return the split of rows into training rows, folds and validation rows."""
        return FoldSplit(
            self.sweep.folds,
            self.sweep.fold_seed,
            self.sampling.hold_out,
            self.sampling.seed,
        )

    def with_values(self, values: Mapping[str, Any]) -> "RunConfig":
        """Return these settings with other values of some of them.

        Parameters
        ----------
        values : mapping
            section.key -> value, as `parse` takes it. What is not named stays.

        Returns
        -------
        RunConfig

        Raises
        ------
        ConfigError
            If a section, a key or a value is unknown, or has the wrong type; if the
            values have agreement.method.

        Examples
        --------
        >>> from hpcsgd import RunConfig
        >>> config = RunConfig.parse({"schedule": {"batch": 16}})
        >>> longer = config.with_values({"schedule.epochs": 3, "run.device": "cuda"})
        >>> longer.schedule.batch, longer.schedule.epochs, longer.run.device
        (16, 3, 'cuda')
        """
        tables: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            tables.setdefault(section, {})[key] = value
        if "agreement.method" in values:
            raise ConfigError(
                "with_values cannot change [agreement] method, which sets several"
                " settings; give it to RunConfig.parse"
            )
        return self._with_tables(tables)

    def _with_tables(self, tables: Mapping[str, Any]) -> "RunConfig":
        """Return these settings, in which the values of `tables` replace others.

        Raise one ConfigError with a sentence for each wrong value.
        """
        _reject_unknown("sections", tables, vars(self))
        sections: dict[str, Any] = {}
        wrong: list[ConfigError] = []
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"{name} = {table!r} stands outside a section, and {name} is the"
                    f" name of a section; write key = value below [{name}]"
                )
            try:
                sections[name] = _changed(getattr(self, name), table)
            except ConfigError as error:
                wrong.append(error)
        refuse_together(wrong)
        return replace(self, **sections) if sections else self

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return section -> key -> value, without the settings that are None.

        The section agreement has the settings of all kinds of agreement.

        Returns
        -------
        dict of dict
        """
        tables = {}
        for name, (table, lists) in _tables(self).items():
            tables[name] = table.copy()
            for key in lists:
                tables[name][key] = table[key].copy()
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


@remembered
def _tables(config: RunConfig) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return name -> (table, keys of its lists) of each section.

    The tables are remembered: only copies of them may be changed.
    """
    tables = {name: table_of(section) for name, section in vars(config).items()}
    # A file names the settings of all kinds of agreement, as `defaults.toml` does.
    tables["agreement"] = {
        **shipped_defaults()["agreement"],
        **tables["agreement"],
        **dict(config.agreement.foreign),
    }
    return {
        name: (table, [key for key, value in table.items() if type(value) is list])
        for name, table in tables.items()
    }


def rehearsal(
    config: RunConfig,
    values: Mapping[str, Any] | None = None,
    *,
    run: RunSection | None = None,
    monitored: bool = False,
    evaluated: bool = False,
    **sections: Any,
) -> RunConfig:
    """Return the settings of a silent run, which only measures something.

    The run writes, resumes, records, compares and profiles nothing. It ends after its
    last epoch, without a final solver. If it fails, it does not retry with safer
    settings, since it would then measure another run.

    Parameters
    ----------
    config : RunConfig
        The run that is planned.
    values : mapping, optional
        section.key -> value of settings that the silent run has in the place of those
        of `config`.
    run : RunSection, optional
        The section [run] in the place of that of `config`, for other ranks or devices;
        what keeps the run silent replaces its values.
    monitored : bool, default=False
        Whether the numerics monitor stays: a run whose seconds are measured takes the
        time of its monitor, too.
    evaluated : bool, default=False
        Whether the loss is evaluated after each epoch, for a run whose losses are
        compared. Otherwise it is evaluated at the start and at the end only, for a run
        whose seconds are measured.
    **sections
        Other sections in the place of those of `config`.
    """
    run_section = config.run if run is None else run
    silent: dict[str, Any] = {
        "run.out": None,
        "run.resume": "no",
        "run.record": 0,
        "run.profile": False,
        "run.fall_back": False,
        "run.on_failure": "stop",
        "run.check_members": 0,
        "run.evaluate_every": 1 if evaluated else 0,
        "run.gap_every": run_section.gap_every if monitored else 0,
    }
    replacements = {
        "polish": PolishConfig(),
        "stop": StopConfig(),
        "run": run_section,
        **sections,
    }
    return replace(config, **replacements).with_values({**silent, **(values or {})})


def agreement_in(tables: Mapping[str, Any]) -> AgreementSettings:
    """Return the section [agreement] of `tables`, as the settings class of its kind.

    A `method` that the section names is dropped, not applied. The plugins that `tables`
    name are imported.
    """
    run = tables.get("run")
    plugins = run.get("plugins", ()) if isinstance(run, Mapping) else ()
    agreement = {**tables.get("agreement", {}), "method": ""}
    return RunConfig.parse(
        {"run": {"plugins": plugins}, "agreement": agreement}
    ).agreement


def read_toml(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a configuration file.

    If a run has written the file (`resolved.toml`), retired settings are left out.
    """
    is_of_a_run = Path(path).name == RESOLVED
    try:
        with open(open_entry(Path(path)) if is_of_a_run else path, "rb") as file:
            tables = parse_toml(file.read().decode())
        return without_retired(tables) if is_of_a_run else tables
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}"
            f"{did_you_mean_file(path)}; check its name and permissions"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if kind := _kind_of_data(Path(path)):
            raise ConfigError(
                f"{path} is a data file ({kind}), and a configuration must be TOML;"
                f" give the data file by --data {path}"
            ) from error
        raise ConfigError(f"{path} is not TOML: {error}; correct the file") from error


def _kind_of_data(path: Path) -> str:
    """Return the kind of a data file, such as "HDF5"; "" if it is not known."""
    with open(path, "rb") as file:
        is_hdf5 = file.read(len(HDF5)) == HDF5
    return "HDF5" if is_hdf5 else DATA_KINDS.get(path.suffix.lower(), "")


def chosen_settings(
    tables: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Mapping[str, Any]]:
    """Return `tables` without default values that keep a method from being chosen.

    `hpcsgd new` lists every setting, with its default. If the file has an empty method,
    all values that are defaults are left out, so that --method can set them. If it
    names a method, only defaults of settings that this method fixes are left out. With
    `run.defaults` = "fit", nothing is left out.
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
    """Return `tables` with every `section.key=value` of `settings` laid over them."""
    merged = {
        name: dict(table) if isinstance(table, Mapping) else table
        for name, table in tables.items()
    }
    for item in settings:
        name, equals, text = item.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise ConfigError(
                f"--set {item}: write it as section.key=value,"
                " for example schedule.steps=16"
            )
        merged.setdefault(section, {})[key] = toml_value(text.strip())
    return merged


HDF5 = b"\x89HDF\r\n\x1a\n"  # the first bytes of such a file
DATA_KINDS = {".csv": "CSV", ".npy": "NumPy", ".npz": "NumPy", ".svm": "LIBSVM"}
RESOLVED = "resolved.toml"  # what a run writes into its folder
FOREIGN = "foreign"  # the field of AgreementSettings that is no setting
_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a section, cached: resolving them is slow."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def check_place(plugin: str) -> None:
    """Refuse a plugin module of the current directory, unless PYTHONPATH has it.

    `python -m` searches the current directory. A run folder of another person may name
    plugins, and a module beside it must not run because a command reads the folder.
    """
    top = plugin.partition(".")[0]
    if plugin in sys.modules or (spec := find_spec(top)) is None:
        return
    where = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    folder = Path(where).resolve().parent
    folder = folder.parent if spec.submodule_search_locations else folder
    trusted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder == Path.cwd() and folder not in [Path(p).resolve() for p in trusted if p]:
        raise ConfigError(
            f"[run] plugins names {plugin!r}, which is not imported because it lies in"
            " the current directory; add the directory to PYTHONPATH if you trust it"
        )


def import_plugins(run: Any) -> None:
    """Import the modules that [run] plugins names.

    They register agreements, codecs and families.
    """
    plugins = run.get("plugins", ()) if isinstance(run, Mapping) else ()
    for name in names_in("[run] plugins", plugins):
        try:
            check_place(name)
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"[run] plugins names {name!r}, which cannot be imported ({error});"
                " install it, or add its folder to PYTHONPATH"
            ) from error


@cache
def shipped_defaults() -> dict[str, dict[str, Any]]:
    """Return the default of every setting, from the file that the package ships."""
    return parse_toml(Path(__file__).with_name("defaults.toml").read_text("utf-8"))


def agreement_settings() -> dict[str, tuple[str, type[AgreementSettings]]]:
    """Return key -> (the first kind of agreement with it, its settings class).

    The keys of [agreement] are in the order of a configuration file. All agreements are
    imported.
    """
    owners: dict[str, tuple[str, type[AgreementSettings]]] = {}
    for kind in AGREEMENTS:
        settings = settings_of(kind)
        for key in declarations(settings):
            if key != FOREIGN:
                owners.setdefault(key, (kind, settings))
    return owners


def _agreement(table: Mapping[str, Any]) -> AgreementSettings:
    """Return the section [agreement], as the settings class of its `kind`.

    `table` may have keys of other kinds. Those with their default value are dropped;
    the others are kept in the field `foreign`, so that `unread_settings` can name them.
    """
    name = table.get("kind", AUTO)
    kind = settings_of(name if isinstance(name, str) else AUTO)
    keys = declarations(kind).keys() - {FOREIGN}
    values = {key: value for key, value in table.items() if key in keys}
    others = {key: value for key, value in table.items() if key not in keys}
    agreement: AgreementSettings = kind(**_values("agreement", kind, values))
    usual = shipped_defaults()["agreement"]
    foreign = {k: v for k, v in others.items() if k not in usual or v != usual[k]}
    if not foreign:
        return agreement
    owners = agreement_settings()
    _reject_unknown("[agreement]", others, {*owners, *keys})
    for key, value in foreign.items():
        other = owners[key][1]
        checked = other(**_values("agreement", other, {key: value}))
        foreign[key] = getattr(checked, key)
    return replace(agreement, foreign=tuple(foreign.items()))


def _changed(section: Any, table: Mapping[str, Any]) -> Any:
    """Return a copy of `section` in which the values of `table` replace others."""
    if section.section == AgreementSettings.section:
        return _agreement({**table_of(section), **dict(section.foreign), **table})
    return replace(section, **_values(section.section, type(section), table))


def _values(name: str, kind: type[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return key -> value of a section, converted to the types of its fields.

    Raise one ConfigError with a sentence for each wrong value.
    """
    hints = _hints(kind)
    declared = declarations(kind)
    _reject_unknown(f"[{name}]", table, declared)
    values = {}
    sentences = []
    for key, value in table.items():
        if refusal := why_retired(name, key, value):
            sentences.append(refusal)
            continue
        auto = declared[key].auto
        try:
            values[key] = _typed(name, key, hints[key], value, declared[key])
        except ConfigError as error:
            sentences.append(str(error))
        else:
            if auto is not None and value != "auto" and values[key] == auto:
                sentences.append(kind.refusal(key, value))
    refuse(sentences)
    return values


def _reject_unknown(place: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known, and say why if a name is retired."""
    for key in sorted(set(given).difference(known)):
        if reason := why_retired(place.strip("[]"), key):
            raise ConfigError(reason)
    reject_unknown(place, given, known)


def _typed(section: str, key: str, kind: Any, value: Any, declared: Setting) -> Any:
    """Return `value` as the type `kind` of a setting; refuse a value of another type.

    A whole number may stand for a real number, or for a text that is a count. The text
    "auto" may stand for a value that is determined later, and "" for None where the
    setting may be None and is no text. Lists become tuples. No other type is converted.
    """
    if declared.auto is not None and value == "auto":
        return declared.auto
    if declared.is_count and type(value) is int:
        return str(value)
    if kind == tuple[str, ...]:
        return names_in(f"[{section}] {key}", value)
    if get_origin(kind) is tuple:
        return numbers(f"[{section}] {key}", value)
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and type(None) in kinds:
        return None
    if tuple[float, ...] in kinds and isinstance(value, list | tuple):
        return tuple(_typed(section, key, float, item, declared) for item in value)
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
    """Return how to write the value of a setting in TOML with one of the `kinds`."""
    if isinstance(value, str):
        meant = toml_value(value)
        if type(meant) in kinds or (float in kinds and type(meant) is int):
            return f"write {key} = {toml_literal(meant)} without quotes"
    if str in kinds and isinstance(value, bool | int | float):
        return f'write {key} = "{toml_literal(value)}" in quotes'
    if bool in kinds:
        return "write true or false"
    return "write a whole number" if int in kinds else "write a number"


def table_of(section: Any) -> dict[str, Any]:
    """Return key -> value of a section as TOML and JSON write it.

    Settings that are None, and those of other kinds of agreement, are left out; tuples
    become lists.
    """
    declared = declarations(type(section))
    table = {}
    for key, value in vars(section).items():
        if value is None or key == FOREIGN:
            continue
        auto = declared[key].auto
        if auto is not None and value == auto:
            value = "auto"
        table[key] = list(value) if type(value) is tuple else value
    return table


# Settings that a run would not read: whoever wrote one meant another run.

Tables = Mapping[str, Mapping[str, Any]]
USUAL = RunConfig()
# Values of settings that do nothing, and a default of earlier versions.
NOTHING = {"update.momentum": 0.0, "codec.share": 0.01}


def check_read(config: RunConfig, given: Tables | None = None) -> None:
    """Refuse settings that have a value and that the run would not read.

    If `given` is not None, only settings in these tables, which are the user's, are
    refused.
    """
    refuse(
        sentence
        for name, sentence in unread_settings(config).items()
        if given is None or is_in(name, given)
    )


def is_in(name: str, tables: Tables) -> bool:
    """Return whether `tables` have a value for the setting `name`, section.key."""
    section, key = name.split(".")
    return key in tables.get(section, {})


def unread_settings(config: RunConfig) -> dict[str, str]:
    """Return section.key -> why a run with `config` does not read the setting.

    Only settings are named whose values are neither defaults nor set by the method.
    """
    names = [
        f"{section}.{key}"
        for section, settings in vars(config).items()
        for key in declarations(type(settings))
        if key != FOREIGN and _is_given(f"{section}.{key}", config)
    ]
    names += [f"agreement.{key}" for key, _ in config.agreement.foreign]
    reasons = {name: _why_unread(name, config) for name in names}
    return {name: why for name, why in reasons.items() if why} | _turned(config)


def is_read(name: str, config: RunConfig) -> bool:
    """Return whether a run with `config` reads this setting, whatever its value."""
    return not _why_unread(name, config)


def is_conditional(name: str) -> bool:
    """Return whether some runs do not read the setting `name`."""
    section, key = name.split(".")
    if section == AgreementSettings.section:
        return key in AgreementSettings.ignores or key not in declarations(
            AgreementSettings
        )
    return bool(_declared(name, USUAL).read_if)


def value_of(name: str, config: RunConfig) -> Any:
    """Return the value of the setting section.key in `config`.

    If the agreement in use does not have the setting, it is the value that was kept for
    other kinds, or the default.
    """
    section, key = name.split(".")
    settings = getattr(config, section)
    if section == AgreementSettings.section and key not in declarations(type(settings)):
        return dict(settings.foreign).get(key, shipped_defaults()[section].get(key))
    return getattr(settings, key)


def drop_unread_settings(tables: Tables, shared: Tables) -> dict[str, dict[str, Any]]:
    """Return `tables` without those `shared` settings that the run would not read.

    Several runs share these settings, and each run gets those that it reads.
    """
    left = {section: dict(table) for section, table in tables.items()}
    try:
        names = list(unread_settings(RunConfig.parse(tables)))
    except ConfigError:
        return left  # parsing reports why
    for name in names:
        section, key = name.split(".")
        ours = left.get(section, {})
        if key in ours and ours[key] == shared.get(section, {}).get(key, ours):
            del ours[key]
    return left


def _is_given(name: str, config: RunConfig) -> bool:
    """Return whether the value of `name` is set by the user.

    It is if it is neither the default, nor a value of the method, nor one that has no
    effect.
    """
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
    """Return a sentence on why a run does not read a setting; "" if it reads it."""
    section, key = name.split(".")
    conditions: tuple[Condition, ...] = ()
    if section == AgreementSettings.section:
        agreement = config.agreement
        if key not in declarations(type(agreement)) or key in agreement.ignores:
            return _sentence(name, "agreement.kind", _kinds_with(key), config)
        conditions = (
            (agreement.conditions()[key],) if key in agreement.conditions() else ()
        )
    conditions = conditions or _declared(name, config).read_if
    if not conditions or any(_holds(condition, config) for condition in conditions):
        return ""
    of, values = next(
        (of, values)
        for of, values in conditions[0].items()
        if not _holds({of: values}, config)
    )
    if of == READS:
        of = "agreement.kind"
        values = _kinds_that_read(values)
    return _sentence(name, of, [str(value) for value in values], config)


def _kinds_with(key: str) -> list[str]:
    """Return the kinds of agreement that read the setting `key` of [agreement]."""
    classes = {kind: settings_of(kind) for kind in AGREEMENTS}
    return [
        kind
        for kind, settings in classes.items()
        if key in declarations(settings) and key not in settings.ignores
    ]


def _kinds_that_read(subjects: Iterable[Any]) -> list[str]:
    """Return the kinds of agreement that read one of `subjects`.

    A subject is a group of settings of other sections.
    """
    return [kind for kind in AGREEMENTS if settings_of(kind).reads & set(subjects)]


def _holds(condition: Condition, config: RunConfig) -> bool:
    return all(
        bool(_in_force(of, config) & {str(value) for value in values})
        or _is_yours(of, config)
        for of, values in condition.items()
    )


def _in_force(of: str, config: RunConfig) -> set[str]:
    """Return the values of the setting `of` that decide which settings are read.

    For the codec accordion these are accordion and the codec that it wraps.
    """
    if of == READS:
        return set(config.agreement.reads)
    values = {str(value_of(of, config))}
    if of == "agreement.codec" and values == {"accordion"}:
        values.add(config.accordion.codec)
    return values


def _is_yours(of: str, config: RunConfig) -> bool:
    """Return whether the setting `of` names a codec that a plugin registered.

    Such a codec may read all settings, which hpcsgd cannot know.
    """
    homes = [CODECS.get(name, "") for name in _in_force("agreement.codec", config)]
    return of == "agreement.codec" and not all(h.startswith("hpcsgd.") for h in homes)


def _sentence(name: str, of: str, values: Sequence[str], config: RunConfig) -> str:
    (section, key), (place, other) = name.split("."), of.split(".")
    return (
        f"[{section}] {key} = {value_of(name, config)!r} is for [{place}] {other} ="
        f" {either(map(repr, values))}, and {other} = {value_of(of, config)!r} does not"
        " read it; use"
        f" {_remedy(name, of, values[0], config)}, or leave {name} out"
    )


def _remedy(name: str, of: str, value: str, config: RunConfig) -> str:
    """Return an option that sets `of` to `value`, so that a run reads `name`.

    It is --update for the update rule, else --method if a method fixes `of` to `value`,
    else --set. Of such methods one that fixes `name` to its value in `config` is
    preferred.
    """
    if of == "update.kind":
        return f"--update {value}"
    fits = [n for n, row in METHODS.items() if str(row.fixed.get(of)) == value]
    unread_value = value_of(name, config)
    best = [n for n in fits if METHODS[n].fixed.get(name) == unread_value]
    return f"--method {(best + fits)[0]}" if fits else f"--set {of}={value}"


def _turned(config: RunConfig) -> dict[str, str]:
    """Return name -> why it is not read, for values that the codec accordion replaces.

    They are settings of [codec] that have neither of the two values between which
    accordion switches.
    """
    if config.agreement.codec != "accordion" or config.accordion.codec not in CODECS:
        return {}
    low, high = config.accordion.regimes(config.codec)
    sentences = {}
    for key, value in vars(config.codec).items():
        if value not in (getattr(low, key), getattr(high, key)):
            sentences[f"codec.{key}"] = (
                f"[codec] {key} = {value!r} is replaced by accordion, which switches"
                f" between {getattr(low, key)!r} and {getattr(high, key)!r}; set"
                " accordion.low"
                " and accordion.high, and leave it out"
            )
    return {
        name: sentence
        for name, sentence in sentences.items()
        if _is_given(name, config)
    }
