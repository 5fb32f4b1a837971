"""The set-up program: its choices and its sentences, with the tools faked."""

import configparser
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The program, working on an empty checkout."""
    spec = importlib.util.spec_from_file_location(
        "environment", ROOT / ".ci" / "environment.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("setup.cfg", "setup.py", "pyproject.toml", ".ci/environment.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "kernels" / "cpu").mkdir(parents=True)
    (tmp_path / "kernels" / "cpu" / "a.c").write_text("int a;")
    monkeypatch.setattr(module, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(module, "KEY_FILE", str(tmp_path / ".venv" / "hpcsgd-key"))
    return module


class Tools:
    """Answers for commands: the first rule whose words are all in the command."""

    def __init__(self, *rules):
        self.rules = rules
        self.commands = []

    def __call__(self, command):
        self.commands.append(" ".join(command))
        for words, code, output in self.rules:
            if all(word in self.commands[-1] for word in words):
                return subprocess.CompletedProcess(command, code, stdout=output)
        return subprocess.CompletedProcess(command, 0, stdout="compiled: it")


def use(environment, monkeypatch, *rules, tools=()):
    fake = Tools(*rules)

    def run(command):
        done = fake(command)
        if done.returncode == 0 and str(environment.VENV) in command[-1]:
            Path(environment.VENV).mkdir(exist_ok=True)
        return done

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(
        environment.shutil, "which", lambda name: name if name in tools else None
    )
    return fake


def test_too_old_is_one_sentence(environment, monkeypatch, capsys):
    monkeypatch.setattr(environment.sys, "version_info", (3, 9, 2))
    assert environment.main() == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "Python 3.9 is too old" in said[0]


def test_the_program_reads_as_old_python():
    """No syntax that an interpreter of 3.6 cannot parse."""
    import ast

    text = (ROOT / ".ci" / "environment.py").read_text()
    ast.parse(text, feature_version=(3, 6))


def test_made_once_and_kept(environment, monkeypatch):
    fake = use(environment, monkeypatch)
    assert environment.main() == 0
    assert any("-m venv" in c for c in fake.commands)
    assert any(".[mpich,test,plot]" in c for c in fake.commands)
    count = len(fake.commands)
    assert environment.main() == 0
    assert len(fake.commands) == count, "nothing is run a second time"


def test_the_environment_of_the_site_is_another_one(environment, monkeypatch, capsys):
    environment.use_docs()
    fake = use(environment, monkeypatch)
    assert environment.main() == 0 and Path(environment.VENV).name == ".venv-docs"
    assert any(".[mpich,docs]" in c for c in fake.commands)
    assert "making .venv-docs" in capsys.readouterr().out
    count = len(fake.commands)
    assert environment.main() == 0 and len(fake.commands) == count


def test_the_environment_of_the_site_has_ranks_or_is_not_made(
    environment, monkeypatch, capsys
):
    environment.use_docs()
    failed = "ERROR: Failed building wheel for mpi4py"
    use(environment, monkeypatch, (["pip install"], 1, failed))
    assert environment.main() == 2 and failed in capsys.readouterr().err
    assert not Path(environment.KEY_FILE).exists()


@pytest.mark.parametrize("name", ["setup.cfg", "pyproject.toml", "kernels/cpu/a.c"])
def test_made_anew_when_what_it_depends_on_changes(environment, monkeypatch, name):
    fake = use(environment, monkeypatch)
    environment.main()
    count = len(fake.commands)
    path = Path(environment.ROOT) / name
    path.write_text(path.read_text() + "\n")
    environment.main()
    assert len(fake.commands) > count


def test_a_half_made_one_is_rebuilt(environment, monkeypatch):
    leftover = Path(environment.VENV) / "bin" / "python"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("broken")
    use(environment, monkeypatch)
    assert environment.main() == 0
    assert not leftover.exists() and Path(environment.KEY_FILE).exists()


def test_an_interrupted_one_has_no_key(environment, monkeypatch):
    use(environment, monkeypatch)
    monkeypatch.setattr(environment, "pip", lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        environment.main()
    assert not Path(environment.KEY_FILE).exists()


@pytest.mark.parametrize(
    "tools, wanted",
    [(("virtualenv", "uv"), "virtualenv -q"), (("uv",), "uv venv -q --seed")],
)
def test_without_ensurepip_the_next_tool_is_tried(
    environment, monkeypatch, tools, wanted
):
    rules = [(["import ensurepip"], 1, ""), (["-m virtualenv"], 1, "")]
    fake = use(environment, monkeypatch, *rules, tools=tools)
    assert environment.main() == 0
    assert any(command.startswith(wanted) for command in fake.commands)
    assert not any("-m venv" in command for command in fake.commands)


def test_without_any_tool_the_package_is_named(environment, monkeypatch, capsys):
    rules = [(["import ensurepip"], 1, ""), (["-m virtualenv"], 1, "")]
    use(environment, monkeypatch, *rules)
    assert environment.main() == 2
    assert "apt install python3-venv" in capsys.readouterr().err


@pytest.mark.parametrize(
    "tools, said", [(("mpiexec",), "system's MPI is used"), ((), "runs are serial")]
)
def test_without_an_mpi_wheel(environment, monkeypatch, capsys, tools, said):
    missing = "satisfies the requirement mpich (from versions: none)"
    rules = [([".[mpich,"], 1, missing)]
    use(environment, monkeypatch, *rules, tools=tools)
    assert environment.main() == 0
    assert said in capsys.readouterr().out


def test_without_mpi4py_runs_are_serial(environment, monkeypatch, capsys):
    failed = "ERROR: Failed building wheel for mpi4py"
    rules = [([".[mpich,"], 1, failed), ([".[test,"], 1, failed)]
    fake = use(environment, monkeypatch, *rules)
    assert environment.main() == 0
    assert "serial" in capsys.readouterr().out
    assert any("--no-deps -e ." in command for command in fake.commands)


def test_other_trouble_is_not_blamed_on_mpi(environment, monkeypatch, capsys):
    words = "ERROR: No space left on device (from hpcsgd[mpich,plot,test])"
    noise = "WARNING: Location 'file:///x' is ignored: it is a folder\n"
    use(environment, monkeypatch, (["pip install"], 1, noise + words))
    assert environment.main() == 2
    said = capsys.readouterr()
    assert words in said.err and "its words stand above" in said.err
    assert "ignored" not in said.err and "serial" not in said.out
    assert not Path(environment.KEY_FILE).exists()


def test_a_checkout_of_someone_else_is_one_sentence(environment, monkeypatch, capsys):
    fake = use(environment, monkeypatch)
    monkeypatch.setattr(environment.os, "access", lambda path, mode: False)
    assert environment.main() == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "no permission to write" in said[0]
    assert not fake.commands


def test_the_old_environment_does_not_make_the_new_one(environment, monkeypatch):
    """Run from the .venv that is about to go, as where it is activated."""
    monkeypatch.setattr(environment.sys, "prefix", environment.VENV)
    monkeypatch.setattr(environment.sys, "_base_executable", "/base/python")
    assert environment.interpreter() == "/base/python"
    fake = use(environment, monkeypatch)
    assert environment.main() == 0
    assert f"/base/python -m venv {environment.VENV}" in fake.commands


def test_one_set_up_at_a_time(environment, monkeypatch, capsys):
    """The second waits, finds the work done, and does nothing."""
    fake = use(environment, monkeypatch)
    fcntl = pytest.importorskip("fcntl")
    calls = []

    def flock(held, how):
        calls.append(how)
        if how & fcntl.LOCK_NB:
            raise BlockingIOError
        Path(environment.VENV).mkdir()  # what the first did meanwhile
        Path(environment.KEY_FILE).write_text(environment.key())

    monkeypatch.setattr(fcntl, "flock", flock)
    assert environment.main() == 0
    assert len(calls) == 2 and not fake.commands and not environment.LOCKS
    assert "waiting for another set-up" in capsys.readouterr().out


def test_a_child_keeps_the_lock(environment):
    code = "import os, sys; os.fstat(int(sys.argv[1]))"
    with environment.alone():
        command = [sys.executable, "-c", code, str(environment.LOCKS[0])]
        assert environment.run(command).returncode == 0


def test_nothing_leads_pip_astray(environment, monkeypatch, tmp_path):
    for name in environment.ASTRAY:
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    code = "import os; print(*sorted(os.environ), os.environ['PIP_USER'])"
    said = environment.run([sys.executable, "-c", code]).stdout.split()
    assert not set(said) & set(environment.ASTRAY) and said[-1] == "0"


def test_root_who_asks_for_it_gets_what_debian_lacks(environment, monkeypatch):
    """The half of venv that is missing, by apt-get; on no other machine."""
    tried = []

    rules = [(["-m virtualenv"], 1, "")]
    fake = use(environment, monkeypatch, *rules, tools=("apt-get",))
    inner = environment.run

    def run(command):
        if command[:2] == ["apt-get", "install"]:
            tried.append(command)
        if "import ensurepip" in command[-1] and not tried:
            return subprocess.CompletedProcess(command, 1, stdout="")
        return inner(command)

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment.os, "geteuid", lambda: 0)
    monkeypatch.delenv("HPCSGD_APT", raising=False)
    assert environment.main() == 2 and not tried
    monkeypatch.setenv("HPCSGD_APT", "1")
    monkeypatch.setattr(environment.os, "geteuid", lambda: 1000)
    assert environment.main() == 2 and not tried
    monkeypatch.setattr(environment.os, "geteuid", lambda: 0)
    assert environment.main() == 0
    wanted = ("python3-venv", "g++")
    assert tried == [["apt-get", "install", "-y", package] for package in wanted]
    assert any("-m venv" in command for command in fake.commands)


@pytest.mark.parametrize(
    "output",
    [
        "NewConnectionError: Failed to establish",
        "ERROR: Could not find a version that satisfies the requirement numpy>=1.26"
        " (from versions: none)",
    ],
)
def test_no_registry_is_one_sentence(environment, monkeypatch, capsys, output):
    rules = [(["pip install"], 1, output)]
    use(environment, monkeypatch, *rules)
    assert environment.main() == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "registry cannot be reached" in said[0]
    assert not Path(environment.KEY_FILE).exists()


def test_without_a_compiler_the_numpy_path_is_named(environment, monkeypatch, capsys):
    rules = [(["compiled_calls.why"], 0, "not compiled ... the NumPy path is used")]
    use(environment, monkeypatch, *rules)
    assert environment.main() == 0
    assert "NumPy path" in capsys.readouterr().out


def test_without_a_home_pip_keeps_no_cache(environment, monkeypatch):
    fake = use(environment, monkeypatch)
    monkeypatch.delenv("HOME", raising=False)
    environment.main()
    installs = [c for c in fake.commands if "pip install" in c]
    assert installs and all("--no-cache-dir" in c for c in installs)


def test_the_interpreter_here_is_new_enough(environment):
    environment.check_python(sys.version_info)


def test_the_serial_list_is_that_of_setup_cfg(environment):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    needs = config["options"]["install_requires"].split("\n")
    names = {line.split()[0] for line in needs if line.strip()}
    assert set(environment.CORE) == names - {"mpi4py"}
