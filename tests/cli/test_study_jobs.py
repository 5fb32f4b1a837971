"""`hpcsgd study --on slurm`: jobs that a stand-in for Slurm runs, and their lines."""

import json
import os
import tomllib

import pytest

from tests.helpers.launcher import mpiexec
from tests.helpers.limits import HANG

SBATCH = """#!/bin/bash
number=$(( $(ls {folder}/*.log 2> /dev/null | wc -l) + 101 ))
touch {folder}/$number.log
if [ ! -e {folder}/hold ]; then
    SLURM_JOB_ID=$number bash "${{@: -1}}" > {folder}/$number.log 2>&1
fi
echo $number
"""
SRUN = """#!/bin/bash
ranks=1
while [ "${{1:0:2}}" = -- ]; do
    case "$1" in --ntasks=*) ranks="${{1#*=}}" ;; esac
    shift
done
if [ "$ranks" = 1 ]; then exec "$@"; fi
exec {mpiexec} -n "$ranks" "$@"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """sbatch runs a job before it returns, or holds it while `hold` is there."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        launcher = " ".join(mpiexec() or [])
        path = folder / name
        path.write_text(text.format(folder=folder, mpiexec=launcher))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def asked(tmp_path, slurm):
    """A study of one method, as jobs."""
    from hpcsgd.data.synthetic import write_synthetic

    write_synthetic(tmp_path / "few.h5", "susy", 200, 18, 0)
    study = ("study", "strong", "--data", "few.h5", "--out", "s", "--methods", "casgd")
    size = ("--steps", 4, "--rate", 0.5, "--repeats", 1, "--json")
    return (*study, *size, "--on", "slurm", "--site", "generic-cpu")


