"""A training run in a process of its own, what was predicted of it, and its peak.

    python -m tests.helpers.peaks JSON      (also under mpiexec)

prints one line of JSON a rank: the parts of the prediction, their total, and VmHWM.
The JSON has `config` (sections), `rows`, `cols`, and either `path`, a file, or `dtype`,
that of arrays made here.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 600.0  # seconds in which a run has to have ended


def measured(case, *, launcher=(), environment=None):
    """What every rank of one run printed: its rank, prediction and peak, in bytes."""
    command = [*launcher, sys.executable, "-m", "tests.helpers.peaks", json.dumps(case)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
    return sorted(found, key=lambda one: one["rank"])


def peak():
    """VmHWM of this process in bytes; ru_maxrss would begin with its parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def main(case):
    """Predict, train, print."""
    import numpy as np

    from hpcsgd.api import open_data, train
    from hpcsgd.comm import open_world
    from hpcsgd.comm.grid import Grid
    from hpcsgd.config import RunConfig
    from hpcsgd.runs import memory

    config = RunConfig.parse(case["config"])
    X = y = None
    if "dtype" in case:
        X = np.empty((case["rows"], case["cols"]), case["dtype"])
        # Row by row: nothing beside the array itself is to be seen in the peak.
        for row in range(len(X)):
            X[row] = np.sin(np.arange(row, row + X.shape[1]))
        y = np.arange(len(X)) % 2
    world = open_world(config.run.comm)
    reader = open_data(config, X, y, None, None)(world)
    grid = Grid(world, config.grid.replicas, world.size // config.grid.replicas)
    precision = config.precision.resolve()
    need = memory.predict(grid, reader, config, precision, case.get("states", 1))
    reader.close()
    train(config, X=X, y=y, world=world)
    parts = {name: int(size) for name, size in vars(need).items()}
    line = {"rank": world.rank, "total": need.total, "peak": peak(), "parts": parts}
    os.write(1, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
