"""One run at a time in a folder."""

import os
import socket
import subprocess
import sys

import pytest

from hpcsgd import files
from hpcsgd.errors import ConfigError
from hpcsgd.files import NAME, FolderLock, is_abandoned, user_of
from tests.helpers.limits import HANG


def test_the_second_is_told_who_has_it(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.take()
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on"):
        second.take()
    first.release()
    second.take()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_the_system_frees_it_with_the_process(tmp_path):
    code = (
        "import sys, os; from pathlib import Path\n"
        "from hpcsgd.files import FolderLock\n"
        "FolderLock(Path(sys.argv[1])).take(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False, timeout=HANG)
    assert (tmp_path / NAME).exists()
    assert is_abandoned(tmp_path) and user_of(tmp_path) == ""
    lock = FolderLock(tmp_path)
    lock.take()
    assert not is_abandoned(tmp_path) and user_of(tmp_path).startswith("process ")
    lock.release()
    assert not is_abandoned(tmp_path)


@pytest.mark.parametrize(
    "owner",
    [
        f"process {os.getpid()} on {socket.gethostname()}",  # it has no lock, and lives
        "process 1 on another-machine",
        f"process 0 on {socket.gethostname()}",
        "another run",
    ],
    ids=["a process without its lock", "another host", "no process", "no name"],
)
def test_a_folder_is_not_abandoned_where_that_cannot_be_known(tmp_path, owner):
    (tmp_path / NAME).write_text(owner + "\n")
    assert not is_abandoned(tmp_path)


def test_a_file_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Between our open and our lock the run before us has ended and tidied up."""
    flock, calls = files.fcntl.flock, []

    def slow(file, how):
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / NAME).unlink()
        flock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", slow)
    lock, other = FolderLock(tmp_path), FolderLock(tmp_path)
    lock.take()
    assert len(calls) == 2
    with pytest.raises(ConfigError):
        other.take()
    lock.release()


def test_a_file_system_without_locks_is_no_reason_to_fail(tmp_path, monkeypatch):
    def none(file, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", none)
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()
