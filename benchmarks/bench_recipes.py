"""What recipes do to the loss: gaps to FP32 SGD after equal epochs.

Every set is trained on by plain FP32 SGD, one step after the other, and by CA-SGD in
recipes c and d for s in 4, 16, 64 and C in 1, 2, 4 members; the recipe bf16, which is
emulated, for one of these. Members are threads: what is said is about numbers, and no
time is taken. Rates are at most half of what is stable on these rows.
"""

import os
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from benchmarks.peers.problems import Kind, make_of  # noqa: E402
from hpcsgd.comm.threads import run_ranks  # noqa: E402
from hpcsgd.config import RunConfig  # noqa: E402
from hpcsgd.data.readers import MemoryReader  # noqa: E402
from hpcsgd.tuning.exact_exchange import largest_safe_rate  # noqa: E402
from hpcsgd.tuning.pilots import SamplePath as Groups  # noqa: E402
from hpcsgd.tuning.pilots import draw_sample  # noqa: E402

ROWS, BATCH, EPOCHS = 20000, 32, 3
STEPS, MEMBERS = (4, 16, 64), (1, 2, 4)
SETS = {  # name -> how it is made, and the rate of the headline
    "epsilon": (Kind("epsilon", "logistic"), 8.0),
    "susy": (Kind("susy", "logistic"), 1.0),
    "higgs": (Kind("higgs", "logistic"), 1.0),
    "synth": (Kind("synth", "logistic"), 0.05),
    "poisson-synth": (Kind("poisson-synth", "poisson"), 0.2),
    "epsilon-linear": (Kind("epsilon", "gaussian"), 1.0),
    "susy-linear": (Kind("susy", "gaussian"), 0.1),
    "higgs-linear": (Kind("higgs", "gaussian"), 0.1),
    "synth-linear": (Kind("synth", "gaussian"), 0.05),
    "a9a": (Kind("a9a.txt", "logistic"), 0.2),
    "w1a": (Kind("w1a.txt", "logistic"), 0.2),
    "abalone": (Kind("abalone.txt", "gaussian"), 0.1),
}


def measure() -> list[dict[str, Any]]:
    """A row for each set, recipe, s and C."""
    figures = []
    for name, (kind, rate) in SETS.items():
        if kind.file is not None and not kind.file.exists():
            print(f"{name} is left out: {kind.file} is not there")
            continue
        figures += of_set(name, kind, rate)
    return figures


def of_set(name: str, kind: Kind, rate: float) -> list[dict[str, Any]]:
    """All of one set."""
    X, y = make_of(kind, ROWS)
    rate = min(rate, 0.5 * _safe_rate(kind, X, y))
    plain = {"steps": 1, "recipe": "fp32", "product": "direct"}
    sgd = _loss(kind, X, y, rate, members=1, **plain)
    begin = _loss(kind, X, y, rate, members=1, **plain, epochs=0)
    settings = [(r, s, C) for r in ("c", "d") for s in STEPS for C in MEMBERS]
    rows = []
    for recipe, s, C in [*settings, ("bf16", 16, 2)]:
        low = _loss(kind, X, y, rate, members=C, steps=s, recipe=recipe, product="gram")
        gap = (low - sgd) / abs(sgd)
        rows.append(
            {
                "set": name,
                "family": kind.family,
                "rows": len(y),
                "columns": X.shape[1],
                "rate": rate,
                "recipe": recipe,
                "s": s,
                "C": C,
                "loss_at_zero": begin,
                "loss_of_sgd": sgd,
                "loss": low,
                "gap_percent": 100 * gap,
            }
        )
        print(f"{name:15} {recipe:5} s={s:<3} C={C} {100 * gap:+.5f} %", flush=True)
    return rows


def _safe_rate(kind: Kind, X: np.ndarray, y: np.ndarray) -> float:
    config = _config(kind, len(y), 1.0, 4, "fp64", "gram", 1)
    sample = draw_sample(MemoryReader(X, y), 4 * BATCH)
    groups = Groups(config, sample, 1).exchanges(3, 1)
    return min(largest_safe_rate(exchange) for exchange in groups[:1])


def _config(
    kind: Kind,
    rows: int,
    rate: float,
    steps: int,
    recipe: str,
    product: str,
    epochs: int,
) -> RunConfig:
    return RunConfig.parse(
        {
            "problem": {"family": kind.family, "l2": 1.0 / rows},
            "schedule": {"batch": BATCH, "steps": steps, "epochs": max(epochs, 1)},
            "products": {"kind": product, "look_ahead": "off"},
            "rate": {"value": rate if epochs else 1e-30},
            "precision": {"recipe": recipe},
            "run": {"evaluate_every": 0, "record": 0, "fall_back": False},
        }
    )


def _loss(
    kind: Kind,
    X: np.ndarray,
    y: np.ndarray,
    rate: float,
    *,
    members: int,
    steps: int,
    recipe: str,
    product: str,
    epochs: int = EPOCHS,
) -> float:
    import hpcsgd

    config = _config(kind, len(y), rate, steps, recipe, product, epochs)
    results = run_ranks(
        members, lambda world: hpcsgd.train(config, X=X, y=y, world=world)
    )
    return float(results[0].loss)
