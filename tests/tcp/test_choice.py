"""Which communicator `auto` takes, and where its ranks meet."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hpcsgd import comm
from hpcsgd.cli import calm_blas, launch
from hpcsgd.cli.info import world_facts
from hpcsgd.comm import choose, open_world
from hpcsgd.comm.delayed import Delayed
from hpcsgd.comm.launched import launched
from hpcsgd.comm.mpi import why_not_loaded
from hpcsgd.comm.nccl import NcclCommunicator
from hpcsgd.comm.network import Network
from hpcsgd.comm.tcp.where import (
    Port,
    SharedFile,
    first_node,
    place_of,
    ports_of,
    start_of,
)
from hpcsgd.comm.transports import open_transport
from hpcsgd.errors import ConfigError, MissingPackage, TransportError
from tests.helpers.fake_cuda import FakeLayer, Node
from tests.helpers.limits import HANG
from tests.tcp.harness import ROOT, Ranks, clean_environment, on_threads
from tests.tcp.meetings import SOON, local

SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "7"}
MASTER = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", **MASTER}
AGENTS = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "7"}
TASK = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMIX_RANK": "0"}  # of srun, for an agent


@pytest.mark.parametrize("environment, kind", [
    ({}, "serial"),
    (SLURM, "mpi"),
    ({**SLURM, "SLURM_MPI_TYPE": "none"}, "tcp"),
    ({**SLURM, "HPCSGD_STORE": "file:/x/y"}, "tcp"),
    ({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "HPCSGD_STORE": "file:/x/y"}, "serial"),
    ({"HPCSGD_STORE": "file:/x/y"}, "serial"),
    ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "3"}, "mpi"),
    ({**SLURM, "PMIX_RANK": "1"}, "mpi"),
    (TORCHRUN, "tcp"),
    ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, "serial"),
    ({"RANK": "1", "WORLD_SIZE": "4"}, "serial"),
    ({**TORCHRUN, "PMI_RANK": "1", "PMI_SIZE": "4"}, "mpi"),
    ({**AGENTS, **TASK}, "tcp"),
    ({**AGENTS, **TASK, "HPCSGD_EXPECT_RANKS": "4"}, "tcp"),
    ({**AGENTS, **TASK, "WORLD_SIZE": "1", "RANK": "0"}, "serial"),
    ({"HPCSGD_EXPECT_RANKS": "2"}, "mpi"),
    ({"HPCSGD_EXPECT_RANKS": "2", "HPCSGD_RANK": "0"}, "tcp"),
])  # fmt: skip
def test_what_auto_takes(environment, kind):
    found, why = choose(environment)
    assert found == kind and why


@pytest.mark.parametrize("environment, found", [
    ({}, None),
    (SLURM, (1, 3, "Slurm")),
    ({**SLURM, **TORCHRUN}, (1, 4, "torchrun")),
    ({**TORCHRUN, "PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, "PMI")),
    ({**SLURM, **AGENTS, **TASK}, (1, 4, "torchrun")),
    ({**SLURM, "HPCSGD_RANK": "2", "HPCSGD_EXPECT_RANKS": "4"}, (2, 4, "hpcsgd")),
    ({"RANK": "4", "WORLD_SIZE": "4", **MASTER}, None),
])  # fmt: skip
def test_the_innermost_launcher_is_asked(environment, found):
    assert launched(environment) == found


def test_where_ranks_meet(tmp_path):
    on_two = {**SLURM, "SLURM_STEP_NODELIST": "n[3-4]", "SLURM_STEP_NUM_NODES": "2"}
    assert place_of(on_two) == Port("n3", ports_of(start_of(on_two)))
    on_one = {**on_two, "SLURM_STEP_NUM_NODES": "1"}
    assert place_of(on_one).host == "127.0.0.1" == place_of(on_one).loopback
    assert place_of(TORCHRUN) == Port("n1", (29500,))
    agents = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert place_of(agents).host == "n1" and 29500 not in place_of(agents).ports
    assert place_of({"HPCSGD_STORE": "[fe80::1]:80"}) == Port("fe80::1", (80,))
    assert place_of(TORCHRUN, f"file:{tmp_path}/s") == SharedFile(tmp_path / "s")
    for said in ("host", "host:0", "host:x", ":80", "file:"):
        with pytest.raises(ConfigError, match="HOST:PORT|names no file"):
            place_of({"HPCSGD_STORE": said})
    with pytest.raises(ConfigError, match="rank 0 is on node 1 of the step"):
        place_of({**on_two, "SLURM_PROCID": "0", "SLURM_NODEID": "1"})
    with pytest.raises(ConfigError, match="no launcher says where"):
        place_of({})


def test_two_steps_of_a_job_meet_at_other_ports():
    step = {**SLURM, "SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1"}
    one, other = ({**step, "SLURM_STEP_ID": number} for number in "01")
    again = {**one, "SLURM_RESTART_COUNT": "1"}
    ports = [place_of(where).ports for where in (one, other, again)]
    assert not set(ports[0]) & set(ports[1]) and ports[0] != ports[2]


def test_agents_of_torchrun_that_count_restarts_differently_are_of_one_start():
    """The one whose ranks failed counts it; one whose ranks are well does not."""
    count = "TORCHELASTIC_RESTART_COUNT"
    one, other = (start_of({**AGENTS, count: number}) for number in "01")
    assert one == other != start_of({**AGENTS, "TORCHELASTIC_RUN_ID": "8"})


@pytest.mark.parametrize("nodes, first", [
    ("n1", "n1"), ("n[1-2],m4", "n1"), ("gpu[003,005-7]", "gpu003"), ("a1,b2", "a1"),
    ("r[1-2]n[08-09]", "r1n08"), ("x[1-3]-ib", "x1-ib"), ("", ""),
])  # fmt: skip
def test_the_first_node(nodes, first):
    assert first_node(nodes) == first


def test_tcp_without_a_launcher_is_one_sentence(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "HPCSGD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="which of how many ranks this is"):
        open_world("tcp")


class Lone:
    """An MPI that brings no ranks together."""

    size = 1


@pytest.mark.parametrize("environment, said", [
    (SLURM, "3 ranks were asked for and MPI gives 1"),
    ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "4 ranks were asked for and MPI gives 1"),
    ({"PMIX_RANK": "3"}, "calls this rank 3 and MPI gives 1"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["auto", "mpi"])
def test_silent_singletons_of_mpi_are_an_error(environment, said, kind, monkeypatch):
    """No other transport takes the place of MPI; the sentence says what does."""
    opened = []

    def open_kind(kind, reproducible, **more):
        opened.append(kind)
        return Lone()

    monkeypatch.setattr(comm, "_open", open_kind)
    for name in ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "HPCSGD_EXPECT_RANKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransportError, match=said) as caught:
        open_world(kind)
    assert opened == ["mpi"]
    for remedy in ("srun --mpi=", "MPI4PY_LIBMPI", "--comm tcp"):
        assert remedy in str(caught.value)


def test_an_mpi_that_does_not_load_under_a_launcher_is_an_error(monkeypatch):
    def open_kind(kind, reproducible, **more):
        raise MissingPackage(why_not_loaded(RuntimeError("libmpi.so.12: no such file")))

    monkeypatch.setattr(comm, "_open", open_kind)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingPackage, match=r"libmpi.so.12: no .*--comm tcp"):
        open_world("auto")


@pytest.mark.parametrize("comm, store, without", [
    ("auto", None, False), ("mpi", "file:/x", False), ("auto", "file:/x", True),
    ("tcp", None, True), ("file:/x", None, True),
])  # fmt: skip
def test_ranks_without_mpi_are_asked_for(comm, store, without, monkeypatch):
    """A machine without mpiexec is no such request."""
    monkeypatch.setattr(launch, "find_mpiexec", lambda: None)
    monkeypatch.delenv("HPCSGD_STORE", raising=False)
    if store:
        monkeypatch.setenv("HPCSGD_STORE", store)
    assert launch.is_without_mpi(comm) == without


def test_nccl_gets_its_name_through_sockets():
    """Every rank opens the group of the same name, and sums on the GPUs are right."""
    node = Node()

    def on_rank(world):
        layer = FakeLayer(node, f"GPU {world.rank}")
        device = open_transport("nccl", world, layer)
        assert isinstance(device, NcclCommunicator)
        assert "beside TCP" in device.transport
        (opened,) = layer.nccl.comms
        return opened.name, opened.size, opened.rank

    found = on_threads(3, on_rank, local(), SOON)
    assert len({name for name, _, _ in found}) == 1
    assert [(size, rank) for _, size, rank in found] == [(3, r) for r in range(3)]


def test_mpi_cuda_is_refused_without_mpi():
    def on_rank(world):
        layer = FakeLayer(Node(), f"GPU {world.rank}")
        for host in (world, Delayed(world, Network(1e-5, 1e10))):
            with pytest.raises(ConfigError, match="needs ranks of MPI and these speak"):
                open_transport("mpi-cuda", host, layer)
        host = open_transport("mpi-host", world, layer)
        return float(host.sum(np.ones(1), "control")[0])

    assert on_threads(2, on_rank, local(), SOON) == [2.0] * 2


def test_what_torchrun_starts_is_a_group(tmp_path):
    """auto, by its variables alone; MPI is not even loaded."""
    (port,) = local().ports
    said = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    none = dict.fromkeys(("HPCSGD_STORE", "HPCSGD_RANK", "HPCSGD_EXPECT_RANKS"))
    words = ["-m", "tests.tcp.child", "again"]
    with Ranks(tmp_path, 2, words, lambda r: {**none, **said, "RANK": r}) as ranks:
        codes, texts = ranks.ends()
    assert codes == [0, 0], texts
    assert json.loads(texts[0]) == {"size": 2, "transport": "TCP", "mpi": False}


@pytest.mark.parametrize("variables", [
    {"HPCSGD_RANK": "{}", "HPCSGD_EXPECT_RANKS": "2"},
    {"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"},
    {**AGENTS, **TASK, "RANK": "{}", "WORLD_SIZE": "2"},
])  # fmt: skip
def test_one_rank_speaks_for_all(variables, monkeypatch):
    monkeypatch.setenv("HPCSGD_EXPECT_RANKS", "")  # so that it is taken back
    monkeypatch.delenv("HPCSGD_EXPECT_RANKS")
    for rank in (0, 1):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(rank))
        assert launch.speaks() == (rank == 0)
        assert launch.launcher_size() == 2
        assert not launch.must_relaunch(2)


def test_ranks_of_a_command_without_mpi(tmp_path):
    """--ranks starts them; one document."""
    from hpcsgd.data.synthetic import write_synthetic

    data = tmp_path / "d.h5"
    write_synthetic(data, "susy", 200, 5, 0)
    flags = ["--family", "gaussian", "--batch", 4, "--ranks", 2, "--comm", "tcp"]
    words = ["train", "--data", data, *flags, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hpcsgd", *map(str, words)],
        env=clean_environment(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    said = json.loads(done.stdout)
    assert (said["ranks"], said["transport"]) == (2, "TCP")


def test_info_says_which(monkeypatch):
    monkeypatch.setenv("HPCSGD_STORE", "n1:7")
    said = world_facts(*choose(TORCHRUN))
    assert said == {
        "comm": "tcp",
        "why": "torchrun has started 4 ranks",
        "tcp would meet at": "n1 port 7",
    }
    monkeypatch.delenv("HPCSGD_STORE")
    assert "nobody" in world_facts(*choose({}))["tcp would meet at"]


@pytest.mark.parametrize("tasks", ["1", "3"])
def test_tasks_of_slurm_have_one_blas_thread_each(tasks):
    """Under `srun --mpi=none` too, where no variable of an MPI says that they are."""
    environment = {**SLURM, "SLURM_STEP_NUM_TASKS": tasks}
    calm_blas(environment)
    assert environment.get("OPENBLAS_NUM_THREADS") == "1"
    said = {**SLURM, "OPENBLAS_NUM_THREADS": "5"}
    calm_blas(said)
    assert said["OPENBLAS_NUM_THREADS"] == "5"
