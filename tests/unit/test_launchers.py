"""What the variables of launchers say: which rank this is, and who connects ranks."""

import os

import pytest

from hpcsgd import comm
from hpcsgd.cli import launch
from hpcsgd.comm import choose, mismatch, open_world
from hpcsgd.comm.launchers import (
    SLEEP,
    is_one_node,
    launch_refusal,
    launched,
    sleep_where_crowded,
)
from hpcsgd.comm.mpi import thread_level, why_not_loaded
from hpcsgd.errors import ConfigError, MissingPackage, TransportError

SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "7"}
NO_PMI = {**SLURM, "SLURM_MPI_TYPE": "none"}  # as Slurm until 21.08 has it
CRAY = {**SLURM, "SLURM_MPI_TYPE": "cray_shasta"}
INTEL = {**SLURM, "I_MPI_PMI_LIBRARY": "/usr/lib/libpmi.so"}
MASTER = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", **MASTER}
AGENTS = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "7"}
TASK = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMIX_RANK": "0"}  # of srun, for an agent
ALONE = {"WORLD_SIZE": "1", "RANK": "0"}


@pytest.fixture
def started_by(monkeypatch):
    """Give this process the variables of one launcher, and of no other."""
    names = {*INTEL, *AGENTS, *TASK, "SLURM_MPI_TYPE", "HPCSGD_EXPECT_RANKS"}

    def start(environment):
        for name in names | {"OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"}:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return start


@pytest.mark.parametrize("environment, kind", [
    ({}, "serial"),
    (SLURM, "none"),
    (NO_PMI, "none"),
    (CRAY, "mpi"),
    (INTEL, "mpi"),
    ({**NO_PMI, "SLURM_STEP_NUM_TASKS": "1"}, "serial"),
    ({**NO_PMI, "PMI_RANK": "1", "PMI_SIZE": "3"}, "mpi"),
    ({**NO_PMI, "HPCSGD_EXPECT_RANKS": "3"}, "none"),
    ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "3"}, "mpi"),
    ({**SLURM, "PMIX_RANK": "1"}, "mpi"),
    (TORCHRUN, "none"),
    ({**SLURM, **TORCHRUN}, "none"),
    ({**TORCHRUN, **ALONE}, "serial"),
    ({"RANK": "1", "WORLD_SIZE": "4"}, "serial"),
    ({**TORCHRUN, "PMI_RANK": "1", "PMI_SIZE": "4"}, "mpi"),
    ({**AGENTS, **TASK}, "none"),
    ({**AGENTS, **TASK, "HPCSGD_EXPECT_RANKS": "4"}, "none"),
    ({**AGENTS, **TASK, **ALONE}, "serial"),
    ({"HPCSGD_EXPECT_RANKS": "2"}, "mpi"),
])  # fmt: skip
def test_what_auto_takes(environment, kind):
    chosen, why = choose(environment)
    assert chosen == kind and why


