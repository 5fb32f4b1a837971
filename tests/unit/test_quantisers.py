"""What each quantiser is held to besides the laws of all codecs, and broken twins."""

import numpy as np
import pytest

from hpcsgd.codecs import CODECS, CodecConfig
from hpcsgd.codecs.chunks import Chunks
from hpcsgd.codecs.levels import Quantiser
from hpcsgd.codecs.packing import MOST_BITS, pack, packed_bytes, unpack
from hpcsgd.codecs.qsgd import Qsgd
from hpcsgd.errors import ConfigError
from tests.contracts.codec import (
    Alone,
    coded,
    exchange,
    gap_of,
    is_unbiased_where_it_says_so,
    moments,
    opened,
    parts_of,
)
from tests.contracts.codec import Row as LawRow
from tests.harness import make_problem, train_on


def said(name, settings, part, dtype=np.float64):
    """What others decode of a part."""
    codec = opened(name, settings, part.size, dtype=dtype)
    codec.needs_own = True
    return codec.start(part.astype(dtype), Alone(), moments(1)[0])().own


@pytest.fixture
def twin(monkeypatch):
    """Puts a broken codec into the table, for this test alone."""

    def put(kind):
        monkeypatch.setitem(CODECS, kind.__name__, f"{__name__}:{kind.__name__}")
        return kind.__name__

    return put


# ---------------------------------------------------------------------- packing


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 1))
def test_codes_come_back(bits):
    rng = np.random.default_rng(bits)
    for count in (1, 7, 8, 37, 101):
        codes = rng.integers(0, 2**bits, count)
        codes[0] = 2**bits - 1
        record = pack(codes, bits)
        assert record.dtype == np.uint8
        assert record.size == packed_bytes(count, bits) == -(-count * bits // 8)
        np.testing.assert_array_equal(unpack(record, count, bits), codes)


def test_a_record_may_begin_at_any_byte():
    for bits in (3, 4, 16, 32):
        codes = np.arange(5)
        shifted = np.concatenate([[np.uint8(9)], pack(codes, bits)])
        np.testing.assert_array_equal(unpack(shifted[1:], 5, bits), codes)


@pytest.mark.parametrize("kind", ["max", "l2"])
def test_no_word_is_above_the_norm_of_its_chunk(kind):
    """Not even where squares underflow, or float32 would round down."""
    for scale in (1.0, 1e-30, 1e-42):
        part = scale * parts_of(101, 1)[0]
        chunks = Chunks(101, 16)
        spread = chunks.spread(chunks.norms(part, kind).astype(np.float64))
        assert (np.abs(part) <= spread).all() and len(chunks) == 7


# ------------------------------------------------------------------------- qsgd


def test_qsgd_keeps_its_bound():
    """Σ variance ≤ min(B/s², √B/s) |v|² with the l2 norm, in every chunk."""
    part = parts_of(512, 1)[0]
    for bits in (2, 4, 8):
        settings = {"bits": bits, "norm": "l2", "chunk": 512}
        codec, steps = opened("qsgd", settings, 512), 2 ** (bits - 1) - 1
        bound = min(512 / steps**2, np.sqrt(512) / steps) * (part**2).sum()
        assert 0 < codec.variance(part).sum() <= bound * (1 + 1e-6)


def test_qsgd_with_many_levels_is_ddp():
    problem = make_problem("softmax")
    plain = train_on(3, coded(problem, "identity", 3), problem)
    config = coded(problem, "qsgd", 3, codec={"bits": 22})
    result = train_on(3, config, problem)
    np.testing.assert_allclose(result.weights, plain.weights, 1e-5, 1e-6)
    assert (result.weights != plain.weights).any()


@pytest.mark.parametrize("name", ["qsgd"])
def test_zero_words_stay_zero(name):
    """As in sparse gradients: zero is a level."""
    part = parts_of(101, 1)[0]
    got = said(name, {"bits": 3, "chunk": 16}, part)
    assert (got[part == 0.0] == 0.0).all() and (part == 0.0).sum() > 10


class SameDice(Qsgd):
    """All replicas throw alike: their noise does not average out."""

    def throw(self, moment, replica):
        return super().throw(moment, 0)


class Nearest(Qsgd):
    """No dice: biased, and nobody keeps what it loses."""

    def throw(self, moment, replica):
        return np.full(self.bucket.words, 0.5)


def test_replicas_must_throw_dice_of_their_own(twin):
    """The same part on all: the variance of the mean is 1/R of one, or all of it."""
    parts = np.tile(parts_of(101, 1)[0], (4, 1))
    errors = {}
    for name in ("qsgd", twin(SameDice)):
        settings = {"bits": 3, "chunk": 16}
        squares = [
            ((exchange(4, name, settings, parts, at)[0][0].mean - parts[0]) ** 2).sum()
            for at in moments(60)
        ]
        errors[name] = np.mean(squares)
    one = opened("qsgd", settings, 101).variance(parts[0]).sum()
    assert errors["qsgd"] == pytest.approx(one / 4, rel=0.25)
    assert errors["SameDice"] == pytest.approx(one, rel=0.25)


def test_a_quantiser_without_dice_ends_elsewhere(twin):
    settings = {"bits": 2, "norm": "l2"}
    gap = gap_of("qsgd", settings, 150)
    assert gap_of(twin(Nearest), settings, 150) > 10 * gap
    with pytest.raises(AssertionError):
        is_unbiased_where_it_says_so("Nearest", LawRow(rough={"bits": 4}))


def test_unbiased_quantisers_need_no_feedback():
    """Their variance may be above |a|²: kept errors then grow instead of ending."""
    settings = {"bits": 2, "norm": "l2"}
    with_feedback = gap_of("qsgd", {**settings, "feedback": "on"}, 150)
    assert with_feedback > 10 * gap_of("qsgd", settings, 150)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"bits": 1}, "bits = 1: choose a number from 2 to 32"),
        ({"bits": 33}, "bits = 33"),
        ({"chunk": 0}, "chunk = 0: choose a positive number of words"),
        ({"norm": "l1"}, "norm = 'l1'; known: max, l2"),
    ],
)
def test_settings_are_checked_at_birth(settings, message):
    with pytest.raises(ConfigError, match=message):
        CodecConfig(**settings)


def test_quantisers_are_named():
    """So that the tests above miss none."""
    from hpcsgd.codecs import get_codec

    found = {name for name in CODECS if issubclass(get_codec(name), Quantiser)}
    assert found == {"qsgd"}
