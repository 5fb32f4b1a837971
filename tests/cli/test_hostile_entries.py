"""Run folders in which somebody else has put links, pipes, devices, folders, sockets.

Nothing is read without end, waited for, or written through; a sentence says what is
wrong, or the entry is passed over where it is not needed.
"""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hpcsgd.errors import DataError
from hpcsgd.files import (
    CREATE,
    HEADER_BYTES,
    Irregular,
    open_entry,
    own_folder,
    read_entry,
    read_sealed,
)
from tests.cli.hostile import ENTRIES, IN_PLACE_OF_FOLDERS, SECONDS, plant
from tests.helpers.command_line import only_json


@pytest.fixture(scope="module")
def made(tmp_path_factory, forge, susy):
    """A finished run folder beside its data, trained once."""
    home = tmp_path_factory.mktemp("made")
    shutil.copy(susy, home / "d.h5")
    words = ["train", "--data", "d.h5", "--out", "run", "--batch", "32"]
    words += ["--steps", "4", "--checkpoint-every", "8"]
    assert forge.run(words, home, home / "out", home / "err", SECONDS) == 0
    return home


@pytest.fixture
def run(made, tmp_path):
    for name in ("d.h5", "run"):
        copy = shutil.copytree if name == "run" else shutil.copy
        copy(made / name, tmp_path / name)
    return tmp_path / "run"


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_is_opened_as_a_regular_file_alone(entry, tmp_path, elsewhere):
    path = tmp_path / "entry"
    plant(entry, path, elsewhere)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
        with pytest.raises(OSError):
            os.close(open_entry(path, flags))
    with pytest.raises(OSError):
        read_entry(path)


def test_a_file_of_another_user_is_read_and_not_written(tmp_path, monkeypatch):
    path = tmp_path / "entry"
    path.write_text("theirs")
    assert read_entry(path) == b"theirs"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    os.close(open_entry(path, os.O_RDWR))  # the owner of the folder has it
    own = os.fstat
    other = lambda number: SimpleNamespace(  # noqa: E731
        st_mode=own(number).st_mode, st_uid=os.getuid() + 2
    )
    monkeypatch.setattr(os, "fstat", other)
    with pytest.raises(Irregular, match="another user"):
        open_entry(path, CREATE)
    monkeypatch.undo()
    assert read_entry(path) == b"theirs"


def test_a_checkpoint_that_claims_more_than_memory_is_not_read(tmp_path):
    path = tmp_path / "000001-exchange-000000010.h5"
    header = f"hpcsgd checkpoint 1\nbytes 100\nsha256 {'0' * 64}\n"
    path.write_bytes(header.encode().ljust(HEADER_BYTES))
    os.truncate(path, 2**42)
    with pytest.raises(DataError, match="of 100 bytes"):
        read_sealed(path, "checkpoint", 1)


