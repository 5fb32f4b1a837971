"""Predictions against extended precision; evaluations against the loss of training."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs import predict
from tests.helpers.problems import FAMILIES, make_problem

LONG = np.longdouble


def trained(problem, **more):
    """A model in float64 with an intercept, and everything it was trained on."""
    config = {
        "problem": {"family": problem.family, "l2": 0.03, "intercept": True},
        "rate": {"value": 0.05},
        "schedule": {"batch": 8, "steps": 2, "epochs": 2},
        "precision": {"recipe": "fp64"},
    }
    return hpcsgd.train(config, X=problem.X, y=problem.y, **more)


def long_scores(result, problem, offset):
    X, w = problem.X.astype(LONG), np.asarray(result.weights).astype(LONG)
    scores = X @ w.reshape(len(w), -1) + np.asarray(result.intercept).astype(LONG)
    return scores + offset.astype(LONG)[:, None]


def normal(t):
    """Φ by its series: t is small here."""
    term, total = t.copy(), t.copy()
    for n in range(1, 80):
        term = -term * t * t / (2 * n)
        total += term / (2 * n + 1)
    return LONG(0.5) + total / np.sqrt(2 * LONG(np.pi))


MEANS = {
    "gaussian": lambda t: t,
    "huber": lambda t: t,
    "poisson": np.exp,
    "gamma": np.exp,
    "logistic": lambda t: 1 / (1 + np.exp(-t)),
    "probit": normal,
    "squared-hinge": lambda t: np.where(t >= 0, LONG(1), LONG(-1)),
    "tweedie": np.exp,
    "negative-binomial": np.exp,
    "binomial": lambda t: 1 / (1 + np.exp(-t)),
    "softmax": lambda t: np.exp(t) / np.exp(t).sum(axis=1, keepdims=True),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_means_and_scores_equal_extended_precision(family):
    problem = make_problem(family)
    result = trained(problem, offset=problem.offset)
    scores = long_scores(result, problem, problem.offset)
    for what, expected in (("score", scores), ("mean", MEANS[family](scores))):
        given = hpcsgd.predict(result, problem.X, problem.offset, what)
        assert given.dtype == np.float64
        assert given.shape == ((53, 4) if family == "softmax" else (53,))
        np.testing.assert_allclose(
            given.reshape(expected.shape), expected.astype(float), rtol=1e-13
        )
    without = hpcsgd.predict(result, problem.X, what="score")
    assert not np.allclose(without.reshape(scores.shape), scores.astype(float))


@pytest.mark.parametrize("family", ["logistic", "probit", "squared-hinge", "softmax"])
def test_classes_are_the_labels_of_the_training_data(family):
    problem = make_problem(family)
    names = np.array([3.0, 10.0, 21.0, 40.0])
    y = names[np.unique(problem.y, return_inverse=True)[1]]
    config = {"problem": {"family": family}, "schedule": {"batch": 8, "epochs": 3}}
    result = hpcsgd.train(config, X=problem.X, y=y)
    given = hpcsgd.predict(result, problem.X, what="class")
    scores = hpcsgd.predict(result, problem.X, what="score")
    if family == "softmax":
        expected = names[scores.argmax(axis=1)]
    else:
        expected = np.where(scores >= 0, 10.0, 3.0)
    assert len(set(given)) > 1
    np.testing.assert_array_equal(given, expected)
    figures = hpcsgd.evaluate(result, problem.X, y)
    assert figures["errors"] == np.count_nonzero(given != y) > 0
    assert figures["accuracy"] == pytest.approx(np.mean(given == y), rel=1e-14)
    for label, entry in figures["errors_by_label"].items():
        own = y == float(label)
        assert entry["rows"] == own.sum() > 0
        assert entry["errors"] == (given != y)[own].sum()


@pytest.mark.parametrize("family", ["logistic", "probit", "softmax"])
def test_probabilities_have_a_column_for_each_label(family):
    problem = make_problem(family)
    result = trained(problem)
    given = hpcsgd.predict(result, problem.X, what="probability")
    mean = hpcsgd.predict(result, problem.X, what="mean")
    assert given.shape == (53, 4 if family == "softmax" else 2)
    np.testing.assert_allclose(given.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(given if family == "softmax" else given[:, 1], mean)


def test_a_tiny_probability_keeps_its_digits():
    """1 - p would be 0 here."""
    X = np.array([[1.0], [-1.0]])
    result = hpcsgd.train({"problem": {"intercept": True}}, X=X, y=[1, 0])
    given = hpcsgd.predict(result, X, [50.0, 50.0], "probability")
    scores = hpcsgd.predict(result, X, [50.0, 50.0], "score")
    np.testing.assert_allclose(given[:, 0], np.exp(-scores), rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_evaluating_the_training_data_gives_the_loss_of_training(family, weighted):
    problem = make_problem(family)
    more = {"sample_weight": problem.weights, "offset": problem.offset}
    more = more if weighted else {}
    result = trained(problem, **more)
    figures = hpcsgd.evaluate(result, problem.X, problem.y, **more)
    assert figures["objective"] == pytest.approx(result.loss, rel=1e-12)
    penalty = 0.015 * np.sum(result.weights**2)
    assert figures["penalty"] == pytest.approx(penalty, rel=1e-12)
    assert figures["mean_loss"] == pytest.approx(result.loss - penalty, rel=1e-12)
    assert figures["rows"] == 53 and figures["family"] == family


DEVIANCES = {
    "gaussian": lambda y, mu: (y - mu) ** 2,
    "poisson": lambda y, mu: 2 * (np.where(y > 0, y * np.log(y / mu), 0) - (y - mu)),
    "gamma": lambda y, mu: 2 * (-np.log(y / mu) + (y - mu) / mu),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("family", DEVIANCES)
def test_r2_and_deviance_by_their_textbook_formulas(family):
    problem = make_problem(family)
    result = trained(problem)
    c, y = problem.weights, problem.y
    mu = hpcsgd.predict(result, problem.X)
    figures = hpcsgd.evaluate(result, problem.X, y, sample_weight=c)
    around = np.sum(c * (y - np.average(y, weights=c)) ** 2)
    with np.errstate(all="ignore"):
        deviance = np.average(DEVIANCES[family](y, mu), weights=c)
    expected = 1 - np.sum(c * (y - mu) ** 2) / around
    assert figures["r2"] == pytest.approx(expected, rel=1e-11)
    assert figures["mean_deviance"] == pytest.approx(deviance, rel=1e-11)


def test_r2_of_equal_targets_is_undefined():
    problem = make_problem("gaussian")
    figures = hpcsgd.evaluate(trained(problem), problem.X, np.ones(53))
    assert figures["r2"] is None


@pytest.mark.parametrize("family", ["softmax", "gamma"])
@pytest.mark.parametrize("ranks", [2, 3, 60])
def test_ranks_give_the_figures_of_one(family, ranks):
    """60 ranks share 53 rows: some have none."""
    problem = make_problem(family)
    result = trained(problem)
    arguments = (result, problem.X, problem.y, problem.weights, problem.offset)
    alone = hpcsgd.evaluate(*arguments)
    worlds = []

    def work(world):
        worlds.append(world)
        return hpcsgd.evaluate(*arguments, world=world)

    for figures in run_ranks(ranks, work):
        assert figures.keys() == alone.keys()
        for key, value in alone.items():
            same = value if not isinstance(value, float) else pytest.approx(value)
            assert figures[key] == same, key
    assert all(world.ledger.calls("evaluate") == 2 for world in worlds)


def test_blocks_together_are_the_whole():
    problem = make_problem("softmax")
    result = trained(problem)
    reader = MemoryReader(problem.X, None, None, problem.offset)
    blocks = list(hpcsgd.predict_blocks(result, reader, budget=10 * 7 * 8))
    assert [len(block) for block in blocks] == [10] * 5 + [3]
    whole = hpcsgd.predict(result, problem.X, problem.offset)
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=1e-14)


def test_evaluating_in_small_blocks_changes_nothing(monkeypatch):
    problem = make_problem("poisson")
    result = trained(problem)
    whole = hpcsgd.evaluate(result, problem.X, problem.y, problem.weights)
    monkeypatch.setattr(predict, "CHUNK_BYTES", 4 * 7 * 8)
    pieces = hpcsgd.evaluate(result, problem.X, problem.y, problem.weights)
    assert pieces.pop("family") == whole.pop("family")
    assert pieces == pytest.approx(whole, rel=1e-13)


def test_what_cannot_be_said_is_refused():
    problem = make_problem("gaussian")
    result = trained(problem)
    with pytest.raises(ConfigError, match="known"):
        hpcsgd.predict(result, problem.X, what="median")
    for what in ("class", "probability"):
        with pytest.raises(ConfigError, match=f"no {what}"):
            hpcsgd.predict(result, problem.X, what=what)
    hinge = make_problem("squared-hinge")
    with pytest.raises(ConfigError, match="no probabilities"):
        hpcsgd.predict(trained(hinge), hinge.X, what="probability")


def test_data_that_does_not_fit_is_refused():
    problem = make_problem("logistic")
    result = trained(problem)
    X, y = problem.X, problem.y
    with pytest.raises(DataError, match="6 columns and the model was trained on 7"):
        hpcsgd.predict(result, X[:, :6])
    with pytest.raises(DataError, match="y is 2 at row 9.* labels 0, 1 only"):
        hpcsgd.evaluate(result, X, np.where(np.arange(53) == 9, 2.0, y))
    with pytest.raises(DataError, match="y is -1 at row 0"):
        hpcsgd.evaluate(result, X, np.full(53, -1.0))
    bad = X.copy()
    bad[4, 2] = np.nan
    with pytest.raises(DataError, match="row 4, column 2"):
        hpcsgd.predict(result, bad)
    with pytest.raises(DataError, match="offset has nan at row 0"):
        hpcsgd.predict(result, X, np.full(53, np.nan))
    with pytest.raises(DataError, match="sums to zero"):
        hpcsgd.evaluate(result, X, y, np.zeros(53))
    counts = make_problem("poisson")
    with pytest.raises(DataError, match="counts of at least 0"):
        hpcsgd.evaluate(trained(counts), counts.X, counts.y - 1000)
