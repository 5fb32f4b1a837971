"""To the optimum: passes, messages and words until F − F* ≤ 1e-8 |F*|.

Logistic regression, 4000 × 200, λ = 1e-3, an intercept, four members (threads), a lan
felt by every message; float64, b = 32. Each way has the best of a few rates. A pass
reads all rows once: an epoch is one, a snapshot with its evaluation one, an iteration
of L-BFGS two. `scaled` columns are of size 1, `wild` ones go from 1e-3 to 1e3 and lie
far from zero; for `unscaled` L-BFGS works in w itself.
"""

import logging
import statistics
from unittest import mock

import numpy as np

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.solvers import lbfgs
from hpcsgd.solvers.full_passes import VariableScaling

ROWS, COLS, MEMBERS, BATCH, L2 = 4000, 200, 4, 32, 1e-3
TARGET, EPOCHS, REPEATS = 1e-8, 60, 3
RATES = (0.05, 0.1, 0.2, 0.4)


def measure() -> list[dict]:
    """One row for each way, on both kinds of columns."""
    rows = []
    logging.getLogger("hpcsgd").setLevel(logging.CRITICAL)  # many miss the goal
    for kind in ("scaled", "wild"):
        X, y = problem(kind)
        best = reference(X, y)
        rows += [row(kind, name, way(X, y, best)) for name, way in WAYS[kind].items()]
    return rows + iterations()


def iterations() -> list[dict]:
    """Of each kind of finisher, to 1e-10, on data whose columns are alike or not."""
    found = []
    for name, family, l2, (X, y) in small_data():
        counts = {}
        for kind in ("lbfgs", "newton", "auto"):
            sections = {
                "problem": {"family": family, "l2": l2, "intercept": True},
                "polish": {"kind": kind, "tol": 1e-10, "passes": 3000},
                "rate": {"value": tiny(X) * (1e-3 if family == "poisson" else 1.0)},
            }
            config = {"precision": {"recipe": "fp64"}, **sections}
            counts[kind] = train(config, X=X, y=y).report["polish"]["passes"]
        print(f"{name} {family} {l2:g} {counts}", flush=True)
        found.append({"problem": name, "family": family, "l2": l2, **counts})
    return found


def small_data():
    """What scikit-learn brings along: name, family, l2, rows and targets."""
    from sklearn import datasets
    from sklearn.preprocessing import PolynomialFeatures

    cancer = datasets.load_breast_cancer(return_X_y=True)
    diabetes = datasets.load_diabetes(return_X_y=True)
    squares = PolynomialFeatures(2, include_bias=False).fit_transform(diabetes[0] * 10)
    yield "breast cancer", "logistic", 1e-2, cancer
    yield "breast cancer", "squared-hinge", 1e-2, cancer
    yield "wine", "softmax", 1e-2, datasets.load_wine(return_X_y=True)
    yield "diabetes, squares", "gaussian", 1e-2, (squares, diabetes[1])
    yield "diabetes", "poisson", 1e-2, diabetes
    yield "digits", "softmax", 1e-4, datasets.load_digits(return_X_y=True)


def problem(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The same rows twice, as they are and badly scaled."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(ROWS, COLS))
    X[:, 1:] += 0.5 * X[:, :-1]  # neighbours are alike
    t = X @ rng.normal(size=COLS) / np.sqrt(COLS)
    y = (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-2 * t))).astype(float)
    if kind == "wild":
        X = (X + 10) * 10 ** rng.uniform(-3, 3, size=COLS)
    return X, y


def run(X, y, **sections):
    """One run; its result on rank 0."""
    tables = {
        "problem": {"l2": L2, "intercept": True},
        "schedule": {"batch": BATCH, "steps": 8, "epochs": 1},
        "products": {"kind": "gram"},
        "precision": {"recipe": "fp64"},
        "run": {"network": "lan", "gap_every": 0},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}

    def on_rank(world):
        return train(tables, X=X, y=y, world=world)

    return run_ranks(MEMBERS, on_rank)[0]


def reference(X, y) -> float:
    """F*, by L-BFGS to the last digit."""
    polish = {"kind": "lbfgs", "tol": 1e-13, "passes": 1000}
    found = run(X, y, polish=polish, rate={"value": tiny(X)})
    assert found.report["polish"]["ended"] in ("converged", "at rounding")
    return found.loss


