"""The smoke job: what is well passes, and each thing that can be wrong is named."""

import json
import os
import threading
import time

import numpy as np
import pytest

from hpcsgd.cli import jobs as command
from hpcsgd.cli import main
from hpcsgd.comm.mpi import provider_of
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import TransportError
from hpcsgd.jobs import smoke as smoke_files
from hpcsgd.jobs.smoke import (
    check_binding,
    content_of,
    measure_speed,
    smoke,
    verdict,
)
from tests.helpers.fake_sysfs import CROSSED, sysfs

RANKS = 3


def look(folder, ranks=RANKS, **more):
    """The checks of all ranks, which have to be alike."""
    said = run_ranks(ranks, lambda world: smoke(world, folder, **more))
    assert all(checks == said[0] for checks in said)
    return said[0]


def bad(checks):
    return {check.name: check.text for check in checks if not check.good}


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_a_good_place_has_a_good_verdict(ranks, tmp_path):
    checks = look(tmp_path / "new" / "folder", ranks)
    assert bad(checks) == {}
    said = verdict(checks)
    assert said.startswith("smoke: good: ") and "\n" not in said
    assert ("1 rank on 1 node," if ranks == 1 else "3 ranks on 1 node,") in said
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_other_ranks_than_were_asked_for(tmp_path):
    said = bad(look(tmp_path, expected=4))
    assert (
        list(said) == ["ranks"]
        and "4 ranks were expected and 3 were started" in said["ranks"]
    )


def test_latency_and_bandwidth_of_sums(tmp_path):
    """Figures of all ranks together; the ledger counts what is sent for them."""

    def on_rank(world):
        return measure_speed(world), world.ledger

    (seen, ledger), *others = run_ranks(RANKS, on_rank)
    assert all(other == seen for other, _ in others)
    text, facts = seen
    long = 8 * 2**20
    assert (facts["latency_bytes"], facts["bandwidth_bytes"]) == (8, long)
    assert facts["latency_us"] > 0 and facts["bandwidth_us"] > 0
    rate = 1e-3 * long / facts["bandwidth_us"]
    assert facts["gb_per_second"] == pytest.approx(rate)
    assert "a sum of 8 bytes takes" in text and "GB/s of payload" in text
    control = ledger.entries["control"]
    assert control.calls == 104 + 10 + 2, "sums, and two exchanges of what they took"
    assert 0 <= control.bytes - (104 * 8 + 10 * long) < 1000


def test_one_rank_has_no_speed():
    assert run_ranks(1, measure_speed) == ["one rank sends nothing"]


MPICH = "MPICH Version: 5.0.2\nMPICH Device:       {}\nMPICH CC: cc\n"


@pytest.mark.parametrize("version, variables, said", [
    (MPICH.format("ch4:ucx ofi"), {}, "device ch4:ucx"),
    (MPICH.format("ch4:ofi"), {"UCX_TLS": "rc"}, "device ch4:ofi, UCX_TLS=rc"),
    (MPICH.format("ch4:ucx ofi"), {"MPIR_CVAR_CH4_NETMOD": "ofi"}, "device ch4:ofi"),
    ("Open MPI v5.0.11, package: x", {"OMPI_MCA_pml": "ucx"}, "OMPI_MCA_pml=ucx"),
    ("Open MPI v5.0.11, package: x", {}, "provider not named by MPI"),
])  # fmt: skip
def test_the_provider_is_named_where_it_can_be_known(version, variables, said):
    assert provider_of(version, variables) == said


def test_sums_of_very_many_ranks_are_exact():
    """In float32, in any order: no partial sum is rounded."""
    assert sum(map(content_of, range(2**18))) <= 2**24
    assert all(content_of(rank) > 0 for rank in range(1000))


def test_a_wrong_sum_names_the_rank(tmp_path):
    """One rank reads something else than what was summed."""

    def on_rank(world):
        if world.rank == 1:
            world.workspace = lambda words, dtype: spoilt(world, words, dtype)
        return smoke(world, tmp_path)

    def spoilt(world, words, dtype):
        workspace = type(world).workspace(world, words, dtype)
        add = workspace.add

        def add_wrongly():
            total = np.array(add())
            total[-1] += 1
            return total

        workspace.add = add_wrongly
        return workspace

    said = bad(run_ranks(RANKS, on_rank)[0])
    assert list(said) == ["sums"] and "wrong on rank 1" in said["sums"]


