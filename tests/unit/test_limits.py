"""What the system leaves: trees of files as Linux and Slurm make them, in a folder."""

import os
import resource

import pytest

from hpcsgd.runs.memory import NO_LIMIT, Claim, Limit, system_limits, tightest

MIB = 2**20
TASK = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
V1_NONE = 9223372036854771712


@pytest.fixture
def machine(tmp_path):
    """Write files of a machine, by their paths; 1 TiB of it are free."""

    def write(files=()):
        pages = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {2**30} kB\n"}
        for name, text in {**pages, **dict(files)}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))
        return tmp_path

    return write


def group(folder, limit, used=0, inactive=0, **more):
    """The files of a control group of version 2."""
    return {
        f"sys/fs/cgroup{folder}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup{folder}/memory.current": f"{used}\n",
        f"sys/fs/cgroup{folder}/memory.stat": f"anon 1\ninactive_file {inactive}\n",
        **{f"sys/fs/cgroup{folder}/memory.{k}": f"{v}\n" for k, v in more.items()},
    }


def old_group(folder, limit, used=0, inactive=0):
    """The same of version 1, whose plain inactive_file leaves out groups inside."""
    stat = f"inactive_file 1\ntotal_inactive_file {inactive}\n"
    return {
        f"sys/fs/cgroup/memory{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory{folder}/memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory{folder}/memory.stat": stat,
    }


def free_by(root, environ=()):
    """Where -> bytes of all limits but the one of this process."""
    limits = system_limits(root, dict(environ))
    return {limit.where: limit.free for limit in limits if limit.shared}


def test_the_machine_alone(machine):
    assert free_by(machine()) == {"on this machine": 2**40}


def test_a_machine_that_tells_nothing(tmp_path):
    assert 0 < free_by(tmp_path)["on this machine"] <= NO_LIMIT


def test_all_groups_on_the_way_up_count(machine):
    job = "/system.slice/slurmstepd.scope/job_7"
    files = {
        "proc/self/cgroup": f"0::{TASK}\n",
        **group(TASK, "max", 1),
        **group(f"{job}/step_0", 900 * MIB, 100 * MIB),
        **group(job, 600 * MIB, 100 * MIB),
        **group("/system.slice", "max", 10),
    }
    assert free_by(machine(files=files)) == {
        "on this machine": 2**40,
        f"in control group {job}/step_0": 800 * MIB,
        f"in control group {job}": 500 * MIB,
    }


def test_groups_beside_the_way_do_not_count(machine):
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        **group("/a/b", 900),
        **group("/a/c", 5),
        **group("/b", 5),
    }
    assert free_by(machine(files=files)) == {
        "on this machine": 2**40,
        "in control group /a/b": 900,
    }


@pytest.mark.parametrize(
    "used, inactive, left",
    [(700, 0, 300), (700, 500, 800), (1200, 0, 0), (1200, 500, 300), (100, 400, 1000)],
)
@pytest.mark.parametrize("make, line", [(group, "0::/j"), (old_group, "9:memory:/j")])
def test_files_that_can_be_dropped_are_free(machine, make, line, used, inactive, left):
    files = {"proc/self/cgroup": line, **make("/j", 1000, used, inactive)}
    assert free_by(machine(files=files))["in control group /j"] == left


def test_a_job_that_would_be_throttled_is_over_its_limit(machine):
    """Slurm writes what was asked for into memory.high."""
    files = {"proc/self/cgroup": "0::/j\n", **group("/j", 1000, 100, high=600)}
    assert free_by(machine(files=files))["in control group /j"] == 500


def test_version_1_under_slurm(machine):
    step = "/slurm/uid_1000/job_7/step_0"
    files = {
        "proc/self/cgroup": (
            f"11:cpuset:{step}\n9:hugetlb,memory:{step}\n1:name=systemd:/x\n0::/\n"
        ),
        **old_group(step, 800, 300),
        **old_group("/slurm/uid_1000/job_7", 700, 300),
        **old_group("/slurm", V1_NONE, 300),
        **old_group("", V1_NONE, 300),
    }
    assert free_by(machine(files=files)) == {
        "on this machine": 2**40,
        f"in control group {step}": 500,
        "in control group /slurm/uid_1000/job_7": 400,
    }


