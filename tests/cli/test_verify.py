"""`hpcsgd verify` from a process: the table, the document, the exit codes."""

import json
import shutil

import h5py
import pytest

from hpcsgd.runs.result import load_result
from tests.helpers.command_line import only_json


def trained(hpcsgd, susy, tmp_path, *more):
    shutil.copy(susy, tmp_path / "d.h5")
    command = ("train", "--data", "d.h5", "--out", "run", "--batch", 32, "--steps", 4)
    done = hpcsgd(*command, *more)
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


def test_a_good_run_on_real_ranks(hpcsgd, susy, tmp_path):
    folder = trained(hpcsgd, susy, tmp_path, "--ranks", 2, "--products", "gram")
    said = only_json(hpcsgd("verify", "run", "--json"))
    assert said["verified"] and all(check["ok"] for check in said["checks"])
    assert json.loads((folder / "verification.json").read_text()) == said
    again = only_json(hpcsgd(*said["command"].split()[1:], "--json"))
    assert again == said
    table = hpcsgd("verify", "run", "--exchanges", 1, "--seed", 1)
    assert table.returncode == 0 and table.stdout.count("exchange ") == 1


def test_a_failed_check_is_named(hpcsgd, susy, tmp_path):
    folder = trained(hpcsgd, susy, tmp_path)
    result = load_result(folder)
    result.ledger["products"]["calls"] += 1
    result.save(folder)
    done = hpcsgd("verify", "run")
    assert done.returncode == 1
    assert "does not hold: traffic" in done.stderr and "FAILS" in done.stdout


def test_what_cannot_be_decided_has_an_exit_code_of_its_own(hpcsgd, susy, tmp_path):
    trained(hpcsgd, susy, tmp_path, "--precision", "bf16")
    done = hpcsgd("verify", "run")
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert "verify: cannot decide: exchange " in done.stderr
    assert "UNDECIDED" in done.stdout and "--precision fp32" in done.stdout


def test_bad_input_is_one_sentence(hpcsgd, susy, tmp_path):
    trained(hpcsgd, susy, tmp_path)
    with h5py.File(tmp_path / "d.h5", "a") as file:
        file["X"][3, 2] += 1
    damaged = hpcsgd("verify", "run")
    other = ("--rows", 2000, "--seed", 9, "--out", "d.h5")
    assert hpcsgd("data", "synth", "--shape", "susy", *other).returncode == 0
    changed = hpcsgd("verify", "run")
    (tmp_path / "d.h5").unlink()
    missing = hpcsgd("verify", "run")
    (tmp_path / "run" / "exchanges.h5").unlink()
    unrecorded = hpcsgd("verify", "run")
    said = (
        (damaged, "differs from its checksum"),
        (changed, "not what"),
        (missing, "does not exist"),
        (unrecorded, "--record"),
    )
    for done, words in said:
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.full
def test_agreed_gradients_on_real_ranks(hpcsgd, susy, tmp_path):
    """Replayed whole, and of a codec what can be; a ledger off by a word is found."""
    shutil.copy(susy, tmp_path / "d.h5")
    command = ("train", "--data", "d.h5", "--batch", 32, "--grid", "2x1", "--ranks", 2)
    for method, left_out in (("ddp", []), ("sign", ["exchange"])):
        done = hpcsgd(*command, "--out", method, "--method", method)
        assert done.returncode == 0, done.stderr
        said = only_json(hpcsgd("verify", method, "--json"))
        skipped = {name.split()[0] for name in said["not_checked"]}
        assert said["verified"] and sorted(skipped) == left_out
    result = load_result(tmp_path / "ddp")
    result.ledger["agreement"]["words"] += 1
    result.save(tmp_path / "ddp")
    done = hpcsgd("verify", "ddp")
    assert done.returncode == 1 and "does not hold: traffic" in done.stderr
