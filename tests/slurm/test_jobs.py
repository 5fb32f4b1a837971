"""Arrays, chains, a smoke job, and what Slurm was really sent."""

import json

from tests.slurm.desk import EXCHANGES


def test_one_element_of_an_array_is_told_to_save(sweep, cluster):
    """It alone is requeued, under its own name, and all of them reach the goal."""
    sweep.wait("RUNNING")
    told = sweep.out / "runs" / "1"
    sweep.until(lambda: list(told.glob("checkpoints/*.h5")), "saved anything")
    cluster.call("scancel", "--signal=USR2", f"{sweep.job}_1")
    sweep.ends("COMPLETED")
    assert [record["Restarts"] for record in sweep.show()] == ["0", "1", "0"]
    found = [sweep.result(f"runs/{number}") for number in range(3)]
    assert [run["exchanges"] for run in found] == [EXCHANGES] * 3
    assert [run["config"]["rate"]["value"] for run in found] == [0.02, 0.05, 0.1]
    assert [state["state"] for state in sweep.status()] == ["completed"] * 3
    rows = json.loads(sweep.desk.hpcsgd("jobs", "collect", sweep.out, "--json"))
    assert sorted(row["loss"] for row in rows) == sorted(run["loss"] for run in found)


def test_a_chain_runs_in_its_order(converted, trained, reported):
    first, second, third = (job.ends("COMPLETED") for job in (converted, trained, reported))
    assert first["EndTime"] <= second["StartTime"]
    assert second["EndTime"] <= third["StartTime"]
    assert trained.result()["status"] == "completed"
    assert trained.result()["weights_sha256"] in reported.log()


def test_what_waits_for_a_failure_is_told_so(unconverted, never):
    unconverted.ends("FAILED")
    never.ends("CANCELLED")
    (state,) = unconverted.status(code=1)
    assert (state["state"], state["code"]) == ("failed", 2) and "missing.csv" in state["why"]
    (state,) = never.status(code=None)
    assert state["state"] == "cancelled" and not (never.out / "run").exists()


def test_the_smoke_job_gives_one_verdict(smoke):
    smoke.ends("COMPLETED")
    print(smoke.log())
    assert 0


def test_what_was_sent_is_what_render_prints(train, cluster):
    sent = cluster.call("scontrol", "write", "batch_script", train.job, "-")
    assert sent.strip() == (train.out / "job.sbatch").read_text().strip()
    place = ["--site", "generic-cpu", "--out", train.out, "--nodes", "2", "--tasks", "4"]
    words = ["jobs", "render", "train", *place, "--", train.desk.run]
    assert train.desk.hpcsgd(*words) == (train.out / "job.sbatch").read_text()


def test_there_is_no_accounting_to_ask(train, cluster):
    """Slurm's memory of jobs is short and sacct has none: the folder says it."""
    train.ends("COMPLETED")
    cluster.call("sacct", "-j", train.job, code=1)
    cluster.call("scontrol", "show", "job", "1", code=1)
