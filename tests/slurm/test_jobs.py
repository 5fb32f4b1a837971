"""Chains, a smoke job, and what Slurm was really sent."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from hpcsgd.jobs.queue import mpi_plugins
from tests.helpers.file_calls import count_below
from tests.slurm.desk import LONGEST

ROOT = Path(__file__).parents[2]
MOST_SHARED = 300  # file operations of a staged rank on the shared file system


def test_a_chain_runs_in_its_order(converted, trained, reported):
    first, second, third = (
        job.ends("COMPLETED") for job in (converted, trained, reported)
    )
    assert first["EndTime"] <= second["StartTime"]
    assert second["EndTime"] <= third["StartTime"]
    assert trained.result()["status"] == "completed"
    assert "text.h5, 400" in reported.log()
    assert "Made by hpcsgd" in (reported.desk.folder / "report.html").read_text()


def test_what_waits_for_a_failure_is_told_so(unconverted, never):
    unconverted.ends("FAILED")
    never.ends("CANCELLED")
    (state,) = unconverted.status(code=1)
    assert (state["state"], state["code"]) == ("failed", 2) and "missing.csv" in state[
        "why"
    ]
    (state,) = never.status(code=None)
    assert state["state"] == "cancelled" and not (never.out / "run").exists()


def test_the_smoke_job_gives_one_verdict(smoke):
    smoke.ends("COMPLETED")
    (verdict,) = re.findall(r"^smoke: .*$", smoke.log(), re.MULTILINE)
    assert verdict.startswith("smoke: good: 4 ranks on ")


def test_a_staged_job_starts_from_the_disk_of_its_node(staged):
    """Of the shared file system its ranks want their data and little else."""
    staged.ends("COMPLETED")
    assert staged.result()["status"] == "completed"
    (place,) = re.findall(r"^node_folder=(/\S+)/hpcsgd-", staged.script(), re.MULTILINE)
    assert not list(Path(place).glob(f"hpcsgd-{staged.job}-*"))  # it ends with the job
    traces = [p.read_text() for p in staged.desk.folder.glob("trace.*")]
    if not shutil.which("strace"):
        return
    own = [f"{place}/hpcsgd-{staged.job}-"]
    ranks = [text for text in traces if own[0] in text and "/h5py/" in text]
    assert len(ranks) == 2
    shared = [ROOT, sys.prefix, sys.base_prefix, staged.desk.folder]
    assert sum(count_below(text, shared) for text in traces) <= 2 * MOST_SHARED


def test_tasks_whose_mpi_is_not_that_of_srun_fail_at_once(cluster, tmp_path):
    """MPICH's ranks under a srun that gives them no PMI: n runs of one rank each."""
    words = [sys.executable, "-m", "hpcsgd", "jobs", "smoke", "--comm", "mpi"]
    start = ["srun", "--ntasks=2", "--mpi=none", "--kill-on-bad-exit=0"]
    said = cluster.call(*start, *words, code=1, limit=LONGEST, cwd=tmp_path)
    (verdict,) = said.splitlines()
    assert verdict.startswith("smoke: bad: ranks: 2 ranks were asked for and MPI gives")
    cause = "loads MPICH, which needs srun --mpi=pmi2, and srun gave its ranks no PMI"
    assert cause in verdict
    assert "srun --mpi=pmi2 for MPICH" in verdict


def test_the_plugins_that_srun_lists_are_read(cluster, monkeypatch):
    """As this Slurm writes them."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    assert {"none", "pmi2"} <= set(mpi_plugins())


def test_tasks_without_a_pmi_are_refused_by_their_variables(cluster, desk, tmp_path):
    train = ["train", str(desk.run), "--out", str(tmp_path / "run")]
    words = [sys.executable, "-m", "hpcsgd", *train]
    done = subprocess.run(
        ["srun", "--ntasks=2", "--mpi=none", "--kill-on-bad-exit=0", *words],
        env=cluster.environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    (said,) = [line for line in done.stderr.splitlines() if "hpcsgd" in line]
    assert done.returncode == 2 and "2 ranks were started by srun without a PMI" in said
    assert not (tmp_path / "run").exists()


def test_what_was_sent_is_what_render_prints(train, cluster):
    sent = cluster.call("scontrol", "write", "batch_script", train.job, "-")
    assert sent.strip() == (train.out / "job.sbatch").read_text().strip()
    place = [
        "--site",
        "generic-cpu",
        "--out",
        train.out,
        "--nodes",
        "2",
        "--tasks",
        "4",
    ]
    words = ["jobs", "render", "train", *place, "--", train.desk.run]
    assert train.desk.hpcsgd(*words) == (train.out / "job.sbatch").read_text()


def test_the_folder_knows_where_slurm_does_not(train, cluster, tmp_path):
    """There is no accounting here, and elsewhere there is no Slurm at all."""
    train.ends("COMPLETED")
    cluster.call("sacct", "-j", train.job, code=1)
    words = ("jobs", "status", train.out, "--json")
    (known,) = train.status()
    (state,) = json.loads(train.desk.hpcsgd(*words, PATH=str(tmp_path)))
    for said in (known, state):
        assert (said["state"], said["code"], said["restarts"]) == ("completed", 0, 0)


def test_lines_of_a_site_reach_sbatch_the_script_and_the_ranks(sited):
    """Options, shell, a container, exclusive nodes, and no variables of the sender."""
    record = sited.ends("COMPLETED")
    assert record["OverSubscribe"] == "NO" and record["Comment"] == "of"
    for ranks in (1, 2):
        result = sited.result(f"runs/ranks-{ranks}")
        assert (result["status"], result["ranks"]) == ("completed", ranks)
    seen = (sited.desk.folder / "seen.txt").read_text().splitlines()
    assert seen == ["one word|7|cast|none"] * 3
