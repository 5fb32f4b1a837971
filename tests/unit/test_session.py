"""A run on a world that outlives it, and on a disk that does not take its result."""

import errno
import logging
import os
import time
from types import SimpleNamespace

import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import ConfigError
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.result import Status, load_result
from hpcsgd.runs.session import Leg, RunSettings, Session
from tests.helpers.harness import config_for, make_problem, train_on

PROBLEM = make_problem("logistic")
DATA = {"X": PROBLEM.X, "y": PROBLEM.y}
COUNTED = ("calls", "words", "bytes", "wire_bytes")


def counts(ledger):
    """What is booked, without the seconds."""
    return {p: {k: entry[k] for k in COUNTED} for p, entry in ledger.items()}


def both(first, second):
    """Two runs one after the other on two ranks: their results on rank 0."""

    def on_rank(world):
        return [train(config, world=world, **DATA) for config in (first, second)]

    return run_ranks(2, on_rank)[0]


def test_each_run_counts_its_own_words():
    first, second = both(config_for(PROBLEM), config_for(PROBLEM))
    assert first.ledger["products"]["calls"] > 0
    assert counts(second.ledger) == counts(first.ledger)


def test_a_run_that_goes_on_counts_what_its_checkpoint_says(tmp_path):
    """On a world that other runs have used, too."""
    config = config_for(PROBLEM, run={"out": str(tmp_path), "resume": "auto"})
    first, second = both(config, config)
    assert second.report["resumes"] == 1
    calls = [r.ledger["products"]["calls"] for r in (first, second)]
    assert calls[0] == calls[1] > 0


def test_the_world_keeps_what_was_counted_before():
    def on_rank(world):
        world.max_flag(1)
        before = world.ledger.calls("control")
        result = train(config_for(PROBLEM), world=world, **DATA)
        return before, result, world.ledger.as_dict()

    before, result, after = run_ranks(2, on_rank)[0]
    assert before == 1
    assert after["products"]["calls"] == result.ledger["products"]["calls"]
    assert after["control"]["calls"] > result.ledger["control"]["calls"]


def test_reproducible_ends_with_its_run():
    exact = config_for(PROBLEM, run={"reproducible": True})
    first, second = both(exact, config_for(PROBLEM))
    a, b = (r.ledger["products"]["calls"] for r in (first, second))
    assert a == 2 * b > 0


@pytest.mark.parametrize("before", [False, True])
def test_the_world_sums_afterwards_as_it_did_before(before):
    def on_rank(world):
        exact = config_for(PROBLEM, run={"reproducible": True})
        train(exact, world=world, **DATA)
        return world.reproducible

    assert run_ranks(2, on_rank, reproducible=before) == [before, before]


def test_the_world_is_as_it_was_after_an_error():
    world = SerialCommunicator()
    world.ledger.record("control", 3, 24, 24.0, 0.0)
    config = config_for(
        PROBLEM, run={"reproducible": True}, products={"kind": "no such"}
    )
    with pytest.raises(ConfigError):
        train(config, world=world, **DATA)
    assert not world.reproducible
    assert world.ledger.words("control") == 3


def test_damaged_memory_ends_a_run_whose_rate_is_open():
    """A lower rate would not help, and the user needs the sentence on the damage."""

    class Damages(Callback):
        def on_exchange(self, view):
            session.live.loaded.shard.matrix.values[3, 1] = float("nan")

    session = Session(
        RunSettings(config_for(PROBLEM, rate={"value": "auto"})),
        SerialCommunicator(),
        lambda _: MemoryReader(PROBLEM.X.copy(), PROBLEM.y),
        [Damages()],
        most_rates=3,
    )
    result = session.run()
    assert result.status is Status.DIVERGED
    assert result.report["rates_tried"] == 1
    assert "memory of rank 0" in result.report["damage"]
    assert "at row 3, column 1," in result.report["damage"]


class DiskFails(Callback):
    """From exchange `at` on no file becomes whole."""

    def __init__(self, at, monkeypatch):
        self.at, self.monkeypatch = at, monkeypatch

    def on_exchange(self, view):
        if view.exchanges == self.at:
            self.monkeypatch.setattr(os, "fsync", self.full)

    @staticmethod
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")


def on_a_disk_that_fails(folder, monkeypatch, at, **sections):
    config = config_for(PROBLEM, run={"out": str(folder)}, **sections)
    with monkeypatch.context() as patch:
        world = SerialCommunicator()
        fails = DiskFails(at, patch)
        return train(config, world=world, callbacks=[fails], **DATA)


@pytest.mark.parametrize("every", [0, 2])
def test_a_result_that_cannot_be_written_is_returned(
    every, tmp_path, monkeypatch, caplog
):
    whole = train_on(1, config_for(PROBLEM), PROBLEM)
    with caplog.at_level(logging.WARNING):
        result = on_a_disk_that_fails(
            tmp_path, monkeypatch, 9, checkpoint={"every": every}
        )
    assert result.status is Status.COMPLETED
    assert result.weights_sha256 == whole.weights_sha256
    said = result.report["unsaved"]
    assert str(tmp_path / "result.h5") in said
    assert "No space left on device" in said and "\n" not in said
    assert ("--resume auto" in said) == bool(every), "only where a checkpoint is"
    assert [r.message for r in caplog.records].count(said) == 1
    left = {"resolved.toml", "history.jsonl"} | ({"checkpoints"} if every else set())
    found = {p.name for p in tmp_path.iterdir()}
    assert found - {"checkpoints"} == left - {"checkpoints"}


