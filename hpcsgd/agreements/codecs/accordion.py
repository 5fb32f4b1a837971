"""Accordion: a codec that saves little while gradients change, and much while not.

Wraps any codec (arXiv 2010.16248): `low` are its settings in critical regimes, `high`
else. Replica 0 decides for every bucket by the gradients of its own rows, and tells the
others in 4 bytes. They are those that it asks to be sent: what came of them depends on
the mode, which would turn because it turned. Error feedback lies around both, so what
was lost in one mode is made good in the other.
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

TOTAL = "accumulated"  # the name of G among what is saved


class Accordion(Codec):
    """Two codecs of one kind, of which one is in force."""

    remembers = (TOTAL,)

    def __init__(
        self,
        bucket: Bucket,
        config: CodecConfig,
        settings: AccordionConfig | None = None,
    ) -> None:
        super().__init__(bucket, config)
        asked = settings or AccordionConfig()
        # Arrays by name are one for both: what one has gathered the other sends.
        shared = replace(bucket, room=_once(bucket.remember))
        kind = get_codec(asked.codec)
        self.low, self.high = (kind(shared, way) for way in asked.regimes(config))
        both = self.low, self.high
        self.unbiased = all(codec.unbiased for codec in both)
        self.wants_feedback = kind.wants_feedback
        self.has_own_memory = kind.has_own_memory
        self.wants_norm = any(codec.wants_norm for codec in both)
        self.mean_roundoff = max(codec.mean_roundoff for codec in both)
        total = bucket.remember(TOTAL)
        self.regime = Regime(total, asked.eta, asked.interval)
        self.kept["regime"] = self.regime.record
        self._square = 0.0  # |G|² of the epoch that is over
        for name, codec in zip(("low", "high"), both, strict=True):
            self.kept |= {f"{name}_{key}": kept for key, kept in codec.kept.items()}

    @classmethod
    def of(
        cls, bucket: Bucket, config: CodecConfig, accordion: AccordionConfig
    ) -> Codec:
        """As [accordion] has it."""
        return cls(bucket, config, accordion)

    def see(self, part: Array, moment: Moment) -> None:
        """Sum the gradients of an epoch, which another mode would not change."""
        if self.regime.is_due(moment):
            self._square = self.regime.take_square()
        if self.regime.watches(moment):
            unit = moment.rate if self.in_steps else 1.0
            self.regime.total += part / (unit or 1.0)  # a rate of zero asks for nothing

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Decide where that is due, then as the codec in force."""
        if not self.in_steps:
            self.see(part, moment)
        before, ahead = self._in_force, 0
        if self.regime.is_due(moment):
            ahead = self._decide(line, moment)
        self.regime.note_drop(moment)
        codec = self._in_force
        if codec is not before:
            codec.take_over(before)
        codec.needs_own = self.needs_own
        finish = codec.start(part, line, moment)

        def note() -> Decoded:
            told = finish()
            self.regime.count(moment)
            return replace(told, payload=told.payload + ahead)

        return note

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Of the codec in force, and 4 where it is decided."""
        return None

    @property
    def dense_exchanges(self) -> int:
        """Those of both."""
        return self.low.dense_exchanges + self.high.dense_exchanges

    def facts(self) -> dict[str, int]:
        """How often which was in force."""
        record = self.regime.record
        counts = {"low_buckets": int(record[LOWS]), "high_buckets": int(record[HIGHS])}
        return super().facts() | counts

    def variance(self, part: Array) -> Array | None:
        """Of the codec in force."""
        return self._in_force.variance(part)

    @property
    def _in_force(self) -> Codec:
        return self.low if self.regime.is_low else self.high

    def _decide(self, line: BucketChannel, moment: Moment) -> int:
        """Replica 0 does; the bytes that it took."""
        square = self._square
        mode = np.array([self.regime.verdict(moment, square)], dtype=np.int32)
        line.broadcast(mode)
        self.regime.turn(bool(mode[0]), moment, square)
        return MODE_BYTES


def _once(remember: Callable[[str], Array]) -> Callable[[str], Array]:
    return cache(remember)
