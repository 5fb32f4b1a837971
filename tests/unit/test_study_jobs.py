"""Studies as jobs: what is submitted, what is gathered, what is submitted again."""

import json
import os

import pytest

from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.sites import load_site
from hpcsgd.solvers.callbacks import Callback, Request
from hpcsgd.studies.run import make_plan, train_point
from hpcsgd.studies.submit import JobOptions, begin, collect, on_site

SBATCH = """#!/bin/bash
number=$(( $(ls {folder}/*.job 2> /dev/null | wc -l) + 101 ))
echo PENDING > {folder}/$number.job
echo $number
"""
SQUEUE = """#!/bin/bash
for job in {folder}/*.job; do
    state=$(cat $job)
    if [ -n "$state" ]; then echo "$(basename $job .job)|$state|0:00||None"; fi
done
"""


class Queue:
    """What a stand-in for Slurm says of its jobs."""

    def __init__(self, folder):
        self.folder = folder

    def set(self, job, state):
        """What squeue shows; "" = it knows nothing."""
        (self.folder / f"{job}.job").write_text(state)


@pytest.fixture
def queue(tmp_path, monkeypatch):
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (folder / name).write_text(text.format(folder=folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Queue(folder)


@pytest.fixture
def study(tmp_path, queue):
    return tmp_path / "study"


def plan(tmp_path, ranks=(1, 2), base=None, **more):
    path = tmp_path / "few.h5"
    if not path.exists():
        write_synthetic(path, "susy", 64, 18, 0)
    asked = {"ranks": list(ranks), "methods": ["casgd"], "steps": [2], "repeats": 2}
    base = {"data": {"path": str(path)}, "rate": {"value": 0.5}, **(base or {})}
    return make_plan("strong", {**asked, "on": "slurm", **more}, base)


def where(**more):
    return JobOptions(load_site("generic-cpu"), Resources(walltime="00:05:00"), **more)


def lines(study):
    text = (study / "points.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def run(study, job, ranks):
    """What the script of a job does: all its points, and its last word."""
    folder = study / "jobs" / f"p{ranks}"
    (record,) = (r for r in read(folder / "jobs.jsonl") if r["job"] == job)
    for step in record["steps"]:
        name = step["command"][3]
        run_ranks(ranks, lambda world, name=name: train_point(study, name, world))
    ended(folder, job, 0)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ended(folder, job, code):
    note = {"event": "ended", "job": job, "code": code, "restarts": 0, "at": 1}
    (folder / "state" / f"{job}.jsonl").write_text(json.dumps(note) + "\n")


def test_one_job_for_each_number_of_ranks_whose_runs_take_turns(tmp_path, study):
    asked = plan(tmp_path, ranks=(2, 4), emulate_members=[8, 16])
    begun = begin(asked, study, where(per_node=2))
    assert begun.jobs == ["101", "102", "103"] and begun.over == begun.under_way == 0
    sent = {p: read(study / "jobs" / f"p{p}" / "jobs.jsonl")[0] for p in (1, 2, 4)}
    assert {p: r["resources"]["tasks"] for p, r in sent.items()} == {1: 1, 2: 2, 4: 4}
    assert {p: r["resources"]["nodes"] for p, r in sent.items()} == {1: 1, 2: 1, 4: 2}
    names = [step["command"][3] for step in sent[1]["steps"]]
    assert [n[:9] for n in names] == ["casgd-p8-", "casgd-p16"] * 2
    assert [n[-2:] for n in names] == ["r1", "r1", "r2", "r2"]
    script = (study / "jobs" / "p4" / "job.sbatch").read_text()
    assert "--ntasks=4" in script and "--time=00:05:00" in script


def test_lines_come_from_what_the_jobs_leave(tmp_path, study, queue):
    asked = plan(tmp_path)
    begin(asked, study, where())
    found, active = collect(study)
    assert (found.missing, active, found.failures) == (4, 4, ())
    run(study, "102", 2)
    queue.set("102", "COMPLETED")
    found, active = collect(study)
    assert (found.missing, active, found.runs) == (2, 2, 2)
    for line in lines(study):
        assert (line["ranks"], line["status"]) == (2, "finished")
        ledger = line["ledger"]["products"]
        assert ledger["words"] == line["expected"]["words"] > 0
    assert list((study / "ends").iterdir()) == [], "each becomes a line once"
    again = begin(asked, study, where(), resume=True)
    assert (again.jobs, again.under_way, again.over) == ([], 2, 2)


def test_a_run_that_is_started_again_has_not_failed(tmp_path, study, queue):
    """Its job was told to save, and waits for its next start."""
    begin(plan(tmp_path, ranks=(1,)), study, where())
    name = "casgd-p1-s2-b32-1x1-fp32-seed0-r1"
    run_ranks(1, lambda world: train_point(study, name, world, callbacks=[Preempted()]))
    found, active = collect(study)
    assert (found.failures, found.missing, active) == ((), 2, 2)
    ended(study / "jobs" / "p1", "101", 75)
    queue.set("101", "")
    found, active = collect(study)
    assert active == 0 and found.failures == (), "preempted runs have not failed"
    assert [run["status"] for run in found.preempted] == ["preempted", "preempted"]


class Preempted(Callback):
    """As by a signal ahead of the time limit."""

    def on_exchange(self, view):
        return Request.PREEMPT


def test_what_is_lost_is_said_once_and_submitted_again(tmp_path, study, queue):
    asked = plan(tmp_path, ranks=(1,))
    begin(asked, study, where())
    queue.set("101", "")
    ended(study / "jobs" / "p1", "101", 1)
    log = study / "jobs" / "p1" / "log" / "101.log"
    log.write_text("srun: no such luck\n")
    found, active = collect(study)
    assert found.failures[0]["error"].endswith(f"see {log}")
    assert active == 0 and len(found.failures) == 2
    assert found.failures[0]["error"].startswith("job 101 ended (failed) and left")
    collect(study)
    assert [line["job"] for line in lines(study)] == ["101"] * 2, "said once"
    assert begin(asked, study, where(), resume=True).jobs == ["102"]
    found, active = collect(study)
    assert active == 2
    run(study, "102", 1)
    queue.set("102", "COMPLETED")
    found, active = collect(study)
    assert (found.runs, found.failures, active) == (2, (), 0)


def test_a_job_that_nobody_knows_is_no_failure(tmp_path, study, queue):
    """It never began: cancelled while it waited. --resume submits it again."""
    asked = plan(tmp_path, ranks=(1,))
    begin(asked, study, where())
    queue.set("101", "")
    found, active = collect(study)
    assert (found.failures, found.missing, active) == ((), 2, 0)
    assert begin(asked, study, where(), resume=True).jobs == ["102"]


def test_gpus_are_refused_where_there_is_no_cuda(tmp_path, study):
    """The commands of a study do not say where they run; its plan does."""
    asked = plan(tmp_path, base={"run": {"device": "cuda"}})
    site = JobOptions(load_site("frontier-cpu"), Resources())
    with pytest.raises(ConfigError, match="GPUs without CUDA"):
        begin(asked, study, site)
    short = JobOptions(load_site("generic-gpu"), Resources())
    with pytest.raises(ConfigError, match="as many --gpus as ranks"):
        begin(asked, study, short, resume=True)
    shared = plan(tmp_path, base={"run": {"device": "cuda", "share_gpus": True}})
    few = JobOptions(load_site("generic-gpu"), Resources(gpus=1))
    assert begin(shared, study.with_name("other"), few).jobs == ["101", "102"]


def test_a_site_without_slurm_is_refused(tmp_path, study):
    site = JobOptions(load_site("workstation"), Resources())
    with pytest.raises(ConfigError, match="no Slurm .* --on local"):
        begin(plan(tmp_path), study, site)
    assert not study.exists()


def test_no_job_is_sent_where_another_is_refused(tmp_path, study, queue):
    """128 ranks do not fit onto a node of 56 cores: said before 1 rank is queued."""
    asked = plan(tmp_path, ranks=(1, 128), batch=[128])
    site = JobOptions(load_site("frontier-cpu"), Resources())
    with pytest.raises(ConfigError, match="of 128 ranks is .*--ranks-per-node"):
        begin(asked, study, site)
    assert list(queue.folder.glob("*.job")) == []


@pytest.mark.parametrize("site, cpus, base, found", [
    ("generic-cpu", 4, {}, 4),
    ("generic-cpu", 4, {"run": {"threads": 2}}, 2),
    ("generic-cpu", 1, {}, None),
    ("perlmutter-cpu", 8, {}, 4),
])  # fmt: skip
def test_cores_of_a_rank_are_its_threads(site, cpus, base, found, tmp_path):
    """As in other jobs: of the hardware threads of a core one."""
    options = JobOptions(load_site(site), Resources(cpus=cpus))
    run = on_site(plan(tmp_path, base=base), options).base.get("run", {})
    assert run.get("threads") == found
