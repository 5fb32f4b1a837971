"""Mirror maps alone: extremes, members, and the twins that lack the essential part."""

import numpy as np
import pytest

from hpcsgd.agreements.more.anybatch import ReplicaGraph, RoundMixer
from hpcsgd.comm.threads import run_ranks
from hpcsgd.glm.mirror_maps import (
    LOG,
    MIRRORS,
    MirrorConfig,
    ReplicaViews,
    make_mirror,
    usual_power,
)
from tests.helpers.anybatch import MAPS, Map


def point_of(mirror, rows, classes=1, dtype=np.float64):
    """Room for `rows` columns of this member, at the first point."""
    point = ReplicaViews(
        np.zeros((rows, classes), dtype),
        {name: np.zeros((rows, classes), dtype) for name in mirror.state_names},
        {name: np.zeros((1, classes), dtype) for name in mirror.shared},
    )
    mirror.begin(point)
    return point


def alone(words):
    return words[None]


@pytest.mark.parametrize("name", MIRRORS)
def test_every_map_has_a_restatement(name):
    assert name in MAPS


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("name", MAPS)
def test_members_together_are_one(name, members):
    """Columns 7 = 3 + 2 + 2; a few steps along gradients that are large in places."""
    settings, d, classes = MirrorConfig(**MAPS[name]), 7, 3
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(5, d, classes)) * np.exp(rng.normal(size=(5, d, 1)))
    edges = np.linspace(0, d, members + 1).round().astype(int)

    def on_rank(world):
        def gather(words):
            return np.array(world.exchange_objects(words.copy()))

        mirror = make_mirror(settings, d, gather)
        own = slice(edges[world.rank], edges[world.rank + 1])
        point = point_of(mirror, own.stop - own.start, classes)
        for g in gradients:
            mirror.step(point, g[own].copy(), 0.3)
        return point.weights

    found = np.concatenate(run_ranks(members, on_rank))
    expected = Map(settings, d, classes)
    for g in gradients:
        expected.step(g.astype(np.longdouble), np.longdouble(0.3))
    np.testing.assert_allclose(
        found, expected.weights.astype(float), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_entropy_does_not_underflow(dtype):
    """A weight of e^-2000 comes back when gradients turn; a zero would not."""
    mirror = make_mirror(MirrorConfig(kind="entropy"), 3, alone)
    point = point_of(mirror, 3, dtype=dtype)
    push = np.array([[2000.0], [0.0], [0.0]], dtype)
    mirror.step(point, push.copy(), 1.0)
    assert point.weights[0, 0] == 0.0 and np.isfinite(point.arrays[LOG]).all()
    mirror.step(point, -push, 1.0)
    np.testing.assert_allclose(point.weights, 1 / 3, rtol=1e-3)
    plain = np.full((3, 1), 1 / 3)  # the broken twin: without logarithms
    for g in (push, -push):
        with np.errstate(all="ignore"):
            plain = plain * np.exp(-g.astype(float))
            plain = plain / plain.sum()
    assert not np.isfinite(plain).all() or plain[0, 0] == 0.0


@pytest.mark.parametrize("kind", ["ring", "full", "matching"])
def test_logarithms_are_mixed_as_what_they_are_of(kind):
    """Σ W x where x is a number at all; where none is, the logarithm is right still."""
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(4, 6)) * 3
    logs[:, 0] -= 900.0
    logs[1, 1] = -np.inf

    def on_rank(world):
        words = np.append(logs[world.rank], float(world.rank))
        RoundMixer(world, ReplicaGraph(kind, 4), 1, True).mix(words, 6, 0)
        return words

    found, W = np.array(run_ranks(4, on_rank)), ReplicaGraph(kind, 4).at(0)
    exact = np.log(W.astype(np.longdouble) @ np.exp(logs.astype(np.longdouble)))
    np.testing.assert_allclose(found[:, :6], exact.astype(float), rtol=1e-13)
    np.testing.assert_allclose(found[:, 6], W @ np.arange(4.0))
    assert np.isfinite(found[:, 0]).all() and (np.exp(found[:, 0]) == 0.0).all()


def test_nothing_at_all_stays_nothing():
    """No neighbour had any rows: ln 0 of all, and no warning, and no number made up."""

    def on_rank(world):
        words = np.full(3, -np.inf)
        RoundMixer(world, ReplicaGraph("ring", 3), 2, True).mix(words, 3, 0)
        return words

    assert np.isneginf(run_ranks(3, on_rank)).all()


def test_powers_of_the_p_norm():
    assert usual_power(1) == usual_power(2) == 2.0
    assert usual_power(3) == pytest.approx(2 * np.log(3) / (2 * np.log(3) - 1))
    assert 1.0 < usual_power(10**9) < 1.03


def test_p_norms_of_many_small_numbers_do_not_underflow():
    """The power 2 ln d of 1e-20 is no number; its ratio to the norm is."""
    d = 20_000
    mirror = make_mirror(MirrorConfig(kind="p-norm"), d, alone)
    gradient = np.random.default_rng(1).normal(size=(d, 1)) * 1e-20
    point, expected = point_of(mirror, d), Map(MirrorConfig(kind="p-norm"), d, 1)
    mirror.step(point, gradient.copy(), 1.0)
    expected.step(gradient.astype(np.longdouble), np.longdouble(1.0))
    np.testing.assert_allclose(point.weights, expected.weights.astype(float), 1e-10)
    assert np.abs(point.weights).max() > 0


def test_p_norm_is_sgd_where_p_is_two():
    gradient = np.random.default_rng(1).normal(size=(5, 2))
    mirror = make_mirror(MirrorConfig(kind="p-norm", p=2.0), 5, alone)
    point = point_of(mirror, 5, 2)
    for _ in range(3):
        mirror.step(point, gradient.copy(), 0.1)
    np.testing.assert_allclose(point.weights, -0.3 * gradient, rtol=1e-13)


def test_p_norm_leaves_columns_that_say_little_nearer_to_zero():
    """What it is for: of one large and many small gradients, the large one has more."""
    gradient = np.full((1000, 1), 0.1)
    gradient[0] = 1.0
    shares = []
    for settings in (MirrorConfig(), MirrorConfig(kind="p-norm")):
        mirror = make_mirror(settings, 1000, alone)
        point = point_of(mirror, 1000)
        mirror.step(point, gradient.copy(), 0.1)
        shares.append(abs(point.weights[0, 0]) / np.abs(point.weights).sum())
    assert shares[0] < 0.02 and shares[1] > 0.9
