"""What is predicted of a run's memory, beside the peak of its process.

One rank trains on a file of 120000 rows and 500 columns in each recipe, by plain SGD
and by a Gram of 1024 and of 8192 sampled rows. The peak is VmHWM; the prediction is
that of `run.memory`, interpreter included.
"""

import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.helpers.peaks import measured

ROWS, COLUMNS, PIECE = 120_000, 500, 10_000
SETTINGS = (("direct", 64, 4), ("gram", 64, 16), ("gram", 512, 16))
RECIPES = ("fp64", "fp32", "c", "d")


def measure() -> list[dict[str, Any]]:
    """Return a row for each recipe and product."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.h5"
        write_rows(path)
        for recipe in RECIPES:
            for product, batch, steps in SETTINGS:
                schedule = {"batch": batch, "steps": steps, "epochs": 1}
                config = {
                    "precision": {"recipe": recipe},
                    "schedule": schedule,
                    "products": {"kind": product},
                    "sampling": {"mode": "reshuffle"},
                    "data": {"path": str(path)},
                }
                (rank,) = measured({"config": config})
                row = {"recipe": recipe, "product": product, "rows": batch * steps}
                row |= {"predicted": rank["total"], "peak": rank["peak"]}
                figures.append(row | {"ratio": rank["total"] / rank["peak"]})
                print(line_of(figures[-1]), flush=True)
    return figures


def write_rows(path: Path) -> None:
    """Write rows of float32 whose targets are 0 and 1 in turn."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        X = file.create_dataset("X", (ROWS, COLUMNS), dtype="f4")
        file["y"] = (np.arange(ROWS) % 2).astype(float)
        for first in range(0, ROWS, PIECE):
            X[first : first + PIECE] = rng.normal(size=(PIECE, COLUMNS))


def line_of(row: dict[str, Any]) -> str:
    """Return a row in words."""
    return (
        f"{row['recipe']:5s} {row['product']:7s} {row['rows']:5d} rows an exchange:"
        f" predicted {row['predicted'] / 2**20:.0f} MiB, peak"
        f" {row['peak'] / 2**20:.0f} MiB ({row['ratio']:.2f})"
    )
