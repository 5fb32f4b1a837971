"""Levels that follow the gradients: the law they fit, the fit, and agreement."""

import warnings

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import truncnorm

from hpcsgd.agreements.codecs import CodecConfig
from hpcsgd.agreements.codecs.levels import Mixture, exponential, powers, sweep
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.contracts.codec import Alone, exchange, moments, opened, parts_of

# weight, mean and deviation of signed ratios
LAWS = [
    [(1.0, 0.1, 0.1)],
    [(1.0, 0.0, 0.05)],
    [(1.0, -0.4, 0.3), (9.0, 0.02, 0.05)],
    [(1.0, 0.0, 0.4), (2.0, 0.001, 0.002), (0.1, 0.5, 0.01)],
]
NAMES = ["alq", "amq"]
GRID = np.concatenate([np.linspace(0, 0.1, 20_001)[:-1], np.linspace(0.1, 1, 20_001)])


def mixture(laws):
    """The law as replicas make it, of the sums of chunks."""
    return Mixture(np.array([[w, w * m, w * (d**2 + m**2)] for w, m, d in laws]))


def density(laws):
    """The paper's Σ γ_n (f_n(r) + f_n(−r)) of normals cut to [−1, 1], by scipy."""
    total = sum(w for w, _, _ in laws)

    def at(r):
        found = 0.0
        for w, mean, sd in laws:
            cut = truncnorm((-1 - mean) / sd, (1 - mean) / sd, mean, sd)
            found = found + w / total * (cut.pdf(r) + cut.pdf(-r))
        return found

    return at


def cost(table, levels):
    """Σ ∫ (u − r)(r − l) f dr with ± levels, by the trapezium rule on `GRID`."""
    levels = np.asarray(levels)
    ends = levels if levels[0] == 0.0 else np.concatenate([[-levels[0]], levels])
    above = np.clip(np.searchsorted(ends, GRID, side="right"), 1, len(ends) - 1)
    lost = (ends[above] - GRID) * (GRID - ends[above - 1]) * table
    return float(np.trapezoid(lost, GRID))


def chunks_of_kinds(replicas=1):
    """Chunks of 512 words in which few words are large, and in which all are."""
    rng = np.random.default_rng(replicas)
    parts = rng.normal(size=(replicas, 4, 512))
    parts[:, 2:] *= np.exp(1.5 * rng.normal(size=(replicas, 2, 512)))
    parts *= np.exp(rng.normal(size=(replicas, 4, 1)))
    return parts.reshape(replicas, -1)


def laws_of(parts, norm):
    """Weight, mean and deviation of the ratios of each chunk of every replica."""
    chunks = parts.reshape(-1, 512)
    norms = (
        np.abs(chunks).max(axis=1) if norm == "max" else np.linalg.norm(chunks, axis=1)
    )
    ratios = chunks / norms[:, None]
    moments_of = zip(norms**2, ratios.mean(axis=1), ratios.std(axis=1), strict=True)
    return [tuple(map(float, law)) for law in moments_of]


def adapted(name, settings, part):
    """The codec after the exchange in which it first adapts, alone."""
    codec = opened(name, {**settings, "adapt": 1}, part.size)
    for at in moments(2):
        codec.start(part.copy(), Alone(), at)()
    return codec


@pytest.mark.cases(1)
@pytest.mark.parametrize("laws", LAWS, ids=range(len(LAWS)))
def test_moments_of_the_law_are_those_of_a_mixture(laws):
    law, other = mixture(laws), density(laws)
    ends = np.array([0.01, 0.1, 0.5, 1.0])
    for power, found in (
        (0, law.cdf(ends)),
        (1, law.first(ends)),
        (2, law.second(ends)),
    ):
        for end, value in zip(ends, found, strict=True):
            points = sorted({abs(m) for _, m, _ in laws if 0 < abs(m) < end})
            want, _ = quad(
                lambda r, n=power: r**n * other(r), 0, end, points=points, limit=500
            )
            assert value == pytest.approx(want, rel=2e-3)
    for q in (0.0, 1e-9, 0.3, 0.999, 1.0):
        assert law.cdf(law.inverse(np.array([q])))[0] == pytest.approx(q, abs=1e-12)


@pytest.mark.parametrize("laws", LAWS, ids=range(len(LAWS)))
def test_what_rounding_costs_is_the_integral(laws):
    table, law = density(laws)(GRID), mixture(laws)
    for levels in (
        exponential(4),
        np.linspace(0, 1, 8),
        powers(0.5, 4),
        powers(0.9, 8),
    ):
        assert law.variance(levels) == pytest.approx(cost(table, levels), rel=5e-3)


