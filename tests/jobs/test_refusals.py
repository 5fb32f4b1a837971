"""What is refused, in a sentence that names the remedy; and what is let through."""

import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.resources import (
    KNOWN,
    JobArray,
    JobDependency,
    Resources,
    mebibytes_of,
    seconds_of,
)
from hpcsgd.jobs.script import render, warnings
from hpcsgd.jobs.sites import load_site
from tests.jobs.examples import COMMANDS, PYTHON, SITES, STEPS, example


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("template", [*COMMANDS, *STEPS])
def test_every_template_serves_every_site(template, site):
    text = render(example(template), load_site(site), PYTHON)
    assert text.startswith("#!/bin/bash\n") and "{{" not in text and "{%" not in text
    lines = text.splitlines()
    directives = [n for n, line in enumerate(lines) if line.startswith("#SBATCH")]
    # Slurm reads none behind the first command.
    first = next(n for n, line in enumerate(lines) if line and line[0] != "#")
    assert not directives or max(directives) < first
    assert bool(directives) == (site != "workstation")
    assert ("\nsrun " in text or " srun " in text) == (site != "workstation")


def test_unknown_resources_are_an_error_that_lists_the_known():
    with pytest.raises(ConfigError) as caught:
        Resources.parse({"nodes": 1, "ntasks": 4})
    assert "['ntasks']" in str(caught.value)
    assert all(repr(name) in str(caught.value) for name in KNOWN)


@pytest.mark.parametrize(
    "table, said",
    [
        ({"nodes": 0}, "nodes = 0"),
        ({"tasks": "4"}, "tasks = '4'"),
        ({"tasks": 4.0}, "whole number"),
        ({"tasks": True}, "whole number"),
        ({"gpus": -1}, "gpus = -1"),
        ({"cpus": 10**9}, "cpus"),
        ({"nodes": 3, "tasks": 2}, "tasks = 2 is less"),
        ({"memory": "64 G"}, "memory = '64 G'"),
        ({"memory": "1.5G"}, "whole number with K, M, G or T"),
        ({"memory": "0"}, "leave it out"),
        ({"memory": 64}, "must be text"),
        ({"walltime": "2h"}, "walltime = '2h'"),
        ({"walltime": "00:00:00"}, "more than 0"),
        ({"walltime": ""}, "walltime = ''"),
        ({"walltime": "UNLIMITED"}, "time of Slurm"),
        ({"walltime": "9999-00"}, "366"),
        ({"account": "a b"}, "account = 'a b'"),
        ({"account": "-x"}, "begin with a letter"),
        ({"partition": "a,,b"}, "partition"),
        ({"qos": "a\nb"}, "qos"),
        ({"constraint": "a b"}, "constraint"),
        ({"constraint": "$(x)"}, "constraint"),
    ],
)
def test_bad_resources(table, said):
    with pytest.raises(ConfigError) as caught:
        Resources.parse(table)
    assert said in str(caught.value)


def test_good_resources():
    good = Resources.parse(
        {"partition": "a,b_2", "constraint": "gpu&hbm80g|[a*2]", "memory": "512G"}
    )
    assert good.mebibytes == 512 * 1024
    assert Resources(nodes=2, tasks=5).tasks_per_node == 3


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 5400),
        ("1:30", 90),
        ("02:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("2-00:00:01", 172801),
    ],
)
def test_times_as_slurm_writes_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["1:2:3:4", "1-2-3", "-5", "1.5", "\u0663", "1 ", "1-"]
)
def test_no_times(text):
    with pytest.raises(ConfigError):
        seconds_of(text)


def test_memory_without_a_unit_is_mebibytes():
    assert [mebibytes_of(t) for t in ("2048", "2g", "1T", "1024K")] == [
        2048, 2048, 1024**2, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, numbers",
    [("0-3", (0, 1, 2, 3)), ("1,5", (1, 5)), ("0-6:3%2", (0, 3, 6)), ("2", (2,))],
)
def test_arrays(text, numbers):
    assert JobArray.parse(text).numbers == numbers


@pytest.mark.parametrize(
    "text", ["", "3-1", "0-3%0", "0-3%", "a", "0-3;x", "0-3:0", "1,"]
)
def test_no_arrays(text):
    with pytest.raises(ConfigError, match="array"):
        JobArray.parse(text)


@pytest.mark.parametrize(
    "text, dependency",
    [
        ("12", "afterok:12"),
        ("12:ok", "afterok:12"),
        ("12_3:any", "afterany:12_3"),
        ("7:notok", "afternotok:7"),
    ],
)
def test_dependencies(text, dependency):
    assert JobDependency.parse(text).dependency == dependency


@pytest.mark.parametrize("text", ["", "x", "12:", "12:maybe", "12,13", "12 --wrap=x"])
def test_no_dependencies(text):
    with pytest.raises(ConfigError, match="--after"):
        JobDependency.parse(text)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"template": "tarin"}, "known: train, sweep"),
        ({"name": "a b"}, "name of a job"),
        ({"out": ""}, "add --out"),
        ({"command": ()}, "needs either command or steps"),
        ({"steps": STEPS["sweep"]}, "and not both"),
        ({"command": (), "steps": STEPS["sweep"]}, "steps are refused"),
        ({"array": "0-1"}, "--array is refused"),
        ({"after": ("x",)}, "--after"),
        ({"signal_seconds": -1}, "signal_seconds"),
        ({"restarts": 0}, "restarts"),
        ({"folder": "a\nb"}, "printable"),
        ({"command": ("train", "x" * 5000)}, "at most 4096"),
    ],
)
def test_bad_jobs(changes, said):
    with pytest.raises(ConfigError) as caught:
        example("train", **changes)
    assert said in str(caught.value)


