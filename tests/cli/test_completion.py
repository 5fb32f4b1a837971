"""Completion scripts: bash by running its function, the others by their syntax."""

import os
import shutil
import subprocess

import pytest

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.completion import places
from hpcsgd.cli.parser import make_parser
from hpcsgd.cli.shells import SHELLS
from hpcsgd.families import FAMILIES
from tests.helpers.command_line import refuse
from tests.helpers.limits import HANG

ASK = """
source ./completion.bash
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_hpcsgd
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(tmp_path):
    """What bash offers for the last of these words."""
    text = SHELLS["bash"](list(places(make_parser())))
    (tmp_path / "completion.bash").write_text(text)

    def ask(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", "hpcsgd", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return set(filter(None, done.stdout.splitlines()))

    return ask


def test_commands(offered):
    assert offered("") == set(COMMANDS)
    assert offered("tr") == {"train"}
    data = {"card", "convert", "fetch", "inspect", "list", "synth", "verify"}
    assert offered("data", "") == data
    assert offered("--v") == {"--version"}


def test_flags_are_those_of_the_command(offered):
    assert offered("train", "--rate") == {"--rate", "--rate-kind"}
    assert offered("predict", "--") == {"--help", "--out", "--what", "--json"}
    assert offered("data", "synth", "--s") == {"--shape", "--seed"}
    assert "--family" not in offered("evaluate", "--")


def test_choices(offered):
    assert offered("train", "--family", "") == set(FAMILIES)
    assert offered("train", "--batch", "8", "--family", "pro") == {"probit"}
    assert offered("train", "--family", "=", "so") == {"softmax"}
    assert offered("train", "--family", "=") == set(FAMILIES)
    assert offered("completion", "") == {"bash", "zsh", "fish"}
    assert offered("train", "--batch", "") == set()


def test_files_by_their_endings(offered, tmp_path):
    for name in ("a b.h5", "c.hdf5", "d.toml", "e.npy", "f.csv", "g.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    assert offered("train", "--data", "") == {"a b.h5", "c.hdf5", "folder"}
    assert offered("train", "") == {"d.toml", "folder"}
    assert offered("train", "--epochs", "3", "d") == {"d.toml"}
    assert offered("train", "--out", "") == {"folder"}
    assert offered("predict", "folder", "") == {"a b.h5", "c.hdf5", "folder"}
    assert offered("predict", "--what", "mean", "") == {"a b.h5", "folder"}
    assert offered("predict", "--what", "=", "mean", "") == {"a b.h5", "folder"}
    wanted = {"a b.h5", "e.npy", "f.csv", "folder"}
    assert offered("predict", "folder", "c.hdf5", "--out", "") == wanted
    assert offered("new", "") == {"d.toml", "folder"}


def test_names_of_files_are_never_run(offered, tmp_path):
    hostile = {"$(touch ran).h5", "`touch ran`.h5", "a;touch ran;.h5", "-rf.h5", '".h5'}
    for name in hostile:
        (tmp_path / name).write_text("")
    assert offered("train", "--data", "") == hostile
    assert offered("train", "--data", "$(touch ran)") == {"$(touch ran).h5"}
    assert not (tmp_path / "ran").exists()


def test_fish_offers_what_bash_does(tmp_path):
    """By asking it: a flag that has choices offers these alone, one of files files."""
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    (tmp_path / "c.fish").write_text(SHELLS["fish"](list(places(make_parser()))))
    (tmp_path / "prime.h5").write_text("")

    def ask(words):
        done = subprocess.run(
            ["fish", "-c", f"source c.fish; complete -C '{words}'"],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        return {line.split("\t")[0] for line in done.stdout.splitlines() if line}

    assert ask("hpcsgd tr") == {"train"}
    assert ask("hpcsgd train --family pr") == {"probit"}
    assert ask("hpcsgd data sy") == {"synth"}
    assert ask("hpcsgd train --batch ") == set()
    assert "prime.h5" in ask("hpcsgd train --data pri")


def test_a_second_positional_is_no_third(offered):
    assert offered("predict", "run", "d.h5", "") == offered("predict", "--")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_flag_of_every_command_is_known(shell):
    everything = list(places(make_parser()))
    text = SHELLS[shell](everything)
    assert {place.path for place in everything} >= {(), ("train",), ("data", "synth")}
    for place in everything:
        for flag in place.flags:
            known = f"-l {flag.name[2:]} " if shell == "fish" else flag.name
            assert known in text, flag


@pytest.mark.parametrize(
    "shell, check", [("bash", "-n"), ("zsh", "-n"), ("fish", "-n")]
)
def test_the_script_is_one_of_its_shell(command, tmp_path, shell, check):
    done = command("completion", shell)
    assert done.returncode == 0 and done.stderr == ""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "script").write_text(done.stdout)
    read = subprocess.run(
        [shell, check, "script"], cwd=tmp_path, capture_output=True, text=True
    )
    assert read.returncode == 0, read.stderr


def test_another_shell_is_refused(command):
    refuse(command("completion", "tcsh"), 2, "tcsh", "bash")
