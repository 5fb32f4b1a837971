"""A study on disk: whole lines, one plan, what is done and what is waiting."""

import json
import tomllib

import pytest

from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.studies.folder import PLAN, POINTS, StudyFolder, document_of, read_plan
from hpcsgd.studies.plan import StudyAxes, StudyPlan
from hpcsgd.studies.run import make_plan, waiting

ASKED = {"ranks": [1, 2], "methods": ["sgd", "casgd"], "steps": [4], "repeats": 2}


@pytest.fixture
def folder(tmp_path):
    return StudyFolder(tmp_path / "study")


@pytest.fixture
def susy(tmp_path):
    path = tmp_path / "susy.h5"
    write_synthetic(path, "susy", 2000, 18, 0)
    return path


def plan(**axes):
    base = {"data": {"path": "/data/x.h5"}, "rate": {"value": 0.5}}
    values = StudyAxes(**axes)
    return StudyPlan("strong", (1, 2), values, rows=100, base=base, repeats=1)


def lines_for(points, status="finished"):
    return {p.key: {"key": p.key, "status": status} for p in points}


def test_a_plan_reads_back_from_its_file(folder, susy):
    """And is the same plan, asked for again."""
    base = {"data": {"path": str(susy)}, "rate": {"value": 0.5}}
    asked = make_plan("sweep", {**ASKED, "grids": [], "emulate_members": "8"}, base)
    folder.open(asked, resume=False)
    folder.close()
    document = read_plan(folder.path)
    assert document == document_of(asked)
    study = document.pop("study")
    assert study["ranks"] == [1, 2] and study["emulate_members"] == [8]
    assert make_plan("sweep", study, document) == asked


def test_another_study_is_never_overwritten(folder):
    folder.open(plan(), resume=False)
    folder.close()
    with pytest.raises(ConfigError, match="holds a study; add --resume"):
        folder.open(plan(), resume=False)


def test_who_is_refused_leaves_the_folder_free(folder):
    folder.open(plan(), resume=False)
    folder.close()
    with pytest.raises(ConfigError, match="--resume"):
        folder.open(plan(), resume=False)
    assert not (folder.path / ".in-use").exists()
    StudyFolder(folder.path).open(plan(), resume=True)


def test_a_changed_plan_is_refused_by_its_difference(folder):
    folder.open(plan(), resume=False)
    folder.close()
    with pytest.raises(ConfigError, match=r"study\.steps was \[8\] and is \[4, 8\]"):
        StudyFolder(folder.path).open(plan(steps=(4, 8)), resume=True)


def test_two_studies_at_once_are_refused(folder):
    folder.open(plan(), resume=False)
    with pytest.raises(ConfigError, match="is in use by process"):
        StudyFolder(folder.path).open(plan(), resume=True)
    folder.close()


def test_a_half_written_line_is_cut_and_the_newest_counts(folder):
    folder.open(plan(), resume=False)
    folder.append({"key": "a", "status": "failed"})
    folder.append({"key": "b", "status": "finished", "loss": float("nan")})
    folder.append({"key": "a", "status": "finished"})
    folder.close()
    path = folder.path / POINTS
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "sta')
    folder.open(plan(), resume=True)
    folder.close()
    assert path.read_bytes() == whole
    found = folder.lines()
    assert {key: line["status"] for key, line in found.items()} == dict.fromkeys(
        "ab", "finished"
    )
    assert found["b"]["loss"] is None, "JSON has no NaN"


@pytest.mark.parametrize("text", ["{", "[]", '{"status": "finished"}', "7"])
def test_a_line_of_no_point_is_named(folder, text):
    folder.open(plan(), resume=False)
    folder.append({"key": "a", "status": "finished"})
    with open(folder.path / POINTS, "a") as file:
        file.write(text + "\n")
    with pytest.raises(DataError, match=r"points\.jsonl: line 2"):
        folder.lines()
    folder.close()


def test_good_lines_are_not_run_again():
    asked = plan()
    points = list(asked.runs())
    assert waiting(asked, {}) == points
    done = lines_for(points[:1]) | lines_for(points[1:2], "diverged")
    bad = lines_for(points[2:3], "failed") | lines_for(points[3:], "timeout")
    assert [p.key for p in waiting(asked, done | bad)] == [p.key for p in points[2:]]


def test_what_train_is_given_is_a_file_of_train(folder):
    asked = plan()
    folder.open(asked, resume=False)
    point = list(asked.runs())[-1]
    tables = tomllib.loads(folder.configure(point, "/data/x.h5").read_text())
    folder.close()
    assert tables == point.tables("/data/x.h5", str(folder.run_of(point).absolute()))


def test_a_folder_without_a_plan(tmp_path):
    with pytest.raises(ConfigError, match=f"holds no {PLAN}"):
        read_plan(tmp_path)
    (tmp_path / PLAN).write_text("ranks = [")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"rank": [1]}, r"\[study\] unknown: \['rank'\]"),
        ({"ranks": "1,x"}, "--ranks: 'x' is no whole number"),
        ({"ranks": [1], "repeats": True}, "--repeats: True is no whole number"),
        ({"ranks": [1], "kind": "weak"}, "use hpcsgd study weak"),
        ({"ranks": [1], "batch_grows": 1}, "must be true or false"),
        ({"ranks": [1], "grids": "2"}, "write RxC"),
    ],
)
def test_wrong_words_are_refused(susy, asked, words):
    with pytest.raises(ConfigError, match=words):
        make_plan("strong", asked, {"data": {"path": str(susy)}})


def test_what_is_not_asked_for_comes_from_the_configuration(susy):
    base = {
        "data": {"path": str(susy)},
        "schedule": {"batch": 16, "steps": 4, "epochs": 2},
        "grid": {"replicas": 2, "members": 1},
        "precision": {"recipe": "c"},
        "run": {"out": "somewhere", "network": "lan"},
    }
    asked = make_plan("strong", {"ranks": "1, 2"}, base)
    assert asked.axes == StudyAxes(steps=(4,), batch=(32,), precision=("c",))
    assert asked.ranks == (1, 2) and asked.repeats == 3 and asked.rows == 2000
    assert asked.base["schedule"] == {"epochs": 2}
    assert asked.base["run"] == {"network": "lan"} and "grid" not in asked.base
    assert asked.base["checkpoint"] == {"every": 0, "seconds": 0.0}
    assert json.dumps(asked.as_dict())
    summed = {**base, "agreement": {"kind": "gradient", "accumulate": 4}}
    assert make_plan("strong", {"ranks": "2"}, summed).axes.batch == (128,)
