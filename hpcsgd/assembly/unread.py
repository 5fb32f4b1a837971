"""Settings that were given and that nobody reads: another method than one believes.

Some are refused beside kinds that do not read them (`OF_ONE`), others are said; in a
comparison, whose rows share them, each row has those that it reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.assembly.kind_checks import OF_ONE
from hpcsgd.codecs import CODECS, get_codec
from hpcsgd.config import RunConfig

AVERAGES = ("average", "postlocal", "hierarchical", "fedavg", "slowmo", "async-average")
# Keys of [agreement], and the kinds that read them; slowmo as its base does, too.
OF_KINDS = {
    "momentum": AVERAGES,
    "switch": ("postlocal",),
    "groups": ("hierarchical",),
    "periods": ("hierarchical",),
    "fraction": ("fedavg",),
    "replay": ("anybatch",),
    "stage": ("sharded",),
    "delay_after": ("offload",),
    **dict.fromkeys(
        ("base", "slow_rate", "slow_momentum", "slow_period", "slow_sharded"),
        ("slowmo",),
    ),
}
SECTIONS = "agreement", "codec", "accordion", "mirror"
TURNING = ("eta", "interval")  # of [accordion]: of the codec and of growing batches


def unread(config: RunConfig) -> dict[str, Any]:
    """section.key -> value of all that was given and is read by nobody."""
    known = {
        "agreement": set(_of_agreement(config)),
        "codec": set(_of_codec(config)),
        "accordion": set(_of_accordion(config)),
        "mirror": set(_of_mirror(config)),
    }
    return {
        name: value
        for name, value in all_given(config).items()
        if name.partition(".")[2] not in known[name.partition(".")[0]]
    }


def all_given(config: RunConfig) -> dict[str, Any]:
    """section.key -> value of what differs from its default, in `SECTIONS`."""
    return {
        f"{section}.{key}": value
        for section in SECTIONS
        for key, value in _given(getattr(config, section)).items()
    }


def _given(settings: Any) -> Mapping[str, Any]:
    own = ((field.name, field.default) for field in fields(settings))
    return {
        name: getattr(settings, name)
        for name, usual in own
        if getattr(settings, name) != usual
    }


def _of_agreement(config: RunConfig) -> Iterator[str]:
    """What is not of some kinds alone is everybody's, or refused."""
    asked = config.agreement
    kinds = {_kind(config)} | ({asked.base} if _kind(config) == "slowmo" else set())
    for field in fields(asked):
        key, one = field.name, OF_ONE.get(field.name)
        if kinds & set(OF_KINDS.get(key, (one[0],) if one else kinds)):
            yield key


def _kind(config: RunConfig) -> str:
    kind = config.agreement.kind
    if kind != "auto":
        return kind
    return "average" if config.grid.replicas > 1 else "none"


def _of_codec(config: RunConfig) -> Iterator[str]:
    """Of a codec that does not say, all."""
    name = config.agreement.codec
    if not takes_gradients(config.agreement.kind):
        return
    yield "feedback"
    name = config.accordion.codec if name == "accordion" else name
    reads = get_codec(name).reads if name in CODECS else None
    yield from [f.name for f in fields(config.codec)] if reads is None else reads


def _of_accordion(config: RunConfig) -> Iterator[str]:
    if config.agreement.kind == "growing":
        yield from (*TURNING, "scale_rate")
    if config.agreement.codec == "accordion":
        yield from (*TURNING, "codec", "low", "high")


def _of_mirror(config: RunConfig) -> Iterator[str]:
    if config.agreement.kind == "anybatch":
        yield from (field.name for field in fields(config.mirror))
