"""The command as a user runs it: a process, its output, its exit code."""

import subprocess
import sys

import pytest

from tests.cli.forge import Forge
from tests.helpers.command_line import environment
from tests.helpers.limits import HANG


@pytest.fixture(scope="session")
def forge():
    """What processes of commands are forked from."""
    found = Forge(environment())
    yield found
    found.close()


@pytest.fixture
def hpcsgd(tmp_path, tmp_path_factory, forge):
    """Run `hpcsgd ...` in an empty folder; returns the finished process."""
    said = tmp_path_factory.mktemp("said")

    def run(*arguments, timeout=HANG):
        words = list(map(str, arguments))
        if not forge.makes(environment()):
            return started(words, tmp_path, timeout)
        out, errors = said / "out", said / "errors"
        code = forge.run(words, tmp_path, out, errors, timeout)
        texts = out.read_text(), errors.read_text()
        return subprocess.CompletedProcess(["hpcsgd", *words], code, *texts)

    return run


@pytest.fixture
def interpreter(tmp_path):
    """The same from the very start: where that is what is tested."""

    def run(*arguments, timeout=HANG):
        return started(list(map(str, arguments)), tmp_path, timeout)

    return run


def started(words, folder, timeout):
    """`python -m hpcsgd` with these words."""
    return subprocess.run(
        [sys.executable, "-m", "hpcsgd", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture
def command(hpcsgd):
    """`hpcsgd ...` by another name, for files that import the package too."""
    return hpcsgd


@pytest.fixture(scope="session")
def susy(tmp_path_factory):
    """A small SUSY-shaped file."""
    from hpcsgd.data.synthetic import write_synthetic

    path = tmp_path_factory.mktemp("data") / "susy.h5"
    write_synthetic(path, "susy", 2000, 18, 0)
    return path


@pytest.fixture
def elsewhere(tmp_path):
    """A file outside of the run folder, which has to stay as it is."""
    path = tmp_path / "elsewhere"
    path.write_text("precious\n")
    yield path
    assert path.read_text() == "precious\n"


@pytest.fixture
def outside(tmp_path):
    """A folder elsewhere with a file, which have to stay as they are."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "kept").write_text("precious")
    yield path
    assert [one.name for one in path.iterdir()] == ["kept"]
    assert not (path.parent / "nowhere").exists()
