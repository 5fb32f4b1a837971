"""k times the rows of a step, k times the rate, up to where steps diverge."""

import numpy as np
import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.rates import RateConfig
from tests.equivalence.test_gradient import agreed
from tests.harness import make_problem, train_on
from tests.unit.test_auto_rate import rate_of, smoothness
from tests.unit.test_gradient import in_folder


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
