"""Signals that reach `--ranks` reach the ranks, once; nobody is left behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpcsgd.cli.launch import (
    MARK,
    LaunchEnd,
    MarkedProcesses,
    ending_of,
    possible_signals,
    report_launch_end,
)
from hpcsgd.comm.rank_ends import RankEnd
from tests.faults.processes import all_gone, wait_until, written_pids
from tests.helpers import launcher
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec"),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc"),
]
RANKS = 2
PARENT = """
import os, sys
from hpcsgd.cli.launch import NOTED, RankLaunch, OWN_CODES, report_launch_end
from tests.helpers.launcher import mpiexec
program = [sys.executable, "-m", "tests.faults.obedient", *sys.argv[1:]]
ending = RankLaunch([*mpiexec(), "-n", "2", *NOTED], program, os.environ).run()
report_launch_end(ending, keeps_checkpoints=True)
code = ending.code
print("back", code, flush=True)
sys.exit(code if code in OWN_CODES else 1)
"""


@pytest.fixture
def start(tmp_path):
    """Start obedient ranks under our launcher; all of it is ended with the test."""
    started = []

    def run(*how):
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(tmp_path), *how],
            cwd=ROOT,
            env={**launcher.launch_environment(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, written_pids(tmp_path, RANKS)

    yield run
    for process in started:
        launcher.end(process)


ORDERLY = [
    (signal.SIGINT, "SIGINT", 130),
    (signal.SIGTERM, "SIGTERM", 75),
    (signal.SIGUSR2, "SIGUSR2", 75),
    (signal.SIGHUP, "SIGTERM", 75),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize("sent, got, code", ORDERLY, ids=lambda value: str(value))
def test_the_ranks_get_the_signal_once_and_end_in_order(
    start, tmp_path, sent, got, code
):
    process, ranks = start("obeys")
    family = [*launcher.descendants(process.pid), *ranks]
    process.send_signal(sent)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == code, output
    heard = [(tmp_path / f"got{rank}").read_text() for rank in range(RANKS)]
    assert heard == [got] * RANKS
    assert all_gone(family, 0.1) and "error" not in output


def test_a_notice_to_every_process_of_a_task_ends_the_ranks_in_order(start, tmp_path):
    """As Slurm sends it: mpiexec hears it, too, and must not die of it."""
    process, ranks = start("obeys")
    for pid in (*launcher.descendants(process.pid), *ranks, process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 75, output
    heard = [(tmp_path / f"got{rank}").read_text() for rank in range(RANKS)]
    # Once or more: a wish to save is one, however often it is heard.
    assert {name for said in heard for name in said.split()} == {"SIGUSR2"}
    assert "error" not in output


@pytest.mark.parametrize("launched", [True, False])
def test_ranks_of_ours_hear_what_their_launcher_is_deaf_to(launched):
    code = (
        "import signal; from hpcsgd.cli import main; main(['data', 'list', '--json'])"
    )
    shown = "; print('is', signal.getsignal(signal.SIGUSR2).name)"
    done = subprocess.run(
        [sys.executable, "-c", code + shown],
        env={**os.environ, "PYTHONPATH": str(ROOT)}
        | ({"HPCSGD_EXPECT_RANKS": "1"} if launched else {}),
        preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert f"is {'SIG_DFL' if launched else 'SIG_IGN'}" in done.stdout, done.stderr


def test_ctrl_c_on_a_terminal_reaches_the_ranks_once(start, tmp_path):
    """A terminal signals the whole group in front; mpiexec is not in it."""
    process, ranks = start("obeys")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 130, output
    assert [(tmp_path / f"got{rank}").read_text() for rank in (0, 1)] == ["SIGINT"] * 2


def test_ranks_that_do_not_listen_yet_are_interrupted_all_the_same(start):
    """The signal itself kills them, and mpiexec's code 2 is no wrong input."""
    process, ranks = start("starts")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 130 and "hpcsgd: error" not in output, output
    assert all_gone(ranks, 0.1)


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_ranks_that_do_not_listen_yet_ask_to_be_started_again(start, number):
    """A notice ahead of a time limit may meet ranks that are still starting."""
    process, ranks = start("starts")
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 75 and "hpcsgd: error" not in output, output
    assert all_gone(ranks, 0.1)


