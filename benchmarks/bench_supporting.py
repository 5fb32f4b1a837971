"""Where F is after each epoch with what supports a step: formats, clips, eight bits.

    python -m benchmarks.run bench_supporting

Four replicas that are threads, 2000 dense rows of 5000 columns, logistic loss, DDP;
each at the rate of those tried at which it ends lowest. No clock is read.
"""

from typing import Any

import numpy as np

from benchmarks.curves import curve_of

ROWS, COLUMNS, REPLICAS, EPOCHS = 2000, 5000, 4, 8
RATES = {"sgd": (2.0, 8.0, 32.0), "momentum": (0.5, 2.0, 8.0)}
RATES |= {"adam": (0.001, 0.004, 0.016), "normalise": (0.1, 0.4, 1.6)}
HELD = {"scale": "column"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {}),
    "matrix in int8": ("sgd", {"precision": {"matrix": "int8", **HELD}}),
    "matrix in fp8-e4m3": ("sgd", {"precision": {"matrix": "fp8-e4m3", **HELD}}),
    "residuals in fp16, scaled": ("sgd", {"precision": {"residual": "fp16"}}),
    "four batches together": ("sgd", {"agreement": {"accumulate": 4}}),
    "rate for the batch, warm-up": (
        "sgd",
        {"rate": {"per_batch": 32, "warmup": 16}},
    ),
    "the same, 2/L of batches": (
        "sgd",
        {"rate": {"per_batch": 32, "warmup": 16, "norm": "batches"}},
    ),
    "clip by norm": ("sgd", {"update": {"clip": "norm", "clip_at": 0.05}}),
    "clip by value": ("sgd", {"update": {"clip": "value", "clip_at": 0.001}}),
    "clip by percentile": ("sgd", {"update": {"clip": "percentile"}}),
    "centred columns": ("sgd", {"update": {"centre": "columns"}}),
    "of length one": ("normalise", {"update": {"normalise": True}}),
    "noise": ("sgd", {"update": {"noise": 1e-8}}),
    "momentum": ("momentum", {"update": {"kind": "momentum"}}),
    "momentum, 8 bits": ("momentum", {"update": {"kind": "momentum", "bits": 8}}),
    "adam": ("adam", {"update": {"kind": "adam"}}),
    "adam, 8 bits": ("adam", {"update": {"kind": "adam", "bits": 8}}),
}


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Targets that a linear model knows but for some noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS)) / np.sqrt(COLUMNS)
    score = 4 * X @ rng.standard_normal(COLUMNS)
    y = rng.random(ROWS) < 1 / (1 + np.exp(-score))
    return X.astype(np.float32), y.astype(float)


def config_of(asked: dict[str, Any], rate: float) -> dict[str, Any]:
    """DDP with what is asked for."""
    tables: dict[str, dict[str, Any]] = {
        "problem": {"family": "logistic", "l2": 1e-3},
        "schedule": {"batch": 32, "epochs": EPOCHS},
        "agreement": {"method": "ddp"},
        "grid": {"replicas": REPLICAS},
        "rate": {"value": rate},
        "precision": {"recipe": "fp32"},
        "run": {"evaluate_every": 1, "fall_back": False},
    }
    for name, table in asked.items():
        tables[name] = {**tables.get(name, {}), **table}
    return tables


def measure() -> dict[str, Any]:
    """name -> its rate, and F at the start and after each epoch."""
    X, y = problem()
    found: dict[str, Any] = {}
    for name, (rates, asked) in CASES.items():
        runs = {}
        for rate in RATES[rates]:
            curve, _ = curve_of(config_of(asked, rate), X, y, REPLICAS)
            runs[rate] = [float(f"{look['loss']:.6g}") for look in curve]
        best = min(
            (r for r in runs if len(runs[r]) > EPOCHS), key=lambda r: runs[r][-1]
        )
        found[name] = {"rate": best, "loss": runs[best]}
    return found
