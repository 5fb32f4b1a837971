"""Levels that follow the gradients: the law they fit, the fit, and agreement."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import truncnorm

from hpcsgd.codecs import CodecConfig
from hpcsgd.codecs.adaptive import powers, slope, sweep
from hpcsgd.codecs.nuqsgd import exponential
from hpcsgd.codecs.truncated import Truncated
from hpcsgd.errors import ConfigError, DataError
from tests.contracts.codec import Alone, exchange, moments, opened, parts_of

LAWS = [(0.1, 0.1), (0.02, 0.05), (0.4, 0.3)]
NAMES = ["alq", "amq"]


@pytest.mark.parametrize("mean, deviation", LAWS)
def test_moments_of_the_law(mean, deviation):
    law = Truncated(mean, deviation)
    ends = -mean / deviation, (1 - mean) / deviation
    other = truncnorm(*ends, loc=mean, scale=deviation)
    for a, c in ((0.0, 0.1), (0.1, 0.5), (0.0, 1.0)):
        for power, found in ((1, law.first(a, c)), (2, law.second(a, c))):
            want = quad(lambda r, n=power: r**n * other.pdf(r), a, c)[0]
            assert found == pytest.approx(want, rel=1e-7, abs=1e-12)
    assert law.cdf(law.inverse(0.3)) == pytest.approx(0.3)


@pytest.mark.parametrize("mean, deviation", LAWS)
def test_a_sweep_never_costs_more(mean, deviation):
    law, levels = Truncated(mean, deviation), exponential(4)
    costs = [law.variance(levels)]
    for _ in range(15):
        levels = sweep(law, levels, 1)
        costs.append(law.variance(levels))
        assert (np.diff(levels) > 0).all() and levels[0] == 0 and levels[-1] == 1
    assert (np.diff(costs) <= 1e-12).all() and costs[-1] < 0.7 * costs[0]


@pytest.mark.parametrize("mean, deviation", LAWS)
def test_the_slope_is_that_of_the_cost(mean, deviation):
    law, step = Truncated(mean, deviation), 1e-5
    for p in (0.2, 0.5, 0.8):
        up, down = (law.variance(powers(p + e, 8)) for e in (step, -step))
        assert slope(law, p, 8) == pytest.approx((up - down) / (2 * step), 1e-6, 1e-9)


def test_ratios_weigh_what_they_cost():
    """Σ N² r, Σ N² r² and Σ N² of words that are not zero, chunk by chunk."""
    part = np.array([4.0, -1.0, 0.0, 2.0, 0.5, 0.25, 0.0])
    codec = opened("alq", {"chunk": 4}, 7)
    wanted = np.zeros(3)
    for chunk in (part[:4], part[4:]):
        norm = np.abs(chunk).max()
        for r in np.abs(chunk[chunk != 0]) / norm:
            wanted += norm**2 * np.array([r, r**2, 1.0])
    np.testing.assert_allclose(codec._sums(part), wanted, rtol=1e-12)


@pytest.mark.parametrize("name, starts", [("alq", 3), ("amq", 10)])
def test_the_best_of_all_starts_is_kept(name, starts, monkeypatch):
    """By Ψ: of levels that one start found, all others are worse or the same."""
    law, seen = Truncated(0.02, 0.05), []
    cost = Truncated.variance

    def noted(self, levels):
        seen.append(cost(self, levels))
        return seen[-1]

    monkeypatch.setattr(Truncated, "variance", noted)
    found = opened(name, {"bits": 5}).fit(law)
    assert len(seen) == starts and max(seen) > 1.02 * min(seen)
    assert cost(law, found) == min(seen)


@pytest.mark.parametrize("name", NAMES)
def test_adapted_levels_cost_less(name):
    """True variance on data, before and after; never adapting is the broken twin."""
    part = np.abs(np.random.default_rng(1).normal(size=512))
    settings = {"bits": 4, "chunk": 512, "adapt": 1}
    codec = opened(name, settings, 512)
    before = codec.variance(part).sum()
    for at in moments(2):
        codec.start(part.copy(), Alone(), at)()
    assert codec.variance(part).sum() < 0.8 * before


@pytest.mark.parametrize("name", NAMES)
def test_bytes_with_and_without_sums(name):
    settings = {"bits": 3, "chunk": 16, "adapt": 2}
    for at in moments(3):
        for told, entry, _ in exchange(3, name, settings, parts_of(101, 3), at):
            plain = -(-101 * 3 // 8) + 4 * 7 + 4
            assert told.payload == entry.bytes == plain + 24 * (at.number == 2)


@pytest.mark.parametrize("name", NAMES)
def test_all_replicas_have_the_same_levels(name):
    settings = {"bits": 4, "adapt": 1}
    found = exchange(3, name, settings, parts_of(101, 3), moments(2)[1])
    levels = [codec.kept["levels"] for _, _, codec in found]
    assert len({found.tobytes() for found in levels}) == 1
    assert (levels[0] != exponential(4)).any()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_go_by_changes_nothing(name):
    for value in (0.0, np.nan):
        codec = opened(name, {"adapt": 1}, 37)
        with np.errstate(all="ignore"):
            codec.start(np.full(37, value), Alone(), moments(2)[1])()
        assert (codec.kept["levels"] == exponential(4)).all()


def test_other_levels_are_refused():
    codec, moment = opened("alq", {}, 37), moments(1)[0]
    record = codec.encode(np.ones(37), moment, 0)
    codec.kept["levels"][1] *= 1.5
    with pytest.raises(DataError, match="replicas have different levels"):
        codec.add_decoded(record, np.zeros(37), moment)


def test_when_levels_adapt():
    codec = opened("alq", {"adapt": 3})
    due = [at.number for at in moments(700) if codec.is_due(at)]
    assert due == [3, 60, 300, 600]
    with pytest.raises(ConfigError, match="adapt = 0"):
        CodecConfig(adapt=0)
