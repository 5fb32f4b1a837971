"""Jobs that train: to the goal, past a time limit, past the loss of a node."""

import pytest

from tests.slurm import keeper
from tests.slurm.desk import EXCHANGES


def test_a_job_trains_across_nodes_and_is_done(train, undisturbed):
    record = train.ends("COMPLETED")
    assert (record["NumNodes"], record["NumTasks"]) == ("2", "4")
    assert record["Restarts"] == "0", "a run that reached its goal is not requeued"
    result = train.result()
    assert result["grid"] == {"replicas": 1, "members": 4}
    assert result["exchanges"] == EXCHANGES
    assert result["weights_sha256"] == undisturbed["weights_sha256"]
    assert [note["event"] for note in train.notes()] == ["began", "ended"]
    (state,) = train.status()
    assert (state["state"], state["code"]) == ("completed", 0)


def test_a_time_limit_is_passed_and_not_a_bit_changes(limited, undisturbed):
    """Slurm's own notice, a checkpoint, 75, a requeue, and on from there."""
    record = limited.ends("COMPLETED")
    restarts = int(record["Restarts"])
    assert restarts >= 1
    codes = [note["code"] for note in limited.notes() if note["event"] != "began"]
    assert codes == [75] * restarts + [0]
    result = limited.result()
    assert (result["status"], result["exchanges"]) == ("completed", EXCHANGES)
    assert result["weights_sha256"] == undisturbed["weights_sha256"]
    assert limited.log().count("going on after exchange") == restarts


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_lost_node_costs_what_was_not_saved(which, request, cluster, undisturbed):
    """The node of the script, then another: Slurm starts it again on those that are."""
    job = request.getfixturevalue("loses_first" if which == 0 else "loses_last")
    job.wait("RUNNING")
    job.until(lambda: len(job.checkpoints()) == 2, "saved anything")
    lost = cluster.hosts(job.show()[0]["NodeList"])[which]
    cluster.kill_node(lost)
    cluster.call("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
    record = job.ends("COMPLETED")
    assert record["Restarts"] == "1" and lost not in cluster.hosts(record["NodeList"])
    assert job.result()["weights_sha256"] == undisturbed["weights_sha256"]
    assert job.log().count("going on after exchange") == 1


def test_a_failure_names_its_rank(failing, cluster):
    failing.wait("RUNNING")
    failing.until(lambda: failing.checkpoints(), "saved anything")
    keeper.kill(cluster.ranks(failing.job)[2])
    record = failing.ends("FAILED")
    assert record["Restarts"] == "0"
    (state,) = failing.status(code=1)
    assert (state["state"], state["rank"]) == ("failed", 2), state
    said = failing.desk.hpcsgd("jobs", "status", failing.out, code=1)
    assert "rank 2" in said


def test_what_is_cancelled_saves_and_is_not_started_again(unwanted):
    unwanted.wait("RUNNING")
    unwanted.until(lambda: unwanted.checkpoints(), "saved anything")
    said = unwanted.desk.hpcsgd("jobs", "cancel", unwanted.out)
    assert said.split() == [unwanted.job]
    assert unwanted.ends("CANCELLED")["Restarts"] == "0"
    (state,) = unwanted.status(code=None)
    assert state["state"] == "cancelled"