def test_a_second_interrupt_ends_all_at_once(start, tmp_path):
    process, ranks = start("ignores")
    family = [*launcher.descendants(process.pid), *ranks]
    process.send_signal(signal.SIGINT)
    wait_until(lambda: False, 0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert all_gone(family, 0.1) and not list(tmp_path.glob("got*"))


def test_a_signal_before_the_ranks_are_there_ends_the_launch(tmp_path):
    """Whenever it comes: no rank, or not yet ready for it."""
    for delay in (0.0, 0.15, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(tmp_path), "obeys"],
            cwd=ROOT,
            env={**launcher.launch_environment(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert wait_until(lambda p=process: _below(p), HANG)
            wait_until(lambda: False, delay)
            family = _below(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) != 0
            assert all_gone(family)
        finally:
            launcher.end(process)


def _below(process):
    return list(launcher.descendants(process.pid))


DEADLY = ("KILL", "SEGV", "ABRT", "BUS", "FPE", "ILL", "XCPU", "SYS", "QUIT")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "how, said",
    [
        *(
            (str(int(signal.Signals[f"SIG{name}"])), f"rank 1 was killed by SIG{name}")
            for name in DEADLY
        ),
        ("exits99", "rank 1 ended without a message (exit code 99)"),
    ],
)
def test_the_rank_and_the_signal_that_killed_it_are_named_in_one_sentence(
    start, how, said
):
    process, ranks = start(how)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 1, output
    sentences = [s for s in output.splitlines() if s.startswith("hpcsgd: error")]
    assert len(sentences) == 1 and said in sentences[0], output
    assert "--resume auto" in sentences[0]
    assert all_gone(ranks, 0.1)


def test_what_a_rank_left_running_is_ended(start, tmp_path):
    """A child in a session of its own, whose parent is gone."""
    process, ranks = start("leaves-a-child")
    child = int((tmp_path / "child").read_text())
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0, output
    assert all_gone([child, *ranks], 0.1)


def test_ranks_do_not_outlive_a_killed_mpiexec(start):
    process, ranks = start("ignores")
    (mpiexec,) = [p for p in _below(process) if _parent(p) == process.pid]
    os.kill(mpiexec, signal.SIGKILL)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 1 and "SIGKILL" in output, output
    assert all_gone(ranks, 0.1)


def test_ranks_do_not_outlive_us(start, tmp_path):
    """Killed ourselves, we cannot pass anything on; the kernel asks mpiexec to end."""
    process, ranks = start("obeys")
    family = [*_below(process), *ranks]
    process.kill()
    process.wait()
    assert all_gone(family, 15)
    assert (tmp_path / "got0").read_text() == "SIGTERM"  # and they end in order


def _parent(pid):
    fields = launcher.stat_fields(pid)
    return int(fields[1]) if fields else None


def test_the_sentence_depends_on_the_ending(capsys):
    for code in (0, 1, 2, 75, 130):  # whoever ended so has spoken
        report_launch_end(LaunchEnd(code), keeps_checkpoints=True)
    assert not capsys.readouterr().err
    report_launch_end(ending_of(137, []), keeps_checkpoints=False)
    said = capsys.readouterr().err
    assert "SIGKILL" in said and "--out DIR" in said and "--resume" not in said
    assert "memory" in said


def test_without_notes_all_signals_are_named_that_the_launchers_code_can_stand_for():
    assert possible_signals(137) == possible_signals(-9) == ("SIGKILL",)
    for number in (signal.SIGHUP, signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL):
        for more in (0, signal.SIGKILL, signal.SIGTERM):
            assert number.name in possible_signals(number | more)
    assert possible_signals(99) == possible_signals(0) == ()


def test_the_first_rank_that_fails_is_the_cause():
    ends = [RankEnd(1.0, 2, 0), RankEnd(2.0, 1, -11), RankEnd(2.1, 0, -9)]
    assert ending_of(11 | 9, ends) == LaunchEnd(-11, "rank 1", ("SIGSEGV",))
    assert ending_of(9, [RankEnd(1.0, 1, 2), RankEnd(2.0, 0, -9)]).code == 2
    assert ending_of(-9, ends).who == "the launcher"
    assert ending_of(0, ends).code == 0  # the others went on without it


def test_what_a_rank_forked_is_no_rank():
    """It has the same words on its command line, and must not get a signal twice."""
    family = MarkedProcesses("that-forks")
    command = [sys.executable, "-c", "import os, time; os.fork(); time.sleep(60)"]
    rank = subprocess.Popen(command, env={**os.environ, MARK: "that-forks"})
    try:
        assert wait_until(lambda: len(family.members()) == 2, HANG)
        assert family.ranks(command) == [rank.pid]
    finally:
        family.end(0.0)
        rank.wait()


def test_a_family_is_those_with_the_mark_and_no_other():
    family = MarkedProcesses("one-of-a-kind")
    sleep = ["sleep", "60"]
    marked = {**os.environ, MARK: "one-of-a-kind"}
    ours = subprocess.Popen(sleep, env=marked, start_new_session=True)
    other = subprocess.Popen(sleep, env={**marked, MARK: "another"})
    try:
        assert wait_until(lambda: family.members() == [ours.pid], HANG)
        assert wait_until(lambda: family.ranks(sleep) == [ours.pid], HANG)
        assert family.ranks(["sleep", "61"]) == []
        family.end(0.0)
        assert ours.wait(HANG) == -signal.SIGKILL and other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()
