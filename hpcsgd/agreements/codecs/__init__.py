"""Codecs: how gradients are encoded in fewer bytes."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.agreements.codecs.base import (
    CODECS,
    ERROR,
    FIRST,
    AccordionConfig,
    Bucket,
    BucketChannel,
    Codec,
    CodecConfig,
    Decoded,
    Feedback,
    GatheredCodec,
    Moment,
    get_codec,
    pack,
    packed_bytes,
    unpack,
)
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array


def make_codec(
    name: str,
    bucket: Bucket,
    config: CodecConfig,
    accordion: AccordionConfig | None = None,
) -> Codec:
    """Return the codec of one bucket, inside a `Feedback` if it has error feedback.

    It has if the setting `feedback` is "on", or if it is "auto" and the codec wants it.
    """
    codec = get_codec(name).of(bucket, config, accordion or AccordionConfig())
    if config.feedback != "auto" and codec.has_own_memory:
        raise ConfigError(
            f"[codec] feedback = {config.feedback!r} cannot be used with codec {name},"
            " which itself keeps what it has not sent; use feedback = 'auto'"
        )
    if config.feedback == "on" and not codec.takes_feedback:
        raise ConfigError(
            f"[codec] feedback = 'on' cannot be used with codec {name}, whose words are"
            " not parts of a gradient; use codec sign, or feedback = 'auto'"
        )
    if config.remembers_errors(codec.wants_feedback):
        return Feedback(codec)
    return codec


def is_coded(config: Any) -> bool:
    """Return whether replicas encode their gradients, or use error feedback."""
    return bool(config.agreement.codec != "identity" or config.codec.feedback == "on")


def kept_bytes(
    name: str, bucket: Bucket, config: CodecConfig, accordion: AccordionConfig
) -> int:
    """Return the bytes that the codec of a bucket keeps between exchanges.

    Checkpoints save all of them. This function allocates nothing.
    """
    kind = get_codec(name)
    regimes = [config]
    words = len(kind.remembers)
    tables = 0
    if name == "accordion":
        kind = get_codec(accordion.codec)
        regimes = [*accordion.regimes(config)]
        words = words * (accordion.by == "gradient") + len(kind.remembers)
        tables = FIRST.nbytes
    words += config.remembers_errors(kind.wants_feedback)
    tables += sum(kind.table_bytes(bucket, regime) for regime in regimes)
    return words * bucket.words * bucket.dtype.itemsize + tables


def owed(
    name: str,
    config: CodecConfig,
    accordion: AccordionConfig,
    kept: Mapping[str, Array],
    rate: float,
) -> Array | None:
    """Return the mean gradient that replicas have not sent; None if none was kept.

    `kept` contains the means over replicas of the arrays that their codecs have saved.
    Error feedback saves its error as a step, which is a gradient times `rate`.
    """
    kind = get_codec(accordion.codec if name == "accordion" else name)
    gradient = kind.owes(kept, config)
    if ERROR in kept:  # in steps, as long as the rate was
        error = kept[ERROR] / rate
        gradient = error if gradient is None else gradient + error
    return gradient


def register(name: str, kind: type[Codec]) -> None:
    """Make a class of your own a codec, in this process.

    The setting `agreement.codec` then takes its name. In a program that runs on several
    ranks every rank must call this before it trains.

    Parameters
    ----------
    name : str
        A name that no codec has.
    kind : subclass of Codec
        The codec, a class at the top of a module that can be imported.

    Raises
    ------
    ConfigError
        If the name is taken.

    Examples
    --------
    >>> from hpcsgd.agreements import codecs
    >>> from hpcsgd.agreements.codecs.base import Identity
    >>> codecs.register("plain", Identity)
    >>> codecs.get_codec("plain") is Identity
    True
    >>> del codecs.CODECS["plain"]
    """
    where = f"{kind.__module__}:{kind.__qualname__}"
    if CODECS.get(name, where) != where:
        raise ConfigError(f"there is a codec {name!r} already; take another name")
    CODECS[name] = where


__all__ = [
    "CODECS",
    "AccordionConfig",
    "Bucket",
    "Codec",
    "CodecConfig",
    "Feedback",
    "BucketChannel",
    "Moment",
    "Decoded",
    "GatheredCodec",
    "get_codec",
    "is_coded",
    "kept_bytes",
    "make_codec",
    "owed",
    "pack",
    "packed_bytes",
    "register",
    "unpack",
]
