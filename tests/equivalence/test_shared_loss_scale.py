"""Residuals in fp16 on several replicas: one that overflows stops the step of all."""

import numpy as np
import pytest

from hpcsgd.backends.base import FIRST
from hpcsgd.errors import ConfigError
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import replica_batches, train_on
from tests.helpers.loss_scale import loud


def config_of(problem, replicas, **more):
    return agreed(
        problem,
        replicas,
        problem={"intercept": True, "l2": 0.05},
        precision={"recipe": "fp64", "residual": "fp16"},
        rate={"value": 0.05},
        **more,
    )


def narrow(values, scale=1.0):
    """fp16 and back, as residuals are stored."""
    with np.errstate(over="ignore"):
        return (values.astype(np.float32) * np.float32(scale)).astype(
            np.float16
        ) / scale


def expected(config, problem):
    """The specification: skipped and halved together, else one step on the union."""
    replicas, n = config.grid.replicas, len(problem.X)
    each = [replica_batches(config, n, replicas, r) for r in range(replicas)]
    w, b, scale, skipped = np.zeros(problem.X.shape[1]), 0.0, FIRST, 0
    for step in zip(*each, strict=True):
        rows = np.concatenate(step)
        score = narrow(problem.X[rows] @ w + b).astype(float)
        r = narrow(score - problem.y[rows].astype(np.float32), scale).astype(float)
        if not np.isfinite(r).all():
            scale, skipped = scale / 2, skipped + 1
            continue
        g = problem.X[rows].T @ r / len(rows) + config.problem.l2 * w
        w, b = w - config.rate.value * g, b - config.rate.value * r.mean()
    return w, b, scale, skipped


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_all_replicas_leave_the_same_steps_out(replicas):
    problem = loud(replicas)
    config = config_of(problem, replicas)
    result = train_on(replicas, config, problem)
    w, b, scale, skipped = expected(config, problem)
    assert 2 < skipped < result.iterations
    report = result.report
    assert (report["skipped_exchanges"], report["loss_scale"]) == (skipped, scale)
    assert np.abs(result.weights - w).max() < 1e-12 * np.abs(w).max()
    assert abs(float(result.intercept) - b) < 1e-12 * abs(b)


def test_batches_that_travel_together_and_shapers_are_left_out_together():
    """Nothing that is not finite reaches the weights, nor the history of norms."""
    problem = loud(2)
    update = {"clip": "percentile", "clip_at": 90.0}
    more = {"agreement": {"accumulate": 2}, "update": update}
    more["schedule"] = {"epochs": 6}
    result = train_on(2, config_of(problem, 2, **more), problem)
    assert result.status.value == "completed"
    assert 0 < result.report["skipped_exchanges"] < result.iterations
    assert np.isfinite(result.weights).all()


def test_the_scale_outlives_a_checkpoint(tmp_path):
    problem = loud(2)
    config = config_of(problem, 2)
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    in_folder(tmp_path / "parts", config, 2, problem, stop=4)
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256
    assert again.report["skipped_exchanges"] == whole.report["skipped_exchanges"]


def test_a_codec_would_have_sent_a_part_of_it():
    problem = loud(2)
    config = config_of(problem, 2, agreement={"codec": "bf16"})
    with pytest.raises(ConfigError, match=r"residual=fp32"):
        train_on(2, config, problem)
