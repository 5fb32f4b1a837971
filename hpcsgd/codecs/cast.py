"""Fewer bits a word: bf16, fp16, fp8.

MPI adds no 16-bit floats: pieces are exchanged, added in float32 and gathered
(`hpcsgd/comm/narrow.py`), so what a replica says is rounded once, and the mean once
more. fp16 and fp8 have few exponents; a power of two goes with every piece. Parts are
divided by R before they are rounded: no sum of them overflows.
"""

from typing import ClassVar

import numpy as np

from hpcsgd.codecs.base import Array, Codec, Finish, Line, Moment, Told
from hpcsgd.formats import get_format
from hpcsgd.rounding import exponent_for, round_through


class Cast(Codec):
    """Two collectives: d·K words, and this replica's share of them again.

    With feedback what the rounding of the part lost is kept; that of the mean is not.
    """

    form: ClassVar[str]
    unbiased = False
    wants_feedback = False
    reads = ()

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """part / R, rounded; the total is their mean."""
        part /= line.size
        own = self._rounded(part) * line.size if self.needs_own else None
        arrive = line.start_sum(part, self.form)
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Told:
            mean = arrive().astype(self.bucket.dtype, copy=False)
            return Told(mean, own, payload)

        return finish

    def _rounded(self, part: Array) -> Array:
        """What is sent for `part`: the very numbers."""
        form, values = get_format(self.form), part.astype(np.float32)
        if not form.wants_scale:
            round_through(values, form.name)
            return values.astype(self.bucket.dtype, copy=False)
        sizes = np.abs(values[np.isfinite(values)])
        scale = np.float32(2.0 ** exponent_for(float(sizes.max(initial=0)), form))
        values /= scale
        round_through(values, form.name)
        values *= scale
        return values.astype(self.bucket.dtype, copy=False)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """(d·K + own share) words of the format, and an exponent a piece where needed.

        Pieces: one for each replica at first, then the own.
        """
        form, words = get_format(self.form), self.bucket.words
        own = words * (rank + 1) // ranks - words * rank // ranks
        heads = (ranks + 1) * int(form.wants_scale)
        return int((words + own + heads) * form.dtype.itemsize)


class Bf16(Cast):
    """Half the bytes, the exponents of float32, 8 bits of precision."""

    form = "bf16"
    mean_roundoff = 2.0**-8


class Fp16(Cast):
    """Half the bytes, 11 bits of precision, words below 2⁻⁴⁰ of the largest lost."""

    form = "fp16"
    mean_roundoff = 2.0**-11


class Fp8(Cast):
    """A quarter of the bytes (e5m2): 2 bits of fraction, the exponents of fp16."""

    form = "fp8-e5m2"
    mean_roundoff = 2.0**-3
    wants_feedback = True
