"""Bits a word of levels that are sent by Elias' or Huffman's code, at 4 bits.

A million words, each a normal number times the exponential of another one, in chunks of
1024. The records that the codec makes are counted: no clock is read.

    python -m benchmarks.run bench_entropy
"""

import numpy as np

from tests.helpers.contracts.codec import exchange, moments

WORDS, CHUNK, BITS = 10**6, 1024, 4


def measure() -> list[dict]:
    """One row for each codec and code."""
    rng = np.random.default_rng(0)
    words = (rng.normal(size=WORDS) * np.exp(rng.normal(size=WORDS))).astype(np.float32)
    return [
        {
            "codec": codec,
            "entropy": code,
            "bits_a_word": bits_a_word(codec, code, words),
        }
        for codec in ("qsgd", "nuqsgd")
        for code in ("elias", "huffman")
    ]


def bits_a_word(codec: str, code: str, words: np.ndarray) -> float:
    """Return the measured bits of a word in the record of one of two replicas."""
    settings = {"bits": BITS, "chunk": CHUNK, "entropy": code}
    parts = [words, words[::-1].copy()]
    (moment,) = moments(1)
    found = exchange(2, codec, settings, parts, moment, np.float32)
    facts = found[0][2].facts()
    return facts["code_bits"] / facts["code_words"]
