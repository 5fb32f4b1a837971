"""DP-SGD: gradients of rows that are clipped, noise, and the privacy that is spent."""

import math

import numpy as np
import pytest

from hpcsgd.agreements.shaping import (
    BLOCK,
    ORDERS,
    ClippedRows,
    epsilon_of,
    least_noise,
    spent_by_step,
)
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import OVERFLOW, PoissonSampler, plan_groups, poisson_share
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs.agreements import spent_epsilon
from hpcsgd.runs.checks import check_configuration
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import (
    make_problem,
    relative_error,
    replica_batches,
    train_on,
)
from tests.helpers.oracle import residual

L = np.longdouble
SEED = 20260101
DP = {"kind": "dp-sgd", "clip": 0.3, "noise": 0.5, "delta": 1e-3}
# The orders of Opacus and of TensorFlow Privacy.
THEIRS = np.array([1 + x / 10 for x in range(1, 100)] + [*range(12, 64)])


def private(drawn, /, *grid, privacy, **sections):
    sections["sampling"] = {"seed": SEED, **sections.get("sampling", {})}
    return agreed(drawn, *grid, privacy={**DP, **privacy}, **sections)


# The accountant.


def divergence(q, sigma, order):
    """ε_α by the trapezoidal rule, whose error falls exponentially here."""
    z = np.linspace(L(-14) * sigma, L(order) + 14 * sigma, 20001)
    ratio = np.logaddexp(np.log1p(L(-q)), np.log(L(q)) + (2 * z - 1) / L(2 * sigma**2))
    logs = order * ratio - z**2 / L(2 * sigma**2)
    area = np.trapezoid(np.exp(logs - logs.max()), z)
    log = logs.max() + np.log(area / (sigma * np.sqrt(2 * L(np.pi))))
    return float(log / (order - 1))


@pytest.mark.parametrize("q", [1e-3, 0.1, 0.9])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 20.0])
def test_a_step_spends_the_divergence_that_its_integral_is(q, sigma):
    orders = np.array([1.2, 1.7, 2.0, 3.3, 10.9, 20.0, 200.0])
    expected = [divergence(q, sigma, order) for order in orders]
    found = spent_by_step(q, sigma, orders)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert (found >= np.array(expected) * (1 - 1e-9) - 1e-12).all()  # never less


def test_a_step_of_all_rows_spends_that_of_the_gaussian_mechanism():
    almost = spent_by_step(1 - 1e-12, 1.3, ORDERS)
    np.testing.assert_allclose(spent_by_step(1.0, 1.3), almost, rtol=1e-6)
    assert not spent_by_step(0.0, 1.3).any()


def test_epsilon_is_that_of_opacus():
    """opacus/tests/accountants_test.py of pytorch/opacus, at 030b723."""
    steps = int(90 / 0.04)
    spent = steps * spent_by_step(0.04, 1.5, THEIRS)
    assert epsilon_of(spent, 1e-5, THEIRS) == pytest.approx(7.32911117143, abs=1e-9)

    def epsilon(noise):
        return epsilon_of(2000 * spent_by_step(0.04, noise, THEIRS), 1e-5, THEIRS)

    assert least_noise(epsilon, 8.0) == pytest.approx(1.3562, abs=2e-4)


