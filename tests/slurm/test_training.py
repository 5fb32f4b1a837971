"""Jobs that train: to the goal, and past a time limit."""

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
    # On a busy machine the notice may meet a start that has nothing to save yet.
    assert 1 <= limited.log().count("going on after exchange") <= restarts
