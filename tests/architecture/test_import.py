"""`import hpcsgd` needs NumPy and SciPy only."""

import subprocess
import sys

import pytest

from tests.helpers.limits import HANG

CODE = """
import sys

import pytest
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import hpcsgd
import numpy as np
X = np.random.default_rng(0).normal(size=(64, 3))
result = hpcsgd.train(hpcsgd.RunConfig(), X=X, y=(X[:, 0] > 0).astype(float))
print(result.status.value)
"""
OPTIONAL = ("h5py", "mpi4py", "ml_dtypes", "jinja2", "rich", "matplotlib", "cupy")


def test_training_in_memory_needs_numpy_and_scipy_only():
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(blocked=OPTIONAL)],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.stdout.strip() == "completed", done.stderr


def test_import_alone_loads_no_numpy():
    code = "import hpcsgd, sys; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.strip() == "False"


def test_a_conversion_is_handed_to_its_ranks_without_scipy():
    """The process that only starts them shall not keep them waiting."""
    code = (
        "import sys; from hpcsgd.cli.parser import make_parser; make_parser('data');"
        "print(sorted(m for m in sys.modules if m in"
        " ('scipy', 'h5py', 'rich', 'mpi4py', 'hpcsgd.cli.train')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_command_line_loads_no_heavy_parts_of_scipy():
    """They take longer to load than everything else together."""
    code = (
        "import sys; from hpcsgd.cli.parser import make_parser; make_parser();"
        "print(sorted(m for m in sys.modules if m in"
        " ('scipy.stats', 'scipy.signal', 'scipy.optimize', 'matplotlib', 'pyarrow')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    "words, code", [(["--help"], 0), (["--version"], 0), (["trian"], 2), ([], 2)]
)
def test_what_needs_no_command_loads_none(words, code):
    """`hpcsgd --help` and a misspelt command wait for no import of NumPy."""
    program = (
        "import sys\n"
        "from hpcsgd.cli import main\n"
        "try:\n"
        f"    code = main({words!r})\n"
        "except SystemExit as ended:\n"
        "    code = ended.code or 0\n"
        "heavy = ('numpy', 'scipy', 'h5py', 'rich', 'mpi4py', 'hpcsgd.cli.train')\n"
        "print(code, sorted(m for m in sys.modules if m in heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.splitlines()[-1] == f"{code} []", done.stdout + done.stderr


def test_the_menu_shows_every_command():
    """What `--help` says without its modules is what they say of themselves."""
    from hpcsgd.cli.parser import make_menu, make_parser

    assert make_menu().format_help() == make_parser().format_help()
