"""Faults on real ranks: one clear report, an end in time, and a resume that arrives."""

import os
import shutil
import signal
import time

import h5py
import pytest

from hpcsgd.runs.checkpoint import CheckpointStore, read_checkpoint
from tests.faults.processes import all_gone, wait_until
from tests.helpers.killed_runs import LIMIT, Case
from tests.helpers.limits import HANG


def reports(text, output):
    return [line for line in output.splitlines() if text in line]


def check_resume(case, undisturbed, **options):
    ended = case.run(**options)
    assert ended.code == 0, ended.output
    assert ended.result["weights_sha256"] == undisturbed(case.ranks)
    return ended


def test_a_rank_that_raises(case, undisturbed):
    ended = case.run("--fault", "raises", "--at", 30)
    assert ended.code not in (0, None)
    assert len(reports("RuntimeError: a callback failed", ended.output)) == 1
    assert len(reports("hpcsgd: rank 1 of 2 failed:", ended.output)) == 1
    assert CheckpointStore(case.out, 2).newest()[1].exchanges == 25
    check_resume(case, undisturbed)


def test_a_rank_that_stalls(case, undisturbed):
    """Named, ended, and nothing is lost."""
    case.timeout = 2.0
    ended = case.run("--fault", "sleeps", "--at", 30)
    assert ended.code == 1, ended.output
    said = reports("rank 1 is not there: idle", ended.output)
    assert said and "the job ends" in said[-1]
    check_resume(case, undisturbed)


@pytest.mark.full
@pytest.mark.parametrize("product", ["cached", "direct", "gather", "gather-once"])
def test_three_ranks_and_another_product(product, data, tmp_path):
    """MPI adds messages of another length in another order: resumes must not."""
    results = []
    for name, flags in (("whole", ()), ("parts", ("--fault", "raises", "--at", 60))):
        (tmp_path / name).mkdir()
        case = Case(tmp_path / name, data, 3)
        case.product = product
        ended = case.run(*flags)
        ended = case.run() if flags else ended
        assert ended.code == 0, ended.output
        results.append(ended.result)
    assert results[1]["resumes"] == 1
    assert results[1]["weights_sha256"] == results[0]["weights_sha256"]


@pytest.mark.full
def test_replicas_that_agree_on_gradients(data, tmp_path):
    """A rank fails amid the run; what codecs keep goes on where it was, bit for bit."""
    results = []
    for name, flags in (("whole", ()), ("parts", ("--fault", "raises", "--at", 60))):
        (tmp_path / name).mkdir()
        case = Case(tmp_path / name, data, 2)
        case.product, case.steps = "auto", 1
        case.more = '[agreement]\nmethod = "fp8"\n[grid]\nreplicas = 2'
        ended = case.run(*flags)
        assert bool(flags) == (ended.code != 0), ended.output
        ended = case.run() if flags else ended
        assert ended.code == 0, ended.output
        results.append(ended.result)
    assert results[1]["resumes"] == 1
    assert results[1]["weights_sha256"] == results[0]["weights_sha256"]


AVERAGES = {
    "postlocal": "",
    "hierarchical": 'groups = "1,2"\nperiods = "2,8"',
    "fedavg": "",
    "slowmo": "slow_sharded = true",
}


@pytest.mark.full
@pytest.mark.parametrize("method", AVERAGES)
def test_replicas_that_average(method, data, tmp_path):
    """A rank fails between two agreements; the run goes on bit for bit."""
    results = []
    for name, flags in (("whole", ()), ("parts", ("--fault", "raises", "--at", 60))):
        (tmp_path / name).mkdir()
        case = Case(tmp_path / name, data, 2)
        case.product, case.steps = "auto", 1
        asked = f'[agreement]\nmethod = "{method}"\n{AVERAGES[method]}\n'
        case.more = f"{asked}[grid]\nreplicas = 2"
        ended = case.run(*flags)
        assert bool(flags) == (ended.code != 0), ended.output
        ended = case.run() if flags else ended
        assert ended.code == 0, ended.output
        results.append(ended.result)
    assert results[1]["resumes"] == 1
    assert results[1]["weights_sha256"] == results[0]["weights_sha256"]


def test_nan_in_the_memory_of_one_rank(case, undisturbed):
    """It is found at the next look, named, and never reaches a checkpoint."""
    ended = case.run("--fault", "plants_nan", "--at", 42)
    assert ended.code == 1, ended.output
    said = reports(
        "the memory of rank 1 holds a value that is not finite", ended.output
    )
    # Rank 1 of 2 holds columns 9 to 17 of 18: its row 5, column 1 is (5, 10).
    assert said and "at row 5, column 10" in said[0]
    for path in CheckpointStore(case.out, 2).paths():
        assert read_checkpoint(path).exchanges <= 45
    check_resume(case, undisturbed)


def test_a_disk_that_is_full_for_a_while(case, undisturbed):
    ended = case.run(
        "--fault", "fills_the_disk", "--at", 43, "--rank", 0, "--slow", 0.03
    )
    assert ended.code == 0, ended.output
    said = reports("cannot be written", ended.output)
    assert len(said) == 1
    assert "the checkpoint after exchange 45" in said[0]
    assert "the one after exchange 40 is kept" in said[0]
    assert ended.result["checkpoints_failed"] == 1
    assert ended.result["weights_sha256"] == undisturbed(2)


