"""Levels by prefix codes: Elias ω and Huffman, measured bits, and the same values."""

import heapq
from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements.codecs.levels import (
    canonical,
    elias_code,
    huffman_code,
    omega,
)
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import coded, exchange, moments, opened, parts_of
from tests.helpers.harness import make_problem, train_on

NAMES = ("qsgd", "nuqsgd", "alq", "amq")
CODES = ("elias", "huffman")
RANKS = 3


def textbook(number):
    """Elias (1975): "0" at the end; the binary number ahead; then its length less 1."""
    code = "0"
    while number > 1:
        code = bin(number)[2:] + code
        number = len(bin(number)[2:]) - 1
    return code


def test_omega_codes_are_those_of_the_textbook():
    known = {1: "0", 2: "100", 3: "110", 4: "101000", 8: "1110000", 16: "10100100000"}
    for number in range(1, 300):
        word, length = omega(number)
        assert bin(word)[2:].zfill(length) == textbook(number)
        assert known.get(number, textbook(number)) == textbook(number)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("has_zero", [True, False])
def test_symbols_come_back(bits, has_zero):
    rng = np.random.default_rng(bits)
    for count in (1, 7, 100, 5000):
        symbols = np.minimum(rng.geometric(0.3, count) - 1, 2**bits - 1)
        if has_zero:
            symbols[symbols == 1] = 0
        elias = elias_code(bits, has_zero)
        huffman = huffman_code(np.bincount(symbols, minlength=2**bits))
        for code in (elias, huffman, canonical(huffman.lengths)):
            record = code.encode(symbols)
            assert record.size == ceil(code.lengths[symbols].sum() / 8)
            np.testing.assert_array_equal(code.decode(record, count), symbols)


def huffman_bits(counts):
    """Bits of the best prefix code: the sum of all merged weights."""
    heap = [int(count) for count in counts if count]
    if len(heap) == 1:
        return heap[0]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


def test_no_huffman_word_is_longer_than_the_table():
    """Fibonacci counts make the deepest trees; rare symbols then share more bits."""
    counts = [1, 1]
    while len(counts) < 30:
        counts.append(counts[-1] + counts[-2])
    code = huffman_code(np.array(counts))
    assert 0 < code.lengths.min() <= code.lengths.max() <= 16
    assert sum(2.0**-length for length in code.lengths.tolist()) <= 1.0
    symbols = np.arange(30)
    np.testing.assert_array_equal(code.decode(code.encode(symbols), 30), symbols)


def settings_of(entropy, **more):
    return {"bits": 4, "chunk": 16, "adapt": 1, "entropy": entropy, **more}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("entropy", CODES)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_codes_of_a_fixed_length(name, entropy, dtype):
    """To the bit, also where levels have just adapted."""
    parts = parts_of(101, RANKS, dtype=dtype)
    for moment in moments(2):
        plain, coded_parts = (
            exchange(RANKS, name, settings_of(how), parts, moment, dtype)
            for how in ("none", entropy)
        )
        for (one, _, _), (other, _, _) in zip(plain, coded_parts, strict=True):
            assert one.mean.tobytes() == other.mean.tobytes()


def symbols_of(codec, part, moment, replica):
    """Level numbers and signs by the published rule, with one code of zero."""
    norms = codec.chunks.norms(part, "max").astype(np.float64)
    ratios = np.abs(part) / np.repeat(norms, 16)[: part.size]
    levels = codec.level(np.arange(8))
    number = np.searchsorted(levels, ratios, side="right") - 1
    number = np.minimum(number, 6)
    low, high = levels[number], levels[number + 1]
    who = (0, 0, 0, moment.number, 1 + replica)
    dice = np.random.default_rng(who).random(part.size)
    number = number + (dice * (high - low) < ratios - low)
    return 2 * number + ((part < 0) & (number > 0))


@pytest.mark.parametrize("words", [1, 37, 1000])
@pytest.mark.parametrize("name", ["qsgd", "nuqsgd"])
def test_bytes_are_those_of_the_textbook(name, words):
    """Norms, the length of a record, and the bits of every word."""
    parts = parts_of(words, RANKS) + 0.01
    moment = moments(1)[0]
    for entropy in CODES:
        settings = settings_of(entropy)
        found = exchange(RANKS, name, settings, parts, moment)
        for rank, (told, entry, codec) in enumerate(found):
            symbols = symbols_of(codec, parts[rank], moment, rank)
            counts = np.bincount(symbols, minlength=16)
            assert counts[1] == 0  # there is one zero
            bits = huffman_bits(counts)
            if entropy == "elias":
                lengths = [len(textbook(s // 2 + 1)) + (s > 1) for s in range(16)]
                bits = int(counts @ np.array(lengths))
            ahead = 16 if entropy == "huffman" else 0
            size = ahead + ceil(bits / 8)
            wanted = 8 + 4 * ceil(words / 16) + size
            assert told.payload == entry.bytes == wanted
            assert codec.payload_bytes(RANKS, rank) is None
            assert codec.facts()["code_bits"] == 8 * size
            assert codec.facts()["code_words"] == words


def test_a_zero_that_was_negative_has_no_sign():
    """With codes of a fixed length, too; amq has no zero, and both its signs."""
    part = -np.linspace(1e-3, 1.0, 64)
    for name in NAMES:
        codec = opened(name, {"bits": 3, "chunk": 64}, 64)
        record = codec.encode(part.copy(), moments(1)[0], 0)
        codes = codec._unpacked(record[4 * (1 + (name in ("alq", "amq"))) :])
        if name == "amq":
            assert (codes & 1).any()
        else:
            assert (codes == 0).any() and not (codes == 1).any()


@pytest.mark.parametrize("entropy", CODES)
@pytest.mark.parametrize("name", NAMES)
def test_runs_report_fewer_bits_and_end_at_the_same_weights(name, entropy):
    """Chunks with few large words: most levels are low, and low levels are short."""
    problem = make_problem("softmax", d=101)
    problem.X[:, 10:] *= 0.05
    settings = {"bits": 4, "chunk": 1024}
    settings |= {"adapt": 4} if name in ("alq", "amq") else {}
    bucket = {"agreement": {"bucket": 4.0}}
    plain = coded(problem, name, 3, codec=settings, **bucket)
    short = coded(problem, name, 3, codec={**settings, "entropy": entropy}, **bucket)
    one, other = (train_on(3, config, problem) for config in (plain, short))
    assert one.weights_sha256 == other.weights_sha256
    facts = [result.report["agreement"] for result in (one, other)]
    bits = [fact["code_bits"] / fact["code_words"] for fact in facts]
    assert bits[0] == 4.0
    if name != "amq" or entropy == "huffman":
        assert bits[1] < 4.0


def test_levels_of_many_bits_are_refused():
    with pytest.raises(ConfigError, match="entropy = 'elias' is for at most 256"):
        opened("qsgd", {"bits": 9, "entropy": "elias"})
