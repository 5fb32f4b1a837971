"""`hpcsgd evaluate` from a process, alone and on real ranks."""

import h5py
import pytest

import hpcsgd
from tests.cli.models import train_into
from tests.helpers.command_line import only_json, refuse


@pytest.mark.parametrize("family", ["softmax", "squared-hinge", "gamma"])
def test_the_loss_is_that_of_training(command, tmp_path, family):
    _, result = train_into(tmp_path, family)
    for model in ("run", "run/result.h5"):
        said = only_json(command("evaluate", model, "d.h5", "--json"))
        assert said["objective"] == pytest.approx(result.loss, rel=1e-12)
        assert said["rows"] == 53 and said["family"] == family
        assert ("accuracy" in said) == (family != "gamma")
        assert ("r2" in said and "mean_deviance" in said) == (family == "gamma")


def test_a_person_reads_a_table(command, tmp_path):
    problem, result = train_into(tmp_path, "softmax")
    done = command("evaluate", "run", "d.h5")
    assert done.returncode == 0 and done.stderr == ""
    figures = hpcsgd.evaluate(
        result, problem.X, problem.y, problem.weights, problem.offset
    )
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines()[:-4])
    assert float(lines["objective"]) == pytest.approx(result.loss, rel=1e-9)
    assert int(lines["errors"]) == figures["errors"]
    labels = [line.split()[:3] for line in done.stdout.splitlines()[-4:]]
    wrong = [str(entry["errors"]) for entry in figures["errors_by_label"].values()]
    assert labels == [["label", str(k), n] for k, n in enumerate(wrong)]


def test_real_ranks_give_the_same_figures(command, tmp_path):
    train_into(tmp_path, "softmax")
    alone = only_json(command("evaluate", "run", "d.h5", "--json"))
    shared = only_json(command("evaluate", "run", "d.h5", "--json", "--ranks", 3))
    assert shared.keys() == alone.keys()
    assert (shared.pop("ranks"), alone.pop("ranks")) == (3, 1)
    for key, value in alone.items():
        same = pytest.approx(value, rel=1e-13) if isinstance(value, float) else value
        assert shared[key] == same, key


def test_wrong_input_is_one_sentence(command, tmp_path):
    problem, _ = train_into(tmp_path, "logistic")

    def change(**columns):
        with h5py.File(tmp_path / "d.h5", "a") as file:
            for name, values in columns.items():
                del file[name]
                file[name] = values

    refuse(command("evaluate", "no", "d.h5"), 2, "no does not exist")
    refuse(command("evaluate", "d.h5", "d.h5"), 2, "not a result")
    refuse(command("evaluate", "run", "no.h5"), 2, "no.h5 does not exist")
    refuse(command("evaluate", "run"), 2, "DATA", "--help")
    change(y=problem.y + 7)
    done = command("evaluate", "run", "d.h5", "--ranks", 2)
    refuse(done, 2, "row", "labels 0, 1 only")
    change(y=problem.y, X=problem.X[:, :5])
    refuse(command("evaluate", "run", "d.h5"), 2, "5 columns", "trained on 7")
    with h5py.File(tmp_path / "d.h5", "a") as file:
        del file["y"]
        file["X"][...] = 0
    refuse(command("evaluate", "run", "d.h5"), 2, "columns")


def test_only_the_last_rank_sees_the_fault(command, tmp_path):
    """It is said once, with its row, and nobody hangs."""
    problem, _ = train_into(tmp_path, "logistic")
    with h5py.File(tmp_path / "d.h5", "a") as file:
        file["X"][52, 3] = float("nan")
    done = command("evaluate", "run", "d.h5", "--ranks", 2)
    refuse(done, 2, "row 52", "column 3")
    with h5py.File(tmp_path / "d.h5", "a") as file:
        del file["y"]
    refuse(command("evaluate", "run", "d.h5"), 2, "has no /y")
