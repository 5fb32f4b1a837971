"""Jobs of which a rank is killed, that are cancelled, told to save, or lose a node."""

import json

from tests.slurm.desk import EXCHANGES


def test_a_failure_names_its_rank(failing):
    assert failing.ends("FAILED")["Restarts"] == "0"
    (state,) = failing.status(code=1)
    assert (state["state"], state["rank"]) == ("failed", 2), state
    assert "rank 2" in failing.desk.hpcsgd("jobs", "status", failing.out, code=1)


def test_what_is_cancelled_is_not_started_again(unwanted):
    assert unwanted.ends("CANCELLED")["Restarts"] == "0"
    (state,) = unwanted.status(code=None)
    assert state["state"] == "cancelled"


def test_one_element_of_an_array_is_told_to_save(sweep):
    """It alone is requeued, under its own name, and all of them reach the goal."""
    sweep.ends("COMPLETED")
    assert [record["Restarts"] for record in sweep.show()] == ["0", "1", "0"]
    assert sweep.log().count("going on after exchange") == 1
    found = [sweep.result(f"runs/{number}") for number in range(3)]
    assert [run["exchanges"] for run in found] == [EXCHANGES] * 3
    assert [run["config"]["rate"]["value"] for run in found] == [0.02, 0.05, 0.1]
    assert [state["state"] for state in sweep.status()] == ["completed"] * 3
    rows = json.loads(sweep.desk.hpcsgd("jobs", "collect", sweep.out, "--json"))
    assert sorted(row["loss"] for row in rows) == sorted(run["loss"] for run in found)


def goes_on_elsewhere(job, cluster, undisturbed):
    """Slurm starts it again by itself, on nodes that are there, from what was saved."""
    record = job.ends("COMPLETED")
    assert record["Restarts"] == "1"
    assert job.lost not in cluster.hosts(record["NodeList"])
    assert job.result()["weights_sha256"] == undisturbed["weights_sha256"]
    assert job.log().count("going on after exchange") == 1


def test_the_node_of_the_script_is_lost(loses_first, cluster, undisturbed):
    goes_on_elsewhere(loses_first, cluster, undisturbed)


def test_another_node_is_lost(loses_last, cluster, undisturbed):
    goes_on_elsewhere(loses_last, cluster, undisturbed)
