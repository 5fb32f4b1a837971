"""What became of jobs, told from folders, a queue and an accounting that are played."""

import csv
import io
import json
import subprocess
import sys

import pytest

from hpcsgd.cli import main
from hpcsgd.jobs.queue import add_record
from hpcsgd.jobs.status import JobExecution, collect, find_culprit, states

RESULT = {
    "status": "completed",
    "loss": 0.25,
    "iterations": 300,
    "seconds_total": 1.5,
    "ranks": 4,
    "history": [{"epoch": 3.0, "loss": 0.25}],
}


class Folder:
    """The folder of one submitted job."""

    def __init__(self, path, runs=("run",), array="", template="train", commands=()):
        self.path = path
        for name in ("state", "log"):
            (path / name).mkdir(parents=True)
        commands = commands or [
            ["train", "--set", f"schedule.steps={2**i}"] for i in range(len(runs))
        ]
        steps = [
            {"command": command, "run": run}
            for command, run in zip(commands, runs, strict=True)
        ]
        add_record(
            path,
            "submitted",
            job="7",
            name="first",
            template=template,
            workplace=str(path),
            steps=steps,
            array=array,
        )

    def note(self, event, code=0, job="7", restarts=0, at=100):
        line = {"event": event, "job": job, "code": code, "step": 0, "at": at}
        line |= {"restarts": restarts, "nodes": "n1"}
        with open(self.path / "state" / f"{job}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def log(self, text, job="7"):
        (self.path / "log" / f"{job}.log").write_text(text)

    def result(self, run="run", **changes):
        (self.path / run).mkdir(parents=True, exist_ok=True)
        said = json.dumps(RESULT | changes)
        (self.path / run / "result.json").write_text(said)

    def state(self):
        (found,) = states(self.path)
        return found


@pytest.fixture
def folder(tmp_path, fakes):
    return Folder(tmp_path / "job")


def test_a_job_that_waits(folder, fakes):
    fakes.answer("squeue", out="7|PENDING|0:00||Dependency\n")
    found = folder.state()
    assert (found.state, found.why) == ("pending", "Dependency")
    assert found.execution.code is None
    folder.note("began")
    folder.note("requeued", 75)
    assert folder.state().state == "requeued"


def test_a_job_that_runs(folder, fakes, capsys):
    fakes.answer("squeue", out="7|RUNNING|4:10|n[1-2]|None\n")
    folder.note("began", restarts=1)
    (folder.path / "run").mkdir()
    lines = [{"kind": "event", "event": "alarm"}, {"epoch": 2.0, "loss": 0.5}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder.path / "run" / "history.jsonl").write_text(text + '{"epoch": 3.0, "lo')
    found = folder.state()
    assert found.state == "running"
    assert found.execution == JobExecution(None, 1, "n[1-2]", "4:10")
    assert found.runs[0].facts["epoch"] == 2.0
    assert main(["jobs", "status", str(folder.path)]) == 0
    assert "running, epoch 2, loss 0.5" in capsys.readouterr().out


HALF = json.dumps({"epoch": 2.0, "loss": 0.5}) + "\n"
TRAINS = """
import sys, time
from pathlib import Path
from hpcsgd.files import FolderLock
FolderLock(Path(sys.argv[1])).take()
print("trains", flush=True)
time.sleep(100)
"""


def test_a_run_that_was_killed_does_not_run(folder, monkeypatch, tmp_path, capsys):
    """Without Slurm: its script can write no note, its run folder says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    folder.note("began")
    run = folder.path / "run"
    run.mkdir()
    (run / "history.jsonl").write_text(HALF)
    words = [sys.executable, "-c", TRAINS, str(run)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "trains\n"
        assert folder.state().runs[0].facts["status"] == "running"
        process.kill()
    assert folder.state().runs[0].facts["status"] == "unfinished"
    main(["jobs", "status", str(folder.path)])
    assert "unfinished, epoch 2, loss 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("event", "code", "status"),
    [
        ("ended", 137, "unfinished"),
        ("terminated", 143, "unfinished"),
        ("", 0, "running"),
    ],
)
def test_a_run_is_over_with_its_job(folder, fakes, event, code, status):
    """On a node that cannot be seen from here."""
    fakes.answer("squeue", out="" if event else "7|RUNNING|4:10|n1|None\n")
    folder.note("began")
    if event:
        folder.note(event, code)
    (folder.path / "run").mkdir()
    (folder.path / "run" / "history.jsonl").write_text(HALF)
    assert folder.state().runs[0].facts["status"] == status


def test_a_line_that_is_nested_too_deeply_is_no_line(folder, fakes):
    run = folder.path / "run"
    run.mkdir()
    (run / "history.jsonl").write_text(HALF + "[" * 100000 + "\n")
    (run / "result.json").write_text("[" * 100000)
    with open(folder.path / "jobs.jsonl", "a") as file:
        file.write("[" * 100000 + "\n")
    assert folder.state().runs[0].facts["epoch"] == 2.0


def test_an_element_that_slurm_cleans_up_after_is_over(folder, fakes):
    fakes.answer("squeue", out="7|COMPLETING|4:10|n1|None\n")
    folder.note("began")
    assert folder.state().state == "running"
    folder.note("ended", 0)
    assert folder.state().state == "completed"


@pytest.mark.parametrize(
    "event, code, state",
    [
        ("ended", 0, "completed"),
        ("ended", 1, "failed"),
        ("ended", 75, "preempted"),
        ("given-up", 1, "failed"),
        ("terminated", 143, "terminated"),
        ("requeued", 75, "lost"),
        ("began", 0, "lost"),
    ],
)
def test_without_accounting_its_own_notes_count(event, code, state, folder):
    folder.note("began", at=100)
    if event != "began":
        folder.note(event, code, at=3761)
    found = folder.state()
    assert found.state == state
    assert found.why or state in ("completed", "failed")
    if event == "ended":
        execution = found.execution
        assert (execution.code, execution.elapsed) == (code, "01:01:01")


@pytest.mark.parametrize("code", [0, 1])
def test_without_slurm_nothing_is_claimed(code, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert folder.state().state == "unknown"
    folder.note("began")
    assert folder.state().state == "unknown"
    folder.note("ended", code)
    assert folder.state().state == ("failed" if code else "completed")


@pytest.mark.parametrize(
    "said, notes, state, code",
    [
        ("COMPLETED|0:0|00:01:00|n1", [], "completed", 0),
        ("FAILED|3:0|00:01:00|n1", [], "failed", 3),
        ("CANCELLED by 1000|0:0|00:00:00|None", [], "cancelled", 0),
        ("TIMEOUT|0:15|02:00:00|n1", [("terminated", 143)], "timeout", 143),
        ("TIMEOUT|0:0|02:00:00|n1", [("ended", 0)], "completed", 0),
        ("OUT_OF_MEMORY|0:125|00:01:00|n1", [("ended", 137)], "failed", 137),
        ("NODE_FAIL|0:9|00:01:00|n1", [], "failed", 137),
        ("FAILED|75:0|00:01:00|n1", [("ended", 75)], "preempted", 75),
        ("PREEMPTED|0:15|00:01:00|n1", [("terminated", 75)], "preempted", 75),
    ],
)
def test_accounting_knows_other_ends(said, notes, state, code, folder, fakes):
    fakes.answer("sacct", out=f"7|{said}\n7.batch|FAILED|1:0|00:01:00|n1\n")
    for event, ended in [("began", 0), *notes]:
        folder.note(event, ended)
    if not notes:
        (folder.path / "state" / "7.jsonl").unlink()
    found = folder.state()
    assert (found.state, found.execution.code) == (state, code)
    assert fakes.calls("sacct")[0][3] == "--jobs=7"


def test_the_queue_remembers_ends_for_a_while(folder, fakes):
    fakes.answer("squeue", out="7|TIMEOUT|2:00:00|n1|TimeLimit\n")
    folder.note("began")
    assert folder.state().state == "timeout"


def test_what_we_cancelled_is_cancelled(folder):
    folder.note("began")
    folder.note("terminated", 75)
    add_record(folder.path, "cancelled", job="7")
    assert folder.state().state == "cancelled"


@pytest.mark.parametrize(
    "text, rank, said",
    [
        ("hpcsgd: rank 2: error: no room\n", 2, "no room"),
        (
            "hpcsgd: rank 3 of 4 failed:\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\n    g()\nValueError: it broke\n',
            3,
            "ValueError: it broke",
        ),
        (
            "hpcsgd: rank 0 of 4 has waited 20 s in sum 12 of products: rank 1 is not"
            " there: idle outside of a collective for 21 s; the job ends\n",
            1,
            "rank 0 of 4 has waited 20 s in sum 12 of products: rank 1 is not there:"
            " idle outside of a collective for 21 s; the job ends",
        ),
        (
            "srun: error: n1: tasks 0-1: Killed\nsrun: error: n2: task 2: Segmentation"
            " fault\n",
            2,
            "srun: error: n2: task 2: Segmentation fault",
        ),
        (
            "hpcsgd: rank 0 of 4 failed:\nTraceback:\nmpi4py.MPI.Exception: Other MPI\n"
            "srun: error: n2: task 2: Killed\nAbort(1) on node 0 (rank 0 in comm 0)\n"
            "srun: Job step aborted: Waiting up to 32 seconds\n"
            "srun: error: n2: task 3: Killed\n",
            2,
            "srun: error: n2: task 2: Killed",
        ),
        (
            "hpcsgd: rank 1 of 4 failed:\nTraceback:\nValueError: bad\n"
            "srun: Job step aborted: Waiting up to 32 seconds\n"
            "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED ***\n"
            "srun: error: n2: task 3: Killed\n",
            1,
            "ValueError: bad",
        ),
        (
            "hpcsgd: error: cannot read a.csv\n"
            "srun: error: n3: task 0: Exited with exit code 2\n",
            None,
            "cannot read a.csv",
        ),
        (
            "hpcsgd: error: cannot read epsilon.h5\nsrun: error: n1: tasks 0-3: Exited"
            " with exit code 2\n",
            None,
            "cannot read epsilon.h5",
        ),
        (
            "srun: error: n1: tasks 0-3: Killed\n",
            None,
            "srun: error: n1: tasks 0-3: Killed",
        ),
        ("all is well\n", None, None),
        ("srun: error: n1: task 2: Exited with exit code 75\n", None, None),
    ],
)
def test_the_log_names_the_rank(text, rank, said, folder, capsys):
    begins = "hpcsgd: job 7: begins on n1, start"
    earlier = f"{begins} 1\nhpcsgd: rank 9: error: of an earlier start\n"
    folder.log(f"{earlier}{begins} 2\nloss 0.5\n{text}")
    found = find_culprit(folder.path / "log" / "7.log")
    assert (found.rank, found.text) == (rank, said) if said else found is None
    folder.note("began")
    folder.note("ended", 1)
    assert main(["jobs", "status", str(folder.path)]) == 1
    shown = capsys.readouterr().out
    if rank is not None:
        assert f"failed: rank {rank}: {said}" in shown


def test_elements_of_an_array_are_told_apart(tmp_path, fakes, capsys):
    folder = Folder(tmp_path / "job", ("runs/0", "runs/1", "runs/2"), "0-2", "sweep")
    fakes.answer("squeue", out="7_2|RUNNING|1:00|n1|None\n")
    for number, code in enumerate((0, 1)):
        folder.note("began", job=f"7_{number}")
        folder.note("ended", code, job=f"7_{number}")
    folder.result("runs/0")
    folder.log("hpcsgd: rank 1: error: no room\n", "7_1")
    found = states(folder.path)
    assert [s.state for s in found] == ["completed", "failed", "running"]
    assert [s.rank for s in found] == [None, 1, None]
    assert main(["jobs", "status", str(folder.path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [s["job"] for s in said] == ["7_0", "7_1", "7_2"]
    assert said[0]["facts"][0]["loss"] == 0.25


def test_results_are_gathered_in_one_table(tmp_path, fakes, capsys):
    folder = Folder(tmp_path / "job", ("runs/0", "runs/1"), "0-1", "sweep")
    folder.result("runs/0")
    for number in (0, 1):
        folder.note("ended", number, job=f"7_{number}")
    assert main(["jobs", "collect", str(folder.path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["schedule.steps"] for row in rows] == [1, 2]
    assert [row["loss"] for row in rows] == [0.25, None]
    assert [row["state"] for row in rows] == ["completed", "failed"]
    assert main(["jobs", "collect", str(folder.path), "--csv"]) == 0
    (first, second) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert first["seconds_total"] == "1.5" and second["seconds_total"] == ""
    assert main(["jobs", "collect", str(folder.path)]) == 0
    assert "schedule.steps" in capsys.readouterr().out


def test_settings_of_both_forms_of_set_are_collected(tmp_path, fakes):
    """An argument of a flag is its next word, or is behind its equals sign."""
    commands = (
        ["train", "--set=rate.value=0.5", "--set", "schedule.steps=2"],
        ["train", "--set", "rate.value=0.25", "--set=schedule.steps=4"],
    )
    folder = Folder(tmp_path / "job", ("runs/0", "runs/1"), "0-1", "sweep", commands)
    rows = collect(folder.path)
    assert [row["rate.value"] for row in rows] == [0.5, 0.25]
    assert [row["schedule.steps"] for row in rows] == [2, 4]


def test_a_scaling_job_says_how_many_are_done(tmp_path, fakes, capsys):
    runs = ("runs/ranks-1", "runs/ranks-2")
    folder = Folder(tmp_path / "job", runs, template="scaling")
    folder.result(runs[0])
    folder.note("began")
    folder.note("ended", 0)
    assert main(["jobs", "status", str(folder.path)]) == 0
    assert "1 of 2 completed" in capsys.readouterr().out
    assert main(["jobs", "collect", str(folder.path), "--json"]) == 0
    assert [row["status"] for row in json.loads(capsys.readouterr().out)] == [
        "completed",
        None,
    ]


def test_a_line_that_broke_off_is_no_line(folder):
    folder.note("ended", 0)
    with open(folder.path / "state" / "7.jsonl", "a") as file:
        file.write('{"event": "requ')
    with open(folder.path / "jobs.jsonl", "a") as file:
        file.write('{"event": "submitted", "jo')
    assert folder.state().state == "completed"
