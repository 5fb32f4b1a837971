"""The archive of an environment: what is in it, and that it runs anywhere."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import hpcsgd
from hpcsgd.cli import main
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError
from hpcsgd.jobs import stage as stage_module
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.script import render
from hpcsgd.jobs.sites import load_site
from hpcsgd.studies.predict import STAGED_CALLS
from tests.helpers.file_calls import STRACE, count_below
from tests.helpers.limits import HANG
from tests.jobs.examples import example

ROOT = Path(__file__).parents[2]
MOST_SHARED = 300  # file operations of a staged rank on the shared file system


def test_what_hpcsgd_needs_is_found_by_the_lists_of_the_installer():
    found = stage_module.needed(["hpcsgd"])
    assert {"hpcsgd", "numpy", "scipy", "h5py", "mpi4py", "jinja2"} <= set(found)
    assert "markupsafe" in found  # which jinja2 needs
    assert "pytest" not in found


def test_a_package_that_is_not_installed_is_refused():
    with pytest.raises(ConfigError, match=r"numpi is not installed .*numpy"):
        stage_module.needed(["numpi"])


def test_files_beside_site_packages_keep_their_place(tmp_path, monkeypatch):
    """As the libraries of MPI in wheels of MPICH; others do not leave the archive."""
    packages = tmp_path / "prefix/lib/python3/site-packages"
    info = packages / "somempi-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "prefix/lib/libmpi.so").write_text("a library")
    (tmp_path / "elsewhere").write_text("not of the prefix")
    (info / "METADATA").write_text("Name: somempi\nVersion: 1.0\n")
    outside = "../../../../elsewhere"
    (info / "RECORD").write_text(f"../../../lib/libmpi.so,,\n{outside},,\n")
    monkeypatch.syspath_prepend(str(packages))
    (dist,) = stage_module.needed(["somempi"]).values()
    root = tmp_path / "staged"
    folder = root / "lib/python3/site-packages"
    stage_module._copy_distribution(dist, folder, root)
    assert [p.name for p in root.rglob("*") if p.is_file()] == ["libmpi.so"]
    assert (root / "lib/libmpi.so").read_text() == "a library"


def test_environments_of_conda_are_left_to_conda_pack(tmp_path, monkeypatch):
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigError, match="conda-pack"):
        stage_module.stage(tmp_path / "environment.tar.gz")


def submit(tmp_path, archive, *more):
    place = ["--site", "generic-cpu", "--out", str(tmp_path / "job")]
    return main(["jobs", "render", "command", *place, "--stage", str(archive), *more])


def test_an_archive_that_is_missing_or_damaged_is_refused(tmp_path, capsys):
    archive = tmp_path / "environment.tar.gz"
    assert submit(tmp_path, archive, "--", "info") == 2
    assert f"make it with: hpcsgd jobs stage {archive}" in capsys.readouterr().err
    archive.write_bytes(b"no archive")
    assert submit(tmp_path, archive, "--", "info") == 2
    assert "make it again" in capsys.readouterr().err


def small_archive(path, version=hpcsgd.__version__):
    """An archive with a list and nothing else."""
    listed = path.with_name(stage_module.LIST)
    facts = {"version": version, "python": "3.11", "packages": {}}
    listed.write_text(json.dumps(facts))
    with tarfile.open(path, "w:gz") as packed:
        packed.add(listed, listed.name)
    return path


def test_the_archive_of_another_version_is_warned_of(tmp_path, capsys):
    assert submit(tmp_path, small_archive(tmp_path / "a.tar.gz"), "--", "info") == 0
    assert capsys.readouterr().err == ""
    old = small_archive(tmp_path / "b.tar.gz", "0.0.1")
    assert submit(tmp_path, old, "--", "info") == 0
    assert "contains hpcsgd 0.0.1" in capsys.readouterr().err


def test_one_interpreter_is_enough(tmp_path):
    job = example("train", stage="/shared/a.tar.gz")
    with pytest.raises(ConfigError, match="--python names an interpreter"):
        render(job, load_site("generic-cpu"), "/opt/python")
    site = tmp_path / "ours.toml"
    site.write_text('[[wrapper]]\nvalue = "apptainer exec a.sif"\nwhy = "w"\n')
    with pytest.raises(ConfigError, match="a container is one file already"):
        render(job, load_site(str(site)))


@pytest.mark.parametrize("folder", ["tmp", "/a b", "/$TMPDIR", ""])
def test_the_folder_of_a_node_is_a_plain_path(tmp_path, folder):
    site = tmp_path / "ours.toml"
    site.write_text(f'[node]\nlocal = "{folder}"\n')
    with pytest.raises(ConfigError, match="on its own disk"):
        load_site(str(site))


def test_stage_does_not_overwrite_without_a_flag(tmp_path, capsys):
    archive = small_archive(tmp_path / "a.tar.gz")
    assert main(["jobs", "stage", str(archive)]) == 2
    assert "add --force" in capsys.readouterr().err


@pytest.mark.full
def test_a_script_runs_from_its_archive_and_leaves_nothing(tmp_path):
    """Without Slurm; the variables of Python here are those of another one."""
    archive, data = tmp_path / "environment.tar.gz", tmp_path / "rows.h5"
    stage_module.stage(archive)
    write_synthetic(data, "susy", 400, 18, 3)
    local = tmp_path / "disk"
    local.mkdir()
    site = tmp_path / "ours.toml"
    text = load_text("workstation").replace("[node]", f'[node]\nlocal = "{local}"')
    site.write_text(text)
    out = str(tmp_path / "job")
    train = ("train", "--data", str(data), "--epochs", "2", "--out", f"{out}/run")
    one = Resources(tasks=1)
    place = {"out": out, "folder": str(tmp_path), "stage": str(archive)}
    job = example("command", command=train, resources=one, **place)
    trace = tmp_path / "trace"
    strace = [*STRACE, "-o", str(trace)]
    done = subprocess.run(
        [*(strace if shutil.which("strace") else []), "bash"],
        input=render(job, load_site(str(site))),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHOME": "/x"},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(Path(out, "run/result.json").read_text())
    assert result["status"] == "completed"
    assert not list(local.iterdir())
    if trace.exists():
        text = trace.read_text()
        assert re.search(rf"{local}/hpcsgd-local-\d+/lib/.*/hpcsgd/__init__", text)
        every_rank = [sys.prefix, sys.base_prefix, ROOT, data]
        rank_0 = [*every_rank, tmp_path / "job"]
        assert count_below(text, rank_0) <= MOST_SHARED
        assert 0 < count_below(text, every_rank) <= 2 * STAGED_CALLS


def load_text(name):
    """The file of a site of the package."""
    return (ROOT / "slurm" / "sites" / f"{name}.toml").read_text()
