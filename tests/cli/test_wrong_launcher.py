"""Ranks that MPI does not bring together: every command refuses them.

Their launcher is of another MPI than the one that loads, or of none.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.studies.folder import StudyFolder
from hpcsgd.studies.plan import StudyAxes, StudyPlan
from tests.helpers.launcher import launch_environment
from tests.helpers.limits import HANG

RANKS = 2
AROUND = ("SLURM", "MASTER_", "TORCHELASTIC", "RANK", "WORLD_SIZE", "HPCSGD_")
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(RANKS)}
# Launcher -> its variables, in which {} is the number of the rank.
SRUN = {**STEP, "SLURM_PROCID": "{}"}
PMIX = {**SRUN, "SLURM_MPI_TYPE": "pmix"}  # which is not what MPICH speaks
TORCHRUN = {
    **{"RANK": "{}", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "{}"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
AGENT = {"PMI_RANK": "0", "PMI_SIZE": "1", "TORCHELASTIC_RUN_ID": "7"}
WITHOUT_MPI = {
    "srun --mpi=none": SRUN,
    "torchrun": TORCHRUN,
    "srun torchrun": {**STEP, "SLURM_PROCID": "0", **AGENT, **TORCHRUN},
}
POINT = "casgd-p2-s1-b32-1x2-fp32-seed0-r1"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, text and a point of a study."""
    folder = tmp_path_factory.mktemp("place")
    write_synthetic(folder / "few.h5", "susy", 200, 6, 0)
    (folder / "few.csv").write_text("1,2,3\n0,4,5\n")
    (point,) = StudyPlan(
        "strong", (RANKS,), repeats=1, axes=StudyAxes(methods=("casgd",))
    ).runs()
    (folder / "s" / "points").mkdir(parents=True)
    StudyFolder(folder / "s").configure(point, str(folder / "few.h5"))
    (folder / "name").write_text(point.name)
    return folder


def ranks_of(place, words, variables):
    """Exit codes and what the ranks of a launcher with these variables said."""
    base = {k: v for k, v in launch_environment().items() if not k.startswith(AROUND)}
    base["PYTHONPATH"] = str(Path(__file__).parents[2])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "hpcsgd", *words],
            env={**base, **{k: v.format(rank) for k, v in variables.items()}},
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


def is_silent_or_alike(first, other):
    """Whether rank 1 prints nothing, or the error of rank 0.

    It prints that where rank 0 has printed nothing after some seconds, which happens on
    a busy machine.
    """
    return other in ("", first.replace("hpcsgd: error:", "hpcsgd: rank 1: error:"))


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
    codes, said = ranks_of(place, words, PMIX)
    assert all(code not in (0, None) and code > 0 for code in codes), said
    (out, first), (other_out, other) = said
    sentence = out if name == "smoke" else first
    assert "2 ranks were asked for and MPI gives 1" in sentence
    assert "srun --mpi=" in sentence and "--ranks N" in sentence
    assert len(sentence.splitlines()) == 1, "one sentence"
    assert other_out == other == "", "which one rank says"
    assert not (place / "new.h5").exists()


def contents(folder):
    """Path -> bytes of every file below a folder."""
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.cases(1)
@pytest.mark.parametrize("launcher", WITHOUT_MPI)
@pytest.mark.parametrize("name", [name for name in COMMANDS if "mpi" not in name])
def test_ranks_of_no_mpi_are_refused_before_a_file_is_touched(name, launcher, place):
    words = [(place / "name").read_text() if w == POINT else w for w in COMMANDS[name]]
    words += ["--out", "run"] if name == "train" else []
    before = contents(place)
    codes, said = ranks_of(place, words, WITHOUT_MPI[launcher])
    assert codes == ([1, 1] if name == "smoke" else [2, 2]), said
    (out, first), other = said
    sentence = out if name == "smoke" else first
    assert launcher.split()[0] in sentence and "2 ranks were started by" in sentence
    for remedy in ("mpiexec", "srun --mpi=pmi2", "pmix", "--ranks N"):
        assert remedy in sentence
    assert len(sentence.splitlines()) == 1 and (out == "" or name == "smoke")
    assert other[0] == "" and is_silent_or_alike(first, other[1])
    assert contents(place) == before


def test_ranks_of_torchrun_are_refused_whatever_they_ask_for(place):
    for more in (("--comm", "mpi"), ("--ranks", "2")):
        codes, said = ranks_of(place, [*COMMANDS["train"], *more], TORCHRUN)
        assert codes == [2, 2] and "started by torchrun" in said[0][1], said


def test_an_mpi_that_does_not_load_is_not_replaced(place):
    missing = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so.12"}
    codes, said = ranks_of(place, COMMANDS["train"], {**PMIX, **missing})
    assert codes == [2, 2]
    assert "/nowhere/libmpi.so.12: cannot open" in said[0][1]
    assert "MPI4PY_LIBMPI" in said[0][1] and is_silent_or_alike(said[0][1], said[1][1])
