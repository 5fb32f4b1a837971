"""Scripts line by line. `python -m tests.jobs.test_golden` accepts what is new."""

import difflib
import shutil
import subprocess

import pytest

from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.script import render
from hpcsgd.jobs.sites import load_site
from tests.helpers.limits import HANG
from tests.jobs.examples import COMMANDS, GOLDEN, PYTHON, SITES, STEPS, example

ACCEPT = "python -m tests.jobs.test_golden"
GPU = Resources(
    nodes=2,
    tasks=8,
    gpus=4,
    cpus=32,
    walltime="1-00:00:00",
    account="m1234_g",
    qos="regular",
    constraint="gpu&hbm80g",
)
TEMPLATES = (*COMMANDS, *STEPS)
ARCHIVE = "/shared/environments/a b.tar.gz"
GENERIC = ("generic-cpu", "generic-gpu", "workstation")
CENTRES = [site for site in SITES if site not in GENERIC]


def cases():
    """File -> (job, site): every template, train at every site, and what differs."""
    found = {
        f"{name}.generic-cpu": (example(name), "generic-cpu") for name in TEMPLATES
    }
    for site in ("generic-gpu", "workstation"):
        found[f"train.{site}"] = (example("train"), site)
    found["sweep.workstation"] = (example("sweep"), "workstation")
    for site in CENTRES:
        found[f"train.{site}"] = (at_home(site), site)
    found["train.perlmutter-gpu"] = (on_gpus(), "perlmutter-gpu")
    found["train.one-task"] = (example("train"), str(GOLDEN / "one-task.toml"))
    found["train.waiting"] = (waiting(), "generic-cpu")
    found["train.staged"] = (example("train", stage=ARCHIVE), "generic-cpu")
    found["sweep.staged"] = (example("sweep", stage=ARCHIVE), "workstation")
    everything = str(GOLDEN / "everything.toml")
    found["train.everything"] = (on_gpus(exclusive=True), everything)
    found["sweep.everything"] = (example("sweep"), everything)
    return found


def at_home(name):
    """Two nodes of a centre, with the cores, GPUs and partition of its file."""
    site = load_site(name)
    table = {"nodes": 2, "tasks": 8, "account": "m1234", **site.defaults}
    gpus = ("--device", "cuda") if table.get("gpus") else ()
    command = (*COMMANDS["train"], *gpus)
    return example("train", command=command, resources=Resources.parse(table))


def on_gpus(**changes):
    """Eight ranks on eight cards."""
    command = (*COMMANDS["train"], "--device", "cuda")
    return example("train", command=command, resources=GPU.with_(**changes))


def waiting():
    """Behind others, with little notice, in a folder that needs quoting."""
    return example(
        "train",
        after=("12", "13_4:any"),
        signal_seconds=300,
        out="jobs/a second, 100%",
        restarts=5,
    )


def rendered(name):
    job, site = cases()[name]
    return render(job, load_site(site), "" if job.stage else PYTHON)


@pytest.mark.parametrize("name", cases())
def test_the_script_is_the_one_that_was_accepted(name):
    path = GOLDEN / f"{name}.sbatch"
    found, accepted = rendered(name), path.read_text()
    lines = [text.splitlines(True) for text in (accepted, found)]
    diff = "".join(difflib.unified_diff(*lines, "accepted", "rendered"))
    assert not diff, f"{path.name} differs; if it is meant: {ACCEPT}\n{diff}"


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
@pytest.mark.parametrize("name", cases())
def test_bash_can_read_it(name):
    done = subprocess.run(
        ["bash", "-n"],
        input=rendered(name),
        text=True,
        capture_output=True,
        timeout=HANG,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_golden_file_is_left_over():
    assert {p.stem for p in GOLDEN.glob("*.sbatch")} == set(cases())


if __name__ == "__main__":
    for old in GOLDEN.glob("*.sbatch"):
        old.unlink()
    for name in cases():
        (GOLDEN / f"{name}.sbatch").write_text(rendered(name))
