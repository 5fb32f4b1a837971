"""Files appear whole or not at all, and are nobody else's until they do."""

import errno
import os
import stat

import numpy as np
import pytest

from hpcsgd.files import UMASK, replace_file, write_text


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_private_until_it_has_its_name(tmp_path, monkeypatch):
    seen = []
    fsync = os.fsync

    def look(number):
        seen.append((stat.S_IMODE(os.fstat(number).st_mode), os.listdir(tmp_path)))
        fsync(number)

    monkeypatch.setattr(os, "fchmod", lambda number, wanted: None)
    monkeypatch.setattr(os, "fsync", look)
    write_text(tmp_path / "a", "text")
    (found, names), *_ = seen
    assert found == 0o600
    assert [name[:3] for name in names] == [".a."]


def test_then_it_is_what_the_user_wants_new_files_to_be(tmp_path):
    write_text(tmp_path / "a", "text")
    assert mode(tmp_path / "a") == 0o666 & ~UMASK
    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize("ending", [".npy", ".csv", ".h5"])
def test_predictions_are_private_until_they_are_whole(ending, tmp_path):
    from hpcsgd.data.writers import open_writer

    path = tmp_path / f"p{ending}"
    with open_writer(path, 3, ["mean"], {}) as writer:
        writer.append(np.ones(3))
        (part,) = tmp_path.iterdir()
        assert mode(part) == 0o600
    assert mode(path) == 0o666 & ~UMASK


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    planted = tmp_path / f".a.{os.getpid()}.part"
    planted.symlink_to(victim)
    replace_file(tmp_path / "a", b"x", b"y")
    assert victim.read_text() == "mine"
    assert (tmp_path / "a").read_bytes() == b"xy"


def test_a_name_that_cannot_be_opened_anew_is_refused(tmp_path, monkeypatch):
    """Somebody is quicker than the removal of what was there."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".a.{os.getpid()}.part").symlink_to(victim)
    monkeypatch.setattr(type(tmp_path), "unlink", lambda self, missing_ok=False: None)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "a", b"x")
    assert victim.read_text() == "mine"


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "old")

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]
