"""Jobs that train: to the goal, past a time limit, past the loss of a node."""

import pytest

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
    assert "resum" in limited.log() or result.get("resumed"), result.keys()


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_lost_node_costs_what_was_not_saved(which, request, cluster, undisturbed):
    job = request.getfixturevalue("loses_first" if which == 0 else "loses_last")
    job.wait("RUNNING")
    job.until(lambda: len(job.checkpoints()) == 2, "saved anything")
    nodes = cluster.call("scontrol", "show", "hostnames", job.show()[0]["NodeList"])
    lost = nodes.split()[which]
    cluster.kill_node(lost)
    saved = job.checkpoints()[-1]
    down = ("state=down", "reason=test")
    cluster.call("scontrol", "update", f"nodename={lost}", *down)
    record = job.ends("COMPLETED")
    assert record["Restarts"] == "1"
    assert lost not in cluster.call("scontrol", "show", "hostnames", record["NodeList"])
    assert job.result()["weights_sha256"] == undisturbed["weights_sha256"]
    print(saved, job.log(), job.notes(), job.result().keys())
