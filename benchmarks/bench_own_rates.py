"""Where rules end whose rates are in other units than those of SGD, rate by rate.

The five shapes of bench_methods, batches of 32 rows, three epochs, one process that
agrees on gradients; F before the first step and at the end. What a comparison takes
for such a rule (`hpcsgd/studies/plan.py`) stands in the middle of its rates.

    python -m benchmarks.run bench_own_rates
"""

from benchmarks.methods_shapes import SHAPES

PARTS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the rate that comparisons take
RULES = {
    "adam": {"kind": "adam"},
    "adagrad": {"kind": "adagrad"},
    "normalise": {"normalise": True},
}


def measure():
    """Shape -> F at first and, rule by rule, [rate, F at the end, status]."""
    return {name: _measure(shape) for name, shape in SHAPES.items()}


def _measure(shape):
    from hpcsgd.studies.plan import OWN_RATES

    X, y = shape.data()
    found = {}
    for rule, update in RULES.items():
        rates = [round(OWN_RATES[rule] * part, 9) for part in PARTS]
        runs = [_run(shape, update, rate, X, y) for rate in rates]
        found["first"] = runs[0].history[0]["loss"]
        found[rule] = [
            [rate, run.loss, run.status.value]
            for rate, run in zip(rates, runs, strict=True)
        ]
    return found


def _run(shape, update, rate, X, y):
    from hpcsgd.api import train

    config = {
        "problem": {"family": shape.family, "l2": shape.l2},
        "schedule": {"batch": 32, "epochs": 3, "steps": 1},
        "agreement": {"kind": "gradient"},
        "update": update,
        "rate": {"value": rate},
        "precision": {"recipe": "fp32"},
        "products": {"kind": "direct"},
        "run": {"fall_back": False},
    }
    return train(config, X=X, y=y)
