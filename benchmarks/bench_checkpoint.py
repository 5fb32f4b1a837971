"""What a checkpoint costs: the exchange that waits for it, and the thread that writes.

One rank, recipe fp32 with momentum (two states), b = 8, s = 8, no network: the worst
case for the share of a checkpoint. `save` is what training waits for (the copy of the
state, handing over); `write` is what the thread does meanwhile (image, SHA-256, write,
flush). A save that finds the thread still busy would wait for it: it is given time.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from hpcsgd.api import train
from hpcsgd.runs.checkpoint import CheckpointStore, Saver
from hpcsgd.runs.progress import Callback

WIDTHS = (2_000, 20_000, 200_000)
ROWS, REPEATS = 512, 5


class Pause(Callback):
    """Time for the writer thread, outside of what is measured."""

    def on_exchange(self, view):
        time.sleep(0.05 if view.exchanges % 8 else 0.0)


def measure() -> dict:
    """width -> medians in µs."""
    return {f"columns={width}": measure_width(width) for width in WIDTHS}


def measure_width(width: int) -> dict:
    """An exchange without and with a checkpoint, interleaved; its two parts."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, width), dtype=np.float32)
    y = rng.integers(2, size=ROWS)
    plain, saved, parts = [], [], {"save": [], "write": []}
    for _ in range(REPEATS):
        plain.append(run(X, y, 0, {}))
        saved.append(run(X, y, 8, parts))
    save, write = (statistics.median(parts[name]) for name in ("save", "write"))
    return {
        "exchange_us": round(statistics.median(plain), 1),
        "exchange_with_one_in_8_us": round(statistics.median(saved), 1),
        "save_us": round(save, 1),
        "write_us": round(write, 1),
        "bytes": 4 * 2 * 2 * width,  # w and v, now and at the last good loss
        "share_every_300_s": save / 300e6,
    }


def run(X: np.ndarray, y: np.ndarray, every: int, parts: dict) -> float:
    """µs of an exchange."""
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "schedule": {"batch": 8, "steps": 8, "epochs": 4},
            "products": {"kind": "gram"},
            "update": {"kind": "momentum"},
            "run": {"out": folder, "evaluate_every": 0, "record": 0},
            "checkpoint": {"every": every, "seconds": 0.0},
            "rate": {"value": 1e-3},
        }
        undo = timed(parts) if every else lambda: None
        try:
            result = train(config, X=X, y=y, callbacks=[Pause()])
        finally:
            undo()
        assert not every or list(Path(folder).glob("checkpoints/*"))
    return 1e6 * result.report["seconds_total"] / result.exchanges


def timed(parts: dict):
    """Time the two parts of every checkpoint; returns what undoes it."""
    kept = Saver.save, CheckpointStore.write

    def around(name, action):
        def inner(*arguments):
            began = time.perf_counter()
            done = action(*arguments)
            parts[name].append(1e6 * (time.perf_counter() - began))
            return done

        return inner

    Saver.save, CheckpointStore.write = (
        around("save", kept[0]),
        around("write", kept[1]),
    )

    def undo() -> None:
        Saver.save, CheckpointStore.write = kept

    return undo