@pytest.mark.full
def test_a_slow_disk_is_no_stall(case, undisturbed):
    """Rank 0 waits for its checkpoints much longer than `timeout`."""
    case.timeout, case.every = 0.6, 40
    ended = case.run("--slow-disk", 0.9, limit=60)
    assert ended.code == 0, ended.output
    assert ended.result["weights_sha256"] == undisturbed(2)


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = b""
    else:
        place = {"bit-in-header": 20, "bit-in-data": len(content) - 100}[how]
        content[place] ^= 0x10
    path.write_bytes(content)


@pytest.mark.cases(1)
@pytest.mark.parametrize("how", ["truncated", "bit-in-data", "bit-in-header", "empty"])
def test_a_damaged_checkpoint_is_passed_over(how, broken_case, undisturbed):
    case = broken_case
    newest, before = CheckpointStore(case.out, 2).paths()
    damage(newest, how)
    ended = check_resume(case, undisturbed)
    said = reports("falling back to the checkpoint before it", ended.output)
    assert len(said) == 1 and newest.name in said[0]
    assert ended.result["resumes"] == 1
    assert (newest.parent / f"{newest.name}.damaged").exists()
    assert before.name == "000005-exchange-000000025.h5"


def test_with_no_whole_checkpoint_nothing_is_lost(broken_case):
    case = broken_case
    for path in CheckpointStore(case.out, 2).paths():
        damage(path, "truncated")
    kept = sorted((case.out / "checkpoints").iterdir())
    for _ in range(2):
        ended = case.run()
        assert ended.code not in (0, None)
        assert "none of the 2 checkpoints" in ended.output
        assert "--resume no" in ended.output
        assert sorted((case.out / "checkpoints").iterdir()) == kept


@pytest.fixture
def own_data(tmp_path, data, broken_case):
    """A copy of the rows of the broken run, which a test may spoil."""
    broken_case.data = shutil.copy(data, tmp_path / "own.h5")
    return broken_case.data


def test_data_that_changed_is_refused(broken_case, own_data):
    case = broken_case
    with h5py.File(own_data, "r+") as file:
        file["X"][700, 3] += 1e-3
    ended = case.run()
    assert ended.code not in (0, None)
    assert "the data is not what this run was started on" in ended.output
    assert CheckpointStore(case.out, 2).newest()[1].exchanges == 30


def test_data_that_was_cut_off_is_refused(broken_case, own_data):
    case = broken_case
    damage(own_data, "truncated")
    ended = case.run()
    assert ended.code not in (0, None)
    assert "truncated" in ended.output
    assert CheckpointStore(case.out, 2).newest()[1].exchanges == 30


def test_a_clock_that_jumps_changes_nothing(case, undisturbed):
    ended = case.run("--mad-clock")
    assert ended.code == 0, ended.output
    assert ended.result["weights_sha256"] == undisturbed(2)
    assert 0 < ended.result["seconds_wall"] < LIMIT


def test_two_runs_in_one_folder(case, undisturbed):
    case.timeout = LIMIT
    first = case.start("--slow", 0.05)
    pids = case.pids()
    assert wait_until(lambda: CheckpointStore(case.out, 2).paths(), LIMIT)
    second = Case(case.folder / "second", case.data)
    second.folder.mkdir()
    second.out = case.out
    # The first stands still: a busy machine starts the second late.
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    ended = second.run(ranks=1)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert ended.code not in (0, None)
    assert "is in use by process" in ended.output
    assert first.wait(LIMIT) == 0
    assert undisturbed(2) in case.said()


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "number, code",
    [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR2, 75)],
)
def test_a_signal_to_all_ranks_is_an_orderly_end(number, code, case, undisturbed):
    process = case.start("--slow", 0.1)
    pids = case.pids()
    assert wait_until(lambda: CheckpointStore(case.out, 2).paths(), LIMIT)
    for pid in pids:
        os.kill(pid, number)
    assert process.wait(LIMIT) == code, case.said()
    exchanges = CheckpointStore(case.out, 2).newest()[1].exchanges
    assert exchanges < 100
    ended = check_resume(case, undisturbed)
    assert ended.result["resumes"] == 1


def test_a_signal_before_training_ends_all_ranks(case):
    """One that left alone would wait in MPI_Finalize, and the others in a sum."""
    process = case.start("--late", 2 * HANG)
    pids = case.pids()
    time.sleep(1.0)
    os.kill(pids[1], signal.SIGINT)
    assert process.wait(HANG) == 130, case.said()
    assert all_gone(pids)


def test_a_second_interrupt_ends_a_rank_that_is_stuck(case):
    """Rank 0 waits in a sum that rank 1 never joins: no Python handler can run."""
    process = case.start("--fault", "sleeps", "--at", 10)
    pids = case.pids()
    assert wait_until(lambda: "falls asleep" in case.said(), LIMIT)
    time.sleep(1.0)  # rank 0 comes to the sum; before, it would end in good order
    os.kill(pids[0], signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, case.said()
    os.kill(pids[0], signal.SIGINT)
    assert process.wait(HANG) != 0
    assert all_gone(pids)


def test_a_signal_to_one_rank_is_enough(case, undisturbed):
    process = case.start("--slow", 0.1)
    pids = case.pids()
    assert wait_until(lambda: CheckpointStore(case.out, 2).paths(), LIMIT)
    os.kill(pids[1], signal.SIGUSR2)
    assert process.wait(LIMIT) == 75, case.said()
    check_resume(case, undisturbed)


@pytest.mark.full
def test_a_run_that_reached_its_goal_does_not_ask_for_more(case, undisturbed):
    check_resume(case, undisturbed)
    again = check_resume(case, undisturbed)
    assert again.result["status"] == "completed"
