"""Study and job folders in which somebody else has put links, pipes, devices, folders.

No command hangs, follows a link, or ends in a traceback: see `test_hostile_entries`.
"""

import json
import os
import shutil
import subprocess

import pytest

from hpcsgd.jobs.queue import add_record, notes, records
from hpcsgd.jobs.script import render
from hpcsgd.jobs.sites import load_site
from tests.cli.hostile import ENTRIES, IN_PLACE_OF_FOLDERS, SECONDS, plant
from tests.jobs.examples import PYTHON, example

POINT = "sgd-p1-s1-b32-1x1-fp32-seed0-r1"
STUDY = ("study", "strong", "--batch", "32", "--methods", "sgd")
STUDY += ("--ranks", "1", "--repeats", "1", "--epochs", "1", "--out", "s")


def ends_in_one_sentence(done, *words):
    assert done.returncode in (1, 2), done.stderr
    last = done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and last.startswith("hpcsgd: "), done.stderr
    for word in words:
        assert word in last, last


@pytest.fixture(scope="module")
def made(tmp_path_factory, forge):
    """A finished study beside its data, run once."""
    from hpcsgd.data.synthetic import write_synthetic

    home = tmp_path_factory.mktemp("made")
    write_synthetic(home / "few.h5", "susy", 300, 18, 0)
    words = [*STUDY, "--data", str(home / "few.h5")]
    code = forge.run(words, home, home / "out", home / "err", SECONDS)
    assert code == 0, (home / "err").read_text()
    assert (home / "s" / "runs" / POINT / "result.h5").exists()
    return home


@pytest.fixture
def words(made):
    """The command that made the study."""
    return (*STUDY, "--data", made / "few.h5")


@pytest.fixture
def study(made, tmp_path):
    shutil.copy(made / "few.h5", tmp_path / "few.h5")
    shutil.copytree(made / "s", tmp_path / "s")
    return tmp_path / "s"


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", ["study.toml", "points.jsonl", ".in-use"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_files_of_a_study_are_not_followed(
    hpcsgd, study, words, elsewhere, entry, name
):
    plant(entry, study / name, elsewhere)
    for command in (words, (*words, "--resume"), ("study", "collect", "s")):
        done = hpcsgd(*command, timeout=SECONDS)
        # A link to nowhere in place of the plan is replaced by a new plan.
        if done.returncode:
            ends_in_one_sentence(done)
        assert "Traceback" not in done.stderr and "precious" not in done.stdout


