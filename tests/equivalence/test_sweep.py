"""Every model of a sweep is what a run of it alone gives."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.data.sampling import fold_of, held_out
from hpcsgd.runs.predict import evaluate
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.result import Status
from hpcsgd.solvers.callbacks import Request
from tests.helpers.harness import (
    config_for,
    make_problem,
    oracle_for,
    relative_error,
    train_on,
)
from tests.helpers.many import distance, solo, solo_run, sweep_on, weights_without
from tests.helpers.pairwise import pairwise
from tests.helpers.problems import FAMILIES
from tests.helpers.sparse import make_sparse

CHOICES = {
    "family": FAMILIES,
    "update": ("sgd", "momentum", "nesterov", "nesterov-classic"),
    "product": ("direct", "gram", "gather", "gather-once", "cached", "look-ahead"),
    "grid": ((1, 1), (1, 2), (1, 3), (2, 2)),
    "shape": ((48, 4, 3), (53, 4, 3), (41, 7, 5)),  # rows, batch, steps: tails ragged
    "data": ("plain", "all"),
    "storage": ("dense", "sparse"),
    "rates": ("constant", "inverse"),
}
SWEEP = {"l2": [0.0, 0.05], "rate": [0.1, 0.02], "folds": 2, "fold_seed": 3}
LOOKED_AT = (0, 4, 11)  # of twelve: other folds, rates and penalties


def config_of(drawn, **sections):
    """`config_for`, with a product that may be look-ahead."""
    product = sections.pop("product", "gram")
    ahead = product == "look-ahead"
    products = {"kind": "gram" if ahead else product}
    products["look_ahead"] = "on" if ahead else "off"
    return config_for(drawn, products=products, sweep=SWEEP, **sections)


def name_of(row):
    return "-".join(str(value).replace(" ", "") for value in row.values())


def covering(choices):
    """Every pair of family, product and update; the other factors drawn for each."""
    rows = pairwise({name: choices[name] for name in ("family", "product", "update")})
    others = {name: own for name, own in choices.items() if name not in rows[0]}
    rng = np.random.default_rng(0)
    for row in rows:
        row |= {name: own[rng.integers(len(own))] for name, own in others.items()}
    return rows


@pytest.mark.cases(6)
@pytest.mark.parametrize("row", covering(CHOICES), ids=name_of)
@pytest.mark.cases(3)
def test_models_equal_their_solo_runs(row):
    rows, batch, steps = row["shape"]
    if row["storage"] == "sparse":
        problem, _ = make_sparse(row["family"], n=rows)
    else:
        problem = make_problem(row["family"], n=rows, d=7)
    replicas, members = row["grid"]
    full = row["data"] == "all"
    config = config_of(
        problem,
        product=row["product"],
        problem={"intercept": full},
        schedule={"batch": batch, "steps": steps},
        update={"kind": row["update"], "momentum": 0.5},
        rate={"kind": row["rates"], "decay": 0.1, "warmup": 3 * full},
        grid={"replicas": replicas, "members": members},
        run={"gap_every": 2},
    )
    data = {"weights": full, "offset": full}
    found = sweep_on(replicas * members, config, problem, **data)
    assert len(found) == 12 and not found.outcome.events
    for number in LOOKED_AT:
        one = solo_run(
            replicas * members, config, problem, found.models[number], **data
        )
        assert distance(found.result(number), one) <= 1e-11


def test_models_equal_the_oracle():
    """Step by step in longdouble, each with its own λ, rate and fold."""
    problem = make_problem("logistic")
    config = config_of(problem, problem={"intercept": True})
    found = sweep_on(3, config, problem, weights=True, offset=True)
    for number, model in enumerate(found.models):
        own = weights_without(config, problem, model, weights=True)
        expected = oracle_for(
            solo(config, model),
            replace(problem, weights=own),
            weights=True,
            offset=True,
        )
        assert relative_error(found.result(number), expected) <= 1e-11


@pytest.mark.parametrize("recipe, tolerance", [("fp32", 1e-5), ("c", 2e-3)])
def test_narrow_models_are_those_of_narrow_runs(recipe, tolerance):
    problem = make_problem("logistic", n=61, d=9, dtype=np.float32)
    config = config_of(problem, precision={"recipe": recipe})
    found = sweep_on(2, config, problem)
    for number in LOOKED_AT:
        one = solo_run(2, config, problem, found.models[number])
        assert distance(found.result(number), one) <= tolerance


class PreemptAt(Callback):
    """The system wants its nodes back."""

    def __init__(self, exchanges):
        self.exchanges = exchanges

    def on_exchange(self, view):
        return Request.PREEMPT if view.exchanges == self.exchanges else Request.NONE


@pytest.mark.parametrize("product", ["gram", "cached", "direct"])
def test_a_sweep_goes_on_bit_for_bit(product, tmp_path):
    """Also where one of its models has diverged before it was interrupted."""
    problem = make_problem("gaussian")
    sweep = {"l2": [0.0, 0.05], "rate": [0.1, 1e90], "folds": 2}

    def run(folder, stop=0):
        config = config_for(
            problem,
            products={"kind": product},
            problem={"intercept": True},
            update={"kind": "momentum", "momentum": 0.5},
            sweep=sweep,
            run={"out": str(folder), "resume": "auto", "evaluate_every": 1},
        )
        config = replace(config, run=replace(config.run, check_every=1))
        stops = {"callbacks": lambda world: [PreemptAt(stop)]} if stop else {}
        return sweep_on(2, config, problem, **stops)

    whole = run(tmp_path / "whole")
    assert run(tmp_path / "parts", stop=7).outcome.status is Status.PREEMPTED
    again = run(tmp_path / "parts")
    assert again.outcome.report["resumes"] == 1
    np.testing.assert_array_equal(again.weights, whole.weights)
    np.testing.assert_array_equal(again.intercepts, whole.intercepts)
    np.testing.assert_array_equal(again.losses, whole.losses)
    good = [m.rate == 0.1 for m in whole.models]
    assert list(np.isfinite(whole.losses)) == good


def test_a_model_that_diverges_leaves_the_others_alone():
    problem = make_problem("gaussian")
    config = config_for(
        problem, sweep={"rate": [0.1, 1e90, 0.02]}, schedule={"epochs": 4}
    )
    found = sweep_on(2, config, problem)
    assert [found.status(k).value for k in range(3)] == [
        "completed",
        "diverged",
        "completed",
    ]
    assert found.outcome.status is Status.COMPLETED
    for number in (0, 2):
        one = solo_run(2, config, problem, found.models[number])
        assert distance(found.result(number), one) <= 1e-11
    assert found.history[-1]["losses"][1] is None
    assert found.best == 0


@pytest.mark.parametrize("family", ["logistic", "softmax", "gamma"])
@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 2)])
def test_rows_held_out_are_rows_without_weight(family, grid):
    """The model is that of the others; `held` is its mean loss on them."""
    problem = make_problem(family)
    out = held_out(slice(0, 53), 0.25, 5)
    assert 0.2 < out.mean() < 0.3
    shape = {"replicas": grid[0], "members": grid[1]}
    sections = {"grid": shape, "problem": {"intercept": True, "l2": 0.01}}
    sampling = {"seed": 5, "hold_out": 0.25}
    ranks = grid[0] * grid[1]
    held = train_on(
        ranks,
        config_for(problem, sampling=sampling, run={"evaluate_every": 1}, **sections),
        problem,
        weights=True,
        offset=True,
    )
    masked = replace(problem, weights=problem.weights * ~out)
    plain = config_for(problem, sampling={"seed": 5}, **sections)
    plain = train_on(ranks, plain, masked, weights=True, offset=True)
    assert distance(held, plain) <= 1e-12
    said = evaluate(
        held,
        problem.X[out],
        problem.y[out],
        sample_weight=problem.weights[out],
        offset=problem.offset[out],
    )
    assert held.report["held"] == pytest.approx(said["mean_loss"], rel=1e-12)
    assert [r["held"] for r in held.history][-1] == held.report["held"]
    assert len(held.history) == 3


def test_held_losses_of_folds_are_those_of_their_rows():
    problem = make_problem("poisson")
    config = config_for(problem, sweep={"l2": [0.0, 0.1], "folds": 3, "fold_seed": 1})
    found = sweep_on(3, config, problem, weights=True)
    fold = fold_of(slice(0, 53), 3, 1)
    for number, model in enumerate(found.models):
        if model.fold is None:
            assert np.isnan(found.held[number])
            continue
        own = fold == model.fold
        said = evaluate(
            found.result(number),
            problem.X[own],
            problem.y[own],
            sample_weight=problem.weights[own],
        )
        assert found.held[number] == pytest.approx(said["mean_loss"], rel=1e-12)
