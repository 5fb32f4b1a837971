"""What every codec says and does.

Replica p has a part a_p of a bucket and wants the mean over all replicas; a codec gives
(1/R) Σ_p C(a_p) for fewer bytes. It may travel by sums (`Line.start_sum`), by records
that all replicas gather (`Gathered` has that ready), or by both; it takes part in every
exchange alike on all replicas, in one order. One instance serves one bucket, so what it
keeps between exchanges belongs to that bucket.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.accordion_settings import AccordionConfig
from hpcsgd.codecs.settings import CodecConfig

Array = NDArray[Any]
ALL = 0  # whose dice: those that all replicas throw alike; replica p has 1 + p


@dataclass(frozen=True)
class Bucket:
    """What a codec is made for: a tile of columns, with the K scores of each."""

    number: int  # in the order in which buckets are sent
    height: int  # columns of the data
    width: int  # K; word i is column i // K and score i % K
    dtype: np.dtype[Any]
    seed: int = 0  # of the run
    member: int = 0  # whose columns
    room: Callable[[str], Array] | None = None  # see `remember`

    @property
    def words(self) -> int:
        """Of a part."""
        return self.height * self.width

    def remember(self, name: str) -> Array:
        """A flat array of the bucket's words, zero at first, to be written in place.

        Checkpoints save it column by column, so that it outlives a change of the grid:
        another number of replicas begins at the mean of all.
        """
        if self.room is not None:
            return self.room(name)
        return np.zeros(self.words, dtype=self.dtype)

    def dice(self, moment: "Moment", who: int = ALL) -> np.random.Generator:
        """Random numbers of this exchange: `ALL`, or 1 + the number of a replica.

        A function of run seed, member, bucket, exchange and `who`: nothing has to be
        saved, and a run that goes on draws what it would have drawn.
        """
        key = (self.seed, self.member, self.number, moment.number, who)
        return np.random.default_rng(key)


@dataclass(frozen=True)
class Moment:
    """When a bucket is sent."""

    number: int  # of the exchange in the run, from 0 on
    epoch: int  # from 0 on
    rate: float
    next_rate: float
    drops: int = 0  # milestones of the rate that are passed; smooth rates have none
    # ‖gradient‖ of this replica over all buckets and members, where `wants_norm`.
    norm: float | None = None


@dataclass(frozen=True)
class Told:
    """What came of an exchange."""

    mean: Array  # (1/R) Σ_p C(a_p), flat, the same on every replica
    # C(a_p) of this replica, flat, where `needs_own`; None: a_p, nothing is lost.
    own: Array | None
    payload: int  # bytes of all send buffers of this replica, by the codec's formula


Finish = Callable[[], Told]


class Line(Protocol):
    """The replicas that share this bucket; all calls are booked as agreement."""

    rank: int
    size: int  # one replica alone has nothing to encode, and does not ask

    def start_sum(self, array: Array, form: str = "") -> Callable[[], Array]:
        """Begin Σ over replicas; what comes back waits and gives the total.

        In place, and `array` belongs to it until then; with a `form` (a number
        format of `hpcsgd.formats`) words travel in that, and the total is another
        array, good until the next such sum.
        """

    def sum(self, array: Array) -> Array:
        """Σ over replicas, in place."""

    def start_gather(
        self, record: Array, lengths: Sequence[int] | None = None
    ) -> Callable[[], list[Array]]:
        """Begin to give `record` to all; what comes back waits for those of all.

        In rank order; all replicas send as many elements, or those that all know.
        """

    def gather_unequal(self, record: Array) -> list[Array]:
        """The records of all replicas in rank order, whatever their lengths.

        Takes `COUNT_BYTES` more, for their numbers of elements.
        """

    def start_exchange(self, pieces: Array) -> Callable[[], Array]:
        """Begin to give row r of `pieces`, (R, length), to replica r.

        What comes back waits for the rows of all replicas for this one, in rank order.
        """

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """array ← that of replica `root`."""


COUNT_BYTES = 8  # of the message that goes ahead of records of unequal length


class Codec(ABC):
    """The protocol, one instance for each bucket."""

    unbiased: bool  # E C(a) = a
    wants_feedback: bool  # True: what is lost has to be sent later
    has_own_memory = False  # True: it keeps that itself (DGC)
    # Of the mean, which is rounded once more on its way back; 0 where it is not.
    mean_roundoff: float = 0.0
    needs_own = False  # True: somebody reads `Told.own`; else it need not be made
    # Names of arrays of all the bucket's words that it keeps (`Bucket.remember`).
    remembers: tuple[str, ...] = ()
    in_steps = False  # True: parts are times the rate (error feedback)
    # True: moments have the norm of the whole gradient, and no bucket of it is sent
    # before the last one is computed; the same on all ranks in all exchanges.
    wants_norm = False

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        self.bucket = bucket
        self.config = config
        # name -> array of any shape, made here and written in place: checkpoints save
        # every rank's own, for the same grid. Words of the bucket: `bucket.remember`.
        self.kept: dict[str, Array] = {}

    @classmethod
    def of(
        cls, bucket: Bucket, config: CodecConfig, accordion: AccordionConfig
    ) -> "Codec":
        """One that takes what it needs of the settings."""
        return cls(bucket, config)

    def see(self, part: Array, moment: Moment) -> None:  # noqa: B027
        """What is asked for, before anything that was kept is added to it."""

    @abstractmethod
    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Begin an exchange; `part` (flat) belongs to it until the finish."""

    @abstractmethod
    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Bytes of this replica's send buffers in an exchange; None: the data decides.

        `Told.payload` is right in both cases.
        """

    @property
    def dense_exchanges(self) -> int:
        """How often all words went as they are, which were fewer bytes."""
        return 0

    @classmethod
    def table_bytes(cls, bucket: Bucket, config: CodecConfig) -> int:
        """Of what else it would keep, in `kept`."""
        return 0

    @classmethod
    def owes(cls, kept: Mapping[str, Array], config: CodecConfig) -> Array | None:
        """What of all gradients it has not sent, by what it remembers; None: nothing.

        A run that goes on with one replica, which encodes nothing, pays it at once.
        """
        return None

    def facts(self) -> dict[str, int]:
        """What it counted, for the report of a run: summed over buckets."""
        return {"dense_buckets": self.dense_exchanges}

    def take_over(self, other: "Codec") -> None:  # noqa: B027
        """Go on from where one of this kind with other settings stands."""

    def variance(self, part: Array) -> Array | None:
        """Var C(part), word by word, by the formula; unbiased codecs must know it."""
        return None


class Gathered(Codec):
    """A codec whose records are gathered, decoded and added in rank order.

    All replicas add the same numbers in one order: the mean has the same bits on all.
    """

    @abstractmethod
    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """The record: a flat array; `part` may be overwritten."""

    @abstractmethod
    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """total ← total + what the record says."""

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Encode, and begin to gather; records of unequal length are gathered here."""
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
        """Of records whose lengths differ."""
        return None

    def _told(
        self, records: Sequence[Array], line: Line, moment: Moment, payload: int
    ) -> Told:
        own, mean = None, self._nothing()
        if self.needs_own:
            own = self._nothing()
            self.add_decoded(records[line.rank], own, moment)
        for record in records:
            self.add_decoded(record, mean, moment)
        mean /= line.size
        return Told(mean, own, payload)

    def _nothing(self) -> Array:
        return np.zeros(self.bucket.words, dtype=self.bucket.dtype)