def test_other_versions_name_the_rank(tmp_path):
    def on_rank(world):
        ask = world.exchange_objects

        def lie(item, purpose="control"):
            if world.rank == 2 and isinstance(item, dict):
                item = {**item, "numpy": "1.0"}
            return ask(item, purpose)

        world.exchange_objects = lie
        return smoke(world, tmp_path)

    said = bad(run_ranks(RANKS, on_rank)[0])
    assert list(said) == ["versions"]
    assert f"rank 2 has numpy 1.0, and rank 0 has {np.__version__}" in said["versions"]


def test_clocks_that_differ(tmp_path, monkeypatch):
    def on_rank(world):
        ask = world.exchange_objects

        def late(item, purpose="control"):
            shift = 60.0 if world.rank == 1 and isinstance(item, float) else None
            is_time = shift and abs(item - time.clock_gettime(time.CLOCK_REALTIME)) < 9
            return ask(item + shift if is_time else item, purpose)

        world.exchange_objects = late
        return smoke(world, tmp_path)

    said = bad(run_ranks(RANKS, on_rank)[0])
    assert list(said) == ["clocks"] and "rank 1 is 60 s ahead" in said["clocks"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    said = bad(look(tmp_path / "file"))
    assert list(said) == ["files"] and "cannot write into" in said["files"]
    assert "all nodes share" in said["files"]


def test_a_folder_that_nodes_do_not_share(tmp_path, monkeypatch):
    """Rank 2 writes into a folder of its own, as on a disk of its node."""
    monkeypatch.setattr(smoke_files, "PATIENCE", 0.2)

    def on_rank(world):
        place = tmp_path / "of-2" if world.rank == 2 else tmp_path / "of-all"
        return smoke(world, place)

    said = bad(run_ranks(RANKS, on_rank)[0])
    assert list(said) == ["files"] and "does not see the file of rank" in said["files"]


def test_a_file_that_is_cut_off_is_not_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(smoke_files, "PATIENCE", 0.2)
    whole = smoke_files.replace_file
    monkeypatch.setattr(
        smoke_files, "replace_file", lambda path, data: whole(path, data[:-1])
    )
    assert "does not see" in bad(look(tmp_path))["files"]


def test_gpus_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = bad(look(tmp_path, device="cuda"))
    assert list(said) == ["gpus"]


@pytest.mark.parametrize("words, code", [([], 0), (["--expect", "7"], 1)])
def test_the_command_prints_one_verdict(words, code, tmp_path, capsys):
    assert main(["jobs", "smoke", "--folder", str(tmp_path), *words]) == code
    out, err = capsys.readouterr()
    assert out.startswith("smoke: bad: ranks" if code else "smoke: good: ")
    checks = [line for line in err.splitlines() if line.startswith("hpcsgd: ")]
    assert len(out.splitlines()) == 1 and len(checks) == 8
    assert "  rank 0: cores " in err
    assert main(["jobs", "smoke", "--folder", str(tmp_path), "--json", *words]) == code
    said = json.loads(capsys.readouterr().out)
    assert said["good"] == (not code) and len(said["checks"]) == 8
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_never_meet_have_one_verdict(rank, monkeypatch, capsys):
    """srun of one MPI and mpi4py of another: each would speak for itself."""

    def alone(*_, **__):
        raise TransportError("4 ranks were asked for and MPI gives 1")

    monkeypatch.setattr(command, "on_all_ranks", alone)
    monkeypatch.setenv("PMI_RANK", str(rank))
    assert main(["jobs", "smoke"]) == 1
    said = "smoke: bad: ranks: 4 ranks were asked for and MPI gives 1\n"
    assert capsys.readouterr().out == (said if rank == 0 else "")


# Bindings: cores, NUMA nodes, GPUs and adapters of ranks, from a played sysfs.

NICS = {"cxi/cxi0": 0, "cxi/cxi1": 1, "cxi/cxi2": 2, "cxi/cxi3": 3}


def bindings(monkeypatch, root, cpusets, hosts=None, gpus=0):
    """What ranks see that are threads, each bound to cores on a node."""
    local = threading.local()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(local.cores))
    monkeypatch.setattr("socket.gethostname", lambda: local.host)
    buses = list(CROSSED["gpus"])[:gpus]
    monkeypatch.setattr("hpcsgd.backends.cuda.driver.gpu_buses", lambda: buses)

    def on_rank(world):
        local.cores = cpusets[world.rank]
        local.host = hosts[world.rank] if hosts else "n1"
        here = hosts.index(local.host) if hosts else 0
        own = {"LOCAL_RANK": str(world.rank - here)}
        device = "cuda" if gpus else "cpu"
        return check_binding(world, device, own, root)

    said = run_ranks(len(cpusets), on_rank)
    assert all(one == said[0] for one in said)
    return said[0]


