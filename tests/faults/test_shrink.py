"""Real ranks are killed, the others go on; needs an MPI with ULFM: make test-ulfm."""

import json
import sys

import numpy as np
import pytest

from tests.helpers import launcher
from tests.helpers.killed_runs import ROOT

pytestmark = pytest.mark.ulfm
PROGRAM = """
import json, os, signal, sys, time
import numpy as np, hpcsgd
from hpcsgd.comm import open_world
world = open_world()
deaths, settings = json.loads(sys.argv[1]), json.loads(sys.argv[2])
rank = str(world.rank)
class Each(hpcsgd.Callback):
    def on_exchange(self, view):
        time.sleep(0.005)
        if view.exchanges == deaths.get(rank):
            os.kill(os.getpid(), signal.SIGKILL)
X = np.random.default_rng(0).normal(size=(400, 8))
result = hpcsgd.train(settings, X=X, y=X[:, 0] > 0, world=world, callbacks=[Each()])
said = {"ranks": result.report["ranks"], "resumes": result.report["resumes"],
        "lost": result.report["lost_ranks"], "loss": result.loss,
        "weights": result.weights.tolist(), "status": result.status.value}
open(os.path.join(sys.argv[3], f"said-{os.getpid()}"), "w").write(json.dumps(said))
"""


def run(ranks, deaths, folder, **sections):
    """What every rank said that was left at the end."""
    command = [launcher.mpiexec()[0], "--oversubscribe", "--bind-to", "none"]
    command += ["--with-ft", "ulfm", "-n", str(ranks), sys.executable, "-c", PROGRAM]
    settings = {
        "schedule": {"batch": 4, "steps": 2, "epochs": 2},
        "products": {"kind": "gram"},
        "precision": {"recipe": "fp64"},
        "update": {"kind": "momentum"},
        "checkpoint": {"every": 7},
        "run": {"on_failure": "shrink"},
        **sections,
    }
    command += [json.dumps(deaths), json.dumps(settings), str(folder)]
    environment = {**launcher.launch_environment(), "PYTHONPATH": str(ROOT)}
    code, output = launcher.run(command, 60, ROOT, environment)
    assert code == 0, output
    return [json.loads(path.read_text()) for path in folder.glob("said-*")], output


@pytest.mark.parametrize("deaths", [{"2": 33}, {"0": 33}, {"1": 33, "3": 33}, {"1": 2}])
def test_those_that_are_left_end_with_the_same_weights(deaths, tmp_path):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, _ = run(4, {}, tmp_path / "whole")
    said, output = run(4, deaths, tmp_path / "parts")
    assert len(whole) == 4 and len(said) == 4 - len(deaths)
    assert f"{len(deaths)} of 4 ranks were lost" in output
    for result in said:
        assert result["status"] == "completed" and result["lost"] == len(deaths)
        assert result["ranks"] == 4 - len(deaths)
        assert result["resumes"] == (0 if "1" in deaths and deaths["1"] == 2 else 1)
        np.testing.assert_allclose(
            result["weights"], whole[0]["weights"], rtol=0, atol=1e-10
        )


def test_losses_one_after_the_other(tmp_path):
    said, output = run(4, {"1": 20, "2": 50}, tmp_path)
    assert len(said) == 2 and {r["lost"] for r in said} == {2}
    assert output.count("ranks were lost") == 2


def test_replicas_go_on_from_their_mean(tmp_path):
    grid = {"replicas": 2, "members": 2}
    said, output = run(4, {"3": 33}, tmp_path, grid=grid)
    assert len(said) == 3 and {r["status"] for r in said} == {"completed"}
    assert "goes on from their mean" in output
    assert said[0]["loss"] < np.log(2)
