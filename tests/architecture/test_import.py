"""`import hpcsgd` needs NumPy and SciPy only."""

import shutil
import subprocess
import sys

import pytest

from hpcsgd.backends import compiled_calls
from hpcsgd.cli import names
from hpcsgd.cli.names import COMMANDS
from hpcsgd.data.synthetic import write_synthetic
from tests.helpers import launcher
from tests.helpers.file_calls import STRACE, counted
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


HEAVY = ("numpy", "scipy", "h5py", "rich", "mpi4py", "jinja2", "matplotlib", "pyarrow")


def test_parsers_load_nothing_heavy():
    """Help, completion, a wrong flag and a launcher of ranks wait for no NumPy."""
    code = (
        "import sys; from hpcsgd.cli.parser import make_parser; make_parser();"
        f"print(sorted(m for m in sys.modules if m in {HEAVY}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def names_of_registries():
    """Constant of hpcsgd.cli.names -> what the package itself has."""
    from hpcsgd import agreements, config, formats, glm, precision
    from hpcsgd.agreements import codecs
    from hpcsgd.comm import network_model
    from hpcsgd.data import hdf5, sampling, shard, synthetic
    from hpcsgd.data.convert import sources, transform
    from hpcsgd.glm import updates as rates
    from hpcsgd.products import cost
    from hpcsgd.runs import predict
    from hpcsgd.runs.machine import known_machines
    from hpcsgd.solvers import coordinate, evaluation
    from hpcsgd.studies import plan, run
    from hpcsgd.studies.compare import LINE_UP

    return {
        "ADAPTIVE": glm.ADAPTIVE,
        "AGREEMENTS": agreements.AGREEMENTS,
        "AUTO": precision.AUTO,
        "CODECS": codecs.CODECS,
        "COORDINATE": coordinate.COORDINATE,
        "DEVICES": config.DEVICES,
        "DRIVERS": config.DRIVERS,
        "ELEMENTS": hdf5.ELEMENTS,
        "FAMILIES": glm.FAMILIES,
        "FORMATS": formats.FORMATS,
        "GOALS": evaluation.GOALS,
        "GRAM_KERNELS": cost.GRAM_KERNELS,
        "LAYOUTS": transform.LAYOUTS,
        "LINE_UP": LINE_UP,
        "MACHINES": known_machines(),
        "METHODS": config.METHODS,
        "NETWORKS": network_model.NETWORKS,
        "PARTITIONS": shard.PARTITIONS,
        "PLACES": plan.PLACES,
        "POINT_TIMEOUT": run.TIMEOUT,
        "PREDICTIONS": predict.KINDS,
        "RATES": rates.RATES,
        "RECIPES": precision.RECIPES,
        "SAMPLINGS": sampling.MODES,
        "SHAPES": synthetic.SHAPES,
        "SOURCES": sources.SOURCES,
        "TRANSPORTS": config.TRANSPORTS,
        "UPDATES": glm.UPDATES,
    }


def test_the_names_that_flags_take_are_those_of_the_package():
    registries = names_of_registries()
    constants = {name for name in vars(names) if name.isupper()}
    assert constants - {"PAGE", "COMMANDS", "GROUPS", "WORK", "PARSERS"} == set(
        registries
    )
    for name, registry in registries.items():
        own = getattr(names, name)
        assert (
            (list(own) == list(registry))
            if isinstance(own, tuple)
            else (own == registry)
        ), name


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
        f"heavy = {(*HEAVY, 'hpcsgd.cli.train')}\n"
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


def test_a_wrong_flag_is_refused_before_anything_heavy_is_loaded():
    """One interpreter for all commands: what none of them loads, each does not load."""
    program = (
        "import sys\n"
        "from hpcsgd.cli import main\n"
        f"for command in {list(COMMANDS)!r}:\n"
        "    code = main([command, '--no-such-flag'])\n"
        f"    print(command, code, sorted(m for m in sys.modules if m in {HEAVY}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    refused = [f"{command} 2 []" for command in COMMANDS]
    assert done.stdout.splitlines() == refused, done.stderr


def test_a_start_on_cpus_loads_no_module_of_gpus():
    code = (
        "import sys, hpcsgd.api, hpcsgd.runs.build;"
        "print([m for m in sys.modules if m.startswith('hpcsgd') and 'cuda' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


UNUSED = (  # by steps of SGD that kernels take, on rows in memory
    *("h5py", "scipy.special", "scipy.sparse", "scipy.linalg", "scipy.optimize"),
    *("email", "unittest", "xml", "importlib.metadata", "concurrent.futures"),
    *("jinja2", "rich", "matplotlib", "ml_dtypes", "tempfile"),
)


@pytest.mark.skipif(not compiled_calls.instructions(), reason="no kernels here")
def test_steps_of_kernels_load_no_part_of_scipy():
    """Every module is half a dozen questions to a file system, on every rank."""
    code = CODE.format(blocked=()) + f"print([m for m in {UNUSED} if m in sys.modules])"
    code = code.replace("import pytest\n", "")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout.splitlines() == ["completed", "[]"], done.stdout + done.stderr


MOST_OWN = 1600  # file operations of a rank that the packages beneath do not cause
FLOOR = "import numpy, h5py, mpi4py.MPI"


@pytest.mark.skipif(
    not (
        shutil.which("strace") and launcher.mpiexec() and compiled_calls.instructions()
    ),
    reason="no strace, MPI or kernels here",
)
def test_a_rank_asks_for_few_files_beyond_those_of_its_packages(tmp_path):
    """Calls of open, stat, readlink, access and getdents, failures included."""
    data, trace = tmp_path / "rows.h5", tmp_path / "trace"
    write_synthetic(data, "susy", 400, 18, 3)
    train = ["-m", "hpcsgd", "train", "--comm", "mpi", "--data", str(data), "--plain"]
    counts = []
    for words in ([*train, "--epochs", "1"], ["-c", FLOOR]):
        for _ in range(2):  # the first may compile modules
            traced = [*STRACE, "-o", str(trace), sys.executable]
            done = subprocess.run(
                [*traced, *words], capture_output=True, text=True, timeout=HANG
            )
            assert done.returncode == 0, done.stderr
        counts.append(sum(counted(trace.read_text()).values()))
    assert counts[0] - counts[1] <= MOST_OWN, counts
