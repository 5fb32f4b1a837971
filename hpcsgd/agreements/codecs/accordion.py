"""Accordion: compress gradients little while they change, and much while they do not.

It wraps any codec (arXiv 2010.16248) with two kinds of settings: `low` in critical
regimes, `high` elsewhere. Replica 0 decides for every bucket by the gradients of its
own rows, and broadcasts the decision in 4 bytes. It uses gradients before they are
encoded: decoded ones depend on the mode, so that a change of the mode could cause the
next change. Error feedback encloses both modes, so that what is lost in one mode is
sent in the other.

Two other rules may decide instead. By loss, compression is high until the loss stops
falling, and low from then on: all ranks know the losses, and nothing is sent. By time,
it is low where an exchange with low compression takes no longer than the computation
between two exchanges, so that the network is as busy as the processors. At a check one
such exchange is timed while nothing else is done, after a sum of 8 bytes for which all
replicas wait. Replica 0 compares its seconds with the bucket's part of the median of
the seconds from exchange to exchange, without those in exchanges of any bucket, and
broadcasts the decision in 4 bytes. Until the first check compression is low.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import median
from time import perf_counter

import numpy as np

from hpcsgd.agreements.codecs import get_codec
from hpcsgd.agreements.codecs.base import (
    COUNT_BYTES,
    EPOCH,
    HIGHS,
    LOW,
    LOWS,
    MODE_BYTES,
    AccordionConfig,
    Bucket,
    BucketChannel,
    Codec,
    CodecConfig,
    Decoded,
    Finish,
    Moment,
    Regime,
)
from hpcsgd.formats import Array

TOTAL = "accumulated"  # the name of G in checkpoints


class Accordion(Codec):
    """Two codecs of one kind with different settings, of which one is active."""

    remembers = (TOTAL,)
    follows_gradients = True

    def __init__(
        self,
        bucket: Bucket,
        config: CodecConfig,
        settings: AccordionConfig | None = None,
    ) -> None:
        super().__init__(bucket, config)
        accordion = settings or AccordionConfig()
        # Both codecs share their arrays: what one has stored the other sends.
        shared = replace(bucket, room=_once(bucket.remember))
        kind = get_codec(accordion.codec)
        self.low, self.high = (
            kind(shared, codec_config) for codec_config in accordion.regimes(config)
        )
        both = self.low, self.high
        self.unbiased = all(codec.unbiased for codec in both)
        self.wants_feedback = kind.wants_feedback
        self.has_own_memory = kind.has_own_memory
        self.wants_norm = any(codec.wants_norm for codec in both)
        self.mean_roundoff = max(codec.mean_roundoff for codec in both)
        self.by = accordion.by
        total = bucket.remember(TOTAL) if self.by == "gradient" else np.empty(0)
        self.regime = Regime(total, accordion.eta, accordion.interval)
        self.kept["regime"] = self.regime.record
        # By time: seconds of computation between the starts of exchanges of a watched
        # epoch, the last start, and the seconds in exchanges of all buckets until then.
        self._computing: list[float] = []
        self._began: float | None = None
        self._exchanged = 0.0
        self._square = 0.0  # |G|² of the epoch that is over
        for name, codec in zip(("low", "high"), both, strict=True):
            self.kept |= {f"{name}_{key}": array for key, array in codec.kept.items()}

    @classmethod
    def of(
        cls, bucket: Bucket, config: CodecConfig, accordion: AccordionConfig
    ) -> Codec:
        """Make the codec of a bucket from the settings of [accordion]."""
        return cls(bucket, config, accordion)

    def see(self, part: Array, moment: Moment) -> None:
        """Add the gradient of this replica to the sum of the epoch, if it is watched.

        With error feedback `part` is a step, from which the gradient is computed. When
        a check is due, |G|² of the complete sum G is stored first, and G set to 0.
        """
        if self.by != "gradient":
            return
        if self.regime.is_due(moment):
            self._square = self.regime.take_square()
        if self.regime.watches(moment):
            unit = moment.rate if self.in_steps else 1.0
            self.regime.total += part / (unit or 1.0)  # at a rate of 0, a step is 0

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Decide the mode if a decision is due, then start the active codec's exchange.

        The bytes of the decision count as bytes of the exchange.
        """
        if not self.in_steps:
            self.see(part, moment)
        if self.by == "time":
            return self._start_by_time(part, line, moment)
        before = self._in_force
        ahead = 0
        if self.by == "loss":
            self.regime.record[LOW] = moment.is_flat
        else:
            if self.regime.is_due(moment):
                ahead = self._decide(line, moment)
            self.regime.note_drop(moment)
        return self._start_active(before, part, line, moment, ahead)

    def _start_active(
        self,
        before: Codec,
        part: Array,
        line: BucketChannel,
        moment: Moment,
        ahead: int = 0,
    ) -> Finish:
        """Start an exchange by the active codec, which takes over from `before`.

        `ahead` is the number of bytes that were sent to decide the mode.
        """
        codec = self._in_force
        if codec is not before:
            codec.take_over(before)
        codec.needs_own = self.needs_own
        finish = codec.start(part, line, moment)

        def note() -> Decoded:
            decoded = finish()
            self.regime.count(moment)
            return replace(decoded, payload=decoded.payload + ahead)

        return note

    def _start_by_time(
        self, part: Array, line: BucketChannel, moment: Moment
    ) -> Finish:
        """Start an exchange; measure the seconds in exchanges and between them."""
        began = perf_counter()
        watch = self.bucket.exchanging
        if self._began is not None and self.regime.record[EPOCH] >= 0:
            exchanging = watch.seconds - self._exchanged
            self._computing.append(began - self._began - exchanging)
        self._began = began
        self._exchanged = watch.seconds
        if self.regime.is_due(moment) and self._computing:
            finish = self._start_timed(part, line, moment)
        else:
            finish = self._start_active(self._in_force, part, line, moment)
        watch.seconds += perf_counter() - began

        def note() -> Decoded:
            waits = perf_counter()
            decoded = finish()
            watch.seconds += perf_counter() - waits
            return decoded

        return note

    def _start_timed(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Make an exchange with low compression, time it, and decide the mode."""
        before = self._in_force
        self.regime.turn(True, moment, 0.0)
        line.sum(np.zeros(1))
        began = perf_counter()
        ahead = COUNT_BYTES + MODE_BYTES
        decoded = self._start_active(before, part, line, moment, ahead)()
        seconds = perf_counter() - began
        is_fast = seconds <= self.bucket.part * median(self._computing)
        self._computing.clear()
        mode = np.array([is_fast], dtype=np.int32)
        line.broadcast(mode)
        self.regime.record[LOW] = mode[0]
        if not mode[0]:
            self.high.take_over(self.low)
        return lambda: decoded

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return None: gradients, losses or clocks decide which codec is active.

        The bytes are those of the active codec, and 4 more where the mode is decided by
        gradients, or 12 more where it is decided by time.
        """
        return None

    @property
    def dense_exchanges(self) -> int:
        """Return the number of exchanges in which one of the codecs sent all words."""
        return self.low.dense_exchanges + self.high.dense_exchanges

    def facts(self) -> dict[str, int]:
        """Return the counts for the report, with the bucket exchanges in each mode."""
        record = self.regime.record
        counts = {"low_buckets": int(record[LOWS]), "high_buckets": int(record[HIGHS])}
        return super().facts() | counts

    def variance(self, part: Array) -> Array | None:
        """Return the variance of each word of `part` as the active codec encodes it.

        Return None if that codec is biased.
        """
        return self._in_force.variance(part)

    @property
    def _in_force(self) -> Codec:
        return self.low if self.regime.is_low else self.high

    def _decide(self, line: BucketChannel, moment: Moment) -> int:
        """Set the mode that replica 0 broadcasts; return the bytes of the message."""
        square = self._square
        mode = np.array([self.regime.verdict(moment, square)], dtype=np.int32)
        line.broadcast(mode)
        self.regime.turn(bool(mode[0]), moment, square)
        return MODE_BYTES


def _once(remember: Callable[[str], Array]) -> Callable[[str], Array]:
    return cache(remember)
