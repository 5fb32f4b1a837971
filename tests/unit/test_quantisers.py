"""What each quantiser is held to besides the laws of all codecs, and broken twins."""

import numpy as np
import pytest

from hpcsgd.agreements.codecs import CODECS, CodecConfig
from hpcsgd.agreements.codecs.base import MOST_BITS, Chunks, pack, packed_bytes, unpack
from hpcsgd.agreements.codecs.levels import Nuqsgd, Qsgd, Quantiser
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import (
    Alone,
    coded,
    exchange,
    gap_of,
    is_unbiased_where_it_says_so,
    moments,
    opened,
    parts_of,
)
from tests.helpers.contracts.codec import Row as LawRow
from tests.helpers.harness import make_problem, train_on


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


@pytest.mark.parametrize("name", ["qsgd", "nuqsgd"])
def test_zero_words_stay_zero(name):
    """As in sparse gradients: zero is a level."""
    part = parts_of(101, 1)[0]
    got = said(name, {"bits": 3, "chunk": 16}, part)
    assert (got[part == 0.0] == 0.0).all() and (part == 0.0).sum() > 10


class SameDice(Qsgd):
    """All replicas throw alike: their noise does not average out."""

    def draw_uniform(self, moment, replica):
        return super().draw_uniform(moment, 0)


class Nearest(Qsgd):
    """No dice: biased, and nobody keeps what it loses."""

    def draw_uniform(self, moment, replica):
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


@pytest.mark.full
def test_a_quantiser_without_dice_ends_elsewhere(twin):
    settings = {"bits": 2, "norm": "l2"}
    gap = gap_of("qsgd", settings, steps=150)
    assert gap_of(twin(Nearest), settings, steps=150) > 10 * gap
    with pytest.raises(AssertionError):
        is_unbiased_where_it_says_so("Nearest", LawRow(rough={"bits": 4}))


def test_unbiased_quantisers_need_no_feedback():
    """Their variance may be above |a|²: kept errors then grow instead of ending."""
    settings = {"bits": 2, "norm": "l2"}
    with_feedback = gap_of("qsgd", {**settings, "feedback": "on"}, steps=150)
    assert with_feedback > 10 * gap_of("qsgd", settings, steps=150)


# ----------------------------------------------------------------- sign and byte


def test_a_sign_is_the_mean_size():
    part = np.array([3.0, -1.0, 0.0, -0.0, 4.0, -2.0, 0.5, 0.5, 1.0])
    scale = np.float32(np.abs(part).mean())
    got = said("sign", {}, part)
    np.testing.assert_array_equal(got, np.where(part < 0, -scale, scale))


def test_what_sign_forgets_is_what_was_decoded():
    """Zeros are sent as positive, and the error says so."""
    codec = opened("sign", {}, 9)
    part = np.array([3.0, -1.0, 0.0, -0.0, 4.0, -2.0, 0.5, 0.5, 1.0])
    mean = codec.start(part.copy(), Alone(), moments(1)[0])().mean
    np.testing.assert_array_equal(codec.error, part - mean)


def test_bytes_are_within_half_a_step():
    """Tiny words and large ones, of one sign and of both, ties included."""
    tie = np.array([0.5, 10.0, 255.5])
    rng = np.random.default_rng(3)
    for part in (tie, -tie, rng.normal(size=37), 1e3 + rng.normal(size=37)):
        for scale in (1.0, 4e-9, 1e-30):
            got = said("byte", {}, scale * part)
            step = scale * np.ptp(part) / 255
            assert np.abs(got - scale * part).max() <= 0.51 * step


def test_a_constant_chunk_is_sent_as_it_is():
    part = np.repeat([0.0, -3.0, 0.1], 16)
    got = said("byte", {"chunk": 16}, part)
    np.testing.assert_allclose(got, part, 1e-7, 0)


def test_bytes_keep_zeros():
    part = parts_of(101, 1)[0]
    got = said("byte", {"chunk": 101}, part)
    assert (got[part == 0.0] == 0.0).all()


# ----------------------------------------------------------------------- nuqsgd


@pytest.mark.parametrize("bits", range(2, 9))
def test_nuqsgd_keeps_its_bound(bits):
    part = parts_of(512, 1)[0]
    settings = {"bits": bits, "norm": "l2", "chunk": 512}
    codec, octaves = opened("nuqsgd", settings, 512), 2 ** (bits - 1) - 2
    bound = (1 / 8 + 2.0 ** (-2 * octaves - 2) * 512) * (part**2).sum()
    assert 0 < codec.variance(part).sum() <= bound * (1 + 1e-6)
    assert codec.levels.size == 2 ** (bits - 1)
    assert (codec.levels[[0, -1]] == [0.0, 1.0]).all()


def test_nuqsgd_is_better_than_uniform_levels_where_most_words_are_small():
    """And every level it can say is a power of two of the norm."""
    part = parts_of(512, 1)[0] ** 3
    settings = {"bits": 4, "norm": "l2", "chunk": 512}
    nonuniform = opened("nuqsgd", settings, 512).variance(part).sum()
    assert nonuniform < opened("qsgd", settings, 512).variance(part).sum()
    got = said("nuqsgd", settings, part)
    norm = np.abs(got).max() / np.abs(got[got != 0]).min()
    assert np.log2(norm) == np.rint(np.log2(norm))


def test_nuqsgd_has_no_more_octaves_than_float32():
    with pytest.raises(ConfigError, match="use bits = 8 or fewer"):
        opened("nuqsgd", {"bits": 9})


class NoZero(Nuqsgd):
    """Zeros become ± the lowest level, as in the reference."""

    def __init__(self, bucket, config):
        super().__init__(bucket, config)
        self.levels = np.concatenate([self.levels[1:2] / 2, self.levels[1:]])


def test_levels_without_zero_spoil_sparse_gradients(twin):
    """16 of 512 words: what zeros become is more than all the rest."""
    part = np.zeros(512)
    part[::32] = np.random.default_rng(1).normal(size=16)
    settings = {"bits": 4, "norm": "l2", "chunk": 512}
    lost = {
        name: ((said(name, settings, part) - part) ** 2).sum()
        for name in ("nuqsgd", twin(NoZero))
    }
    assert lost["NoZero"] > 1.2 * lost["nuqsgd"]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"bits": 1}, "bits = 1 must be at least 2 and at most 32"),
        ({"bits": 33}, "bits = 33"),
        ({"chunk": 0}, "chunk = 0 must be at least 1"),
        ({"norm": "l1"}, "norm = 'l1' must be one of max, l2"),
    ],
)
def test_settings_are_checked_at_birth(settings, message):
    with pytest.raises(ConfigError, match=message):
        CodecConfig(**settings)


def test_quantisers_are_named():
    """So that the tests above miss none."""
    from hpcsgd.agreements.codecs import get_codec

    found = {name for name in CODECS if issubclass(get_codec(name), Quantiser)}
    assert found == {"qsgd", "nuqsgd", "alq", "amq"}
