"""One point on ranks that are there: what they meet, and what they leave."""

import json

import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError
from hpcsgd.studies.folder import StudyFolder
from hpcsgd.studies.plan import StudyAxes, StudyPlan
from hpcsgd.studies.run import ENDS, crowded, read_config, train_point


@pytest.fixture
def folder(tmp_path):
    write_synthetic(tmp_path / "few.h5", "susy", 64, 18, 0)
    folder = StudyFolder(tmp_path / "study")
    plan = StudyPlan(
        "strong", (2,), repeats=1, axes=StudyAxes(methods=("casgd",), steps=(2,))
    )
    (point,) = plan.runs()
    folder.open(plan, resume=False)
    folder.configure(point, str(tmp_path / "few.h5"))
    folder.close()
    return folder, point


@pytest.mark.parametrize(
    "held, threads, is_crowded",
    [
        ([("a", [0]), ("a", [1])], 1, False),
        ([("a", [0]), ("a", [0])], 1, True),
        ([("a", [0, 1]), ("a", [0, 1])], 1, False),
        ([("a", [0, 1]), ("a", [0, 1])], 2, True),
        ([("a", [0]), ("b", [0])], 1, False),
        ([("a", [0]), ("b", [0]), ("b", [0])], 1, True),
    ],
)
def test_cores_are_counted_node_by_node(held, threads, is_crowded):
    assert crowded(held, threads) is is_crowded


def test_rank_0_leaves_the_report(folder):
    study, point = folder
    results = run_ranks(2, lambda world: train_point(study.path, point.name, world))
    end = json.loads((study.path / ENDS / f"{point.name}.json").read_text())
    assert end["report"]["loss"] == results[0].loss
    assert end["report"]["ranks"] == 2 and end["cpu_seconds"] > 0
    assert end["machine"]["nodes"] == 1 and end["machine"]["cores"] > 0


def test_an_error_is_left_as_its_sentence(folder):
    study, point = folder
    with pytest.raises(ConfigError):
        run_ranks(3, lambda world: train_point(study.path, point.name, world))
    end = json.loads((study.path / ENDS / f"{point.name}.json").read_text())
    assert "needs 2 ranks and this run has 3" in end["error"]
    assert "report" not in end


def test_a_name_of_no_point(folder):
    with pytest.raises(ConfigError, match="name the folder of a study"):
        read_config(folder[0].path, "nobody")
