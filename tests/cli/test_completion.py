"""Completion scripts: bash by running its functions, the others by their syntax."""

import shutil
import subprocess

import pytest

from hpcsgd.cli.names import COMMANDS
from hpcsgd.glm import FAMILIES
from tests.helpers.command_line import refuse
from tests.helpers.limits import HANG

ASK = """
source ./completion.bash
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p hpcsgd | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(command, tmp_path):
    """What bash offers for the last of these words."""
    done = command("completion", "bash")
    assert done.returncode == 0 and done.stderr == ""
    (tmp_path / "completion.bash").write_text(done.stdout)

    def ask(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", "hpcsgd", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == 0, done.stderr
        return set(filter(None, done.stdout.splitlines()))

    return ask


def test_commands(offered):
    assert offered("") >= set(COMMANDS)
    assert offered("tr") == {"train"}
    data = {"card", "convert", "fetch", "inspect", "list", "synth", "verify"}
    assert offered("data", "") >= data
    assert offered("--v") == {"--version"}


def test_flags_are_those_of_the_command(offered):
    assert offered("train", "--rate") == {"--rate", "--rate-kind"}
    assert offered("predict", "--w") == {"--what"}
    assert offered("data", "synth", "--sh") == {"--shape"}
    assert offered("evaluate", "--family") == set()


def test_choices(offered):
    assert offered("train", "--family", "") >= set(FAMILIES)
    assert offered("train", "--batch", "8", "--family", "pro") == {"probit"}
    assert offered("completion", "") >= {"bash", "zsh", "tcsh"}


def test_files_and_folders(offered, tmp_path):
    for name in ("c.hdf5", "d.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    assert offered("train", "--data", "c.") == {"c.hdf5"}
    assert offered("train", "d.") == {"d.toml"}
    assert {one.rstrip("/") for one in offered("train", "--out", "f")} == {"folder"}
    assert offered("train", "--out", "c.") == set()


def test_names_of_files_are_never_run(offered, tmp_path):
    for name in ("$(touch ran).h5", "`touch ran`.h5", "a;touch ran;.h5"):
        (tmp_path / name).write_text("")
    assert offered("train", "--data", "$(t") == {"$(touch ran).h5"}
    assert offered("train", "--data", "a") == {"a;touch ran;.h5"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shell, check", [("bash", "-n"), ("zsh", "-n"), ("tcsh", "")])
def test_the_script_is_one_of_its_shell(command, tmp_path, shell, check):
    done = command("completion", shell)
    assert done.returncode == 0 and done.stderr == ""
    for words in (*COMMANDS, "synth", "--rate-kind" if shell != "tcsh" else "train"):
        assert words in done.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "script").write_text(done.stdout)
    read = subprocess.run(
        [shell, *filter(None, [check]), "script"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert read.returncode == 0, read.stderr


def test_another_shell_is_refused(command):
    refuse(
        command("completion", "fish"), 2, "no completion for fish", "bash, zsh, tcsh"
    )


def test_without_shtab_the_extra_is_named(command, tmp_path, monkeypatch):
    (tmp_path / "fake" / "shtab").mkdir(parents=True)
    text = "raise ImportError('not here')\n"
    (tmp_path / "fake" / "shtab" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    refuse(command("completion", "bash"), 2, "pip install 'hpcsgd[completion]'")