@pytest.mark.parametrize(
    "noise, epochs, epsilon", [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)]
)
def test_divergences_are_those_of_tensorflow_privacy(noise, epochs, epsilon):
    """The table of tutorials/README.md (047e1ee), by the earlier conversion to ε."""
    spent = epochs * (60000 // 256) * spent_by_step(256 / 60000, noise, THEIRS)
    found = np.min(spent + np.log(1e5) / (THEIRS - 1))
    assert found == pytest.approx(epsilon, abs=0.012)
    assert epsilon_of(spent, 1e-5, THEIRS) < found


def test_draws_without_a_place_take_a_part_of_delta():
    spent = 1000 * spent_by_step(0.01, 1.0)
    plain, less = (epsilon_of(spent, delta) for delta in (1e-5, 0.5e-5))
    overflow = 0.5e-5 / (1 + np.exp(less))
    assert epsilon_of(spent, 1e-5, overflow=overflow) == pytest.approx(less, rel=1e-6)
    assert plain < less
    assert epsilon_of(spent, 1e-5, overflow=1e-5) == np.inf


def test_the_least_noise_is_the_least():
    problem = make_problem("logistic")
    for draws in ("poisson", "shuffled"):
        limit = {"noise": 0.0, "epsilon": 4.0, "draws": draws}
        config = private(problem, 2, privacy=limit)
        result = train_on(2, config, problem)
        found = result.report["privacy"]
        noise, n = found["noise"], len(problem.X)
        assert found["epsilon"] == spent_epsilon(config, n, noise) <= 4.0
        assert spent_epsilon(config, n, noise - 2e-4) > 4.0
        assert result.config["privacy"]["noise"] == noise
    assert least_noise(lambda noise: 5.0, 4.0) is None


# The rows of a step.


@pytest.mark.parametrize("n, places", [(53, 4), (1000, 100), (60000, 256), (7, 6)])
def test_more_rows_than_places_are_drawn_almost_never(n, places):
    q = L(poisson_share(n, places))

    def above(q):
        logs = [
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
            for k in range(places + 1, n + 1)
        ]
        k = np.arange(places + 1, n + 1)
        return np.exp(np.array(logs) + k * np.log(q) + (n - k) * np.log1p(-q)).sum()

    assert above(q) == pytest.approx(OVERFLOW, rel=1e-6)
    assert poisson_share(n, n) == 1.0


def test_each_row_is_drawn_with_its_share_independently():
    sampler = PoissonSampler("poisson", 3, 250, 0, places=100)
    q = [poisson_share(250, places) for places in (100, 100, 50)]
    counts, pairs, epochs = np.zeros((3, 250)), np.zeros(3), 2000
    for epoch in range(epochs):
        order = sampler.order(epoch)
        for index in range(3):
            first = 100 * index
            rows = order[first : first + sampler.drawn(epoch, index)]
            assert len(set(rows)) == len(rows)
            counts[index, rows] += 1
            pairs[index] += {3, 4} <= set(rows)
    for index, share in enumerate(q):
        spread = np.sqrt(epochs * share * (1 - share))
        assert np.abs(counts[index] - epochs * share).max() < 5 * spread
        both = share**2
        assert abs(pairs[index] - epochs * both) < 5 * np.sqrt(epochs * both) + 5


def test_no_row_moves_a_sum_by_more_than_the_norm():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5)) * 10.0 ** rng.integers(-3, 4, size=(40, 1))
    r = rng.normal(size=(40, 3)) * 10.0 ** rng.integers(-3, 4, size=(40, 1))
    norms = np.sqrt(np.square(X).sum(axis=1) + 1.0)
    clip = ClippedRows(0.7, norms, lambda e: np.arange(40), lambda e, i: 33, 40)
    clip.begin(0, 0)
    parts = [clip.scale(part) for part in np.split(r, [10, 35])]
    clipped = np.concatenate(parts)
    before, after = (np.linalg.norm(x, axis=1) * norms for x in (r, clipped))
    assert after.max() <= 0.7 * (1 + 1e-12)
    small = (before <= 0.7) & (np.arange(40) < 33)
    assert (clipped[small] == r[small]).all() and small.any()
    assert not clipped[33:].any()
    assert clip.clipped == (before[:33] > 0.7).sum() > 0


# The steps.


def drawn_rows(config, n, replica, epoch, index):
    """The rows of an exchange, drawn as docs/reference/methods/updates.md says."""
    part = split_range(n, config.grid.replicas, replica)
    height, places = part.stop - part.start, config.schedule.batch
    places *= config.agreement.accumulate
    places = min(places, height - index * places)
    dice = np.random.default_rng((SEED, replica, epoch + 1, index))
    count = dice.binomial(height, poisson_share(height, places))
    return part.start + dice.choice(height, min(count, places), replace=False)


