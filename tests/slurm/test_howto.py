"""Blocks of the how-to page on submitting, on a real Slurm."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "submit.md"
LIMIT = 300.0  # seconds for all jobs of a block


def commands_of(start):
    """Return the commands of the block whose first command begins so."""
    blocks = re.findall(r"(?s)```console\n(.*?)```", PAGE.read_text())
    (block,) = (b for b in blocks if b.startswith(f"$ {start}"))
    return block.replace("\\\n", " ").replace("\n$ ", "\n").removeprefix("$ ")


@pytest.fixture
def shell(cluster, tmp_path):
    """Return what runs a script in an empty folder; it finds `hpcsgd` and Slurm."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(script):
        return cluster.call("bash", "-ec", script, cwd=tmp_path, PATH=path)

    return run


def test_the_chain_of_jobs_runs_as_printed(cluster, shell, tmp_path):
    """Convert, train and verify: each waits for the one before it, and ends well."""
    lines = [f"{k % 2} 1:{(k % 7) - 3 + k % 2} 2:{k % 5}" for k in range(200)]
    (tmp_path / "all.txt").write_text("\n".join(lines) + "\n")
    shell(commands_of("a=$(hpcsgd jobs submit convert"))
    folders = "jobs/convert", "jobs/train", "jobs/check"
    numbers = [
        path.stem.removeprefix("job-")
        for folder in folders
        for path in (tmp_path / folder).glob("job-*.sbatch")
    ]
    assert len(numbers) == 3
    end = time.monotonic() + LIMIT
    while cluster.call("squeue", "-h", "-j", ",".join(numbers)).strip():
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.5)
    table = shell(f"hpcsgd jobs status {' '.join(folders)}")
    assert [line.split()[2] for line in table.splitlines()[1:]] == ["completed"] * 3
    log = "".join(path.read_text() for path in (tmp_path / folders[2]).glob("log/*"))
    assert "fails" not in log and re.search(r"(?m)^loss +holds", log)