@pytest.mark.cases(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_checkpoint_that_is_none_is_named(hpcsgd, run, elsewhere, entry):
    newest = sorted((run / "checkpoints").iterdir())[-1]
    plant(entry, newest, elsewhere)
    words = ("--data", "d.h5", "--out", "run", "--batch", 32, "--steps", 4)
    done = hpcsgd("train", *words, "--resume", "auto", timeout=SECONDS)
    assert done.returncode == 2 and newest.name in done.stderr, done.stderr
    assert "cannot be read" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify", "evaluate"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_result_that_is_none_is_named(hpcsgd, run, elsewhere, entry, command):
    plant(entry, run / "result.h5", elsewhere)
    more = ("d.h5",) if command == "evaluate" else ()
    done = hpcsgd(command, "run", *more, timeout=SECONDS)
    assert "Traceback" not in done.stderr
    if done.returncode == 0:  # inspect: there is no result yet
        assert "unfinished" in done.stdout
    else:
        assert "result.h5" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["result.json", "exchanges.h5", "resolved.toml"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_other_files_of_a_run_are_not_followed(hpcsgd, run, elsewhere, entry, name):
    plant(entry, run / name, elsewhere)
    for command in ("inspect", "verify"):
        done = hpcsgd(command, "run", timeout=SECONDS)
        assert "Traceback" not in done.stderr and "precious" not in done.stdout


def test_documents_that_are_nested_too_deeply_are_no_traceback(hpcsgd, run):
    for name in ("result.json", "history.jsonl"):
        (run / name).write_text("[" * 100000)
    for command in (("inspect", "run"), ("verify", "run"), ("report", "run")):
        done = hpcsgd(*command, timeout=SECONDS)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or "result.json" in done.stderr
    (run / "result.h5").unlink()
    done = hpcsgd("inspect", "run", timeout=SECONDS)
    assert done.returncode == 0 and "unfinished" in done.stdout, done.stderr


@pytest.mark.cases(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_history_or_a_lock_that_is_none_is_not_written(
    hpcsgd, tmp_path, susy, elsewhere, entry
):
    """The history is left out with a warning, the lock refuses the folder."""
    shutil.copy(susy, tmp_path / "d.h5")
    words = ("train", "--data", "d.h5", "--batch", 32, "--json")
    for name, code in (("history.jsonl", None), (".in-use", 2)):
        out = tmp_path / f"out{name}"
        out.mkdir()
        plant(entry, out / name, elsewhere)
        done = hpcsgd(*words, "--out", out, timeout=SECONDS)
        assert "Traceback" not in done.stderr, done.stderr
        assert code in (None, done.returncode), done.stderr
        if code is None:
            assert only_json(done)["status"] == "completed"


def test_a_folder_that_is_a_link_is_a_folder(hpcsgd, run, tmp_path):
    """Users link to scratch file systems."""
    (tmp_path / "scratch").mkdir()
    shutil.move(run, tmp_path / "scratch" / "run")
    run.symlink_to(tmp_path / "scratch" / "run")
    assert hpcsgd("verify", "run").returncode == 0
    link = tmp_path / "latest.h5"
    link.symlink_to(run / "result.h5")
    done = hpcsgd("evaluate", "latest.h5", "d.h5", "--json")
    assert only_json(done)["rows"] == 2000


BECOMES = {
    "a-file": 'shutil.rmtree("again"); open("again", "w").close()',
    "nothing": 'shutil.rmtree("again")',
}


@pytest.mark.parametrize("change", BECOMES)
def test_a_run_folder_that_is_lost_leaves_the_result_on_standard_output(
    hpcsgd, tmp_path, susy, change
):
    """The model is there, and a disk must not take it away."""
    shutil.copy(susy, tmp_path / "d.h5")
    (tmp_path / "swap.py").write_text(SWAP.format(change=BECOMES[change]))
    done = hpcsgd("train", "--data", "d.h5", "--out", "run", "--batch", 8, "--json")
    assert done.returncode == 0, done.stderr
    swapped = subprocess.run(
        [sys.executable, "swap.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert swapped.returncode == 1, swapped.stderr
    assert "Traceback" not in swapped.stderr, swapped.stderr
    same = json.loads(done.stdout)["weights_sha256"]
    assert json.loads(swapped.stdout)["weights_sha256"] == same
    last = swapped.stderr.splitlines()[-1]
    assert "result.h5 cannot be written" in last and "its folder was removed" in last
    assert "train again" in last
    assert not (tmp_path / "again").is_dir()


SWAP = """
import os, shutil, sys
from hpcsgd.runs.progress import Callback
from hpcsgd.cli import main, train

class Swap(Callback):
    def on_exchange(self, view):
        if view.exchanges == 5 and os.path.isdir("again"):
            {change}

before = train.progress
train.progress = lambda arguments: [*before(arguments), Swap()]
words = ["train", "--data", "d.h5", "--out", "again", "--batch", "8", "--json"]
sys.exit(main([*words, "--checkpoint-every", "50"]))
"""


@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
def test_a_subfolder_is_entered_as_a_folder_alone(tmp_path, outside, plant_at):
    run = tmp_path / "run"
    run.mkdir()
    assert own_folder(run, "a", "b") == run / "a" / "b" and not (run / "a").exists()
    assert own_folder(run, "a", "b", make=True).is_dir()
    plant_at(run / "c", outside)
    for names in (("c",), ("c", "d")):
        for make in (False, True):
            with pytest.raises(Irregular):
                own_folder(run, *names, make=make)


def test_a_subfolder_does_not_bring_its_folder_back(tmp_path):
    with pytest.raises(FileNotFoundError):
        own_folder(tmp_path / "gone", "a", make=True)
    assert not (tmp_path / "gone").exists()


@pytest.mark.cases(2)
@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
def test_checkpoints_are_kept_in_no_other_folder(hpcsgd, run, outside, plant_at):
    """A run that begins puts the entry aside; one that goes on names it."""
    shutil.rmtree(run / "checkpoints")
    plant_at(run / "checkpoints", outside)
    words = ("--data", "d.h5", "--out", "run", "--batch", 32, "--steps", 4)
    done = hpcsgd("train", *words, "--resume", "auto", timeout=SECONDS)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "checkpoints cannot be read (it is " in done.stderr
    done = hpcsgd("train", *words, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert not (run / "checkpoints").is_symlink()
    assert sorted((run / "checkpoints").iterdir())


def test_checkpoints_that_become_a_link_are_not_written_through(
    tmp_path, susy, outside
):
    shutil.copy(susy, tmp_path / "d.h5")
    change = 'os.symlink("../outside", "again/checkpoints")'  # ahead of the first one
    (tmp_path / "swap.py").write_text(SWAP.format(change=change))
    swapped = subprocess.run(
        [sys.executable, "swap.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert json.loads(swapped.stdout)["status"] == "completed", swapped.stderr
    assert "Traceback" not in swapped.stderr
    assert "it is a symbolic link, which is not followed" in swapped.stderr


@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
@pytest.mark.parametrize("name", ["tiles", "tiles/000001", "tiles/000001/r0c0"])
def test_states_are_kept_in_no_other_folder(
    hpcsgd, tmp_path, susy, outside, name, plant_at
):
    shutil.copy(susy, tmp_path / "d.h5")
    words = ("--data", "d.h5", "--out", "run", "--batch", 32, "--steps", 1)
    words += ("--agreement", "infinity")
    assert hpcsgd("train", *words, timeout=SECONDS).returncode == 0
    shutil.rmtree(tmp_path / "run" / name)
    plant_at(tmp_path / "run" / name, outside)
    words += ("--resume", "auto", "--epochs", 4)
    done = hpcsgd("train", *words, timeout=SECONDS)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert name.rpartition("/")[2] in done.stderr, done.stderr


@pytest.mark.cases(2)
@pytest.mark.parametrize("plant_at", IN_PLACE_OF_FOLDERS)
def test_the_best_model_of_a_sweep_is_kept_in_no_other_folder(
    tmp_path, outside, plant_at, susy
):
    from hpcsgd import sweep
    from hpcsgd.runs.result import UnsavedFile

    found = sweep({"data": {"path": str(susy)}}, rate=[0.1, 0.01])
    out = tmp_path / "saved"
    out.mkdir()
    plant_at(out / "best", outside)
    with pytest.raises(UnsavedFile, match="best cannot be written"):
        found.save(out)