@pytest.mark.parametrize(
    "make, line",
    [
        (group, "0::/\n"),
        (group, "0::/docker/abc\n"),  # the path on the host, not in here
        (group, "0::/../../job_7\n"),
        (old_group, "4:memory:/docker/abc\n"),
        (group, ""),
        (old_group, ""),
    ],
)
def test_in_a_container_the_root_is_the_group(machine, make, line):
    files = {**make("", 1000, 400), **make("/docker", 5), "sys/job_7/memory.max": 5}
    if line:
        files["proc/self/cgroup"] = line
    assert free_by(machine(files=files)) == {
        "on this machine": 2**40,
        "in control group /": 600,
    }


def test_files_that_say_nonsense_are_passed_over(machine):
    files = {
        "proc/self/cgroup": "what\n0::/j\n",
        **group("/j", "a lot"),
        **group("", 1000, "?", "?"),
    }
    assert free_by(machine(files=files))["in control group /"] == 1000
    assert len(free_by(machine(files=files))) == 2


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({"SLURM_MEM_PER_NODE": "2000"}, {"under SLURM_MEM_PER_NODE": 2000 * MIB}),
        (
            {"SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_ON_NODE": "6"},
            {"under SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE": 3000 * MIB},
        ),
        ({"SLURM_MEM_PER_NODE": "0"}, {}),  # all of the node
        ({"SLURM_MEM_PER_CPU": "500"}, {}),
        ({"SLURM_MEM_PER_NODE": "lots"}, {}),
    ],
)
def test_what_the_job_asked_for(machine, environ, expected):
    assert free_by(machine(), environ) == {"on this machine": 2**40, **expected}


def test_what_ranks_hold_comes_off_what_the_job_asked_for(machine):
    root = machine(files={"proc/self/statm": "900 25 3 1 0 9 0"})
    limits = system_limits(root, {"SLURM_MEM_PER_NODE": "1"})
    page = resource.getpagesize()
    one, two = (Claim("n", process, 7, limits) for process in (1, 2))
    budget = tightest(one, [one, two, two])  # two ranks are threads of process 2
    assert budget.limit.where == "under SLURM_MEM_PER_NODE"
    assert budget.free == MIB - 2 * 25 * page and budget.needs == [7, 7, 7]


def test_the_process_has_what_it_has_not_mapped(machine, monkeypatch):
    limits = (10 * MIB, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    root = machine(files={"proc/self/statm": "900 25 3 1 0 9 0"})
    own = [limit for limit in system_limits(root, {}) if not limit.shared]
    assert [limit.free for limit in own] == [10 * MIB - 900 * resource.getpagesize()]
    monkeypatch.setattr(os, "getpid", lambda: 0)
    other = [limit for limit in system_limits(root, {}) if not limit.shared]
    assert own[0].holder != other[0].holder


def claim(node, process, need, *limits):
    return Claim(node, process, need, limits)


def limit(holder, free, shared=True):
    return Limit(holder, free, f"of {holder}", shared=shared)


def test_ranks_of_a_node_add_up_and_others_do_not():
    claims = [claim(node, i, 10, limit("machine", 25)) for i, node in enumerate("aab")]
    assert tightest(claims[0], claims).lacks == 20 - 25
    assert tightest(claims[2], claims).lacks == 10 - 25


def test_a_group_counts_those_inside_it():
    """Tasks of Slurm have groups of their own inside the group of the step."""
    step = limit("step", 25)
    claims = [claim("a", i, 10, limit(f"task {i}", 12), step) for i in range(3)]
    budget = tightest(claims[0], claims)
    assert (budget.limit.holder, budget.needs) == ("step", [10, 10, 10])
    assert tightest(claims[0], claims[:1]).limit.holder == "task 0"


def test_processes_do_not_add_up_but_their_threads_do():
    def alone(process):
        return claim("a", process, 10, limit(f"process {process}", 15, shared=False))

    assert tightest(alone(1), [alone(1), alone(2)]).lacks == -5
    assert tightest(alone(1), [alone(1), alone(1)]).lacks == 5


def test_the_smallest_of_what_ranks_see_counts():
    claims = [claim("a", i, 1, limit("machine", free)) for i, free in enumerate((9, 4))]
    assert tightest(claims[0], claims).free == 4


def test_room_for_files_is_left_where_files_count():
    own = claim("a", 1, 60, limit("machine", 100), limit("p", 90, shared=False))
    assert tightest(own, [own]).limit.holder == "p"
    budget = tightest(own, [own], share=0.5)
    assert (budget.limit.holder, budget.free, budget.lacks) == ("machine", 50, 10)
