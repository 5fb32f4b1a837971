"""What a command ends with when its folder does not take what it has to keep."""

import json

import pytest

from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.result import load_result


@pytest.fixture
def train(hpcsgd, susy):
    """`hpcsgd train` into run/, with more flags."""

    def run(*flags):
        return hpcsgd(
            *("train", "--data", susy, "--out", "run", "--resume", "auto"),
            *("--batch", 32, "--steps", 4, "--json", *flags),
        )

    return run


def said(process):
    """The sentences on standard error that are no news of progress."""
    return [s for s in process.stderr.splitlines() if "cannot be written" in s]


@pytest.mark.cases(1)
@pytest.mark.parametrize("more", [(), ("--quiet",), ("--ranks", 2)])
def test_a_result_that_cannot_be_written_is_one_sentence_and_code_1(
    more, train, tmp_path
):
    first = train("--epochs", 1)
    assert first.returncode == 0
    result = tmp_path / "run" / "result.h5"
    result.unlink()
    result.mkdir()  # root, too, cannot put a file there
    (result / "something").touch()
    before = {path.name for path in result.parent.iterdir()}
    done = train("--epochs", 2, *more)
    assert done.returncode == 1
    (sentence,) = said(done)
    assert "run/result.h5 cannot be written (Is a directory)" in sentence
    assert "--resume auto" in sentence and "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "completed" and document["unsaved"] in sentence
    assert {path.name for path in result.parent.iterdir()} == before
    (result / "something").unlink()
    result.rmdir()
    again = train("--epochs", 2, *more)
    assert again.returncode == 0 and not said(again)
    found = load_result(tmp_path / "run")
    assert found.weights_sha256 == document["weights_sha256"]


def test_checkpoints_that_are_all_damaged_are_refused_every_time(train, tmp_path):
    assert train("--epochs", 1).returncode == 0
    (path,) = CheckpointStore(tmp_path / "run", 2).paths()
    path.write_bytes(path.read_bytes()[:-1])
    for _ in range(2):
        done = train("--epochs", 2)
        assert done.returncode == 2 and not done.stdout
        assert "none of the 1 checkpoints" in done.stderr
        assert "--resume no" in done.stderr
    assert train("--epochs", 2, "--resume", "no").returncode == 0
    assert (tmp_path / "run" / "earlier-1" / "checkpoints" / path.name).exists()


def test_going_on_from_elsewhere_puts_the_run_of_the_folder_aside(
    train, tmp_path, hpcsgd
):
    assert train("--epochs", 1).returncode == 0
    other = train("--epochs", 1, "--out", "other", "--resume", "no", "--seed", 3)
    assert other.returncode == 0
    before = load_result(tmp_path / "other").weights_sha256
    done = train("--epochs", 2, "--out", "other", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert load_result(tmp_path / "other" / "earlier-1").weights_sha256 == before
    assert (
        load_result(tmp_path / "run").exchanges < json.loads(done.stdout)["exchanges"]
    )