def test_elements_and_steps_that_are_not_there():
    with pytest.raises(ConfigError, match="whose number is 2"):
        example("sweep", array="0-3")
    with pytest.raises(ConfigError, match="needs 8 tasks"):
        example("scaling", steps=(Step(("train",), 8),))
    assert example("sweep", array="1-2%1").elements == "1-2%1"


def at(site, template="train", **changes):
    """What is said of resources at a site."""
    more = {k: changes.pop(k) for k in ("command", "signal_seconds") if k in changes}
    job = example(template, resources=Resources(**changes), **more)
    with pytest.raises(ConfigError) as caught:
        render(job, load_site(site), PYTHON)
    return str(caught.value)


ON_GPU = (*COMMANDS["train"], "--device", "cuda")


def test_a_site_without_cuda_refuses_gpus_in_a_sentence():
    for wanted in ({"gpus": 1}, {"command": ON_GPU}):
        said = at("frontier-cpu", **wanted)
        assert "GPUs without CUDA" in said and "--device cpu" in said
    assert "has no GPUs" in at("perlmutter-cpu", gpus=1)


@pytest.mark.parametrize(
    "site, wanted, said",
    [
        ("perlmutter-gpu", {"gpus": 8}, "a node of perlmutter-gpu has 4"),
        ("perlmutter-gpu", {"cpus": 64, "tasks": 4}, "need 256 cores"),
        ("perlmutter-gpu", {"memory": "300G"}, "has 256G"),
        ("perlmutter-gpu", {"walltime": "3-00"}, "more than 48:00:00"),
        ("perlmutter-cpu", {"walltime": "01:00:00", "qos": "debug"}, "of qos debug"),
        ("workstation", {"nodes": 2, "tasks": 2}, "on one node only"),
        (
            "perlmutter-gpu",
            {"gpus": 4},
            "requests 4 GPUs on each node that its command would leave unused; add"
            " --device cuda to the command, or ask for --gpus 0",
        ),
        (
            "perlmutter-gpu",
            {"tasks": 4, "gpus": 2, "command": ON_GPU},
            "each node has 4 ranks and 2 GPUs",
        ),
    ],
)
def test_what_a_site_has_not(site, wanted, said):
    assert said in at(site, **wanted)


@pytest.mark.parametrize("template", [*COMMANDS, *STEPS])
def test_gpus_that_nothing_uses_are_refused(template):
    """Of every template: training, tests and conversions on processors hold none."""
    job = example(template, resources=Resources(tasks=4, gpus=4))
    with pytest.raises(ConfigError, match=r"requests 4 GPUs .*ask for --gpus 0"):
        render(job, load_site("perlmutter-gpu"), PYTHON)


@pytest.mark.parametrize("flags", [
    ("--device", "cuda"), ("--device=cuda",), ("--set", "run.device=cuda"),
])  # fmt: skip
def test_gpus_that_a_command_uses(flags):
    command = (*COMMANDS["train"], *flags)
    job = example("train", command=command, resources=Resources(tasks=4, gpus=4))
    assert render(job, load_site("perlmutter-gpu"), PYTHON)


def test_an_element_of_an_array_that_uses_no_gpu_is_refused():
    """Each holds GPUs of its own; launches one after another share them."""
    first, *others = STEPS["sweep"]
    steps = (Step((*first.command, "--device", "cuda")), *others)
    wanted = Resources(tasks=4, gpus=4)
    with pytest.raises(ConfigError, match="some of its runs would leave unused"):
        render(
            example("sweep", steps=steps, resources=wanted),
            load_site("perlmutter-gpu"),
            PYTHON,
        )
    together = example("scaling", steps=steps, resources=wanted)
    assert render(together, load_site("perlmutter-gpu"), PYTHON)


def test_what_a_site_has():
    site = load_site("perlmutter-gpu")
    wanted = Resources(tasks=4, gpus=4, cpus=32, walltime="48:00:00", memory="256G")
    assert render(example("train", resources=wanted, command=ON_GPU), site, PYTHON)
    shared = (*ON_GPU, "--share-gpus")
    one = Resources(tasks=4, gpus=1)
    assert render(example("train", resources=one, command=shared), site, PYTHON)


def test_ranks_are_said_once():
    said = at("generic-cpu", command=("train", "run.toml", "--ranks", "4"))
    assert "--tasks of the job" in said


def test_a_walltime_that_is_too_short_for_its_notice_is_a_warning():
    site = load_site("generic-cpu")

    def warned(template="train", **changes):
        resources = Resources(walltime=changes.pop("walltime", "00:05:00"))
        return warnings(example(template, resources=resources, **changes), site)

    (said,) = warned()
    assert "120 s ahead of the end" in said and "60 s early" in said
    assert warned(walltime="00:30:00") == warned(signal_seconds=0) == []
    assert warned("convert") == []
    assert warned(signal_seconds=30) == []


def test_the_folder_of_a_job_is_one_that_slurm_can_name():
    for name in ('a"b', "a'b", "a\\b", "a#b"):
        with pytest.raises(ConfigError, match="another --out"):
            Job("train", "n", Resources(), ("train",), out=name)
        with pytest.raises(ConfigError, match="another --out"):
            render(example("train", folder=f"/x/{name}"), load_site("generic-cpu"))
