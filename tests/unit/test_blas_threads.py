"""One rank has one BLAS thread however it is started, and callers get theirs back."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcsgd.backends.blas_threads import libraries, one_thread
from hpcsgd.comm.launchers import THREAD_SETTINGS
from tests.helpers.launcher import LAUNCH_VARIABLES
from tests.helpers.limits import HANG

COUNT = """
from hpcsgd.backends.blas_threads import libraries

def count():
    return [library.get() for library in libraries()]
"""
# Everything that works in a process whose BLAS has threads of its own.
LIBRARY = (
    COUNT
    + """
import json, sys
import numpy as np
import hpcsgd

before, during = count(), {}

class Watch(hpcsgd.Callback):
    def __init__(self, name):
        self.name = name

    def on_evaluate(self, view):
        during[self.name] = count()

rng = np.random.default_rng(0)
X, w = rng.normal(size=(600, 300)), rng.normal(size=300)
y = (X @ w > 0).astype(float)
tables = {"precision": {"recipe": "fp64"}, "schedule": {"batch": 60, "steps": 5},
          "products": {"kind": "gram"}, "rate": {"value": 0.1}}
result = hpcsgd.train(tables, X=X, y=y, callbacks=[Watch("train")])
hpcsgd.fit(X, "logistic", y, epochs=1, callbacks=[Watch("fit")])
hpcsgd.LogisticRegression(max_iter=2).fit(X, y).predict(X)
hpcsgd.evaluate(result, X, y)
hpcsgd.predict(result, X)

class Stops(hpcsgd.Callback):
    def on_evaluate(self, view):
        raise ValueError("enough")

try:
    hpcsgd.train(tables, X=X, y=y, callbacks=[Stops()])
except ValueError:
    during["failed"] = [1] * len(before)
print(json.dumps([before, during, count(), result.weights_sha256]))
"""
)
COMMAND = f"""
import sys
from hpcsgd.cli import main

code = main(sys.argv[1:])
{COUNT}
print(count(), file=sys.stderr)
sys.exit(code)
"""


def python(script, *words, folder, launcher=(), **settings):
    """What a process of its own prints, which no variable limits but `settings`."""
    left_out = (*LAUNCH_VARIABLES, *THREAD_SETTINGS, "HPCSGD_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    done = subprocess.run(
        [*launcher, sys.executable, "-c", script, *map(str, words)],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **settings},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.cases(1)
@pytest.mark.parametrize("said", [None, "1"])
def test_a_library_is_limited_and_given_back(tmp_path, said):
    """Callbacks see one thread; behind the call, and an error, there are all again."""
    settings = {} if said is None else {"OPENBLAS_NUM_THREADS": said}
    done = python(LIBRARY, folder=tmp_path, **settings)
    before, during, after, _ = json.loads(done.stdout)
    assert set(during) == {"train", "fit", "failed"}
    assert all(set(seen) <= {1} for seen in during.values()), during
    assert set(after) == set(before)  # SciPy may have brought one of its own


@pytest.mark.full
def test_what_the_user_says_is_left_alone(tmp_path):
    done = python(LIBRARY, folder=tmp_path, OPENBLAS_NUM_THREADS="2")
    before, during, after, _ = json.loads(done.stdout)
    assert set(during["train"]) == set(before) == set(after)


@pytest.fixture
def trained(tmp_path):
    """Train one rank by the command, started somehow; its weights and its threads."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(600, 300)), rng.normal(size=300)
    y = (X @ w > 0).astype(float)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"], file["y"] = X, y
    command = ["train", "--data", "d.h5", "--precision", "fp64", "--batch", 60]
    command += ["--steps", 5, "--products", "gram", "--rate", 0.1, "--json", "-q"]

    def run(*more, **settings):
        launcher = settings.pop("launcher", ())
        done = python(
            COMMAND, *command, *more, folder=tmp_path, launcher=launcher, **settings
        )
        return json.loads(done.stdout)["weights_sha256"], done.stderr.split()[-1]

    return run


@pytest.mark.full
def test_one_rank_has_the_same_bits_with_a_launcher_and_without(trained):
    """As those of a process that is told to have one thread."""
    said = trained(OPENBLAS_NUM_THREADS="1")
    runs = [trained(), trained("--threads", 1), trained("--threads", 2)]
    if shutil.which("mpiexec"):
        runs.append(trained(launcher=("mpiexec", "-n", "1")))
    assert {said, *runs} == {said}
    assert set(said[1].strip("[],")) <= {"1"}


def test_ranks_that_are_threads_are_limited_until_the_last_one_ends():
    """Whoever ends first does not give the others more."""
    if not libraries():
        pytest.skip("no BLAS is loaded whose threads can be set")
    first, second = one_thread(), one_thread()
    meanwhile = []

    def other():
        with second:
            inside.set()
            done.wait(HANG)
            meanwhile.extend(library.get() for library in libraries())

    inside, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with first:
        thread.start()
        assert inside.wait(HANG)
    done.set()
    thread.join()
    assert set(meanwhile) == {1}