@pytest.mark.parametrize("environment, ranks", [
    ({}, None),
    (SLURM, (1, 3, "Slurm")),
    ({**SLURM, **TORCHRUN}, (1, 4, "torchrun")),
    ({**TORCHRUN, "PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, "PMI")),
    ({**SLURM, **AGENTS, **TASK}, (1, 4, "torchrun")),
    ({"RANK": "4", "WORLD_SIZE": "4", **MASTER}, None),
])  # fmt: skip
def test_the_innermost_launcher_is_asked(environment, ranks):
    assert launched(environment) == ranks


@pytest.mark.parametrize("environment", [TORCHRUN, {**AGENTS, **TASK}, SLURM])
def test_ranks_that_no_mpi_connects_are_refused(environment, started_by, monkeypatch):
    """Before an MPI is loaded, which would wait, abort or make singletons of them."""
    monkeypatch.setattr(
        comm, "open_communicator", lambda *_, **__: pytest.fail("MPI is loaded")
    )
    started_by(environment)
    with pytest.raises(ConfigError, match="ranks were started by") as caught:
        open_world("auto")
    assert caught.value.on_all_ranks and "\n" not in str(caught.value)
    for remedy in ("mpiexec", "srun --mpi=pmi2 (MPICH) or pmix", "--ranks N"):
        assert remedy in str(caught.value)


def test_who_names_mpi_leaves_slurm_to_it():
    """An MPI that loads Slurm's library of PMI-1 needs no variables."""
    assert launch_refusal(SLURM, "mpi") is None
    assert launch_refusal(TORCHRUN, "mpi") is not None


def test_a_serial_run_may_be_one_of_many(started_by):
    """Who names serial has said that each process is alone."""
    started_by(TORCHRUN)
    assert open_world("serial").size == 1


class Lone:
    """An MPI that brings no ranks together."""

    size = 1


@pytest.mark.parametrize("environment, said", [
    (CRAY, "3 ranks were asked for and MPI gives 1"),
    ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "4 ranks were asked for and MPI gives 1"),
    ({"PMIX_RANK": "3"}, "as rank 3 and MPI has 1 ranks only"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["auto", "mpi"])
def test_silent_singletons_of_mpi_are_an_error(
    environment, said, kind, started_by, monkeypatch
):
    opened = []

    def open_kind(kind, reproducible, **more):
        opened.append(kind)
        return Lone()

    monkeypatch.setattr(comm, "open_communicator", open_kind)
    started_by(environment)
    with pytest.raises(TransportError, match=said) as caught:
        open_world(kind)
    assert opened == ["mpi"]
    for remedy in ("srun --mpi=", "MPI4PY_LIBMPI", "--ranks N"):
        assert remedy in str(caught.value)


def test_an_mpi_that_does_not_load_under_a_launcher_is_an_error(
    started_by, monkeypatch
):
    def open_kind(kind, reproducible, **more):
        raise MissingPackage(why_not_loaded(RuntimeError("libmpi.so.12: no such file")))

    monkeypatch.setattr(comm, "open_communicator", open_kind)
    started_by(CRAY)
    with pytest.raises(MissingPackage, match=r"libmpi.so.12: no .*MPI4PY_LIBMPI"):
        open_world("auto")


@pytest.mark.parametrize("variables", [
    {"PMI_RANK": "{}", "PMI_SIZE": "2"},
    {"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
    {**AGENTS, **TASK, "RANK": "{}", "WORLD_SIZE": "2"},
])  # fmt: skip
def test_one_rank_speaks_for_all(variables, started_by, monkeypatch):
    for rank in (0, 1):
        monkeypatch.setenv("HPCSGD_EXPECT_RANKS", "")  # so that it is taken back
        started_by({name: text.format(rank) for name, text in variables.items()})
        assert launch.is_rank_0_of_launcher() == (rank == 0)
        assert launch.launcher_size() == 2
        assert not launch.must_relaunch(2)


def test_ranks_without_an_mpi_to_start_them_are_one_sentence(started_by, monkeypatch):
    started_by({})
    monkeypatch.setattr(launch, "find_mpiexec", lambda: None)
    with pytest.raises(ConfigError, match="pip install mpich") as caught:
        launch.relaunch(2, ["info"])
    assert "--ranks" in str(caught.value) and "\n" not in str(caught.value)


def test_more_ranks_than_a_machine_can_start_are_refused_at_once():
    with pytest.raises(ConfigError, match="at most 4096 ranks are started"):
        launch.relaunch(99_999_999_999, ["info"])


@pytest.mark.cases("all")
@pytest.mark.parametrize("before, ranks, after", [
    ({}, "5", "1"),
    ({}, "4", None),  # a core each: waiting in a loop is faster
    ({SLEEP: "0"}, "5", "0"),  # the user's choice
    ({}, "many", None),
    ({}, "", None),
])  # fmt: skip
def test_ranks_sleep_while_they_wait_where_they_are_more_than_cores(
    monkeypatch, before, ranks, after
):
    cores = {os.getppid(): range(4), 0: range(1)}  # this rank is bound to one
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores[process])
    environment = {**before, "MPI_LOCALNRANKS": ranks}
    sleep_where_crowded(environment)
    assert environment.get(SLEEP) == after


OMPI, MPICH = "Open MPI v5.0.11, package: x", "MPICH Version: 5.0.2\nMPICH Device: ch4"
CRAY_MPICH = "MPI VERSION    : CRAY MPICH version 8.1.30 (ANL base 3.4a2)"
INTEL = "Intel(R) MPI Library 2021.10 for Linux* OS"


@pytest.mark.parametrize("variables, library, said", [
    ({"SLURM_MPI_TYPE": "pmi2"}, OMPI,
     "loads Open MPI, which needs srun --mpi=pmix, and srun used --mpi=pmi2"),
    ({"SLURM_MPI_TYPE": "pmix"}, MPICH,
     "loads MPICH, which needs srun --mpi=pmi2, and srun used --mpi=pmix"),
    ({"SLURM_MPI_TYPE": "none"}, CRAY_MPICH,
     "loads Cray MPICH, which needs srun --mpi=cray_shasta, and srun used --mpi=none"),
    ({"SLURM_MPI_TYPE": "none"}, INTEL, "loads Intel MPI, which needs srun --mpi=pmi2"),
    ({"SLURM_MPI_TYPE": "pmix"}, OMPI, "built without support for this PMI"),
    ({"OMPI_COMM_WORLD_RANK": "0"}, MPICH,
     "loads MPICH, and the mpiexec of Open MPI started the ranks"),
    ({"PMI_RANK": "0"}, OMPI,
     "loads Open MPI, and a mpiexec like MPICH's started the ranks"),
    ({"SLURM_PROCID": "0"}, MPICH,
     "loads MPICH, which needs srun --mpi=pmi2, and srun gave its ranks no PMI"),
    ({"PMIX_RANK": "0"}, MPICH, "mpi4py loads MPICH; use that"),
    ({}, "", "the MPI that mpi4py loads; use that"),
    ({"SLURM_MPI_TYPE": "pmi2"}, "Some MPI 1.0", "the MPI that mpi4py loads; use that"),
])  # fmt: skip
def test_the_cause_of_ranks_that_do_not_meet_is_named(variables, library, said):
    text = mismatch(variables, library)
    assert said in text and "MPI4PY_LIBMPI" in text and "\n" not in text


PMI = {"PMI_RANK": "1", "PMI_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize("environment, expected", [
    ({}, False),
    (PMI, False),
    ({**PMI, "MPI_LOCALNRANKS": "4"}, True),
    ({**PMI, "MPI_LOCALNRANKS": "2"}, False),
    ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
    ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, False),
    (STEP, False),
    ({**STEP, "SLURM_STEP_NUM_NODES": "1"}, True),
    ({**STEP, "SLURM_STEP_NUM_NODES": "2"}, False),
    ({**STEP, **PMI, "SLURM_STEP_NUM_NODES": "1"}, True),
    # mpiexec is the only task of the step, and its ranks are on two nodes.
    ({**PMI, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, False),
    ({**STEP, **PMI, "SLURM_STEP_NUM_NODES": "1", "MPI_LOCALNRANKS": "2"}, False),
    ({"PMIX_RANK": "0"}, False),
])  # fmt: skip
def test_threads_of_watchdogs_call_mpi_only_between_nodes(environment, expected):
    assert is_one_node(environment) == expected
    assert thread_level(environment, 20) == ("serialized" if expected else "multiple")
    assert thread_level(environment, 0) == "serialized"
