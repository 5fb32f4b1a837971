"""signSGD with majority vote, and 1-bit Adam, against their published rules."""

import numpy as np
import pytest

from hpcsgd.agreements.codecs.bits import Ternary
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError
from tests.helpers import oracle
from tests.helpers.contracts.codec import coded, exchange, parts_of
from tests.helpers.harness import (
    config_for,
    make_problem,
    relative_error,
    replica_batches,
    train_on,
)

L = np.longdouble


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_every_word_is_the_sign_of_the_sum_of_signs(ranks):
    """Also where votes are even, where words are zero, and in pieces of few words."""
    for words in (1, 5, 37, 101):
        parts = parts_of(words, ranks)
        for told, entry, codec in exchange(ranks, "vote", {}, parts):
            wanted = np.sign(np.sign(parts).sum(axis=0))
            np.testing.assert_array_equal(told.mean, wanted)
            assert entry.bytes == told.payload == codec.payload_bytes(ranks, 0)


def test_five_signs_take_a_byte():
    rng = np.random.default_rng(1)
    for words in (1, 4, 5, 6, 37):
        pieces = rng.integers(-1, 2, (3, words)).astype(float)
        record = Ternary().encode(pieces)
        assert record.shape == (3, -(-words // 5)) and record.dtype == np.uint8
        np.testing.assert_array_equal(Ternary().decode(record, words), pieces)
    bad = np.zeros((1, 10))
    bad[0, 7] = np.nan
    found = Ternary().decode(Ternary().encode(bad), 10)
    assert np.isnan(found[0, 5:]).all() and not found[0, :5].any()


def batch_gradients(problem, config, t, w, b, replicas):
    """g_p and the slope of the intercept of each replica, and the rows of all."""
    found = []
    for r in range(replicas):
        rows = replica_batches(config, len(problem.X), replicas, r)[t]
        X = problem.X[rows].astype(L)
        res = oracle.residual("logistic", X @ w + b, problem.y[rows].reshape(-1, 1))
        found.append((X.T @ res / len(rows), res.mean(axis=0), len(rows)))
    return found


def test_a_run_is_algorithm_3():
    """w ← w − η (sign(Σ sign(g_p)) + λ w); the intercept has its mean gradient."""
    problem = make_problem("logistic", n=48, d=7)
    config = coded(problem, "vote", 3, rate={"value": 0.01})
    result = train_on(3, config, problem)
    w, b = np.zeros((7, 1), dtype=L), np.zeros(1, dtype=L)
    for t in range(result.exchanges):
        found = batch_gradients(problem, config, t, w, b, 3)
        votes = np.sign(sum(np.sign(g) for g, _, _ in found))
        slope = sum(s * n for _, s, n in found) / sum(n for _, _, n in found)
        w = w - L(0.01) * (votes + L(0.05) * w)
        b = b - L(0.01) * slope
    assert relative_error(result, (w, b)) < 1e-12


ONEBIT = {
    "problem": {"l2": 0.05, "intercept": True},
    "schedule": {"batch": 4, "steps": 1, "epochs": 4},
    "products": {"kind": "auto"},
    "agreement": {"method": "onebit-adam", "warmup_steps": 5},
    "rate": {"value": 0.02},
}


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("frozen", [True, False])
def test_onebit_adam_is_algorithm_1(frozen, members):
    """Adam; then v rests and C(m_p + e_p) = mean|.| sign(.) travels, with its error."""
    problem = make_problem("logistic", n=48, d=7)
    agreement = {**ONEBIT["agreement"], "frozen_correction": frozen}
    tables = {**ONEBIT, "agreement": agreement}
    config = config_for(problem, **tables, grid={"replicas": 3, "members": members})
    result = train_on(3 * members, config, problem)
    assert result.exchanges == 16
    one, two, eps, rate = L(0.9), L(0.999), L(1e-8), L(0.02)
    w, b = np.zeros((7, 1), dtype=L), np.zeros(1, dtype=L)
    m, v, mb, vb = (0 * w, 0 * w, 0 * b, 0 * b)
    errors = [0 * w for _ in range(3)]
    for t in range(16):
        found = batch_gradients(problem, config, t, w, b, 3)
        g = sum(g for g, _, _ in found) / 3
        slope = sum(s for _, s, _ in found) / 3
        mb = one * mb + (1 - one) * slope
        if t < 5:
            whole = g + L(0.05) * w
            m = one * m + (1 - one) * whole
            v = two * v + (1 - two) * whole**2
            vb = two * vb + (1 - two) * slope**2
        else:
            total = 0 * w
            for r, (own, _, _) in enumerate(found):
                c = one * m + (1 - one) * own + errors[r]
                said = 0 * c
                for k in range(members):
                    part = split_range(7, members, k)
                    scale = L(np.float32(rate * np.abs(c[part]).mean())) / rate
                    said[part] = np.where(c[part] < 0, -scale, scale)
                errors[r] = c - said
                total = total + said / 3
            m = total + (1 - one) * L(0.05) * w
        seen = min(t + 1, 5) if frozen else t + 1
        w = w - rate * m / (1 - one ** (t + 1)) / (np.sqrt(v / (1 - two**seen)) + eps)
        size = np.sqrt(vb / (1 - two**seen)) + eps
        b = b - rate * mb / (1 - one ** (t + 1)) / size
    assert relative_error(result, (w, b)) < 1e-6  # scales are float32 on the wire


REFUSED = [
    ({"codec": {"feedback": "on"}}, "not parts of a gradient"),
    ({"rate": {"value": "auto"}}, "moves each weight by the rate"),
    ({"agreement": {"kind": "average", "codec": "vote"}}, "follows gradients"),
]


@pytest.mark.parametrize("sections, why", REFUSED)
def test_votes_are_refused(sections, why):
    problem = make_problem("logistic", n=58, d=3)
    tables = {
        "agreement": {"kind": "gradient", "codec": "vote"},
        "schedule": {"steps": 1},
        "products": {"kind": "direct"},
        "grid": {"replicas": 2},
        **sections,
    }
    with pytest.raises(ConfigError, match=why):
        train_on(2, config_for(problem, **tables), problem)
