"""What dead ranks of a Slurm job left in memory is removed, and nothing else."""

import mmap
import os
import subprocess
import sys
import time

import pytest

from hpcsgd.comm.launchers import MARGIN, remove_leftovers, remove_unused
from tests.helpers import launcher
from tests.helpers.limits import HANG

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
        "from hpcsgd.comm.launchers import remove_leftovers\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / 'mpich_shm_2_0').write_bytes(b'new')\n"
        "print(*(p.name for p in remove_leftovers({'SLURM_PROCID': '1'}, folder)))"
    )
    time.sleep(MARGIN + 0.1)  # clocks of files and processes differ a little
    said = subprocess.run(
        [sys.executable, "-c", code, str(made)],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    ).stdout
    assert said.split() == ["mpich_shm_1f_0"] and "mpich_shm_2_0" in left(made)


def test_those_of_another_job_stay(made):
    """Whatever its age: some process has it in its memory."""
    with open(made / "mpich_shm_1f_0", "r+b") as file, mmap.mmap(file.fileno(), 0):
        assert remove_leftovers(UNDER_SLURM, made, began=time.time() + 60) == []
    assert "mpich_shm_1f_0" in left(made)


@pytest.mark.parametrize("name", ["mpich_shm_1f_0", "mpich_vci_2_1"])
def test_a_start_of_mpiexec_removes_what_no_process_uses(made, name):
    """However new it is: the ranks that made it were killed a moment ago."""
    (made / name).write_bytes(bytes(4096))
    removed = remove_leftovers({"PMI_RANK": "3", "MPI_LOCALRANKID": "0"}, made)
    assert name in {path.name for path in removed}
    assert left(made) == {"ucx_shm_1", "not_mpich_shm_1"}


def test_one_rank_of_a_node_is_enough(made):
    assert remove_leftovers({"PMI_RANK": "1", "MPI_LOCALRANKID": "1"}, made) == []


def test_a_segment_that_a_rank_has_open_or_maps_stays(made):
    """It is made, mapped, and only then closed."""
    with open(made / "mpich_shm_1f_0", "r+b") as file:
        assert remove_unused(made) == []
        memory = mmap.mmap(file.fileno(), 0)
    assert remove_unused(made) == []
    memory.close()
    assert [path.name for path in remove_unused(made)] == ["mpich_shm_1f_0"]


def test_a_segment_that_could_not_be_removed_is_not_returned(made, monkeypatch):
    def refuse(path):
        raise PermissionError(str(path))

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    assert remove_unused(made) == []
    assert "mpich_shm_1f_0" in left(made)


def test_of_other_users_nothing_is_touched(made, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert remove_leftovers(UNDER_SLURM, made, began=time.time() + 60) == []


def test_tests_remove_no_segment_that_ranks_have_just_made(made, monkeypatch):
    """Other ranks start while the leftovers of a test are removed."""
    monkeypatch.setattr(launcher, "SEGMENTS", made)
    with open(made / "mpich_shm_2f_0", "wb"):
        launcher.sweep(set())
        assert left(made) == {"mpich_shm_2f_0", "ucx_shm_1", "not_mpich_shm_1"}
    launcher.sweep(set())
    assert left(made) == {"ucx_shm_1", "not_mpich_shm_1"}
