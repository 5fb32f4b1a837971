"""Methods by name: an agreement, a codec and the settings that belong together.

`--method NAME` sets what is left open. Settings that make the method what it is must
not be given another value; the others are defaults that an explicit setting overrides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcsgd.errors import ConfigError


@dataclass(frozen=True)
class Method:
    """One row: what it says of itself, and section.key -> value."""

    says: str
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def ddp(codec: str, says: str, **defaults: Any) -> Method:
    """The gradient agreement with one of the codecs, and defaults of [codec]."""
    fixed = {
        "agreement.kind": "gradient",
        "agreement.codec": codec,
        "schedule.steps": 1,
    }
    return Method(says, fixed, {f"codec.{key}": v for key, v in defaults.items()})


def gradient_kind(kind: str, says: str) -> Method:
    """One step an exchange, and what replicas tell each other beside it."""
    return Method(says, {"agreement.kind": kind, "schedule.steps": 1})


def averaged(kind: str, says: str) -> Method:
    """Replicas that take steps of their own, and agree on weights now and then."""
    return Method(says, {"agreement.kind": kind}, LOCAL)


def sharded(stage: int, says: str) -> Method:
    """ZeRO: what a step needs is held in slices, one of each tile a replica."""
    fixed = {"agreement.kind": "sharded", "agreement.stage": stage, "schedule.steps": 1}
    return Method(says, fixed)


LOCAL = {"schedule.steps": 1, "schedule.period": 8}
METHODS = {
    "ddp": ddp("identity", "gradients are summed in every step"),
    "fp16": ddp("fp16", "gradients travel in fp16"),
    "bf16": ddp("bf16", "gradients travel in bf16"),
    "fp8": ddp("fp8", "gradients travel in 8 bits, with error feedback"),
    "topk": ddp("topk", "the largest words of gradients, with error feedback"),
    "randomk": ddp("randomk", "words drawn by all alike, with error feedback"),
    "threshold": ddp("threshold", "words above a size, with error feedback"),
    "wangni": ddp("wangni", "large words more often, unbiased"),
    "dgc": Method(
        "top-k of momentum that every replica gathers",
        {**ddp("dgc", "").fixed, "update.kind": "sgd"},
    ),
    "qsgd": ddp("qsgd", "gradients are rounded by dice to uniform levels"),
    "sign": ddp("sign", "one bit a word and a scale, with error feedback"),
    "byte": ddp("byte", "8 bits between the least and the greatest, with feedback"),
    "bytegrad": ddp("bytegrad", "8 bits a word, added in pieces, with feedback"),
    "nuqsgd": ddp("nuqsgd", "gradients are rounded by dice to powers of two"),
    "alq": ddp("alq", "as nuqsgd, with levels that follow the gradients"),
    "amq": ddp("amq", "levels are powers of a number that follows the gradients"),
    "powersgd": ddp("powersgd", "matrices of low rank, with error feedback"),
    "infinity": Method(
        "weights and states on disk, tile by tile through memory",
        {"agreement.kind": "infinity", "schedule.steps": 1},
        {"update.kind": "adam"},
    ),
    "accordion": ddp("accordion", "powersgd of more ranks while gradients change"),
    "bagua": ddp("bytegrad", "as bytegrad, and nothing is remembered", feedback="off"),
    "decentralized": gradient_kind(
        "decentralized", "weights are mixed while gradients are computed"
    ),
    "decentralized-low": gradient_kind(
        "decentralized-low", "neighbours on a ring tell how they moved, in 8 bits"
    ),
    "qadam": Method(
        "Adam whose momentum travels in 8 bits after a warm-up",
        {
            "agreement.kind": "qadam",
            "agreement.codec": "bytegrad",
            "update.kind": "adam",
            "schedule.steps": 1,
        },
        {"codec.feedback": "off"},
    ),
    "async-average": averaged(
        "async-average", "as local, and averages travel while replicas go on"
    ),
    "accordion-batch": Method(
        "batches that grow where gradients have settled",
        {"agreement.kind": "growing", "schedule.steps": 1},
        {"agreement.accumulate": 4},
    ),
    "bytescheduler": Method(
        "gradients by priority and credit, behind the next step's scores",
        {"agreement.kind": "scheduled", "schedule.steps": 1},
    ),
    "wavelet": Method(
        "half of a step's gradients travel while the others are computed",
        {"agreement.kind": "ticktock", "schedule.steps": 1},
    ),
    "local": averaged("average", "weights are averaged every --period exchanges"),
    "postlocal": averaged("postlocal", "after every exchange at first, then as local"),
    "hierarchical": averaged("hierarchical", "nested groups average in their periods"),
    "fedavg": averaged("fedavg", "some of the replicas train in each round"),
    "slowmo": averaged("slowmo", "local, with slow momentum where weights agree"),
    "anybatch": Method(
        "rounds of a fixed time, whatever batch a replica gets through",
        {"agreement.kind": "anybatch", "schedule.steps": 1, "update.kind": "sgd"},
        {"agreement.accumulate": 8, "rate.kind": "inverse-sqrt", "rate.decay": 0.01},
    ),
    "zero1": sharded(1, "ddp with optimiser state in slices"),
    "zero2": sharded(2, "ddp with optimiser state and gradient in slices"),
    "zero3": sharded(3, "ddp with weights, gradient and state in slices"),
    "offload": Method(
        "zero2 whose steps the host takes, one late if asked for",
        {"agreement.kind": "offload", "schedule.steps": 1},
    ),
}


def get_method(name: str) -> Method:
    """The method called `name`."""
    if name not in METHODS:
        raise ConfigError(
            f"[agreement] unknown method: {name!r}; known: {list(METHODS)}"
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
