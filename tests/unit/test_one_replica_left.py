"""From several replicas with a codec to one, and back: what was owed is paid."""

import numpy as np
import pytest

from hpcsgd.checkpoint import read_checkpoint
from hpcsgd.config import RunConfig
from tests.contracts.codec import coded
from tests.harness import make_problem, oracle, replica_batches
from tests.unit.test_gradient import in_folder


def on(config, replicas):
    tables = config.tables()
    tables["grid"] = {"replicas": replicas, "members": 1}
    return RunConfig.parse(tables)


def saved(folder):
    (path,) = (folder / "checkpoints").glob("*.h5")
    return read_checkpoint(path).arrays


@pytest.mark.parametrize("name", ["topk", "sign"])
def test_one_replica_begins_with_what_all_still_owed(tmp_path, name):
    """w ← w − mean e, then the steps of one process."""
    problem = make_problem("logistic")
    plain = {"intercept": False}
    config = coded(problem, name, 2, codec={"share": 0.2}, problem=plain)
    each = len(replica_batches(config, len(problem.X), 2, 0)) // 2
    in_folder(tmp_path, config, 2, problem, stop=each)
    arrays = saved(tmp_path)
    owed = arrays["memory_codec_error"].mean(axis=0)
    assert np.abs(owed).max() > 1e-4
    alone = on(config, 1)
    w = (arrays["weights"][0] - owed)[:, :1].astype(np.longdouble)
    result = in_folder(tmp_path, alone, 1, problem)[0]
    batches = replica_batches(alone, len(problem.X), 1, 0)
    for rows in batches[len(batches) // 2 :]:
        score, y = problem.X[rows] @ w, problem.y[rows].reshape(-1, 1)
        r = oracle.residual("logistic", score, y)
        g = problem.X[rows].T @ r / len(rows) + config.problem.l2 * w
        w = w - config.rate.value * g
    assert np.abs(result.weights - w[:, 0]).max() < 1e-12


def test_several_go_on_from_one_that_owed_nothing(tmp_path):
    problem = make_problem("logistic")
    several = coded(problem, "topk", 3, codec={"share": 0.2})
    in_folder(tmp_path, on(several, 1), 1, problem, stop=4)
    results = in_folder(tmp_path, several, 3, problem)
    assert {r.status.value for r in results} == {"completed"}
    assert len({r.weights_sha256 for r in results}) == 1