@pytest.mark.parametrize("laws", LAWS, ids=range(len(LAWS)))
def test_a_sweep_never_costs_more(laws):
    law, levels = mixture(laws), exponential(4)
    costs = [law.variance(levels)]
    for _ in range(15):
        levels = sweep(law, levels, 1)
        costs.append(law.variance(levels))
        assert (np.diff(levels) > 0).all() and levels[0] == 0 and levels[-1] == 1
    assert (np.diff(costs) <= 1e-12).all() and costs[-1] < 0.7 * costs[0]


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_levels_are_best_for_the_mixture_of_all_chunks(replicas, norm):
    """Of three bits, by scipy's search over both free levels, or over p of AMQ."""
    parts = chunks_of_kinds(replicas)
    table = density(laws_of(parts, norm))(GRID)

    def of_two(free):
        inner = np.sort(np.clip(free, 1e-4, 0.999))
        return cost(table, [0.0, *inner, 1.0])

    starts = [(0.05, 0.3), (0.02, 0.08), (0.3, 0.6), (0.1, 0.2)]
    found = [minimize(of_two, x, method="Nelder-Mead").fun for x in starts]
    of_p = minimize_scalar(
        lambda p: cost(table, powers(p, 4)), bounds=(0.05, 0.95), method="bounded"
    )
    settings = {"bits": 3, "norm": norm, "chunk": 512, "adapt": 1}
    for name, least in (("alq", min(found)), ("amq", of_p.fun)):
        codec = exchange(replicas, name, settings, parts, moments(2)[1])[0][2]
        assert cost(table, codec.kept["levels"]) < 1.01 * least, name


def test_chunks_of_several_kinds_are_not_one_normal_law():
    """The variance on data, against that with levels of the pooled moments."""
    rng = np.random.default_rng(2)
    part = rng.normal(size=(8, 512)) * np.repeat([0.3, 0.03], 4)[:, None]
    part = np.clip(part, -1.0, 1.0)
    part[:, 0] = 1.0  # the norm of every chunk
    laws = np.array(laws_of(part, "max"))
    part = part.reshape(-1)
    codec = adapted("alq", {"bits": 4, "chunk": 512}, part)
    mixed = codec.variance(part).sum()
    share = laws[:, 0] / laws[:, 0].sum()
    mean = share @ laws[:, 1]
    square = share @ (laws[:, 2] ** 2 + laws[:, 1] ** 2)
    one = mixture([(1.0, mean, (square - mean**2) ** 0.5)])
    codec.kept["levels"][...] = codec.fit(one)
    assert mixed < 0.9 * codec.variance(part).sum()


