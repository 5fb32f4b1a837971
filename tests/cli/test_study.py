"""`hpcsgd study`: real ranks, runs that fail, a study that is killed and goes on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.command_line import LAUNCH_VARIABLES, only_json
from tests.helpers.limits import HANG

BASE = ("--batch", 32, "--steps", 4, "--rate", 0.5)
SGD, CASGD = "sgd/p{}/s1/b32/1x{}/fp32/seed0/r1", "casgd/p{}/s4/b32/1x{}/fp32/seed0/r1"


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """So few rows that a run is over before it began."""
    from hpcsgd.data.synthetic import write_synthetic

    path = tmp_path_factory.mktemp("data") / "few.h5"
    write_synthetic(path, "susy", 300, 18, 0)
    return path


def lines(folder):
    text = (folder / "points.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def traffic(line, figure):
    return sum(line["ledger"][purpose][figure] for purpose in ("products", "agreement"))


def refused(process, *words):
    """One sentence, wrong input, nothing on standard output."""
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    (said,) = process.stderr.strip().splitlines()
    for word in words:
        assert word in said, said


def test_strong_scaling_on_real_ranks(hpcsgd, tmp_path, few):
    """All methods: lines, run folders, one document; words are those of the formula."""
    methods = ("--methods", "sgd,casgd,local", "--ranks", "1,2", "--repeats", 1)
    asked = ("study", "strong", "--data", few, *BASE, *methods, "--out", "s", "--json")
    said = only_json(hpcsgd(*asked, timeout=HANG))
    found = lines(tmp_path / "s")
    assert [line["key"].split("/")[:2] for line in found] == [
        [method, f"p{ranks}"]
        for method in ("sgd", "casgd", "local")
        for ranks in (1, 2)
    ]
    for line in found:
        assert (line["status"], line["error"], line["schema"]) == ("finished", None, 1)
        assert line["batch"] == 32 and line["rows"] == 300 and line["data"] == "few.h5"
        for figure in ("calls", "words", "bytes"):
            assert traffic(line, figure) == line["expected"][figure]
        assert (traffic(line, "calls") > 0) == (line["ranks"] == 2)
        report = json.loads((tmp_path / "s" / line["run"] / "result.json").read_text())
        assert report["seconds_total"] == line["seconds"]
        assert report["ranks"] == line["ranks"] and report["loss"] == line["loss"]
        assert line["cpu_seconds"] > 0 and line["cores"] > 0 and line["versions"]
    losses = {tuple(line["key"].split("/")[:2]): line["loss"] for line in found}
    assert losses["casgd", "p2"] == pytest.approx(losses["sgd", "p1"], rel=1e-5)
    assert losses["local", "p2"] != pytest.approx(losses["sgd", "p1"], rel=1e-5)
    assert said["runs"] == 6 and said["failures"] == [] and said["missing"] == 0
    row = {(r["method"], r["ranks"]): r for r in said["rows"]}["casgd", 2]
    one, two = found[2]["seconds"], found[3]["seconds"]
    assert row["speed_up"] == pytest.approx(one / two)
    assert row["efficiency"] == pytest.approx(one / two / 2)
    assert row["gain"] == pytest.approx(found[1]["seconds"] / two)
    again = hpcsgd(*asked, "--resume")
    assert only_json(again) == said and lines(tmp_path / "s") == found


def test_a_point_that_fails_ends_no_study(hpcsgd, tmp_path, few):
    """19 members cannot share 18 columns; the emulated 4 can."""
    emulated = ("--emulate-members", "4,19", "--network", "lan", "--repeats", 1)
    asked = ("study", "weak", "--data", few, *BASE, "--ranks", 1, *emulated)
    done = hpcsgd(*asked, "--methods", "casgd", "--out", "w", timeout=HANG)
    assert done.returncode == 1
    one, four, bad = lines(tmp_path / "w")
    assert (bad["status"], bad["seconds"], bad["ledger"]) == ("failed", None, None)
    assert "cannot share 18 columns" in bad["error"]
    assert "1 of 3 runs failed" in done.stderr and "--network" not in done.stderr
    assert "one rank, alone on its node" in done.stdout
    assert done.stdout.count("casgd") == 4, "three rows, and the best"
    assert (one["rows"], four["rows"]) == (300 // 19, 300 * 4 // 19)
    assert (four["emulated"], four["loss"], four["history"]) == (4, None, [])
    assert four["network"] == "lan" and four["oversubscribed"] is False
    assert traffic(four, "words") == four["expected"]["words"] > 0
    assert one["loss"] > 0 and one["emulated"] == 0


def test_a_killed_study_goes_on(hpcsgd, tmp_path, few):
    """SIGKILL in the middle of a line and of a run: nothing that is over runs again."""
    asked = ("study", "strong", "--data", few, *BASE, "--ranks", "1,2", "--repeats", 1)
    asked = (*asked, "--methods", "sgd", "--out", "k")
    study = begun(asked, tmp_path)
    path = tmp_path / "k" / "points.jsonl"
    try:
        wait_for(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    finally:
        study.send_signal(signal.SIGKILL)
        study.wait()
    first = path.read_bytes()
    path.write_bytes(first + b'{"schema": 1, "key": "sgd/p2')
    run = tmp_path / "k" / "runs" / "sgd-p2-s1-b32-1x2-fp32-seed0-r1" / ".in-use"
    wait_for(lambda: not run.exists())
    done = hpcsgd(*asked, "--resume", timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(first)
    assert [line["key"] for line in lines(tmp_path / "k")] == [
        SGD.format(1, 1),
        SGD.format(2, 2),
    ]
    assert "1 of 1" in done.stderr


def begun(asked, folder):
    """A study that goes on while a test looks."""
    words = [sys.executable, "-m", "hpcsgd", *map(str, asked)]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)
    }
    return subprocess.Popen(
        words, cwd=folder, env=environment, stderr=subprocess.DEVNULL
    )


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


@pytest.mark.full
def test_late_runs_are_ended_and_said(hpcsgd, tmp_path, few):
    long = ("--epochs", 10**7, "--point-timeout", 3, "--repeats", 1, "--ranks", 2)
    asked = ("study", "strong", "--data", few, *BASE, *long, "--methods", "casgd")
    done = hpcsgd(*asked, "--out", "t", timeout=HANG)
    assert done.returncode == 1
    (line,) = lines(tmp_path / "t")
    assert line["status"] == "timeout" and "--point-timeout" in line["error"]
    assert line["key"] == CASGD.format(2, 2)
    assert processes_of(tmp_path / "t") == []


def test_a_study_that_is_asked_to_end_takes_its_ranks_along(tmp_path, few):
    long = ("--epochs", 10**7, "--repeats", 1, "--ranks", 2, "--methods", "casgd")
    study = begun(
        ("study", "strong", "--data", few, *BASE, *long, "--out", "e"), tmp_path
    )
    run = tmp_path / "e" / "runs" / "casgd-p2-s4-b32-1x2-fp32-seed0-r1" / ".in-use"
    try:
        wait_for(run.exists)
        study.send_signal(signal.SIGTERM)
        assert study.wait(HANG) == 75
    finally:
        study.kill()
        study.wait()
    assert processes_of(tmp_path / "e") == []
    assert not (tmp_path / "e" / "points.jsonl").exists(), "half a run is no line"


def processes_of(folder):
    """Command lines, of all processes of this machine, that name the folder."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if f"{folder}/points" in line]


