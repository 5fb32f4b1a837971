"""States on disk that outlive what is killed: the same steps, or one sentence."""

import errno
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from hpcsgd.agreements.more.infinity.store import Generation, TileStore, generations
from hpcsgd.agreements.more.infinity.tiles import Stamps, StateFile
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.infinity_child import config_of, problem, run
from tests.helpers.limits import HANG
from tests.helpers.on_disk import on_disk


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run that nobody kills."""
    return run(tmp_path_factory.mktemp("whole"))


def killed(folder, *arguments):
    """A process of its own that was ended by SIGKILL."""
    child = [sys.executable, "-m", "tests.helpers.infinity_child", str(folder)]
    done = subprocess.run(
        child + [str(a) for a in arguments], capture_output=True, timeout=HANG
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "where, count",
    [
        ("write", 63),  # between two tiles
        ("torn-write", 64),  # amid one
        ("stamp", 8),  # all words are written, no stamp
        ("after-commit", 7),
    ],
)
def test_a_kill_is_gone_on_from_bit_for_bit(tmp_path, reference, where, count):
    killed(tmp_path / "run", 1, where, count)
    result = run(tmp_path / "run", resume="auto")
    assert result.report["resumes"] == 1
    assert (
        result.report["agreement"]["bytes_written"]
        < (reference.report["agreement"]["bytes_written"])
    )
    assert result.weights_sha256 == reference.weights_sha256
    assert result.loss == reference.loss


def test_without_a_stamp_of_its_own_a_torn_step_is_taken(tmp_path, reference):
    """The broken twin: a step that counts before it is written gives other bits."""
    killed(tmp_path / "run", 1, "write", 63, "twin")
    result = run(tmp_path / "run", resume="auto")
    assert result.weights_sha256 != reference.weights_sha256


def broken(monkeypatch, folder, count, replicas=1, **agreement):
    """A run of which write number `count` of any rank fails."""
    write, calls = StateFile.write, []

    def fails(self, *arguments):
        calls.append(1)
        if len(calls) == count:
            raise DataError("the drive is gone")
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", fails)
        with pytest.raises(DataError, match="the drive is gone"):
            run(folder, replicas, **agreement)


@pytest.mark.parametrize("replicas", [2, 3])
def test_ranks_that_differ_by_a_step_go_on_from_the_older(
    tmp_path, monkeypatch, replicas
):
    """A write fails on one rank; the others have committed, and go back with it."""
    reference = run(tmp_path / "whole", replicas)
    broken(monkeypatch, tmp_path / "run", 61, replicas)
    steps = {
        Stamps(one / "stamp").read()[0].version
        for one in (tmp_path / "run" / "tiles" / "000001").iterdir()
    }
    assert len(steps) == 2 and max(steps) - min(steps) == 1
    result = run(tmp_path / "run", replicas, "auto")
    assert result.weights_sha256 == reference.weights_sha256


@pytest.mark.parametrize("tile", [0.002, 1.0])
def test_other_tiles_go_on(tmp_path, monkeypatch, reference, tile):
    broken(monkeypatch, tmp_path / "run", 61)
    result = run(tmp_path / "run", resume="auto", tile=tile)
    assert result.report["resumes"] == 1
    assert np.abs(result.weights - reference.weights).max() <= 1e-12
    assert generations(tmp_path / "run" / "tiles") == [2]


def test_another_grid_goes_on_from_the_same_weights(tmp_path, monkeypatch):
    """At a rate of nothing a step changes no weight, whoever takes it."""
    broken(monkeypatch, tmp_path / "run", 61, 2)
    drawn = problem()
    config = config_of(drawn, tmp_path / "run", 3, "auto")
    there = states_of(tmp_path / "run" / "tiles" / "000001", 37)
    seen = []
    monkeypatch.setattr(TileStore, "update", lambda self, step: seen.append(self))
    with pytest.raises(DataError, match="stop here"):
        train_on(3, config, drawn, callbacks=[StopsAtOnce()])
    assert np.array_equal(there, states_of(tmp_path / "run" / "tiles" / "000002", 37))
    assert there.any()


@pytest.mark.parametrize("kind", ["adam", "nesterov"])
def test_another_grid_takes_the_steps_that_ddp_would_take_there(tmp_path, kind):
    """Four replicas stop after an epoch; 1, 3 and 8 go on, on disk and in memory."""
    drawn = make_problem("softmax", n=64, d=23)
    more = {"update": {"kind": kind}, "problem": {"intercept": True}}

    def after(folder, replicas, make):
        for ranks, stop in ((4, 4), (replicas, None)):
            config = make(ranks)
            result = in_folder(folder, config, ranks, drawn, stop)[0]
        assert result.status.is_finished and result.report["resumes"] == 1
        return result.weights

    for replicas in (1, 3, 8) if kind == "adam" else (3,):
        there, here = tmp_path / f"ddp{replicas}", tmp_path / f"disk{replicas}"
        expected = after(there, replicas, lambda n: agreed(drawn, n, **more))
        disk = after(
            here, replicas, lambda n, to=here: on_disk(drawn, to / "t", n, **more)
        )
        np.testing.assert_allclose(disk, expected, 0, 1e-12)


class StopsAtOnce:
    """A callback that ends a run before its first step."""

    def on_start(self, view):
        error = DataError("stop here")
        error.on_all_ranks = True
        raise error

    def __getattr__(self, name):
        return lambda view: None


def states_of(folder, columns):
    found = Generation(folder)
    out = np.empty((3, columns, 1))
    for k, name in enumerate(("weights", "adam_m", "adam_v")):
        found.fill(name, found.version, slice(0, columns), out[k])
    return out


def test_files_of_another_run_are_refused(tmp_path, monkeypatch):
    broken(monkeypatch, tmp_path / "run", 61)
    other = tmp_path / "other"
    with pytest.raises(ConfigError, match="update.*start anew"):
        drawn = problem()
        config = config_of(drawn, tmp_path / "run", 1, "auto", kind="adagrad")
        train_on(1, config, drawn)
    drawn = make_problem("logistic", n=53, d=38)
    run_there = config_of(drawn, other)
    train_on(1, run_there, drawn)
    (tmp_path / "run" / "tiles").rename(tmp_path / "kept")
    (other / "tiles").rename(tmp_path / "run" / "tiles")
    with pytest.raises(DataError, match="holds states of 38 columns.*this run has 37"):
        run(tmp_path / "run", resume="auto")
    (tmp_path / "run" / "tiles").rename(tmp_path / "away")
    with pytest.raises(DataError, match="no step that is complete.*--resume no"):
        run(tmp_path / "run", resume="auto")


def test_a_file_larger_than_may_be_is_one_sentence(tmp_path):
    """RLIMIT_FSIZE, as a quota has it: before the first step."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match="File too large.*make room"):
            drawn = problem()
            train_on(1, on_disk(drawn, tmp_path), drawn)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_leaves_the_last_step(tmp_path, monkeypatch):
    reference = run(tmp_path / "whole", 2)
    write, calls = os.pwritev, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 80:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(DataError, match="No space left.*--resume auto"):
            run(tmp_path / "run", 2)
    result = run(tmp_path / "run", 2, "auto")
    assert result.weights_sha256 == reference.weights_sha256
