"""Base classes of codecs: settings, error feedback, chunks, packing."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, did_you_mean
from hpcsgd.formats import Array
from hpcsgd.settings import READS, Resolved, RunFacts, Settings, setting

# The table of codecs.

CODECS = {
    "identity": "hpcsgd.agreements.codecs.base:Identity",
    "fp16": "hpcsgd.agreements.codecs.bits:Fp16",
    "bf16": "hpcsgd.agreements.codecs.bits:Bf16",
    "fp8": "hpcsgd.agreements.codecs.bits:Fp8",
    "topk": "hpcsgd.agreements.codecs.sparse:TopK",
    "randomk": "hpcsgd.agreements.codecs.sparse:RandomK",
    "threshold": "hpcsgd.agreements.codecs.sparse:Threshold",
    "wangni": "hpcsgd.agreements.codecs.sparse:Wangni",
    "dgc": "hpcsgd.agreements.codecs.sparse:Dgc",
    "qsgd": "hpcsgd.agreements.codecs.levels:Qsgd",
    "sign": "hpcsgd.agreements.codecs.bits:Sign",
    "vote": "hpcsgd.agreements.codecs.bits:Vote",
    "byte": "hpcsgd.agreements.codecs.bits:Byte",
    "bytegrad": "hpcsgd.agreements.codecs.bits:ByteGrad",
    "nuqsgd": "hpcsgd.agreements.codecs.levels:Nuqsgd",
    "alq": "hpcsgd.agreements.codecs.levels:Alq",
    "amq": "hpcsgd.agreements.codecs.levels:Amq",
    "powersgd": "hpcsgd.agreements.codecs.powersgd:PowerSgd",
    "accordion": "hpcsgd.agreements.codecs.accordion:Accordion",
}


def get_codec(name: str) -> "type[Codec]":
    """Return the class of the codec called `name`."""
    if name not in CODECS:
        hint = did_you_mean(name, CODECS)
        raise ConfigError(
            f"[agreement] unknown codec: {name!r}{hint}; known: {list(CODECS)}"
        )
    module, attribute = CODECS[name].split(":")
    kind: type[Codec] = getattr(import_module(module), attribute)
    return kind


# The settings of all codecs; each codec reads its own.

FEEDBACKS = ("auto", "on", "off")
DENSE = ("auto", "never")
NORMS = ("max", "l2")
BITS = 2, 32
SPARSE = ("topk", "randomk", "threshold", "wangni", "dgc")
ENTROPIES = ("none", "elias", "huffman")
SELECTING = ("topk", "randomk", "threshold", "dgc")  # their values can be rounded
UNITS = ("words", "rows", "columns")
VALUES = ("full", "fp16", "bf16", "byte", "qsgd", "sign")
LEVELS = ("qsgd", "nuqsgd", "alq", "amq")
OF_QSGD = {"agreement.codec": SELECTING, "codec.values": ("qsgd",)}
OF_CHUNKS = {"agreement.codec": SELECTING, "codec.values": ("qsgd", "byte")}
BY_SHARE = "by share", "codec.share names the words"


def automatic_feedback(facts: RunFacts) -> Resolved:
    """Return "on" or "off" for the error feedback of a run, and the reason."""
    config = facts.config
    name = config.agreement.codec
    kind = get_codec(config.accordion.codec if name == "accordion" else name)
    if kind.has_own_memory:
        return "off", f"{name} itself keeps what it has not sent"
    if config.codec.remembers_errors(kind.wants_feedback):
        return "on", f"{name} needs it"
    return "off", f"{name} does not need it"


@dataclass(frozen=True)
class CodecConfig(Settings, section="codec"):
    """How gradients are compressed."""

    feedback: str = setting(
        "auto",
        "error feedback: for codecs that need it (auto), always (on) or never (off)",
        choices=FEEDBACKS,
        becomes=automatic_feedback,
        read_by="feedback",
    )
    share: float = setting(
        0.0,
        "sparse codecs: share of the words of a bucket that is sent; 0 is 1 % and at"
        " least 16 words",
        at_least=0,
        at_most=1,
        becomes=("1 %", "1 % of a bucket, and at least 16 words"),
        read_if={
            "agreement.codec": SPARSE,
            "codec.threshold": (0.0,),
            "codec.budget": (0.0,),
            "codec.shares": ((),),
        },
    )
    shares: tuple[float, ...] = setting(
        (),
        "sparse codecs: shares of the buckets in the order of their columns, one for"
        " each bucket; an empty list takes codec.share for all",
        read_if={
            "agreement.codec": SPARSE,
            "codec.threshold": (0.0,),
            "codec.budget": (0.0,),
        },
    )
    warm_up: int = setting(
        0,
        "sparse codecs: epochs at the start in which the share falls to its value",
        at_least=0,
        read_if={
            "agreement.codec": SPARSE,
            "codec.threshold": (0.0,),
            "codec.budget": (0.0,),
        },
    )
    dense: str = setting(
        "auto",
        "sparse codecs: send all words uncompressed if sparse records would be larger"
        " (auto), or never",
        choices=DENSE,
        becomes=("if smaller", "decided for each message by its size"),
        read_if={"agreement.codec": ("topk", "threshold", "wangni", "dgc")},
    )
    select: str = setting(
        "words",
        "sparse codecs except wangni: what is selected by its norm: words, blocks of N"
        " neighbouring words (N), or rows or columns of the weight matrix",
        is_count=True,
        read_if={"agreement.codec": SELECTING},
    )
    values: str = setting(
        "full",
        "sparse codecs except wangni: how the values that are sent are rounded: not at"
        " all (full), or as by the codec of this name",
        choices=VALUES,
        read_if={"agreement.codec": SELECTING},
    )
    threshold: float = setting(
        0.0,
        "threshold: smallest absolute value that is sent; 0 derives it from the share",
        at_least=0,
        becomes=BY_SHARE,
        read_if={"agreement.codec": ("threshold",)},
    )
    budget: float = setting(
        0.0,
        "wangni: bound of the variance, E Σ C(a)² ≤ (1 + budget) Σ a²; 0 derives it"
        " from the share",
        at_least=0,
        becomes=BY_SHARE,
        read_if={"agreement.codec": ("wangni",)},
    )
    momentum: float = setting(
        0.9,
        "dgc: momentum coefficient of every replica; 0 uses none",
        at_least=0,
        below=1,
        read_if={"agreement.codec": ("dgc",)},
    )
    nesterov: bool = setting(
        False, "dgc: use Nesterov momentum", read_if={"agreement.codec": ("dgc",)}
    )
    masking: bool = setting(
        False,
        "dgc: reset the momentum of words that were sent",
        read_if={"agreement.codec": ("dgc",)},
    )
    clip: float = setting(
        0.0,
        "dgc: largest norm of the summed gradient, of which each of R replicas may have"
        " 1/√R; 0 does not clip",
        at_least=0,
        read_if={"agreement.codec": ("dgc",)},
    )
    bits: int = setting(
        4,
        "quantisers: bits of a word, its sign included",
        at_least=BITS[0],
        at_most=BITS[1],
        read_if=({"agreement.codec": LEVELS}, OF_QSGD),
    )
    chunk: int = setting(
        1024,
        "quantisers and byte: values of a gradient that share a scale",
        at_least=1,
        read_if=({"agreement.codec": (*LEVELS, "byte")}, OF_CHUNKS),
    )
    norm: str = setting(
        "max",
        "quantisers: norm of a chunk that levels are multiples of, max |v| or l2",
        choices=NORMS,
        read_if=({"agreement.codec": LEVELS}, OF_QSGD),
    )
    entropy: str = setting(
        "none",
        "quantisers: code of the levels, of a fixed length (none), Elias ω (elias), or"
        " Huffman for the levels of each record (huffman)",
        choices=ENTROPIES,
        read_if={"agreement.codec": LEVELS},
    )
    adapt: int = setting(
        100,
        "alq and amq: first exchange in which levels adapt; they adapt again at 20"
        " times this number and at every multiple of 100 times this number",
        at_least=1,
        read_if={"agreement.codec": ("alq", "amq")},
    )
    rank: int = setting(
        1,
        "powersgd: rank of the matrices that are sent",
        at_least=1,
        read_if={"agreement.codec": ("powersgd",)},
    )
    start: int = setting(
        10,
        "powersgd: exchanges at the start that are sent uncompressed",
        at_least=0,
        read_if={"agreement.codec": ("powersgd",)},
    )
    iterations: int = setting(
        1,
        "powersgd: power iterations of an exchange, with two sums each; more come"
        " nearer to the best matrix of this rank",
        at_least=1,
        remedy="1 is usual",
        read_if={"agreement.codec": ("powersgd",)},
    )
    warm_start: bool = setting(
        True,
        "powersgd: begin with the right factor of the last exchange, and not with"
        " random columns",
        read_if={"agreement.codec": ("powersgd",)},
    )
    min_rate: float = setting(
        2.0,
        "powersgd: send a bucket uncompressed if compression saves less than this"
        " factor; 0 always compresses",
        at_least=0,
        at_most=math.inf,
        read_if={"agreement.codec": ("powersgd",)},
    )

    def conflicts(self) -> Iterator[str]:
        """Yield sentences on settings that cannot work, alone or together."""
        is_block = self.select.isdecimal() and int(self.select) > 0
        if self.select not in UNITS and not is_block:
            yield (
                f"[codec] select = {self.select!r} must be one of {', '.join(UNITS)},"
                " or the number of words of a block"
            )
        for share in self.shares:
            if not 0.0 < share <= 1.0:
                yield (
                    f"[codec] shares has {share!r}; every share must be above 0 and at"
                    " most 1"
                )
        if self.values == "qsgd" and self.entropy != "none":
            yield (
                f"[codec] entropy = {self.entropy!r} is for records of all words, and"
                " values = 'qsgd' rounds the words of sparse records, whose length is"
                " known before; leave codec.entropy out"
            )

    def of_bucket(self, place: int, buckets: int) -> Self:
        """Return the settings of one bucket, whose share is its own of `shares`.

        `place` is the number of the bucket in the order of columns. Raise ConfigError
        if there is not one share for each of all `buckets`.
        """
        if not self.shares:
            return self
        if len(self.shares) != buckets:
            raise ConfigError(
                f"[codec] shares has {len(self.shares)} values, and the number of"
                f" buckets is {buckets}; give one share for each bucket, or change"
                " agreement.bucket"
            )
        return replace(self, share=self.shares[place], shares=())

    def remembers_errors(self, wants: bool) -> bool:
        """Return whether a codec has error feedback.

        It has if the setting `feedback` is "on", or if it is "auto" and the codec
        `wants` it.
        """
        return self.feedback == "on" or (self.feedback == "auto" and wants)


# The settings of accordion: its codec, both modes of it, and when it checks.

# codec -> [codec] settings of low and of high compression
REGIMES = {
    "powersgd": ("rank=2", "rank=1"),
    "topk": ("share=0.99", "share=0.1"),
    "randomk": ("share=0.99", "share=0.1"),
    "threshold": ("share=0.99", "share=0.1"),
    "dgc": ("share=0.99", "share=0.1"),
    "qsgd": ("bits=8", "bits=4"),
    "nuqsgd": ("bits=8", "bits=4"),
}
BY = ("gradient", "loss", "time")
BOTH = ("feedback", "shares")  # settings that are the same in both modes


def automatic_regime(number: int) -> Callable[[RunFacts], Resolved]:
    """Return a function that replaces an empty `accordion.low` or `accordion.high`.

    It resolves the setting to the usual settings of the codec: those of low compression
    for `number` 0, those of high compression for 1.
    """

    def resolve(facts: RunFacts) -> Resolved:
        accordion = facts.config.accordion
        return accordion.usual_regimes[number], f"usual for {accordion.codec}"

    return resolve


@dataclass(frozen=True)
class AccordionConfig(Settings, section="accordion"):
    """Compression, or batch size, that follows the change of the gradients."""

    codec: str = setting(
        "powersgd",
        "codec whose settings accordion changes",
        read_if={"agreement.codec": ("accordion",)},
    )
    low: str = setting(
        "",
        '[codec] settings while gradients change, as "rank=2"; empty takes the usual'
        " settings of the codec",
        becomes=automatic_regime(0),
        read_if={"agreement.codec": ("accordion",)},
    )
    high: str = setting(
        "",
        '[codec] settings while gradients do not change, as "rank=1, min_rate=0"; empty'
        " takes the usual settings of the codec",
        becomes=automatic_regime(1),
        read_if={"agreement.codec": ("accordion",)},
    )
    by: str = setting(
        "gradient",
        "codec: what decides between low and high compression: whether gradients change"
        " (gradient), whether the loss still falls (loss), or whether an exchange takes"
        " longer than computation (time)",
        choices=BY,
        read_if={"agreement.codec": ("accordion",)},
    )
    eta: float = setting(
        0.5,
        "relative change of the gradient norm that counts as a change; a larger one"
        " compresses more often",
        at_least=0,
        at_most=math.inf,
        remedy="0.5 is usual",
        read_if=(
            {"agreement.codec": ("accordion",), "accordion.by": ("gradient",)},
            {READS: ("accordion",)},
        ),
    )
    interval: int = setting(
        10,
        "epochs between two checks; a longer interval reacts later",
        at_least=1,
        remedy="10 is usual",
        read_if=(
            {"agreement.codec": ("accordion",), "accordion.by": ("gradient", "time")},
            {READS: ("accordion",)},
        ),
    )
    tol: float = setting(
        1e-3,
        "by = loss: relative decrease of the loss below which it has stopped falling",
        at_least=0,
        below=1,
        remedy="1e-3 is usual",
        read_if={"agreement.codec": ("accordion",), "accordion.by": ("loss",)},
    )
    patience: int = setting(
        3,
        "by = loss: evaluations without such a decrease after which compression is low",
        at_least=1,
        remedy="3 is usual",
        read_if={"agreement.codec": ("accordion",), "accordion.by": ("loss",)},
    )
    scale_rate: bool = setting(
        True, "growing: scale the learning rate with the batch", read_by="accordion"
    )

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence if `codec` names accordion itself."""
        if self.codec == "accordion":
            yield (
                "[accordion] codec = 'accordion' would control itself; use powersgd or"
                " topk"
            )

    @property
    def usual_regimes(self) -> tuple[str, str]:
        """Return the usual [codec] settings of low and of high compression, as text.

        Both texts are empty for a codec without usual settings.
        """
        return REGIMES.get(self.codec, ("", ""))

    def regimes(self, config: CodecConfig) -> tuple[CodecConfig, CodecConfig]:
        """Return the settings of section [codec] for low and for high compression."""
        usual_low, usual_high = self.usual_regimes
        low = replace(config, **_read("low", self.low or usual_low))
        high = replace(config, **_read("high", self.high or usual_high))
        if low == high:
            raise ConfigError(
                f"[accordion] codec = {self.codec!r} has the same settings for both low"
                " and high compression; set accordion.low and accordion.high, or use"
                f" one of {', '.join(REGIMES)}"
            )
        if config.shares and low.share != high.share:
            raise ConfigError(
                "[codec] shares gives each bucket its share, and accordion switches"
                f" between {low.share:g} and {high.share:g} for all; leave codec.shares"
                " out, or set accordion.low and accordion.high to other settings"
            )
        return low, high


