"""Error feedback: what a codec lost is added to what it sends next.

a = η g + e;  q = C(a);  e ← a − q;  w ← w − mean(q)

in steps, not in gradients: what was lost at one rate is made good at that rate,
whatever it is by then. Exactly,
Σ_t applied_t + mean_p e_{p,T} = Σ_t η_t mean_p g_{p,t}.
λw and the intercept are outside: every replica knows the one, the other is summed.
"""

from hpcsgd.codecs.base import Array, Codec, Finish, Line, Moment, Told

ERROR = "error"  # the name of e among what is saved


class Feedback(Codec):
    """Any codec, with a memory of d·K words on every replica."""

    unbiased = False
    wants_feedback = False
    has_own_memory = True

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec.bucket, codec.config)
        self.codec = codec
        self.kept = codec.kept
        self.mean_roundoff = codec.mean_roundoff
        codec.needs_own = codec.in_steps = True
        self.error = self.bucket.remember(ERROR)

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """C(part + e); the error is what that left out."""
        self.codec.see(part, moment)
        self.error += part
        part[...] = self.error
        finish = self.codec.start(part, line, moment)

        def remember() -> Told:
            told = finish()
            if told.own is None:
                self.error[...] = 0.0
            else:
                self.error -= told.own
            return told

        return remember

    @property
    def dense_exchanges(self) -> int:
        """Those of the codec."""
        return self.codec.dense_exchanges

    def facts(self) -> dict[str, int]:
        """Those of the codec."""
        return self.codec.facts()

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Those of the codec: the memory stays at home."""
        return self.codec.payload_bytes(ranks, rank)