DRAWN = np.random.default_rng(5).normal(size=2048)
EDGES_OF_PARTS = {
    "normal": DRAWN,
    "heavy tails": DRAWN * np.exp(3 * np.random.default_rng(6).normal(size=2048)),
    "all the same": np.full(2048, 0.3),
    "zeros": np.zeros(2048),
    "a single word": np.eye(1, 2048)[0],
    "one word": np.array([-2.0]),
    "signs": np.sign(DRAWN),
    "tiny": DRAWN * 1e-30,
    "a chunk of zeros": np.where(np.arange(2048) < 1024, DRAWN, 0.0),
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("name", NAMES)
def test_levels_adapt_to_anything(name, norm, bits):
    """Rising numbers that end with 1, without a warning."""
    for what, part in EDGES_OF_PARTS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            codec = adapted(name, {"bits": bits, "norm": norm}, part)
        levels = codec.kept["levels"]
        assert len(levels) == 2 ** (bits - 1), what
        assert np.isfinite(levels).all() and (np.diff(levels) > 0).all(), what
        assert levels[-1] == 1.0 and (levels[0] == 0.0) == (name == "alq"), what


@pytest.mark.parametrize("bits", range(3, 9))
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_every_bit_pays(norm, bits):
    """On normal words a level set twice as large costs about a quarter with ALQ."""
    costs = [
        adapted("alq", {"bits": b, "norm": norm}, DRAWN).variance(DRAWN).sum()
        for b in (bits - 1, bits)
    ]
    assert costs[1] < 0.35 * costs[0]


def test_amq_has_no_zero_level():
    """Words below the least level become it or its opposite, without bias."""
    part, bits = DRAWN, 3
    codec = adapted("amq", {"bits": bits, "norm": "l2"}, part)
    levels = codec.kept["levels"]
    np.testing.assert_allclose(levels, levels[-2] ** np.arange(3.0, -1.0, -1.0))
    norms = np.linalg.norm(part.reshape(2, 1024), axis=1).astype(np.float32)
    said = codec.start(part.copy(), Alone(), moments(3)[2])().mean.reshape(2, 1024)
    ratios = np.abs(said) / norms[:, None].astype(np.float64)
    near = np.abs(ratios[:, :, None] - levels).min(axis=2)
    assert near.max() < 1e-6
    table = density(laws_of(part, "l2"))(GRID)
    with_zero = [cost(table, [0.0, *powers(p, 3)]) for p in np.linspace(0.02, 0.98, 97)]
    assert cost(table, levels) < 0.75 * min(with_zero)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_amq_says_zeros_as_plus_or_minus_the_least_level(norm):
    """Half of them either way, and that is in its variance."""
    part = np.where(np.arange(4096) % 16 == 0, 1.0, 0.0)
    codec = opened("amq", {"bits": 3, "norm": norm}, 4096)
    scale = 1.0 if norm == "max" else 8.0  # 64 ones in a chunk of 1024
    least = codec.kept["levels"][0] * scale
    assert codec.kept["levels"][0] == 0.5**3
    said = codec.start(part.copy(), Alone(), moments(1)[0])().mean
    zeros = part == 0.0
    np.testing.assert_allclose(np.abs(said[zeros]), least, rtol=1e-6)
    assert abs((said[zeros] > 0).mean() - 0.5) < 0.05
    np.testing.assert_allclose(codec.variance(part)[zeros], least**2, rtol=1e-6)


@pytest.mark.parametrize("laws", LAWS, ids=range(len(LAWS)))
@pytest.mark.parametrize("name", NAMES)
def test_the_best_of_all_starts_is_kept(name, laws):
    law, codec = mixture(laws), opened(name, {"bits": 5})
    found = law.variance(codec.fit(law))
    if name == "alq":
        others = [
            sweep(law, start, 15) for start in (np.linspace(0, 1, 16), exponential(5))
        ]
    else:
        others = [powers(p, 16) for p in np.linspace(0.05, 0.95, 91)]
    assert found <= min(map(law.variance, others)) * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_adapted_levels_cost_less(name):
    """True variance on data, before and after; never adapting is the broken twin."""
    part = np.abs(np.random.default_rng(1).normal(size=512))
    settings = {"bits": 4, "chunk": 512}
    before = opened(name, settings, 512).variance(part).sum()
    assert adapted(name, settings, part).variance(part).sum() < 0.8 * before


@pytest.mark.parametrize("name", NAMES)
def test_bytes_with_and_without_sums(name):
    """Three numbers of each of seven chunks go ahead where levels adapt."""
    settings = {"bits": 3, "chunk": 16, "adapt": 2}
    for at in moments(3):
        for told, entry, _ in exchange(3, name, settings, parts_of(101, 3), at):
            plain = -(-101 * 3 // 8) + 4 * 7 + 4
            assert told.payload == entry.bytes == plain + 7 * 24 * (at.number == 2)


@pytest.mark.parametrize("name", NAMES)
def test_all_replicas_have_the_same_levels(name):
    settings = {"bits": 4, "adapt": 1}
    found = exchange(3, name, settings, parts_of(101, 3), moments(2)[1])
    levels = [codec.kept["levels"] for _, _, codec in found]
    assert len({found.tobytes() for found in levels}) == 1
    assert (levels[0] != opened(name, settings).kept["levels"]).any()


@pytest.mark.parametrize("name", NAMES)
def test_many_chunks_are_merged_alike(name):
    """Of 1500 chunks of 8 words: the levels cost what those of fewer laws cost."""
    part = np.random.default_rng(3).normal(size=12_000)
    codec = adapted(name, {"bits": 4, "chunk": 8}, part)
    few = adapted(name, {"bits": 4, "chunk": 8}, part[:2000])
    levels = codec.kept["levels"]
    np.testing.assert_allclose(levels, few.kept["levels"], rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_go_by_changes_nothing(name):
    for value in (0.0, np.nan):
        codec = opened(name, {"adapt": 1}, 37)
        first = codec.kept["levels"].copy()
        with np.errstate(all="ignore"):
            codec.start(np.full(37, value), Alone(), moments(2)[1])()
        assert (codec.kept["levels"] == first).all()


def test_other_levels_are_refused():
    codec, moment = opened("alq", {}, 37), moments(1)[0]
    record = codec.encode(np.ones(37), moment, 0)
    codec.kept["levels"][1] *= 1.5
    with pytest.raises(DataError, match="different quantisation levels"):
        codec.add_decoded(record, np.zeros(37), moment)


def test_when_levels_adapt():
    codec = opened("alq", {"adapt": 3})
    due = [at.number for at in moments(700) if codec.is_due(at)]
    assert due == [3, 60, 300, 600]
    with pytest.raises(ConfigError, match="adapt = 0"):
        CodecConfig(adapt=0)


def test_levels_with_a_zero_of_earlier_checkpoints_go_on():
    """Restored in place: zeros stay zeros until the levels adapt."""
    codec = opened("amq", {"bits": 4}, 2048)
    codec.kept["levels"][...] = exponential(4)
    part = np.where(np.arange(2048) % 4 == 0, DRAWN, 0.0)
    said = codec.start(part.copy(), Alone(), moments(1)[0])().mean
    assert (said[part == 0.0] == 0.0).all() and said.any()
    norms = np.abs(part.reshape(2, 1024)).max(axis=1)
    ratios = np.abs(said.reshape(2, 1024)) / norms[:, None]
    assert np.abs(ratios[:, :, None] - exponential(4)).min(axis=2).max() < 1e-6
