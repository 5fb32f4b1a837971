"""The scale of residuals in fp16 where each replica has its own: it outlives an end."""

import pytest

from hpcsgd.config import RunConfig
from hpcsgd.runs.checkpoint import read_checkpoint
from tests.helpers.gradients import in_folder
from tests.helpers.harness import config_for
from tests.helpers.loss_scale import loud

RUNS = {
    "gram": (1, 1, {"schedule": {"steps": 3}}),
    "direct": (1, 1, {"products": {"kind": "direct"}}),
    "members": (1, 2, {"schedule": {"steps": 2}}),
    "apart": (2, 1, {"agreement": {"kind": "average"}, "schedule": {"period": 3}}),
    "agreed": (2, 2, {"agreement": {"kind": "average"}, "schedule": {"period": 1}}),
    "late": (2, 1, {"agreement": {"kind": "async-average"}, "schedule": {"period": 2}}),
}


def config_of(problem, name, **precision):
    replicas, members, more = RUNS[name]
    tables = {
        "problem": {"intercept": True, "l2": 0.05},
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "gram"},
        "grid": {"replicas": replicas, "members": members},
        "precision": {"recipe": "fp64", "residual": "fp16", **precision},
        "rate": {"value": 0.05},
        "run": {"fall_back": False, "evaluate_every": 0},
    }
    for section, table in more.items():
        tables[section] = {**tables.get(section, {}), **table}
    return config_for(problem, **tables), replicas * members


@pytest.mark.cases(3)
@pytest.mark.parametrize("stop", [2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_bit_for_bit(tmp_path, name, stop):
    """Residuals overflow before the end, and would again at the first scale of all."""
    replicas = RUNS[name][0]
    problem = loud(replicas)
    config, ranks = config_of(problem, name)
    whole = in_folder(tmp_path / "whole", config, ranks, problem)
    in_folder(tmp_path / "parts", config, ranks, problem, stop=stop)
    again = in_folder(tmp_path / "parts", config, ranks, problem)
    assert [r.report["resumes"] for r in again] == [1] * ranks
    for one, other in zip(again, whole, strict=True):
        assert one.weights_sha256 == other.weights_sha256
        for key in ("skipped_exchanges", "loss_scale"):
            assert one.report[key] == other.report[key]
    scales = [r.report["loss_scale"] for r in whole]
    assert min(scales) < 2.0**10
    assert replicas == 1 or len(set(scales)) == 2  # the last replica alone is loud


def test_another_grid_begins_at_the_first_scale(tmp_path):
    problem = loud(2)
    config, ranks = config_of(problem, "apart")
    in_folder(tmp_path, config, ranks, problem, stop=3)
    more = RunConfig.parse({**config.tables(), "grid": {"replicas": 3}})
    found = in_folder(tmp_path, more, 3, problem)
    assert found[0].status.value == "completed" and found[0].report["resumes"] == 1
    assert found[0].report["loss_scale"] == 2.0**10  # whose rows are not loud


def test_one_that_is_fixed_is_in_no_checkpoint(tmp_path):
    problem = loud(1)
    for scale in (0.0, 1.0):
        config, _ = config_of(problem, "gram", loss_scale=scale)
        folder = tmp_path / str(scale)
        in_folder(folder, config, 1, problem)
        saved = sorted((folder / "checkpoints").glob("*.h5"))[-1]
        assert ("kept" in read_checkpoint(saved).arrays) is (scale == 0.0)
