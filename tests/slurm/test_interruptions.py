"""Jobs of which a rank is killed, that are cancelled, told to save, or lose a node."""

import json
import sys
import time

from tests.slurm.desk import EXCHANGES, LONGEST

STARTING = """
import time
from pathlib import Path
from hpcsgd.comm import open_world
from hpcsgd.runs.recovery import (Signals)

world = open_world("mpi", timeout=100)
world.max_flag(0)  # ranks of another node start only while these are inside MPI
with Signals(world.abort):
    Path(f"up.{world.rank}").touch()
    time.sleep(100)
"""
# The network module of the site's job scripts: with another one, ranks of two nodes do
# not always meet. A start in which they do not is ended by its clock and made again.
STEP = """#!/bin/bash
export MPIR_CVAR_CH4_NETMOD=ofi
for start in 1 2 3 4; do
    srun --mpi=pmi2 --kill-on-bad-exit=0 --nodes=2 --ntasks=4 {python} rank.py
    code=$?
    ls up.* >/dev/null 2>&1 && break
done
echo "step: code $code"
"""


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


def test_a_notice_before_training_asks_for_a_requeue(cluster, tmp_path):
    """srun reports 75 of ranks that had nothing to save yet, and not that it killed."""
    (tmp_path / "rank.py").write_text(STARTING)
    script = tmp_path / "job"
    script.write_text(STEP.format(python=sys.executable))
    log = tmp_path / "log"
    place = ("-D", tmp_path, "-o", log, "-N", "2", "-n", "4")
    number = cluster.call("sbatch", "--parsable", *place, script).strip()
    wait(lambda: ready(tmp_path) == 4 or ended(log), "four ranks were ready")
    cluster.call("scancel", "--signal=USR2", number)
    wait(lambda: ended(log), "the step ended")
    assert log.read_text().endswith("step: code 75\n")


def ready(folder):
    """How many ranks of the newest start handle signals."""
    return len(list(folder.glob("up.*")))


def ended(log):
    """Whether the job's script has printed the exit code of its last step."""
    return log.exists() and "step: code" in log.read_text()


def wait(condition, what):
    """Until `condition()` holds."""
    late = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < late, f"never: {what}"
        time.sleep(0.2)


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
