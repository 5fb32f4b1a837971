"""What dead ranks of a Slurm job left in memory is removed, and nothing else."""

import mmap
import os
import subprocess
import sys
import time

import pytest

from hpcsgd.comm.leftovers import remove_leftovers

UNDER_SLURM = {"SLURM_PROCID": "0"}


@pytest.fixture
def made(tmp_path):
    """A segment, one of another program, and a name that merely looks alike."""
    for name in ("mpich_shm_1f_0", "ucx_shm_1", "not_mpich_shm_1"):
        (tmp_path / name).write_bytes(bytes(4096))
    return tmp_path


def left(folder):
    return {path.name for path in folder.iterdir()}


def test_those_of_an_earlier_start_go(made):
    removed = remove_leftovers(UNDER_SLURM, made, began=time.time() + 60)
    assert [path.name for path in removed] == ["mpich_shm_1f_0"]
    assert left(made) == {"ucx_shm_1", "not_mpich_shm_1"}


def test_those_of_this_step_stay(made):
    """A rank that was faster has made its own after this process began."""
    assert remove_leftovers(UNDER_SLURM, made) == []
    assert "mpich_shm_1f_0" in left(made)


def test_this_process_began_when_it_did(made):
    """Made before the process: found to be old. Made since: not."""
    code = (
        "import pathlib, sys, time\n"
        "from hpcsgd.comm.leftovers import remove_leftovers\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / 'mpich_shm_2_0').write_bytes(b'new')\n"
        "print(*(p.name for p in remove_leftovers({'SLURM_PROCID': '1'}, folder)))"
    )
    time.sleep(0.1)  # more than the clocks of files and processes differ by
    said = subprocess.run(
        [sys.executable, "-c", code, str(made)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert said.split() == ["mpich_shm_1f_0"] and "mpich_shm_2_0" in left(made)


def test_those_of_another_job_stay(made):
    """Whatever its age: some process has it in its memory."""
    with open(made / "mpich_shm_1f_0", "r+b") as file, mmap.mmap(file.fileno(), 0):
        assert remove_leftovers(UNDER_SLURM, made, began=time.time() + 60) == []
    assert "mpich_shm_1f_0" in left(made)


def test_elsewhere_names_are_drawn_anew_and_nothing_is_touched(made):
    assert remove_leftovers({"PMI_RANK": "0"}, made, began=time.time() + 60) == []
    assert "mpich_shm_1f_0" in left(made)


def test_of_other_users_nothing_is_touched(made, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert remove_leftovers(UNDER_SLURM, made, began=time.time() + 60) == []