def test_a_plan_is_shown_and_nothing_runs(hpcsgd, tmp_path, few):
    (tmp_path / "study.toml").write_text(
        f'[study]\nranks = [2, 4]\nmethods = ["hybrid"]\nsteps = [2, 4]\nseeds = [0, 1]'
        f'\n\n[data]\npath = "{few}"\n\n[rate]\nvalue = 0.5\n'
    )
    asked = ("study", "sweep", "study.toml", "--dry-run")
    said = only_json(hpcsgd(*asked, "--json"))
    assert said["runs"] == len(said["points"]) == 5 * 2 * 2 * 3
    assert said["points"][0] == "hybrid/p2/s2/b32/1x2/fp32/seed0/r1"
    shown = hpcsgd(*asked, "--seeds", 5, "--steps", 8)
    assert shown.returncode == 0 and "5 points x 3 repeats = 15 runs" in shown.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study.toml"]


def test_what_cannot_be_studied_is_refused(hpcsgd, tmp_path, few):
    strong = ("study", "strong", "--data", few)
    refused(hpcsgd(*strong, "--ranks", 1), "--out DIR")
    local = ("--methods", "local", "--ranks", "3,4", "--out", "s")
    refused(hpcsgd(*strong, *local), "local on 3 ranks", "--batch 36")
    assert not (tmp_path / "s").exists()