def tiny(X) -> float:
    """A rate that no column is too large for."""
    return 1.0 / (1.0 + float(np.square(X).sum(axis=1).max()))


def steps(update: str, s: int, product: str = "gram"):
    """SGD or SVRG with s steps an exchange, at the best of the rates."""

    def go(X, y, best):
        found = []
        for rate in RATES:
            config = {
                "update": {"kind": update},
                "schedule": {"epochs": EPOCHS, "steps": s},
                "rate": {"value": rate},
                "products": {"kind": product},
            }
            # Stops are on the gradient alone: the gap is found in the history.
            stop = {"on": "gradient", "tol": 1e-6 if update == "svrg" else 0.0}
            result = run(X, y, stop=stop, **config)
            found.append({"rate": rate, **curve(result, best)})
        return min(found, key=lambda one: (one["passes"] or 1e9, one["gap"]))

    return go


def curve(result, best: float) -> dict:
    """When the target was reached, and what it had cost by then."""
    gaps = [(r["loss"] - best) / abs(best) for r in result.history]
    there = next((k for k, gap in enumerate(gaps) if gap <= TARGET), None)
    last = len(gaps) - 1 if there is None else there
    share = last / max(len(gaps) - 1, 1)
    ledger = result.ledger
    return {
        "gap": max(gaps[last], 0.0),
        "passes": None if there is None else 2 * there + 1,
        "messages": round(share * total(ledger, "calls")),
        "words": round(share * total(ledger, "words")),
        "seconds": round(result.history[last]["seconds"], 3),
    }


def total(ledger, figure: str) -> int:
    """Of everything that was sent to learn."""
    return sum(ledger[p][figure] for p in ("products", "agreement", "evaluate"))


def finisher(scales: bool):
    """One epoch of SGD, then L-BFGS."""

    def go(X, y, best):
        polish = {"kind": "lbfgs", "tol": 1e-10, "passes": 300}
        rate = {"value": min(0.1, tiny(X))}
        with mock.patch.object(lbfgs, "make_scaling", lbfgs.make_scaling):
            if not scales:
                lbfgs.make_scaling = unscaled
            results = [run(X, y, polish=polish, rate=rate) for _ in range(REPEATS)]
        return polished(results, best)

    return go


def unscaled(moments, l2, has_intercept) -> VariableScaling:
    """No change of variables."""
    ones = np.ones_like(moments.second)
    return VariableScaling(ones, 0.0 * ones, np.ones_like(moments.total))


def polished(results, best: float) -> dict:
    """Iterations until the target, with the passes before and the epoch."""
    result = results[0]
    records = [r for r in result.history if r.get("passes")]
    gaps = [(r["loss"] - best) / abs(best) for r in records]
    there = next((k for k, gap in enumerate(gaps) if gap <= TARGET), None)
    last = len(gaps) - 1 if there is None else there
    said, each = result.report["polish"], records[last]["passes"]
    share = each / max(said["passes"], 1)
    products = result.ledger["products"]
    seconds = [r.history[2 + last]["seconds"] for r in results]
    return {
        "gap": max(gaps[last], 0.0),
        "passes": None if there is None else 3 + 3 + 2 * each,
        "messages": products["calls"] + round(share * said["messages"]),
        "words": products["words"] + round(share * said["words"]),
        "seconds": round(statistics.median(seconds), 3),
    }


def row(kind: str, name: str, found: dict) -> dict:
    """Said as it comes."""
    print(f"{kind:7s} {name:20s} {found}", flush=True)
    return {"columns": kind, "way": name, "target": TARGET, **found}


WAYS = {
    "scaled": {
        "sgd, s = 8": steps("sgd", 8),
        "svrg, s = 1": steps("svrg", 1),
        "svrg, s = 8": steps("svrg", 8),
        "svrg, s = 8, cached": steps("svrg", 8, "cached"),
        "l-bfgs": finisher(scales=True),
        "l-bfgs, unscaled": finisher(scales=False),
    },
    "wild": {
        "l-bfgs": finisher(scales=True),
        "l-bfgs, unscaled": finisher(scales=False),
    },
}