def test_a_result_that_was_written_says_nothing(tmp_path):
    config = config_for(PROBLEM, run={"out": str(tmp_path)})
    assert "unsaved" not in train_on(1, config, PROBLEM).report


def test_every_rank_knows_that_the_result_is_not_on_disk(tmp_path, monkeypatch):
    """Their exit codes are one."""

    def on_rank(world):
        config = config_for(PROBLEM, run={"out": str(tmp_path)})
        callbacks = [DiskFails(9, monkeypatch)] if world.rank == 0 else []
        return train(config, world=world, callbacks=callbacks, **DATA)

    said = {r.report["unsaved"] for r in run_ranks(2, on_rank)}
    assert len(said) == 1 and "result.h5" in said.pop()


@pytest.mark.parametrize("name", ["result.json", "history.jsonl"])
def test_the_file_that_fails_is_the_one_that_is_named(name, tmp_path, monkeypatch):
    """And an older one that says something else does not stay."""
    replace = os.replace

    def failing(source, target):
        if os.path.basename(target) == name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        replace(source, target)

    class Breaks(Callback):
        def on_end(self, view):
            monkeypatch.setattr(os, "replace", failing)
            (tmp_path / name).write_text("of an earlier model")

    config = config_for(PROBLEM, run={"out": str(tmp_path)})
    world = SerialCommunicator()
    result = train(config, world=world, callbacks=[Breaks()], **DATA)
    assert str(tmp_path / name) in result.report["unsaved"]
    assert "result.h5" not in result.report["unsaved"]
    assert load_result(tmp_path).weights_sha256 == result.weights_sha256
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]
    if name == "result.json":
        assert not (tmp_path / name).exists()


def test_a_result_that_fails_leaves_the_earlier_pair(tmp_path, monkeypatch):
    """A run that was made longer: its old result still fits together."""
    sections = {"run": {"out": str(tmp_path), "resume": "auto"}}
    first = train_on(1, config_for(PROBLEM, **sections), PROBLEM)
    before = (tmp_path / "result.json").read_text()
    longer = config_for(
        PROBLEM, schedule={"batch": 4, "steps": 3, "epochs": 4}, **sections
    )
    with monkeypatch.context() as patch:
        fails, world = DiskFails(12, patch), SerialCommunicator()
        result = train(longer, world=world, callbacks=[fails], **DATA)
    assert "--resume auto" in result.report["unsaved"]
    assert load_result(tmp_path).weights_sha256 == first.weights_sha256
    assert (tmp_path / "result.json").read_text() == before


@pytest.mark.parametrize(
    "ranks, error", [(1, RuntimeError), (2, RuntimeError), (1, KeyboardInterrupt)]
)
def test_an_error_comes_after_what_was_handed_to_the_disk(
    tmp_path, monkeypatch, ranks, error
):
    """Whoever catches it may go on in the same program, from the newest state."""
    write, folder = CheckpointStore.write, tmp_path / "run"

    def slowly(store, checkpoint):
        time.sleep(0.3)
        return write(store, checkpoint)

    class Fails(Callback):
        def on_exchange(self, view):
            if view.exchanges == 5:
                raise error("mine")

    monkeypatch.setattr(CheckpointStore, "write", slowly)
    run = {"out": str(folder), "resume": "auto"}
    config = config_for(PROBLEM, checkpoint={"every": 4}, run=run)
    newest = {}

    def on_rank(world):
        failing = [Fails()] if world.rank == ranks - 1 else []
        try:
            train(config, world=world, callbacks=failing, **DATA)
        except (Exception, KeyboardInterrupt):
            newest[world.rank] = CheckpointStore(folder, 1).newest()
            raise

    with pytest.raises(error, match="mine"):
        run_ranks(ranks, on_rank)
    assert newest[0][1].exchanges == 4


def test_a_lower_rate_keeps_the_grid_of_the_ranks_that_are_left():
    """And its report is of the new attempt: a clock and a meter of its own."""
    tables = {"grid": {"replicas": 4, "members": 1}, "rate": {"value": "auto"}}
    config, world = RunConfig.parse(tables), SerialCommunicator()
    session = Session(RunSettings(config), world, None, [], most_rates=2)
    session.meter = object()
    clock = session.setup
    left = Leg(config).with_settings({"grid.replicas": 3})
    tried = config.with_values({"rate.value": 0.8})
    live = SimpleNamespace(config=tried, grid=SimpleNamespace(world=world))
    lower = session._leg_of_lower_rate(left, live)
    assert lower.config.grid.replicas == 3 and lower.rates_tried == 2
    assert lower.config.rate.value == pytest.approx(0.1)
    assert session.meter is None and session.setup is not clock
