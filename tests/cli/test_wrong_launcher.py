"""Ranks of a launcher whose MPI is not the one that loads: every command refuses."""

import subprocess
import sys

import pytest

from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.study.folder import StudyFolder
from hpcsgd.study.plan import Plan
from tests.helpers.limits import HANG
from tests.tcp.harness import clean_environment

RANKS = 2
POINT = "casgd-p2-s1-b32-1x2-fp32-seed0-r1"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, text and a point of a study."""
    folder = tmp_path_factory.mktemp("place")
    write_synthetic(folder / "few.h5", "susy", 200, 6, 0)
    (folder / "few.csv").write_text("1,2,3\n0,4,5\n")
    (point,) = Plan("strong", (RANKS,), methods=("casgd",), repeats=1).runs()
    (folder / "s" / "points").mkdir(parents=True)
    StudyFolder(folder / "s").configure(point, str(folder / "few.h5"))
    (folder / "name").write_text(point.name)
    return folder


def tasks(place, words, **variables):
    """Exit codes and what the tasks of a step said, of an MPI that Slurm has not."""
    base = clean_environment(place) | {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "hpcsgd", *words],
            env={
                **base,
                "SLURM_PROCID": str(rank),
                "SLURM_STEP_NUM_TASKS": str(RANKS),
                **variables,
            },
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [one.communicate(timeout=HANG) for one in started]
    return [one.returncode for one in started], said


COMMANDS = {
    "train": ["train", "--data", "few.h5"],
    "train --comm mpi": ["train", "--data", "few.h5", "--comm", "mpi"],
    "sweep": ["sweep", "--data", "few.h5", "--rates", "0.1,0.2"],
    "compare": ["compare", "--data", "few.h5", "--methods", "sgd,casgd"],
    "tune": ["tune", "--data", "few.h5", "--seconds", "1"],
    "evaluate": ["evaluate", "run", "few.h5"],
    "convert": ["data", "convert", "few.csv", "new.h5"],
    "study point": ["study", "point", "s", POINT],
    "smoke": ["jobs", "smoke", "--folder", "smoke"],
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_ranks_that_do_not_meet_are_one_sentence(name, place):
    words = [(place / "name").read_text() if w == POINT else w for w in COMMANDS[name]]
    codes, said = tasks(place, words)
    assert all(code not in (0, None) and code > 0 for code in codes), said
    (out, first), (other_out, other) = said
    sentence = out if name == "smoke" else first
    assert "2 ranks were asked for and MPI gives 1" in sentence
    assert "srun --mpi=" in sentence and "--comm tcp" in sentence
    assert len(sentence.splitlines()) == 1, "one sentence"
    assert other_out == other == "", "which one rank says"
    assert not (place / "new.h5").exists()


def test_an_mpi_that_does_not_load_is_not_replaced(place):
    missing = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so.12"}
    codes, said = tasks(place, COMMANDS["train"], **missing)
    assert codes == [2, 2]
    assert "/nowhere/libmpi.so.12: cannot open" in said[0][1]
    assert "MPI4PY_LIBMPI" in said[0][1] and said[1][1] == ""


def test_tcp_is_there_where_it_is_asked_for(place):
    codes, said = tasks(place, [*COMMANDS["train"], "--comm", "file:ranks", "--json"])
    assert codes == [0, 0], said
    assert '"transport": "TCP"' in said[0][0]
