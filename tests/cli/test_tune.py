"""`hpcsgd tune` on tiny data: it ends in time, and train takes what it wrote."""

import json
import subprocess
import sys

import pytest

from hpcsgd.cli import main
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.config import RunConfig, read_toml
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.runs.machine import parse_hardware
from hpcsgd.tuning import tuner
from hpcsgd.tuning.timed_exchanges import LEAST, TimeBudget
from hpcsgd.tuning.tuner import (
    BATCHES,
    PROBED,
    TimedRows,
    TuningQuestion,
    open_candidate_group,
    parse_batches,
    probing_steps,
)
from tests.helpers.launcher import launch_environment

# A product that stores batches, in an order of rows without batches that come again.
NEW_BATCHES = ("--products", "cached", "--sampling", "reshuffle")
KERNELS = ("read", "again", "gram")  # whose rates are reported


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "tiny.h5"
    write_synthetic(path, "synth", 600, 24)
    return path


def hpcsgd(*arguments, limit=60):
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "hpcsgd", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit,
        env=launch_environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_rank_from_data_to_a_trained_model(data, tmp_path):
    tuned, machine = tmp_path / "tuned.toml", tmp_path / "here.toml"
    asked = ["tune", "--data", data, "--seconds", 2, "--batch", 16, "--json"]
    files = ["--out", tuned, "--write-machine", machine]
    found = json.loads(hpcsgd(*asked, *files))
    chosen, best = found["chosen"], found["best"]
    assert 1 <= len(best) <= 5 and chosen == best[0]
    assert all(row["predicted"] > 0 and row["measured"] > 0 for row in best)
    assert sorted(row["measured"] for row in best) == [r["measured"] for r in best]
    assert found["recipes"][chosen["recipe"]] <= found["tolerance"]
    config = RunConfig.parse(read_toml(tuned))
    assert config.schedule.steps == chosen["steps"] and config.schedule.batch == 16
    assert config.products.kind == chosen["product"] == "direct"
    assert config.precision.recipe == chosen["recipe"]
    result = json.loads(hpcsgd("train", tuned, "--json", "--quiet"))
    assert result["schedule"]["steps"] == chosen["steps"]
    assert result["status"] == "completed" and result["products"] == "direct"
    hardware = parse_hardware(read_toml(machine), "here")
    assert hardware.name == "here" and hardware.levels == ()


@pytest.mark.full
@pytest.mark.ranks(2)
def test_two_ranks_choose_alike(data, tmp_path):
    """What is open on real ranks: product, s, the recipe; all ranks end together."""
    from hpcsgd.comm import open_world

    world = open_world()
    tables = {
        "data": {"path": str(data)},
        "schedule": {"batch": 8, "steps": "auto", "epochs": 3},
        "run": {"network": "alpha=2e-4,bandwidth=1e9"},
    }
    # Ranks that started one after the other have not as much time left: one counts.
    asked = TuningQuestion(RunConfig.parse(tables), (8,), 2.0 - 0.9 * world.rank)
    found = tuner.tune(asked, world)
    said = world.exchange_objects([repr(one) for one in found.best])
    assert said[0] == said[1]
    assert found.chosen.grid == (1, 2) and found.considered > 10
    (group,) = (g for g in found.groups if g.recipe == "fp32")
    members = group.figures.directions[0]
    assert members.latency > 1.5e-4, "the network is felt"
    # Behind such a network nobody sends a message in every step.
    assert found.chosen.setting.product != "direct"


def test_two_ranks_end_to_end(data, tmp_path):
    """Both numbers of ranks, one file, and the run that it describes."""
    tuned = tmp_path / "tuned.toml"
    shown = hpcsgd(
        *("tune", "--data", data, "--ranks", "1,2", "--seconds", 4),
        *("--batch", 16, "--precision", "fp32", "--out", tuned),
    )
    assert "predicted" in shown and "measured" in shown and "1x2" in shown
    line = shown.strip().splitlines()[-1]
    assert line.startswith(f"hpcsgd train {tuned}") and line.endswith("runs it")
    command = line.removesuffix(" runs it").split()[1:]
    assert json.loads(hpcsgd(*command, "--json"))["status"] == "completed"


def test_batches_are_compared_by_what_is_learnt(data, tmp_path):
    """Each is run to the same loss; the penalty is what was seen, 1 for the first."""
    asked = ["tune", "--data", data, "--batch", "8,64", "--json"]
    asked += ["--rate", 0.2, "--precision", "fp32", "--seconds"]
    for seconds in (2, 20, 100):  # a busy machine has no time for the second batch
        found = json.loads(hpcsgd(*asked, seconds))
        first, *others = found["learning"]
        if others:
            break
    assert first["batch"] == 8 and first["penalty"] == 1.0 and others
    row = found["chosen"]
    (own,) = [
        w
        for w in found["learning"]
        if (w["batch"], w["rate"]) == (row["batch"], row["rate"])
    ]
    score = row["measured"] / row["batch"] * own["penalty"]
    assert row["seconds_per_row"] == pytest.approx(score)


class FakeResult:
    """A run with a known curve."""

    def __init__(self, losses):
        self.history = [{"epoch": i, "loss": loss} for i, loss in enumerate(losses)]
        self.status, self.loss = None, losses[-1]
        self.config = {"schedule": {"batch": 8}, "rate": {"value": 0.1}}


def test_rows_to_a_loss_lie_between_looks():
    curve = FakeResult([1.0, 0.5, 0.25, 0.125])
    assert tuner.rows_to(curve, 0.25) == pytest.approx(2.0)
    assert tuner.rows_to(curve, 0.25 * 2**0.5) == pytest.approx(1.5)
    assert tuner.rows_to(curve, 0.1) == float("inf")


