"""Accordion: compress gradients little while they change, and much while they do not.

It wraps any codec (arXiv 2010.16248) with two kinds of settings: `low` in critical
regimes, `high` elsewhere. Replica 0 decides for every bucket by the gradients of its
own rows, and broadcasts the decision in 4 bytes. It uses gradients before they are
encoded: decoded ones depend on the mode, so that a change of the mode could cause the
next change. Error feedback encloses both modes, so that what is lost in one mode is
sent in the other.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from hpcsgd.agreements.codecs import get_codec
from hpcsgd.agreements.codecs.base import (
    HIGHS,
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
        total = bucket.remember(TOTAL)
        self.regime = Regime(total, accordion.eta, accordion.interval)
        self.kept["regime"] = self.regime.record
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
        before = self._in_force
        ahead = 0
        if self.regime.is_due(moment):
            ahead = self._decide(line, moment)
        self.regime.note_drop(moment)
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

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return None: gradients decide which codec is active.

        The bytes are those of the active codec, and 4 more where the mode is decided.
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
