"""k times the rows of a step, k times the rate, up to where steps diverge."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.glm.updates import RateConfig
from tests.helpers.auto_rate import rate_of, smoothness
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, train_on


@pytest.mark.parametrize(
    ("replicas", "agreement", "rows"),
    [
        (1, {"kind": "none"}, 4),
        (2, {}, 8),
        (2, {"accumulate": 3}, 24),
        (2, {"kind": "average"}, 4),
    ],
)
def test_rows_of_all_replicas_count_where_they_step_together(replicas, agreement, rows):
    problem = make_problem("logistic")
    rate = {"value": 1e-3, "per_batch": 2}
    config = agreed(problem, replicas, rate=rate, agreement=agreement)
    assert rate_of(train_on(replicas, config, problem)) == 1e-3 * rows / 2


def test_it_warns_and_stops_where_steps_would_diverge(caplog):
    problem = make_problem("logistic")
    config = agreed(problem, 2, rate={"value": 3.0, "per_batch": 1})
    with caplog.at_level("WARNING", logger="hpcsgd"):
        result = train_on(2, config, problem)
    ones = np.ones(len(problem.X))
    most = 2.0 / (smoothness(problem, ones, 0 * ones, 0.0) + config.problem.l2)
    assert rate_of(result) == pytest.approx(most, rel=1e-6)
    assert "above 2/L" in caplog.text


def test_batches_have_a_larger_limit_and_the_warning_names_them(caplog):
    """2/L of the largest of four batches of 16 rows, which are all that there are."""
    problem = make_problem("gaussian", n=64, d=40)
    found = {}
    for norm in ("rows", "batches"):
        rate = {"value": 50.0, "per_batch": 1, "norm": norm}
        config = agreed(problem, 1, rate=rate, schedule={"batch": 16})
        with caplog.at_level("WARNING", logger="hpcsgd"):
            found[norm] = rate_of(train_on(1, config, problem))
        assert ("rate.norm = 'batches'" in caplog.text) is (norm == "rows")
        caplog.clear()
    X = problem.X.astype(np.float64)
    # Rows are dealt so that neighbours are never together.
    largest = max(np.linalg.eigvalsh(X[k::4] @ X[k::4].T)[-1] / 16 for k in range(4))
    longest, l2 = np.square(X).sum(axis=1).max(), config.problem.l2
    assert found["rows"] == pytest.approx(2.0 / (longest + l2), rel=1e-6)
    assert found["batches"] == pytest.approx(2.0 / (largest + l2), rel=1e-6)
    assert found["batches"] > 2.0 * found["rows"]


def test_a_mean_over_batches_would_diverge():
    """Of orthogonal rows one is long: once an epoch it takes a step of its own."""
    n, long = 24, 3.0
    X = np.diag(np.r_[long, np.full(n - 1, 0.1)])
    y, own = np.ones(n), np.square(np.diag(X))
    mean = own.reshape(-1, 2).sum(axis=1).mean() / 2  # about, whoever is together
    for limit, ends in ((own.max(), "completed"), (mean, "diverged")):
        tables = {
            "problem": {"family": "gaussian"},
            "schedule": {"batch": 2, "epochs": 8},
            "products": {"kind": "direct"},
            "rate": {"value": float(1.9 / limit)},
            "run": {"fall_back": False},
        }
        assert train(RunConfig.parse(tables), X=X, y=y).status.value == ends
    asked = {"value": float(1.9 / mean), "per_batch": 1}
    tables["rate"] = asked
    scaled = train(RunConfig.parse(tables), X=X, y=y)
    assert rate_of(scaled) == pytest.approx(2.0 / own.max()) and mean < own.max() / 10


def test_a_run_goes_on_with_the_rate_it_had(tmp_path):
    problem = make_problem("logistic")
    config = agreed(problem, 2, rate={"value": 0.01, "per_batch": 4})
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    in_folder(tmp_path / "parts", config, 2, problem, stop=4)
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize(
    "settings", [{"per_batch": -1}, {"value": 0.0, "per_batch": 8}]
)
def test_what_makes_no_sense_is_said(settings):
    with pytest.raises(ConfigError, match="per_batch"):
        RateConfig(**settings)


@pytest.mark.parametrize("update", [{"kind": "adam"}, {"normalise": True}])
def test_steps_that_are_as_long_as_the_rate_says_know_no_largest(update, caplog):
    """2/L is about steps along gradients; --rate auto, too."""
    problem = make_problem("logistic")
    config = agreed(problem, 2, rate={"value": 3.0, "per_batch": 1}, update=update)
    assert rate_of(train_on(2, config, problem)) == 3.0 * 8
    assert "above 2/L" not in caplog.text
    config = agreed(problem, 2, rate={"value": "auto"}, update=update)
    with pytest.raises(ConfigError, match="--rate 0.01"):
        train_on(2, config, problem)
