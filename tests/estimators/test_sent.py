"""Fits that other programs send to their workers: functions that name the package."""

import json
import subprocess
import sys

import pytest

import hpcsgd
from tests.helpers.limits import HANG

# As in a notebook: a function of `__main__` is sent by value, with the names it uses.
SCRIPT = """
import json
import numpy as np
import hpcsgd

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
y = X @ [1.0, -2.0, 0.5]

def loss(alpha):
    return hpcsgd.fit(X, "gaussian", y, alpha=alpha).loss

if __name__ == "__main__":
    alphas = [0.1, 1.0]
    {send}
    print(json.dumps({{"sent": found, "here": [loss(a) for a in alphas]}}))
"""
LOKY = """
    from joblib import Parallel, delayed
    found = Parallel(n_jobs=2, backend="loky")(delayed(loss)(a) for a in alphas)
"""
DASK = """
    from distributed import Client, LocalCluster
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster, Client(cluster) as client:
        found = client.gather(client.map(loss, alphas))
"""


@pytest.mark.cases(1)
@pytest.mark.parametrize("send", [LOKY, DASK], ids=["loky", "dask"])
def test_a_fit_is_sent_to_workers(send, tmp_path):
    script = tmp_path / "send.py"
    script.write_text(SCRIPT.format(send=send.strip()))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sent"] == found["here"]


def test_the_package_is_an_ordinary_module():
    """A subclass of modules cannot be pickled, and is not what importlib makes."""
    assert type(hpcsgd) is type(sys)