def test_crossed_gpus_and_adapters_are_shown(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED, nics=NICS)
    cores = [range(16 * n, 16 * n + 16) for n in range(4)]
    text, facts, lines = bindings(monkeypatch, root, cores, gpus=4)
    assert text == "ranks have cores of their own; GPUs: it is nearest to its cores"
    assert lines == [
        "n1:",
        "  rank 0: cores 0-15, NUMA 0, GPU 0000:c1:00.0 (NUMA 0), NIC cxi0",
        "  rank 1: cores 16-31, NUMA 1, GPU 0000:82:00.0 (NUMA 1), NIC cxi1",
        "  rank 2: cores 32-47, NUMA 2, GPU 0000:41:00.0 (NUMA 2), NIC cxi2",
        "  rank 3: cores 48-63, NUMA 3, GPU 0000:03:00.0 (NUMA 3), NIC cxi3",
    ]
    assert [row["gpu"] for row in facts["ranks"]] == list(reversed(CROSSED["gpus"]))
    json.dumps(facts)


def test_ranks_that_cross_to_their_gpus_are_a_warning(monkeypatch, tmp_path):
    """Both on NUMA node 0: one of them has the GPU of another node."""
    root = sysfs(tmp_path, **CROSSED)
    text, _, lines = bindings(monkeypatch, root, [range(8), range(8, 16)], gpus=4)
    assert "warning: 1 rank far from their GPUs, as rank 1 on n1" in text
    assert "cores on NUMA node 0 and its GPU on" in text
    assert "(far, NUMA" in lines[2] and "far" not in lines[1]


def test_ranks_that_share_cores_are_counted(monkeypatch, tmp_path):
    """Ranks of other nodes have other cores of the same numbers."""
    root = sysfs(tmp_path, **CROSSED)
    text, _, lines = bindings(monkeypatch, root, [range(4), range(3, 6), range(8, 9)])
    assert text.startswith("2 ranks may run on cores of other ranks, as rank 0 (srun")
    apart = bindings(monkeypatch, root, [range(4)] * 2, ["n1", "n2"])
    assert apart[0] == "ranks have cores of their own"
    assert apart[2] == ["n1, and 1 node like it:", "  rank 0: cores 0-3, NUMA 0"]


def test_why_gpus_go_by_local_numbers_is_said(monkeypatch, tmp_path):
    root = sysfs(tmp_path, CROSSED["nodes"], dict.fromkeys(CROSSED["gpus"], -1))
    text, facts, _ = bindings(monkeypatch, root, [range(8), range(16, 24)], gpus=2)
    assert "GPUs: sysfs states no NUMA node of the GPU 0000:03:00.0" in text
    assert [row["gpu"] for row in facts["ranks"]] == list(CROSSED["gpus"])[:2]


def test_a_table_of_many_nodes_shows_each_kind_once(monkeypatch, tmp_path):
    root = sysfs(tmp_path, **CROSSED)
    kinds = 6
    cores = [range(n, n + 1) for n in range(kinds)] + [range(1)] * 3
    hosts = [f"n{n}" for n in range(len(cores))]
    _, facts, lines = bindings(monkeypatch, root, cores, hosts)
    assert lines[0] == "n0, and 3 nodes like it:" and len(facts["ranks"]) == 9
    assert lines[-1] == "2 other kinds of nodes, see --json"
    assert len(lines) == 2 * 4 + 1


def test_a_gpu_that_slurm_bound_to_another_numa_node_is_a_warning(
    monkeypatch, tmp_path
):
    """One visible GPU, as by --gpus-per-task: the others are seen in sysfs alone."""
    root = sysfs(tmp_path, **CROSSED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    text, _, lines = bindings(monkeypatch, root, [range(8)], gpus=1)
    assert "warning: 1 rank far from their GPUs, as rank 0 on n1" in text
    assert "GPU 0000:03:00.0 (far, NUMA 3)" in lines[1]
    text, _, lines = bindings(monkeypatch, root, [range(48, 56)], gpus=1)
    assert "warning" not in text and "(NUMA 3)" in lines[1]
