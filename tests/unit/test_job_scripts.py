"""The Slurm script that slurm/README.md shows, under a Slurm that is played."""

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from hpcsgd.cli.parser import make_parser
from hpcsgd.runs.result import REQUEUE
from tests.helpers.limits import HANG

README = Path(__file__).parents[2] / "slurm" / "README.md"
BLOCKS = re.findall(r"(?m)^    #!/bin/bash\n(?:    .*\n)+", README.read_text())
SCRIPTS = [textwrap.dedent(block) for block in BLOCKS]
PLAYED = {
    "srun": '#!/bin/sh\nprintf "%s\\n" "$@" > srun.txt\nexit "$CODE"\n',
    "scontrol": '#!/bin/sh\necho "$@" >> scontrol.txt\n',
}
pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")


def play(script, folder, code):
    """The script's exit code where srun ends with `code`, and what was requeued."""
    for name, text in PLAYED.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "job.sh").write_text(script)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=folder,
        env={"PATH": path, "CODE": str(code), "SLURM_JOB_ID": "42"},
        timeout=HANG,
    )
    said = folder / "scontrol.txt"
    return done.returncode, said.read_text() if said.exists() else ""


def test_there_are_scripts():
    assert len(SCRIPTS) == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=["ranks"])
@pytest.mark.parametrize("code", [0, 1, 2, REQUEUE, 137])
def test_who_asks_to_be_started_again_is(script, code, tmp_path):
    ended, requeued = play(script, tmp_path, code)
    assert ended == code
    assert requeued == ("requeue 42\n" if code == REQUEUE else "")


@pytest.mark.parametrize("script", SCRIPTS, ids=["ranks"])
def test_the_command_goes_on_in_a_folder_of_the_job(script, tmp_path):
    play(script, tmp_path, 0)
    words = (tmp_path / "srun.txt").read_text().split()
    parsed = make_parser().parse_args(words[words.index("hpcsgd") + 1 :])
    assert vars(parsed)["run.out"] == "runs/42" and vars(parsed)["run.resume"] == "auto"


@pytest.mark.parametrize("script", SCRIPTS, ids=["ranks"])
def test_everything_that_is_expanded_is_quoted(script):
    assert '"$' in script
    bare = re.sub(r'"[^"]*"', "", script).replace("code=$?", "")
    assert "$" not in bare and "`" not in bare, bare


@pytest.mark.parametrize("script", SCRIPTS, ids=["ranks"])
def test_slurm_is_told_to_warn_the_ranks_and_may_requeue(script):
    options = " ".join(re.findall(r"(?m)^#SBATCH (.*)", script)).split()
    assert {"--signal=USR2@120", "--requeue"} <= set(options)
    checked = subprocess.run(["bash", "-n"], input=script, text=True, timeout=HANG)
    assert checked.returncode == 0
