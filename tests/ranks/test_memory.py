"""What was predicted of a run and what its ranks took at most: a table of runs."""

import h5py
import numpy as np
import pytest

from hpcsgd.data.synthetic import Knobs, write_synthetic
from tests.helpers import launcher
from tests.helpers.peaks import measured

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec"),
]
ROWS, COLS = 120_000, 500

# Recipe, product, batch, steps, where the rows come from.
ALONE = [
    *((recipe, "direct", 64, 4, "f4") for recipe in ("fp64", "fp32", "c", "bf16")),
    *((recipe, "gram", 64, 16, "f8") for recipe in ("fp64", "fp32", "c", "d")),
    *((recipe, "gram", 512, 16, "f4") for recipe in ("fp64", "fp32", "c", "d")),
    *((recipe, "cached", 64, 16, "f4") for recipe in ("fp64", "fp32", "c")),
    *((r, "direct", 64, 4, f"array {d}") for r in ("fp64", "c") for d in ("f4", "f8")),
    ("fp32", "gram", 512, 16, "array f4"),
    *((recipe, "gram", 64, 16, "sparse") for recipe in ("fp64", "fp32", "c")),
    *((recipe, "gram", 512, 16, "sparse") for recipe in ("fp64", "fp32")),
]
# And how many replicas two ranks are.
OF_TWO = [
    *((recipe, "gram", 64, 16, "f8", 1) for recipe in ("fp64", "fp32", "d")),
    *((recipe, "direct", 64, 4, "f8", 2) for recipe in ("fp64", "fp32", "d")),
    *((recipe, "gram", 512, 16, "f8", 1) for recipe in ("fp32", "d")),
    ("fp32", "cached", 64, 16, "f8", 1),
    ("fp32", "gather", 512, 16, "f8", 1),
    ("fp32", "gram", 64, 16, "sparse", 1),
    ("fp32", "gram", 64, 16, "array f4", 1),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of the same rows in two formats, and one of sparse rows."""
    folder, rng = tmp_path_factory.mktemp("memory"), np.random.default_rng(0)
    for name in ("f4", "f8"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            X = file.create_dataset("X", (ROWS, COLS), dtype=name)
            file["y"] = (np.arange(ROWS) % 2).astype(float)
            for first in range(0, ROWS, 10_000):
                X[first : first + 10_000] = rng.normal(size=(10_000, COLS))
    knobs = Knobs(density=0.01)
    write_synthetic(folder / "sparse.h5", "synth", 600_000, 5000, knobs=knobs)
    return folder


def case_of(recipe, product, batch, steps, source, folder, replicas=1):
    again = product == "cached"
    config = {
        "precision": {"recipe": recipe},
        "schedule": {"batch": batch, "steps": steps, "epochs": 1 + again},
        "sampling": {"mode": "shuffle-once" if again else "reshuffle"},
        "products": {"kind": product},
        "grid": {"replicas": replicas},
    }
    if source.startswith("array"):
        dtype = source.split()[1]
        return {"config": config, "rows": ROWS, "cols": COLS, "dtype": dtype}
    config["data"] = {"path": str(folder / f"{source}.h5")}
    return {"config": config}


def check(measure):
    """The prediction of every rank against its peak, of two runs the nearer one.

    The peak of a run differs by a tenth: freed memory goes back to the system early or
    late.
    """
    runs = [measure(), measure()]
    for ranks in zip(*runs, strict=True):
        assert all(rank["peak"] > 200 * 2**20 for rank in ranks)
        ratios = [rank["total"] / rank["peak"] for rank in ranks]
        assert any(0.9 <= ratio <= 1.25 for ratio in ratios), ranks


@pytest.mark.parametrize("run", ALONE, ids=lambda run: " ".join(map(str, run)))
def test_of_one_rank(run, folder):
    check(lambda: measured(case_of(*run, folder)))


@pytest.mark.parametrize("run", OF_TWO, ids=lambda run: " ".join(map(str, run)))
def test_of_two_ranks(run, folder):
    *settings, replicas = run

    def measure():
        return measured(
            case_of(*settings, folder, replicas),
            launcher=[*launcher.mpiexec(), "-n", "2"],
            environment=launcher.launch_environment(),
        )

    check(measure)
