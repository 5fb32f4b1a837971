"""How a gradient is made small on the wire."""

from importlib import import_module

from hpcsgd.codecs.base import Bucket, Codec, Line, Moment, Told
from hpcsgd.codecs.feedback import Feedback
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.errors import ConfigError

CODECS = {
    "identity": "hpcsgd.codecs.identity:Identity",
    "fp16": "hpcsgd.codecs.cast:Fp16",
    "bf16": "hpcsgd.codecs.cast:Bf16",
    "fp8": "hpcsgd.codecs.cast:Fp8",
    "topk": "hpcsgd.codecs.topk:TopK",
    "randomk": "hpcsgd.codecs.randomk:RandomK",
    "threshold": "hpcsgd.codecs.threshold:Threshold",
    "wangni": "hpcsgd.codecs.wangni:Wangni",
    "dgc": "hpcsgd.codecs.dgc:Dgc",
    "qsgd": "hpcsgd.codecs.qsgd:Qsgd",
    "sign": "hpcsgd.codecs.sign:Sign",
    "byte": "hpcsgd.codecs.byte:Byte",
    "nuqsgd": "hpcsgd.codecs.nuqsgd:Nuqsgd",
    "alq": "hpcsgd.codecs.adaptive:Alq",
    "amq": "hpcsgd.codecs.adaptive:Amq",
    "powersgd": "hpcsgd.codecs.powersgd:PowerSgd",
}


def get_codec(name: str) -> type[Codec]:
    """The class of the codec called `name`."""
    if name not in CODECS:
        raise ConfigError(f"[agreement] unknown codec: {name!r}; known: {list(CODECS)}")
    module, attribute = CODECS[name].split(":")
    found: type[Codec] = getattr(import_module(module), attribute)
    return found


def make_codec(name: str, bucket: Bucket, config: CodecConfig) -> Codec:
    """The codec of one bucket, with error feedback where that is asked for."""
    codec = get_codec(name)(bucket, config)
    wants = codec.wants_feedback
    if config.feedback == "on" and codec.has_own_memory:
        raise ConfigError(
            f"[codec] feedback = 'on' and {name} keeps what it has not sent itself;"
            " use feedback = 'auto'"
        )
    if config.feedback == "on" or (config.feedback == "auto" and wants):
        return Feedback(codec)
    return codec


def register(name: str, kind: type[Codec]) -> None:
    """Let `[agreement] codec = name` be a codec of yours, on the rank that calls this.

    Parameters
    ----------
    name : str, one that no codec has
    kind : subclass of Codec, at the top of a module
    """
    where = f"{kind.__module__}:{kind.__qualname__}"
    if CODECS.get(name, where) != where:
        raise ConfigError(f"there is a codec {name!r} already; take another name")
    CODECS[name] = where


__all__ = [
    "CODECS",
    "Bucket",
    "Codec",
    "CodecConfig",
    "Feedback",
    "Line",
    "Moment",
    "Told",
    "get_codec",
    "make_codec",
    "register",
]
