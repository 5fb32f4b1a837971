"""Products of warpgroups on a GPU that has them, each in a process of its own.

No GPU has run them yet. A kernel that breaks a rule ends all that its process has
there: what the other tests find out is not to be lost with it.
"""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.gpu.gram_wgmma import ALONE_COMMAND
from benchmarks.gpu.sanitizer import ROOT
from hpcsgd.backends.cuda.kernels import serves
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.runs import on_gpu

LIMIT = 100  # seconds; `make gpu` ends all tests where one takes 120


@pytest.fixture(autouse=True)
def has_wgmma(device):
    if not serves("gram-wgmma", "bf16", device.arch):
        pytest.skip(f"a GPU of sm_{device.arch} has no wgmma")


def by_itself(*command):
    """It ends well, in a process of its own."""
    how = {"capture_output": True, "text": True, "timeout": LIMIT, "cwd": ROOT}
    done = subprocess.run(command, **how)
    assert done.returncode == 0, done.stdout + done.stderr


def test_they_are_as_in_float64():
    by_itself(*ALONE_COMMAND)


@pytest.mark.parametrize("recipe", ["c", "fp16"])
def test_runs_are_those_of_the_plain_kernel(recipe):
    by_itself(sys.executable, "-m", "tests.gpu.test_wgmma", recipe)


def compare(recipe):
    """Two epochs of exchanges of 1024 rows by either kernel."""
    problem = make_problem("logistic", n=4000, d=600)
    fp16 = {"matrix": "fp16", "scale": "global"}
    form = fp16 if recipe == "fp16" else {"recipe": recipe}
    found = {}
    for kernel in ("own", "wgmma"):
        sections = {
            "schedule": {"batch": 32, "steps": 32, "epochs": 2},
            "precision": form,
            "products": {"kind": "gram", "gram_kernel": kernel},
        }
        found[kernel] = train_on(1, on_gpu(problem, **sections), problem)
        assert found[kernel].report["gram_kernel"] == kernel
    size = np.abs(found["own"].weights).max()
    gap = np.abs(found["wgmma"].weights - found["own"].weights).max()
    assert gap <= 1e-4 * size, f"weights differ by {gap / size:.3g}"


if __name__ == "__main__":
    compare(sys.argv[1])