def algorithm_1(config, problem):
    """Abadi et al. (2016) with the gradient of each row, in longdouble."""
    n, replicas, privacy = len(problem.X), config.grid.replicas, config.privacy
    X, y = problem.X.astype(L), problem.y.reshape(-1, 1)
    K = problem.classes if problem.family == "softmax" else 1
    w, b = np.zeros((X.shape[1], K), L), np.zeros(K, L)
    batch = config.schedule.batch * config.agreement.accumulate
    heights = [split_range(n, replicas, p) for p in range(replicas)]
    heights = [part.stop - part.start for part in heights]
    each = len(plan_groups(heights[0], batch, 1))
    expected = sum(h * poisson_share(h, batch) for h in heights)
    clipped = 0
    for t in range(config.schedule.epochs * each):
        epoch, index = divmod(t, each)
        steps = []
        for p in range(replicas):
            if privacy.draws == "poisson":
                if index * batch < heights[p]:
                    steps.append(drawn_rows(config, n, p, epoch, index))
                continue
            own = replica_batches(config, n, replicas, p)
            count = len(own) // config.schedule.epochs
            if index < count:
                steps.append(own[epoch * count + index])
        rows = np.concatenate(steps).astype(int)
        sums, below = [np.zeros_like(w), np.zeros_like(b)], L(0)
        for i in rows:
            r = residual(problem.family, X[i : i + 1] @ w + b, y[i : i + 1])
            g, slope = X[i][:, None] * r, r[0]
            size = np.sqrt((g**2).sum() + (slope**2).sum())
            factor = 1 / max(L(1), size / L(privacy.clip))
            clipped += factor < 1
            sums[0], sums[1] = sums[0] + factor * g, sums[1] + factor * slope
        below = L(expected) if privacy.draws == "poisson" else L(len(rows))
        salt, size = 0x70726976, privacy.noise * privacy.clip
        dice = np.random.default_rng((SEED, salt, t, 0))
        sums[0] = sums[0] + size * dice.normal(size=(BLOCK, K))[: len(w)]
        dice = np.random.default_rng((SEED, salt + 1, t))
        sums[1] = sums[1] + size * dice.normal(size=K)
        rate = L(config.rate.value)
        w = w - rate * (sums[0] / below + L(config.problem.l2) * w)
        b = b - rate * sums[1] / below
    return w, b, clipped


@pytest.mark.parametrize("draws", ["poisson", "shuffled"])
@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (3, 1), (2, 2)])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_steps_are_those_of_algorithm_1(family, grid, draws):
    problem = make_problem(family)
    config = private(
        problem,
        *grid,
        privacy={"draws": draws},
        schedule={"batch": 9},
        problem={"intercept": True},
        agreement={"accumulate": 2},
    )
    result = train_on(grid[0] * grid[1], config, problem)
    *expected, clipped = algorithm_1(config, problem)
    assert relative_error(result, expected) < 1e-11
    assert clipped > 0
    if grid[0] == 1:
        assert result.report["agreement"]["clipped_rows"] == clipped


@pytest.mark.parametrize("product", ["direct", "gather"])
def test_columns_on_several_ranks_change_nothing(product):
    problem = make_problem("logistic", d=9)
    results = []
    for members in (1, 2, 4):
        more = {"products": {"kind": product}, "problem": {"intercept": True}}
        config = private(problem, 1, members, privacy={}, **more)
        results.append(train_on(members, config, problem))
    for other in results[1:]:
        np.testing.assert_allclose(other.weights, results[0].weights, rtol=1e-12)
        assert other.report["privacy"] == results[0].report["privacy"]


def test_norms_of_rows_are_summed_once():
    """One word for each row, summed and broadcast: no message in the exchanges."""
    problem = make_problem("logistic")
    ledgers = []
    for more in ({}, {"privacy": {**DP, "draws": "shuffled"}}):
        sections = {"sampling": {"seed": SEED}, **more}
        config = agreed(problem, 1, 2, **sections)
        ledgers.append(train_on(2, config, problem).ledger)
    plain, ours = ledgers
    for purpose in ("products", "agreement"):
        assert plain[purpose]["words"] == ours[purpose]["words"]
    words = ours["control"]["words"] - plain["control"]["words"]
    assert words == 2 * len(problem.X)