def _read(key: str, said: str) -> Mapping[str, Any]:
    """Return the [codec] settings in a text `name=value, name=value`, by name."""
    kinds = {f.name: type(f.default) for f in fields(CodecConfig)}
    settings = {}
    for item in filter(None, (part.strip() for part in said.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in kinds or name in BOTH:
            names = ", ".join(name for name in kinds if name not in BOTH)
            raise ConfigError(
                f"[accordion] {key} = {said!r} must be settings of [codec], as"
                f" 'rank=2, start=0'; known: {names}"
            )
        settings[name] = _value(key, item, kinds[name], value)
    return settings


def _value(key: str, item: str, kind: Any, value: str) -> Any:
    if kind is bool and value in ("true", "false"):
        return value == "true"
    try:
        if kind is not bool:
            return kind(value)
    except ValueError:
        pass
    domain = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise ConfigError(f"[accordion] {key}: the value in {item!r} must be {domain}")


# The protocol of codecs.
#
# Replica p has a part a_p of a bucket and needs the mean over all replicas; a codec
# computes (1/R) Σ_p C(a_p) with fewer bytes. It may use sums (`start_sum` of its
# `BucketChannel`), records that all replicas gather (`GatheredCodec` implements this),
# or both. All replicas call their codecs in every exchange, in one order. One instance
# serves one bucket, so what it keeps between exchanges belongs to that bucket.

ALL = 0  # random numbers that all replicas draw alike; those of replica p have 1 + p


@dataclass
class Stopwatch:
    """Seconds in which codecs of all buckets of a run encode, wait and decode.

    Only codecs that need to know keep them.
    """

    seconds: float = 0.0


@dataclass(frozen=True)
class Bucket:
    """Consecutive columns of the data, whose gradient one codec encodes together.

    Each column has K words, one for each of its scores.
    """

    number: int  # in the order in which buckets are sent
    height: int  # columns of the data
    width: int  # K; word i is column i // K and score i % K
    dtype: np.dtype[Any]
    seed: int = 0  # of the run
    member: int = 0  # that has these columns
    part: float = 1.0  # of the words of the gradient of this member
    exchanging: Stopwatch = field(default_factory=Stopwatch, compare=False)
    room: Callable[[str], Array] | None = None  # see `remember`

    @property
    def words(self) -> int:
        """Return the words of the gradient in this bucket: columns times K."""
        return self.height * self.width

    def remember(self, name: str) -> Array:
        """Return a flat array called `name`, one word for each word of the bucket.

        The codec writes to the array in place; its values are zero at first.
        Checkpoints save it column by column, so that it outlives a change of the grid:
        another number of replicas starts from the mean over all replicas. Without
        `room`, the array is a new one that no checkpoint saves.
        """
        if self.room is not None:
            return self.room(name)
        return np.zeros(self.words, dtype=self.dtype)

    def dice(self, moment: "Moment", who: int = ALL) -> np.random.Generator:
        """Return the random number generator of `who` in the exchange of `moment`.

        `who` is `ALL`, or 1 + the number of a replica. The seed is a function of run
        seed, member, bucket, exchange and `who`: nothing has to be saved, and a run
        that resumes draws the same numbers.
        """
        key = (self.seed, self.member, self.number, moment.number, who)
        return np.random.default_rng(key)


@dataclass(frozen=True)
class Moment:
    """The exchange, the epoch and the learning rate with which a bucket is sent."""

    number: int  # of the exchange in the run, from 0 on
    epoch: int  # from 0 on
    rate: float
    next_rate: float
    drops: int = 0  # milestones of the rate that are passed; smooth rates have none
    is_flat: bool = False  # whether the loss has stopped falling, see [accordion] by
    # ‖gradient‖ of this replica over all buckets and members, where `wants_norm`.
    norm: float | None = None


@dataclass(frozen=True)
class Decoded:
    """The result of an exchange on one replica."""

    mean: Array  # (1/R) Σ_p C(a_p), flat, the same on every replica
    # C(a_p) of this replica, flat, where `needs_own`; None: a_p, nothing is lost.
    own: Array | None
    payload: int  # bytes of all send buffers of this replica, by the codec's formula


Finish = Callable[[], Decoded]


class BucketChannel(Protocol):
    """Collectives of the replicas of a bucket, which the ledger counts as agreement."""

    rank: int
    size: int  # above 1: one replica alone encodes nothing

    def start_sum(self, array: Array, form: str = "") -> Callable[[], Array]:
        """Start Σ over replicas; return a function that waits and returns the total.

        The sum is in place, and `array` must not be used until the function has
        returned. With a `form` (a number format of `hpcsgd.formats`) words are sent in
        that format, and the total is another array, valid until the next such sum.
        Collective.
        """

    def sum(self, array: Array) -> Array:
        """Sum `array` over replicas in place, and return it. Collective."""

    def start_gather(
        self, record: Array, lengths: Sequence[int] | None = None
    ) -> Callable[[], list[Array]]:
        """Start to send `record` to all replicas; return a function that waits.

        The function returns the records of all replicas in rank order. All records have
        as many elements as `record`, or those in `lengths`, one number for each
        replica. Collective.
        """

    def gather_unequal(self, record: Array) -> list[Array]:
        """Return the records of all replicas in rank order, of any lengths. Collective.

        Each replica first sends the length of its record, in `COUNT_BYTES` more bytes.
        """

    def start_exchange(self, pieces: Array) -> Callable[[], Array]:
        """Start to send row r of `pieces`, (R, length), to replica r. Collective.

        Return a function that waits for the rows that all replicas have sent to this
        replica, and returns them in rank order.
        """

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Overwrite `array` with that of replica `root`, and return it. Collective."""


COUNT_BYTES = 8  # of the message that goes ahead of records of unequal length


class Codec(ABC):
    """Base class of the codecs: how a gradient is made small for the network.

    Replica p has a part a_p, its gradient in the columns of a bucket, and needs the
    mean (1/R) Σ_p C(a_p) over the R replicas, where C(a_p) is a_p after encoding and
    decoding. There is one instance for each bucket. All replicas call a codec for the
    same buckets in the same order. A subclass defines `start`, `payload_bytes`,
    `unbiased` and `wants_feedback`. `GatheredCodec` serves codecs whose records all
    replicas gather.

    Parameters
    ----------
    bucket : Bucket
        Columns, classes, dtype, and random numbers.
    config : CodecConfig
        The section [codec] of the settings.

    Attributes
    ----------
    unbiased : bool
        Whether the expectation of C(a) is a. Such a codec defines `variance`.
    wants_feedback : bool
        Whether what is lost is added to the next gradient (error feedback) if the
        setting `feedback` is "auto".
    has_own_memory : bool
        Whether the codec itself keeps what it has not sent.
    takes_feedback : bool
        Whether error feedback can be added to the codec.
    follows_gradients : bool
        Whether it is for gradients alone, and not for changes of weights.
    needs_own : bool
        Whether `Decoded.own` is read. It need not be made otherwise.
    remembers : tuple of str
        Names of the arrays that it keeps, with one word for each word of the bucket.
    wants_norm : bool
        Whether it needs the norm of the whole gradient, as `moment.norm`. Buckets are
        then sent after the last one is computed.
    mean_roundoff : float
        Unit roundoff of a mean that is rounded once more on its way back, else 0.
    in_steps : bool
        Whether parts are steps (gradients times the rate), as with error feedback.
    kept : dict of ndarray
        Arrays of any shape that checkpoints save for the same grid.

    See Also
    --------
    hpcsgd.agreements.codecs.register : Gives a codec its name.

    Examples
    --------
    Gradients in float16 by one all-reduce:

    >>> import numpy as np
    >>> from hpcsgd.agreements.codecs import Codec, Decoded
    >>> class Half(Codec):
    ...     unbiased, wants_feedback = False, True
    ...     def start(self, part, line, moment):
    ...         sent = (part / line.size).astype(np.float16)
    ...         arrive = line.start_sum(sent.astype(part.dtype))
    ...         return lambda: Decoded(arrive(), sent * line.size, sent.nbytes)
    ...     def payload_bytes(self, ranks, rank):
    ...         return 2 * self.bucket.words
    """

    unbiased: bool
    wants_feedback: bool
    has_own_memory = False
    takes_feedback = True
    follows_gradients = False
    mean_roundoff: float = 0.0
    needs_own = False
    remembers: tuple[str, ...] = ()
    in_steps = False
    wants_norm = False

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        self.bucket = bucket
        self.config = config
        self.kept: dict[str, Array] = {}

    @classmethod
    def of(
        cls, bucket: Bucket, config: CodecConfig, accordion: AccordionConfig
    ) -> "Codec":
        """Make the codec of a bucket.

        Parameters
        ----------
        bucket : Bucket
            What the codec is made for.
        config : CodecConfig
            The section [codec] of the settings.
        accordion : AccordionConfig
            The section [accordion] of the settings.

        Returns
        -------
        Codec
        """
        return cls(bucket, config)

    def see(self, part: Array, moment: Moment) -> None:  # noqa: B027
        """Inspect the gradient of this replica before error feedback is added to it.

        Parameters
        ----------
        part : ndarray of shape (words,)
            The gradient, if `in_steps` times the rate; it must not be changed.
        moment : Moment
            Exchange, epoch, learning rate, and norm where it is wanted.
        """

    @abstractmethod
    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Begin to encode and send a gradient. Collective over replicas.

        Parameters
        ----------
        part : ndarray of shape (words,)
            This replica's part of the bucket. The codec may overwrite it.
        line : BucketChannel
            The collectives of these replicas; the ledger counts them.
        moment : Moment
            Exchange, epoch, learning rate, and norm where it is wanted.

        Returns
        -------
        callable
            Called without arguments it waits and returns a Decoded: the mean, the
            same bits on all replicas; C(a_p) of this replica where `needs_own`; the
            bytes that were sent. Other work is done before it is called.
        """

    @abstractmethod
    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return the bytes of this replica's send buffers in an exchange.

        Parameters
        ----------
        ranks : int
            Number of replicas.
        rank : int
            Number of this replica.

        Returns
        -------
        int or None
            None where the data decide. `Decoded.payload` is right in both cases.
        """

    @property
    def dense_exchanges(self) -> int:
        """Return how many exchanges sent all words, not a sparse record; here 0."""
        return 0

    @classmethod
    def table_bytes(cls, bucket: Bucket, config: CodecConfig) -> int:
        """Return the bytes of the arrays in `kept`, for the check of memory.

        Parameters
        ----------
        bucket : Bucket
            What the codec is made for.
        config : CodecConfig
            The section [codec] of the settings.

        Returns
        -------
        int
        """
        return 0

    @classmethod
    def owes(cls, kept: Mapping[str, Array], config: CodecConfig) -> Array | None:
        """Return the gradient that the codec has not sent, from its saved arrays.

        Parameters
        ----------
        kept : mapping of ndarray
            The arrays of a checkpoint.
        config : CodecConfig
            The section [codec] of the settings.

        Returns
        -------
        ndarray of shape (words,) or None
            None if the codec keeps no unsent gradient. A run that resumes on one
            replica, which encodes nothing, takes it once, with its first step.
        """
        return None

    def facts(self) -> dict[str, int]:
        """Return counts for the report of a run, which are summed over buckets.

        Returns
        -------
        dict of int
        """
        return {"dense_buckets": self.dense_exchanges}

    def take_over(self, other: Self) -> None:  # noqa: B027
        """Take over the state of a codec of the same class that has other settings.

        Parameters
        ----------
        other : Codec
            The codec so far.
        """

    def variance(self, part: Array) -> Array | None:
        """Return the variance of C(part), word by word.

        Parameters
        ----------
        part : ndarray of shape (words,)
            A part.

        Returns
        -------
        ndarray of shape (words,) or None
            None if the codec is biased.
        """
        return None


class GatheredCodec(Codec):
    """A codec whose records are gathered, decoded and added in rank order.

    All replicas add the same numbers in one order, so the mean has the same bits on all
    of them. A subclass defines `encode` and `add_decoded`. It also defines
    `payload_bytes` where the length of a record does not depend on the data.

    Parameters
    ----------
    bucket : Bucket
        The columns whose gradients it sends.
    config : CodecConfig
        The settings `[codec]`.

    Examples
    --------
    Each word is sent in float16:

    >>> import numpy as np
    >>> from hpcsgd.agreements.codecs import GatheredCodec
    >>> class Half(GatheredCodec):
    ...     unbiased, wants_feedback = False, True
    ...     def encode(self, part, moment, replica):
    ...         return part.astype(np.float16).view(np.uint8)
    ...     def add_decoded(self, record, total, moment):
    ...         total += record.view(np.float16)
    >>> total = np.zeros(3)
    >>> Half.add_decoded(None, Half.encode(None, np.ones(3), None, 0), total, None)
    >>> total
    array([1., 1., 1.])
    """

    @abstractmethod
    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the record of `part`: the encoded gradient that all replicas gather.

        Parameters
        ----------
        part : ndarray, (words,)
            The gradient of this replica in the columns of the bucket. It may be
            overwritten.
        moment : Moment
            The exchange: its number, and the norm of the gradient on request.
        replica : int
            Number of this replica.

        Returns
        -------
        ndarray
            A flat array.
        """

    @abstractmethod
    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Decode a record, and add its words to `total` in place.

        Parameters
        ----------
        record : ndarray
            What `encode` returned on one of the replicas.
        total : ndarray, (words,)
            The sum so far.
        moment : Moment
            The exchange.
        """

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        # Records of unequal length are gathered at once, others while work goes on.
        record = self.encode(part, moment, line.rank)
        length = self.payload_bytes(line.size, line.rank)
        payload = record.nbytes
        if length is None:
            payload += COUNT_BYTES
            records = line.gather_unequal(record)
            return lambda: self._told(records, line, moment, payload)
        arrive = line.start_gather(record)
        return lambda: self._told(arrive(), line, moment, payload)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return None: the data decide how long a record is.

        Parameters
        ----------
        ranks : int
            Number of replicas.
        rank : int
            Number of this replica.
        """
        return None

    def _told(
        self,
        records: Sequence[Array],
        line: BucketChannel,
        moment: Moment,
        payload: int,
    ) -> Decoded:
        own_decoded = None
        mean = self._nothing()
        if self.needs_own:
            own_decoded = self._nothing()
            self.add_decoded(records[line.rank], own_decoded, moment)
        for record in records:
            self.add_decoded(record, mean, moment)
        mean /= line.size
        return Decoded(mean, own_decoded, payload)

    def _nothing(self) -> Array:
        return np.zeros(self.bucket.words, dtype=self.bucket.dtype)


# Critical regimes: whether gradients still change from one check to the next.
#
# ρ = | |G before| − |G now| | / |G before|,  G the sum of the gradients of an epoch
#
# One of `interval` epochs is summed, the first of them included. It is critical where
# ρ ≥ η, where no earlier epoch was summed, or where the rate has fallen since then.
#
# S. Agarwal, H. Wang, K. Lee, S. Venkataraman and D. Papailiopoulos, "Accordion:
# Adaptive Gradient Communication via Critical Learning Regime Identification" (MLSys
# 2021), algorithm 1. It is written for step decay, where a rate is constant but for a
# few drops that change what gradients do. A smooth schedule falls in every step, and no
# ratio of rates tells its fall from a drop (1/(1 + c k) may fall a thousandfold in a
# step). So the rate counts as fallen only where it has passed a milestone
# (`glm/updates`): from that exchange on, which all replicas know, and at the first
# check after it.

NORM, LOW, EPOCH, DROPS, LOWS, HIGHS = range(6)
# |G|, whether compression is low, the epoch that is summed, milestones that were passed
# at the last check, exchanges in either mode.
FIRST = np.array([0.0, 1.0, -1.0, 0.0, 0.0, 0.0])
MODE_BYTES = 4  # of the message with the mode from now on


def is_critical(before: float, now: float, eta: float) -> bool:
    """Return whether two norms differ by at least `eta` times the norm `before`.

    The result is also True if `before` is 0, or if a norm is NaN.
    """
    return before == 0.0 or not abs(before - now) / before < eta


class Regime:
    """The present mode of accordion and its history; checkpoints save `record`.

    The mode is low or high compression, or small or large batches.
    """

    def __init__(self, total: Array, eta: float, interval: int) -> None:
        self.total = total  # G so far
        self.eta = eta
        self.interval = interval
        self.record: Array = FIRST.copy()

    @property
    def is_low(self) -> bool:
        """Return whether compression is low, or batches are small."""
        return bool(self.record[LOW])

    def is_due(self, moment: Moment) -> bool:
        """Return whether the epoch whose gradients were summed is over: a check is due.

        The result is the same on all replicas.
        """
        return bool(0 <= self.record[EPOCH] < moment.epoch)

    def verdict(self, moment: Moment, square: float) -> bool:
        """Return whether gradients still change, by |G|² = `square` of an epoch.

        The result is also True if the rate has passed a milestone since the last check.
        Ranks may differ in `square`, so all use the result of rank 0.
        """
        before = float(self.record[NORM])
        return self.has_dropped(moment) or is_critical(before, square**0.5, self.eta)

    def has_dropped(self, moment: Moment) -> bool:
        """Return whether the rate has passed a milestone since the last check."""
        return moment.drops > float(self.record[DROPS])

    def note_drop(self, moment: Moment) -> None:
        """Set low compression after a milestone of the rate; this needs no message."""
        if self.has_dropped(moment):
            self.record[LOW] = True

    def take_square(self) -> float:
        """Return |G|² of this rank's sum of gradients, and set the sum to 0."""
        square = float(np.sum(np.square(self.total, dtype=np.float64)))
        self.total[...] = 0.0
        return square

    def turn(self, low: bool, moment: Moment, square: float) -> None:
        """Set the mode after a check; store |G| and the milestones that are passed."""
        self.record[[NORM, LOW, EPOCH, DROPS]] = square**0.5, low, -1.0, moment.drops

    def watches(self, moment: Moment) -> bool:
        """Return whether the gradient of this exchange is added to the sum."""
        return moment.epoch % self.interval == 0

    def count(self, moment: Moment) -> None:
        """Count an exchange in the present mode; note its epoch if it is summed."""
        self.record[LOWS if self.is_low else HIGHS] += 1
        if self.watches(moment):
            self.record[EPOCH] = moment.epoch


# Error feedback: what a codec lost is added to what it sends next.
#
# a = η g + e;  q = C(a);  e ← a − q;  w ← w − mean(q)
#
# Errors are in steps, not in gradients: what was lost at one rate is made good at that
# rate, even if the rate has changed since then. Exactly,
# Σ_t applied_t + mean_p e_{p,T} = Σ_t η_t mean_p g_{p,t}.
# λw and the intercept are not encoded: every replica computes λw, and the sums of the
# intercept are sent uncompressed.

ERROR = "error"  # the name of e in checkpoints


class Feedback(Codec):
    """Error feedback around a codec: what it lost is added to what it encodes next."""

    unbiased = False
    wants_feedback = False
    has_own_memory = True
    in_steps = True

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec.bucket, codec.config)
        self.codec = codec
        self.kept = codec.kept
        self.mean_roundoff = codec.mean_roundoff
        codec.needs_own = codec.in_steps = True
        self.error = self.bucket.remember(ERROR)

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Start the exchange of C(part + e), where e is the error of this replica.

        When the exchange is finished, e is what C has lost: part + e − C(part + e).
        """
        self.codec.see(part, moment)
        self.error += part
        part[...] = self.error
        finish = self.codec.start(part, line, moment)

        def remember() -> Decoded:
            decoded = finish()
            if decoded.own is None:
                self.error[...] = 0.0
            else:
                self.error -= decoded.own
            return decoded

        return remember

    @property
    def dense_exchanges(self) -> int:
        """Return how many exchanges sent all words instead of a sparse record."""
        return self.codec.dense_exchanges

    def facts(self) -> dict[str, int]:
        """Return the counts of the codec for the report of a run."""
        return self.codec.facts()

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return the bytes that the codec sends; errors are never sent."""
        return self.codec.payload_bytes(ranks, rank)


# Neighbouring words that share a scale, which travels in float32.

SCALE_BYTES = 4


class Chunks:
    """A division of `words` words into chunks of `length`; the last may be shorter."""

    def __init__(self, words: int, length: int) -> None:
        self.words = words
        self.length = length
        self.starts = np.arange(0, words, length)

    def __len__(self) -> int:
        return len(self.starts)

    def spread(self, scales: Array) -> Array:
        """Return for every word the scale of its chunk."""
        return np.repeat(scales, self.length)[: self.words]

    def greatest(self, part: Array) -> Array:
        """Return the greatest word of each chunk."""
        return np.maximum.reduceat(part, self.starts)

    def least(self, part: Array) -> Array:
        """Return the least word of each chunk."""
        return np.minimum.reduceat(part, self.starts)

    def norms(self, part: Array, kind: str) -> NDArray[np.float32]:
        """Return the norm of each chunk, max |v| or l2, rounded up to float32.

        No |word| of a chunk is greater than its norm.
        """
        largest = self.greatest(np.abs(part)).astype(np.float64)
        if kind == "l2":
            squares = np.add.reduceat(np.square(part, dtype=np.float64), self.starts)
            largest = np.maximum(largest, np.sqrt(squares))  # squares underflow
        return rounded_up(largest)


def rounded_up(values: Array) -> NDArray[np.float32]:
    """Return the least float32 that is not below each value."""
    near = values.astype(np.float32)
    low = near.astype(np.float64) < values
    return np.where(low, np.nextafter(near, np.float32(np.inf)), near)


# Codes of few bits, one after the other, in bytes.
#
# ceil(count · bits / 8) bytes: the last byte is filled with zeros.

WHOLE = {8: np.uint8, 16: np.uint16, 32: np.uint32}
MOST_BITS = 32


def packed_bytes(count: int, bits: int) -> int:
    """Return how many bytes `pack` makes of `count` codes of `bits` bits."""
    return -(-count * bits // 8)


def pack(codes: Array, bits: int) -> NDArray[np.uint8]:
    """Return `codes` (flat, unsigned, below 2^bits) as bytes, `bits` bits a code."""
    if bits in WHOLE:
        return codes.astype(WHOLE[bits]).view(np.uint8)
    if 8 % bits == 0:
        return _folded(codes.astype(np.uint8), bits)
    places = np.arange(bits, dtype=np.uint32)
    return np.packbits((codes.astype(np.uint32)[:, None] >> places & 1).astype(bool))


def unpack(record: Array, count: int, bits: int) -> NDArray[np.uint32]:
    """Return the first `count` codes, of `bits` bits, of a record that `pack` made."""
    if bits in WHOLE:
        # A copy: a piece of a message may begin at any byte.
        return record.copy().view(WHOLE[bits])[:count].astype(np.uint32)
    if 8 % bits == 0:
        places = np.arange(0, 8, bits, dtype=np.uint8)
        codes = record[:, None] >> places & np.uint8(2**bits - 1)
        return codes.reshape(-1)[:count].astype(np.uint32)
    bare = np.unpackbits(record, count=count * bits).reshape(count, bits)
    worth = np.left_shift(np.uint32(1), np.arange(bits, dtype=np.uint32))
    return bare.astype(np.uint32) @ worth


def _folded(codes: Array, bits: int) -> NDArray[np.uint8]:
    """Return bytes of several codes each, the first code in the lowest bits."""
    each = 8 // bits
    padded = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    padded[: codes.size] = codes
    out = np.zeros(padded.size // each, dtype=np.uint8)
    for place in range(each):
        out |= padded[place::each] << np.uint8(place * bits)
    return out


# Uncompressed words, with which every codec is compared.


class Identity(Codec):
    """No compression: one sum of all words, d·K·4 bytes in float32."""

    unbiased = True
    wants_feedback = False

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Start the sum over the R replicas of part / R; no such sum overflows."""
        part /= line.size
        arrive = line.start_sum(part)
        return lambda: Decoded(arrive(), None, part.nbytes)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of all words of the bucket."""
        return self.bucket.words * self.bucket.dtype.itemsize

    def variance(self, part: Array) -> Array:
        """Return zeros: nothing is rounded."""
        return np.zeros_like(part)