@pytest.mark.cases(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_report_reads_regular_files_alone(hpcsgd, study, elsewhere, entry):
    """Of a study, of its runs and of one run."""
    lines, result = study / "points.jsonl", study / "runs" / POINT / "result.json"
    for path, folder in ((lines, "s"), (result, "s/runs"), (result, f"s/runs/{POINT}")):
        plant(entry, path, elsewhere)
        done = hpcsgd("report", folder, "--out", "page.html", timeout=SECONDS)
        ends_in_one_sentence(done)
        assert not (study.parent / "page.html").exists()


@pytest.mark.cases(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_run_of_a_study_writes_no_log_through_an_entry(
    hpcsgd, study, words, elsewhere, entry
):
    (study / "points.jsonl").unlink()  # so that the run is made again
    plant(entry, study / "logs" / f"{POINT}.log", elsewhere)
    done = hpcsgd(*words, "--resume", timeout=SECONDS)
    ends_in_one_sentence(done, f"{POINT}.log cannot be written")


@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
@pytest.mark.parametrize("name", ["points", "logs", "runs", f"runs/{POINT}"])
def test_a_study_is_kept_in_no_other_folder(
    hpcsgd, study, words, outside, plant_at, name
):
    (study / "points.jsonl").unlink()
    plant(plant_at, study / name, outside)
    done = hpcsgd(*words, "--resume", timeout=SECONDS)
    ends_in_one_sentence(done, f"s/{name}", "it is ")


@pytest.mark.cases(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_point_is_read_from_a_regular_file(hpcsgd, study, elsewhere, entry):
    plant(entry, study / "points" / f"{POINT}.toml", elsewhere)
    done = hpcsgd("study", "point", "s", POINT, timeout=SECONDS)
    ends_in_one_sentence(done, f"{POINT}.toml")


@pytest.mark.cases(2)
@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
def test_the_end_of_a_point_is_written_into_no_other_folder(
    hpcsgd, study, outside, plant_at
):
    plant(plant_at, study / "ends", outside)
    done = hpcsgd("study", "point", "s", POINT, timeout=SECONDS)
    ends_in_one_sentence(done, f"ends/{POINT}.json cannot be written")


@pytest.mark.cases(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_end_is_read_from_a_regular_file(hpcsgd, study, elsewhere, entry):
    (study / "points.jsonl").unlink()
    (study / "ends").mkdir()
    plant(entry, study / "ends" / f"{POINT}.json", elsewhere)
    done = hpcsgd("study", "collect", "s", timeout=SECONDS)
    if done.returncode:  # a link to nowhere is no end yet
        ends_in_one_sentence(done)
    assert "Traceback" not in done.stderr and "precious" not in done.stdout


@pytest.mark.cases(2)
@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
def test_runs_of_a_comparison_are_in_no_other_folder(
    hpcsgd, made, tmp_path, outside, plant_at
):
    shutil.copy(made / "few.h5", tmp_path / "few.h5")
    words = ("compare", "--data", "few.h5", "--batch", 32, "--repeats", 1)
    words += ("--setting", "a: steps=1", "--setting", "b: steps=4", "--out", "c")
    done = hpcsgd(*words, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    one = sorted(path for path in (tmp_path / "c").iterdir() if path.is_dir())[0]
    plant(plant_at, one, outside)
    done = hpcsgd(*words, timeout=SECONDS)
    ends_in_one_sentence(done, one.name, "it is ")
    done = hpcsgd("report", "c", "--out", "page.html", timeout=SECONDS)
    ends_in_one_sentence(done, one.name)


@pytest.fixture
def job(tmp_path):
    """The folder of a job that was submitted, began and ended with 1."""
    path = tmp_path / "job"
    for name in ("state", "log", "run"):
        (path / name).mkdir(parents=True)
    step = {"command": ["train"], "run": "run"}
    add_record(
        path, "submitted", job="7", name="first", workplace=str(path), steps=[step]
    )
    line = {"event": "ended", "job": "7", "code": 1, "step": 0, "at": 100}
    line |= {"restarts": 0, "nodes": "n1"}
    (path / "state" / "7.jsonl").write_text(json.dumps(line) + "\n")
    (path / "log" / "7.log").write_text("hpcsgd: error: it went wrong\n")
    (path / "run" / "result.json").write_text("{}")
    (path / "run" / "history.jsonl").write_text("")
    return path


COMMANDS = (("status",), ("status", "--json"), ("collect",))
FILES = ("jobs.jsonl", "state/7.jsonl", "log/7.log", "run/result.json")


@pytest.mark.parametrize("name", [*FILES, "run/history.jsonl"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_files_of_a_job_are_not_followed(hpcsgd, job, elsewhere, entry, name):
    plant(entry, job / name, elsewhere)
    for action, *flags in COMMANDS:
        done = hpcsgd("jobs", action, "job", *flags, timeout=SECONDS)
        assert "Traceback" not in done.stderr, done.stderr
        assert "precious" not in done.stdout + done.stderr
        if name == "jobs.jsonl":
            ends_in_one_sentence(done, "jobs.jsonl")
        else:
            assert done.returncode in (0, 1), done.stderr


@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
@pytest.mark.parametrize("name", ["state", "log"])
def test_folders_of_a_job_are_not_followed(hpcsgd, job, outside, plant_at, name):
    shutil.copytree(job / name, outside / "kept-too")
    (outside / "7.jsonl").write_text((job / "state" / "7.jsonl").read_text())
    (outside / "7.log").write_text("hpcsgd: error: precious\n")
    plant(plant_at, job / name, outside)
    done = hpcsgd("jobs", "status", "job", "--json", timeout=SECONDS)
    assert "Traceback" not in done.stderr and "precious" not in done.stdout
    assert done.returncode in (0, 1), done.stderr
    if name == "state":
        assert notes(job, "7") == []
    for path in ("7.jsonl", "7.log"):
        (outside / path).unlink()
    shutil.rmtree(outside / "kept-too")


@pytest.mark.parametrize("entry", ENTRIES)
def test_nothing_is_noted_through_an_entry(tmp_path, elsewhere, entry):
    from hpcsgd.errors import ConfigError

    plant(entry, tmp_path / "jobs.jsonl", elsewhere)
    with pytest.raises(ConfigError, match="jobs.jsonl cannot be written"):
        add_record(tmp_path, "submitted", job="7")
    with pytest.raises(ConfigError, match="jobs.jsonl"):
        records(tmp_path)


def play(tmp_path):
    """The script of a job, run by bash where no Slurm has numbered it."""
    text = render(
        example("train", folder=str(tmp_path)), load_site("generic-cpu"), PYTHON
    )
    (tmp_path / "script").write_text(text)
    return subprocess.run(
        ["bash", "script"],
        env={**os.environ, "SLURM_JOB_ID": "42"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.parametrize("name", ["42.jsonl", "42.idle", "42.done.0"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_script_writes_through_no_entry(tmp_path, elsewhere, entry, name):
    state = tmp_path / "jobs" / "first" / "state"
    state.mkdir(parents=True)
    plant(entry, state / name, elsewhere)
    done = play(tmp_path)
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert f"{name} is no regular file" in said and "remove" in said
    assert not (state / "nowhere").exists()


def test_a_script_writes_into_no_other_folder(tmp_path, outside):
    (tmp_path / "jobs" / "first").mkdir(parents=True)
    (tmp_path / "jobs" / "first" / "state").symlink_to(outside)
    done = play(tmp_path)
    assert done.returncode == 2 and "is no regular file of this job" in done.stderr