@pytest.mark.parametrize("draws", ["poisson", "shuffled"])
def test_a_run_goes_on_bit_for_bit(draws, tmp_path):
    problem = make_problem("logistic")
    settings = {"draws": draws, "noise": 0.0, "epsilon": 9.0}
    config = private(problem, 2, privacy=settings, schedule={"epochs": 3})
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    part = in_folder(tmp_path / "parts", config, 2, problem, stop=4)[0]
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256
    assert again.report["privacy"] == whole.report["privacy"]
    assert part.report["privacy"]["epsilon"] < whole.report["privacy"]["epsilon"] <= 9.0


def test_a_run_goes_on_with_its_noise_and_its_replicas_alone(tmp_path):
    """Longer, its noise would be larger; on other replicas, its rows come again."""
    problem = make_problem("logistic")
    settings = {"noise": 0.0, "epsilon": 9.0}
    config = private(problem, 2, privacy=settings)
    in_folder(tmp_path / "run", config, 2, problem, stop=4)
    longer = private(problem, 2, privacy=settings, schedule={"epochs": 5})
    with pytest.raises(ConfigError, match=r"\[privacy\] noise = "):
        in_folder(tmp_path / "run", longer, 2, problem)
    noise = {"noise": 0.7}
    in_folder(tmp_path / "noise", private(problem, 2, privacy=noise), 2, problem, 4)
    other = private(problem, 1, 2, privacy=noise)
    with pytest.raises(ConfigError, match="made by 2 replicas, while this run has 1"):
        in_folder(tmp_path / "noise", other, 2, problem)


def test_a_given_noise_must_keep_a_given_epsilon():
    problem = make_problem("logistic")
    config = private(problem, 1, privacy={"noise": 0.5, "epsilon": 0.1})
    with pytest.raises(ConfigError, match="above epsilon = 0.1; leave privacy.noise"):
        train_on(1, config, problem)


def test_sample_weights_are_refused():
    problem = make_problem("logistic")
    config = private(problem, 1, privacy={})
    with pytest.raises(DataError, match="with sample weights"):
        train_on(1, config, problem, weights=True)


REFUSED = [
    ({"agreement": {"kind": "average"}}, "use --agreement gradient"),
    ({"agreement": {"kind": "sharded", "stage": 2}}, "use --agreement gradient"),
    ({"agreement": {"codec": "topk"}}, "leave agreement.codec out"),
    ({"run": {"device": "cuda"}}, "not clipped on GPUs"),
    ({"run": {"on_failure": "shrink"}}, "leave run.on_failure out"),
    ({"precision": {"recipe": "c"}}, "narrow formats"),
    ({"precision": {"recipe": "auto"}}, "narrow formats"),
    ({"rate": {"value": "auto"}}, "look at the rows"),
    ({"polish": {"kind": "newton"}}, "without noise"),
    ({"stop": {"on": "loss"}}, r"\[stop\] looks at the rows"),
    ({"sampling": {"mode": "reshuffle"}}, "draws rows itself"),
    ({"products": {"kind": "gather-once"}}, "use --products gather"),
    ({"sampling": {"seed": 0}}, "keep it secret"),
    (
        {"privacy": {"draws": "shuffled"}, "sampling": {"mode": "replacement"}},
        "counts each row once",
    ),
    ({"privacy": {"noise": 0.0}}, "needs a noise"),
]


@pytest.mark.parametrize("sections, why", REFUSED)
def test_what_looks_at_rows_without_noise_is_refused(sections, why):
    tables = {
        "agreement": {"kind": "gradient"},
        "schedule": {"steps": 1},
        "privacy": DP,
        "sampling": {"seed": SEED},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    with pytest.raises(ConfigError, match=why):
        check_configuration(RunConfig.parse(tables))


def test_settings_of_privacy_are_not_read_without_it():
    with pytest.raises(ConfigError, match=r"\[privacy\] noise = 1.0 is for"):
        check_configuration(RunConfig.parse({"privacy": {"noise": 1.0}}))