def test_penalties_are_rows_over_those_of_the_first(monkeypatch):
    """Planted curves: the goal is the first's loss of epoch 3; the second needs 4.5
    epochs for it, the third never gets there.
    """
    curves = {
        8: [1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64],
        16: [2 ** (-i / 1.5) for i in range(7)],
        32: [1.0] * 7,
    }
    ways = [tuner.LearningSetting(batch, 0.1) for batch in curves]
    monkeypatch.setattr(
        tuner, "learning_run", lambda c, s, way: FakeResult(curves[way.batch])
    )
    found = tuner.learn(RunConfig(), None, ways, 9.0)
    assert [one.penalty for one in found] == pytest.approx([1.0, 1.5, float("inf")])
    (only,) = tuner.learn(RunConfig(), None, ways, -9.0)
    assert only.way == ways[0], "without time, the first alone"


def test_a_loss_that_does_not_fall_is_no_goal(monkeypatch):
    monkeypatch.setattr(tuner, "learning_run", lambda *_: FakeResult([1.0] * 7))
    with pytest.raises(tuner.ConfigError, match="does not fall"):
        tuner.learn(RunConfig(), None, [tuner.LearningSetting(8, 0.1)] * 2, 9.0)


def test_what_is_probed_is_among_what_may_run():
    assert probing_steps(16, 10**6, 2048) == list(PROBED)
    assert probing_steps(32, 200, 2048) == [2, 6]
    assert probing_steps(100, 100, 2048) == [1]
    assert parse_batches("auto") == BATCHES and parse_batches("32,8,8") == (8, 32)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "no data"),
        (["--data", "DATA", "--ranks", "two"], "--ranks two"),
        (["--data", "DATA", "--ranks", "0"], "--ranks 0"),
        (["--data", "DATA", "--batch", "many"], "--batch many"),
        (["--data", "DATA", "--batch", "8,-1"], "--batch 8,-1"),
        (["--data", "DATA", "--seconds", "0.1"], "--seconds 0.1"),
        (["--data", "DATA", "--out", "/nowhere/at/all.toml"], "does not exist"),
        (["--data", "DATA", "--device", "cuda"], "it measures CPUs"),
        (["--data", "DATA", "--emulate-members", "4"], "study predict"),
        (["--data", "missing.h5"], "missing.h5"),
        (["--data", "DATA", "--method", "ddp"], "--setting 'b: method=ddp batch=32 ag"),
        (["--data", "DATA", "--method", "zero2"], "be used with --method zero2"),
        (["--data", "DATA", "--agreement", "slowmo"], "'a: agreement=slowmo batch=16'"),
        (["--data", "DATA", "--set", "codec.share=0.5"], "[codec] share = 0.5"),
        (["--data", "DATA", *NEW_BATCHES], "needs batches that come again"),
    ],
)
def test_wrong_questions_are_one_sentence(arguments, said, data, capsys):
    words = [str(data) if word == "DATA" else word for word in arguments]
    assert main(["tune", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error


def test_a_file_is_there_whole_or_not_at_all(data, tmp_path, monkeypatch):
    """What was there before stays, should the tuner fail in the middle."""
    tuned = tmp_path / "tuned.toml"
    tuned.write_text("before")

    def fails(*_):
        raise tuner.ConfigError("planted; mend it")

    monkeypatch.setattr(tuner, "time_best_candidates", fails)
    asked = ["tune", "--data", str(data), "--seconds", "1", "--out", str(tuned)]
    assert main(asked) == 2 and tuned.read_text() == "before"
    assert list(tmp_path.iterdir()) == [tuned]


def test_time_that_is_over_is_not_spent():
    """By a clock of our own: a budget says what is left, and never less than none."""
    now = iter([100.0, 101.0, 104.0, 111.0])
    budget = TimeBudget(SerialCommunicator(), 10.0, clock=lambda: next(now))
    assert budget.spent == 1.0
    assert budget.until(0.5) == 1.0  # of 5 seconds, 4 are gone
    assert budget.until(1.0) == 0.0


def test_figures_of_a_grid_are_the_same_on_all_ranks(data):
    """Members of one replica sum faster than those of another; all have to choose
    alike.
    """
    config = RunConfig.parse({"data": {"path": str(data)}, "schedule": {"batch": 8}})
    question, rows = TuningQuestion(config, (8,)), TimedRows(600, 600, 1e9)

    def on_rank(world):
        budget = TimeBudget(world, 2.0)
        group = open_candidate_group(question, (2, 2), "fp32", world, rows, budget, 0.5)
        group.stage.close()
        return group.figures

    first, *others = run_ranks(4, on_rank)
    assert others == [first] * 3 and first.machine.latency > 0.0


def test_a_fit_without_time_takes_one_burst_and_ends(data):
    """The first of its probes, and none of the others, once; then it has a model. The
    goal of the run is none of what is timed.
    """
    config = RunConfig.parse(
        {
            "data": {"path": str(data)},
            "schedule": {"steps": "auto", "batch": 8},
            "stop": {"on": "loss"},
        }
    )
    question, world = TuningQuestion(config, (8,)), SerialCommunicator()
    over = TimeBudget(world, 1.0, clock=iter(range(0, 10**6, 10)).__next__)
    rows = TimedRows(600, 600, 1e9)
    group = open_candidate_group(question, (1, 1), "fp32", world, rows, over, 0.5)
    assert [rate["kernel"] for rate in group.figures.kernels] == [*KERNELS]
    group.fit(question, [8], over, 0.9)
    (burst,) = group.bursts
    assert burst.setting.product == "direct" and burst.exchanges >= LEAST
    assert list(group.model.machines) == ["direct"]
    group.stage.close()