def lines(folder):
    text = (folder / "points.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_job_for_each_number_of_ranks(hpcsgd, tmp_path, slurm, asked):
    """Scripts that srun through their points; one fails and stops no other."""
    emulated = ("--ranks", "1,2", "--emulate-members", "19")
    begun = hpcsgd(*asked, *emulated, "--ask", "walltime=00:05:00", timeout=HANG)
    assert begun.returncode == 0, begun.stderr
    assert "add --network lan" in begun.stderr, "or 19 ranks wait for nobody"
    assert json.loads(begun.stdout)["jobs"] == ["101", "102"]
    script = (tmp_path / "s" / "jobs" / "p2" / "job.sbatch").read_text()
    assert "#SBATCH --ntasks=2" in script and "--time=00:05:00" in script
    done = hpcsgd("study", "collect", "s", "--json")
    assert done.returncode == 1
    found = {line["ranks"]: line for line in lines(tmp_path / "s")}
    assert {p: line["status"] for p, line in found.items()} == {
        1: "finished",
        2: "finished",
        19: "failed",
    }
    assert "cannot share 18 columns" in found[19]["error"]
    assert (found[1]["job"], found[2]["job"], found[19]["job"]) == ("101", "102", "101")
    ledger = found[2]["ledger"]["products"]
    assert ledger["words"] == found[2]["expected"]["words"] > 0
    assert found[2]["cpu_seconds"] > 0 and found[2]["nodes"] == 1
    assert json.loads(done.stdout)["runs"] == 2


def test_a_study_at_a_site_with_gpus_computes_on_those_that_it_holds(
    hpcsgd, tmp_path, slurm, asked
):
    """As a job of train does; and none of it is held for nothing."""
    (slurm / "hold").touch()
    on_gpus = (*asked[:-1], "generic-gpu", "--ranks", "1,2", "--ask", "gpus=2")
    begun = hpcsgd(*on_gpus)
    assert begun.returncode == 0, begun.stderr
    for ranks in (1, 2):
        script = (tmp_path / "s" / "jobs" / f"p{ranks}" / "job.sbatch").read_text()
        assert "#SBATCH --gpus-per-node=2" in script
        assert ("--comm mpi" in script) == (ranks > 1)
    points = [tomllib.loads(p.read_text()) for p in (tmp_path / "s/points").iterdir()]
    assert [point["run"]["device"] for point in points] == ["cuda", "cuda"]


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.parametrize("more", [
    ("--device", "cpu"), ("--emulate-members", 19, "--network", "lan"),
])  # fmt: skip
def test_a_study_that_uses_no_gpus_holds_none(more, hpcsgd, tmp_path, slurm, asked):
    (slurm / "hold").touch()
    words = (*asked[:-1], "generic-gpu", "--ranks", 1, *more)
    refused = hpcsgd(*words)
    assert refused.returncode == 2 and "--ask NAME=VALUE" in refused.stderr
    assert "requests 1 GPU on each node" in refused.stderr
    begun = hpcsgd(*words, "--ask", "gpus=0", "--resume")
    assert begun.returncode == 0, begun.stderr
    script = (tmp_path / "s" / "jobs" / "p1" / "job.sbatch").read_text()
    assert "--gpus-per-node" not in script


def test_jobs_need_a_site_and_ask_for_what_there_is(hpcsgd, asked, monkeypatch):
    monkeypatch.delenv("HPCSGD_SITE", raising=False)
    for more, words in (
        (("--ask", "nodes=2"), "--ranks-per-node"),
        ((), "HPCSGD_SITE"),
    ):
        done = hpcsgd(*asked[:-2], "--ranks", 1, *more, *(asked[-2:] if more else ()))
        assert done.returncode == 2 and words in done.stderr, (more, done.stderr)


@pytest.mark.full
def test_a_late_point_ends_itself(command, tmp_path, susy):
    """By the limit of its own, on all ranks, with a sentence that is kept."""
    from hpcsgd.studies.folder import StudyFolder
    from hpcsgd.studies.plan import StudyAxes, StudyPlan

    base = {"schedule": {"epochs": 10**7}}
    (point,) = StudyPlan(
        "strong", (2,), repeats=1, base=base, axes=StudyAxes(methods=("casgd",))
    ).runs()
    (tmp_path / "s" / "points").mkdir(parents=True)
    StudyFolder(tmp_path / "s").configure(point, str(susy))
    late = command(
        "study", "point", "s", point.name, "--point-timeout", 2, "--ranks", 2
    )
    assert late.returncode == 1, late.stderr
    end = json.loads((tmp_path / "s" / "ends" / f"{point.name}.json").read_text())
    assert end["status"] == "timeout" and "2 s of --point-timeout" in end["error"]


def test_jobs_of_a_study_share_no_node_unless_that_is_asked_for(
    hpcsgd, tmp_path, slurm, asked
):
    """Jobs of others on its nodes would be part of its times."""
    (slurm / "hold").touch()
    for out, more, found in (("s", (), 1), ("t", ("--ask", "exclusive=false"), 0)):
        begun = hpcsgd(*asked, "--out", out, "--ranks", "1", *more)
        assert begun.returncode == 0, begun.stderr
        script = (tmp_path / out / "jobs" / "p1" / "job.sbatch").read_text()
        assert script.count("#SBATCH --exclusive\n") == found
    wrong = hpcsgd(*asked, "--ranks", "1", "--ask", "exclusive=maybe")
    assert wrong.returncode == 2 and "exclusive = 'maybe'" in wrong.stderr


def test_a_dry_run_of_a_study_checks_its_jobs(hpcsgd, tmp_path, slurm, asked):
    """Site, resources and limits, before anything is written."""
    site = (*asked[:-1], "perlmutter-cpu", "--ranks", "1,2", "--dry-run")
    good = hpcsgd(*site)
    assert good.returncode == 0 and not (tmp_path / "s").exists(), good.stderr
    for more, said in (
        (("--ask", "walltime=90:00:00"), "is more than 48:00:00"),
        (("--ask", "gpus=2"), "has no GPUs"),
        (("--ranks", "512"), "1024 cores"),
    ):
        bad = hpcsgd(*site, *more)
        assert bad.returncode == 2 and said in bad.stderr, bad.stderr
    assert hpcsgd(*asked[:-1], "nowhere", "--dry-run").returncode == 2
