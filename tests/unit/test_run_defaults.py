"""`train` has the defaults of `fit`, or of SGD where a setting of SGD is named."""

import re

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, read_toml
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError, ConvergenceWarning
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.defaults import kept_values, resolve_defaults
from hpcsgd.runs.result import Status, load_result
from hpcsgd.solvers.callbacks import Request
from hpcsgd.studies import compare_methods
from tests.helpers.problems import FAMILIES, make_problem
from tests.helpers.resumed import PreemptAt

PROBLEM = make_problem("logistic", n=200, d=5)
ROWS = {"X": PROBLEM.X, "y": PROBLEM.y}
QUIET = pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
FIRST_PARTS = {
    "rate": {"value": 0.1},
    "products": {"kind": "direct"},
    "schedule": {"epochs": 1},
    "update": {"kind": "sgd"},
    "agreement": {"kind": "auto"},
    "average": {"kind": "none"},
    "stop": {"on": "none"},
    "sampling": {"mode": "shuffle-once"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_that_names_no_part_of_sgd_is_fitted(family):
    problem = make_problem(family, n=200, d=5)
    rows = {"X": problem.X, "y": problem.y}
    found = hpcsgd.train({"problem": {"family": family}}, **rows)
    fitted = hpcsgd.fit(problem.X, family, problem.y)
    assert found.weights_sha256 == fitted.weights_sha256
    assert found.loss == fitted.loss
    assert found.report["converged"] and not found.advice
    assert found.config["run"]["defaults"] == "fit"


@pytest.mark.parametrize(
    "problem, arguments",
    [
        ({"l2": 0.1}, {"alpha": 0.1}),
        ({"l2": 0.0}, {"alpha": 0.0}),
        ({"l1": 0.01}, {"alpha": 0.01, "l1_ratio": 1.0}),
        ({"lower": 0.0}, {"bounds": (0.0, None)}),
        ({"intercept": False}, {"fit_intercept": False}),
    ],
    ids=["l2", "no penalty", "l1", "bounds", "no intercept"],
)
def test_a_problem_that_is_named_is_that_of_the_fit(problem, arguments):
    found = hpcsgd.train({"problem": problem}, **ROWS)
    fitted = hpcsgd.fit(PROBLEM.X, "logistic", PROBLEM.y, **arguments)
    assert found.weights_sha256 == fitted.weights_sha256
    assert found.report["converged"]


@QUIET
@pytest.mark.parametrize("section", FIRST_PARTS)
def test_one_named_setting_of_sgd_is_enough_for_sgd(section):
    """Each has the value that it would have anyway: what counts is its name."""
    named = hpcsgd.train({section: FIRST_PARTS[section]}, **ROWS)
    plain = hpcsgd.train({"run": {"defaults": "sgd"}}, **ROWS)
    whole = hpcsgd.train(RunConfig(), **ROWS)
    assert named.weights_sha256 == plain.weights_sha256 == whole.weights_sha256
    assert named.intercept is None and "polish" not in named.report
    assert named.config["run"]["defaults"] == "sgd"
    assert named.config["rate"]["value"] == 0.1


def test_defaults_of_fit_stand_beside_what_is_named_where_they_are_asked_for():
    request = {"run": {"defaults": "fit"}, "schedule": {"epochs": 3}}
    found = hpcsgd.train(request, **ROWS)
    assert found.config["schedule"]["epochs"] == 3
    assert found.config["polish"]["kind"] == "auto"
    assert found.report["converged"] and found.intercept is not None


def test_the_finisher_by_name_goes_on_to_its_own_tolerance():
    found = hpcsgd.train({"polish": {"kind": "auto"}}, **ROWS)
    assert found.config["polish"]["tol"] == 1e-8
    with pytest.warns(ConvergenceWarning, match="200 epochs of SGD"):
        without = hpcsgd.train({"polish": {"kind": "none"}}, **ROWS)
    assert "polish" not in without.report and not without.report["converged"]


@pytest.mark.parametrize(
    "tables, words",
    [
        ({"run": {"defaults": "best"}}, ["[run] defaults", "sgd, fit"]),
        (
            {"polish": {"kind": "auto"}, "sampling": {"hold_out": 0.2}},
            ["rows are held out", "leave --polish out"],
        ),
        (
            {"polish": {"kind": "auto"}, "problem": {"l1": 0.1}},
            ["F has l1 or bounds", "leave --polish out"],
        ),
        ({"problem": {"l2": -1.0}}, ["[problem] l2"]),
    ],
    ids=["unknown", "held-out rows", "l1", "penalty"],
)
def test_what_cannot_be_is_refused_by_its_name_in_the_file(tables, words):
    with pytest.raises(ConfigError) as refused:
        hpcsgd.train(tables, **ROWS)
    assert all(word in str(refused.value) for word in words)


def test_ranks_fit_alike():
    def on_rank(world):
        return hpcsgd.train(None, **ROWS, world=world)

    one, other = run_ranks(2, on_rank)
    assert one.weights_sha256 == other.weights_sha256
    assert one.report["converged"]
    assert one.report["grid"] == {"replicas": 2, "members": 1}
    alone = hpcsgd.train(None, **ROWS)
    assert one.loss == pytest.approx(alone.loss, rel=1e-6)


@pytest.mark.parametrize("layout", ["replicated", "rows"])
@pytest.mark.parametrize("solver", ["auto", "lbfgs"])
def test_ranks_share_the_rows_of_a_fit_without_steps(solver, layout):
    """Words of a pass then depend on the columns, and on no number of rows."""
    shape = (900, 6)
    X = np.random.default_rng(3).normal(size=shape)
    y = X @ np.arange(6.0) + np.random.default_rng(4).normal(size=900)

    def sent(rows, **more):
        def on_rank(world):
            own = slice(0, rows)
            if layout == "rows":
                own = slice(world.rank * rows // 2, (world.rank + 1) * rows // 2)
            return hpcsgd.fit(
                X[own],
                "huber",
                y[own],
                comm=world,
                layout=layout,
                solver=solver,
                **more,
            )

        report = run_ranks(2, on_rank)[0].report
        assert report["converged"]
        words = report["polish"]["words"] / report["polish"]["passes"]
        return report["grid"], words

    grid, words = sent(900)
    assert grid == {"replicas": 2, "members": 1}
    assert words < 900
    some = sent(450)[1]
    assert some == pytest.approx(words, rel=0.5)
    grid, words_of_columns = sent(900, grid=(1, 2))
    assert grid == {"replicas": 1, "members": 2} and words_of_columns > 900


@QUIET
@pytest.mark.parametrize(
    "more",
    [{"epochs": 2}, {"solver": "sgd"}, {"config": {"grid": {"members": 2}}}],
    ids=str,
)
def test_steps_of_sgd_and_a_given_grid_keep_one_replica(more):
    def on_rank(world):
        return hpcsgd.fit(ROWS["X"], "logistic", ROWS["y"], comm=world, **more)

    assert run_ranks(2, on_rank)[0].report["grid"] == {"replicas": 1, "members": 2}


def test_more_columns_than_rows_are_divided():
    X = np.random.default_rng(5).normal(size=(8, 30))

    def on_rank(world):
        return hpcsgd.fit(X, "gaussian", X[:, 0], comm=world)

    assert run_ranks(2, on_rank)[0].report["grid"] == {"replicas": 1, "members": 2}


def test_a_rate_from_the_data_that_blows_up_is_tried_again_slower(
    monkeypatch, tmp_path
):
    problem = make_problem("gaussian", n=60, d=5)
    monkeypatch.setattr("hpcsgd.runs.auto_rate.smoothness", lambda *_: 0.02)
    rows = {"X": problem.X, "y": problem.y}
    run = {"out": str(tmp_path), "resume": "auto", "defaults": "fit"}
    request = {"problem": {"family": "gaussian"}, "schedule": {"batch": 32}}
    found = hpcsgd.train({**request, "run": run}, **rows)
    assert found.report["rates_tried"] > 1 and found.report["converged"]
    assert load_result(tmp_path).weights_sha256 == found.weights_sha256
    given = {"problem": {"family": "gaussian"}, "rate": {"value": 50.0}}
    with pytest.warns(ConvergenceWarning, match="grew without bound"):
        assert hpcsgd.train(given, **rows).config["rate"]["value"] == 50.0


def test_what_is_not_at_its_optimum_says_so_in_the_words_of_the_caller():
    tables = {"sampling": {"hold_out": 0.2}, "schedule": {"epochs": 2}}
    with pytest.warns(ConvergenceWarning, match="--epochs N --set run.defaults=fit"):
        hpcsgd.train({**tables, "run": {"defaults": "fit"}}, **ROWS)
    with pytest.warns(ConvergenceWarning, match="raise epochs$"):
        hpcsgd.fit(PROBLEM.X, "logistic", PROBLEM.y, hold_out=0.2, epochs=2)
    X, y = PROBLEM.X, PROBLEM.X[:, 0] > 0
    with pytest.warns(ConvergenceWarning, match=r"give a penalty, l2 \(--l2\) > 0"):
        hpcsgd.train({"problem": {"l2": 0.0}}, X=X, y=y)


# What a run folder records, and what a run that goes on makes of it.


def run_of(folder, stop_at=None, resume="auto", **sections):
    run = {"out": str(folder), "resume": resume, "check_every": 1}
    sections = {**sections, "run": {**run, **sections.get("run", {})}}
    callbacks = [PreemptAt(stop_at)] if stop_at else []
    return hpcsgd.train(sections, **ROWS, callbacks=callbacks)


@QUIET
@pytest.mark.parametrize(
    "begun",
    [
        {"run": {"defaults": "fit"}, "schedule": {"epochs": 5}},
        {"run": {"defaults": "sgd"}},
    ],
    ids=["fit", "sgd"],
)
def test_a_run_that_goes_on_keeps_the_defaults_that_it_began_with(tmp_path, begun):
    whole = run_of(tmp_path / "whole", resume="no", **begun)
    first = run_of(tmp_path / "parts", stop_at=1, **begun)
    assert first.status is Status.PREEMPTED
    second = run_of(tmp_path / "parts")  # a command that names nothing
    assert second.report["resumes"] == 1
    assert second.weights_sha256 == whole.weights_sha256
    known = read_toml(tmp_path / "parts" / "resolved.toml")["run"]["defaults"]
    assert known == whole.config["run"]["defaults"] == begun["run"]["defaults"]


class StopAtPass(hpcsgd.Callback):
    """Requests a restart after a pass of the refinement."""

    def on_evaluate(self, view):
        passes = view.history[-1].get("passes", 0)
        return Request.PREEMPT if passes else None


@QUIET
def test_a_fit_without_steps_that_is_preempted_begins_again(tmp_path):
    whole = run_of(tmp_path / "whole", resume="no")
    run = {"out": str(tmp_path / "parts"), "resume": "auto"}
    first = hpcsgd.train({"run": run}, **ROWS, callbacks=[StopAtPass()])
    assert first.status is Status.PREEMPTED and first.exchanges == 0
    second = hpcsgd.train({"run": run}, **ROWS)
    assert second.status is Status.COMPLETED
    assert second.weights_sha256 == whole.weights_sha256


def test_a_checkpoint_without_a_record_is_of_sgd(tmp_path):
    run_of(tmp_path, stop_at=1, run={"defaults": "sgd"})
    _, checkpoint = CheckpointStore(tmp_path, 1).newest(tidies=False)
    tables = {k: dict(table) for k, table in checkpoint.document["config"].items()}
    del tables["run"]["defaults"]  # as earlier versions wrote it
    assert resolve_defaults({}, saved=tables) == RunConfig()


def test_pilots_of_a_recipe_are_of_sgd():
    """They need a rate that is known before the data are seen."""
    request = {"precision": {"recipe": "auto"}}
    assert resolve_defaults(request).run.defaults == "sgd"
    assert resolve_defaults({"precision": {"recipe": "c"}}).run.defaults == "fit"


def test_a_fit_that_goes_on_has_the_rate_that_it_had():
    saved = {"run": {"defaults": "fit"}, "rate": {"value": 0.007}}
    config = resolve_defaults({}, saved=saved)
    assert config.rate.is_open
    assert kept_values(config, saved)["rate.value"] == 0.007
    assert not kept_values(config, {"rate": {"value": 0.007}})


def test_the_resolved_file_of_a_fit_does_the_same_again(tmp_path):
    begun = run_of(tmp_path, resume="no", problem={"intercept": False})
    tables = read_toml(tmp_path / "resolved.toml")
    again = hpcsgd.train({**tables, "run": {"defaults": "fit"}}, **ROWS)
    assert again.weights_sha256 == begun.weights_sha256


def test_the_folder_says_whether_the_fit_is_at_its_optimum(tmp_path):
    run_of(tmp_path, resume="no")
    assert load_result(tmp_path).report["converged"] is True


def test_l1_with_checkpoints_is_solved_by_steps_that_can_be_saved(tmp_path):
    alone = hpcsgd.train({"problem": {"l1": 0.01}}, **ROWS)
    assert alone.report["solver"] == "coordinate"
    saved = run_of(tmp_path, problem={"l1": 0.01})
    assert saved.config["update"]["kind"] == "svrg" and saved.report["converged"]
    assert saved.loss == pytest.approx(alone.loss, rel=1e-4)


# How a run that ends badly says so.


def balanced(n=400, d=4, seed=0):
    """Centred columns of one spread, and two classes of one size."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X -= X.mean(axis=0)
    t = X @ np.ones(d) + 0.5 * rng.normal(size=n)
    return X, (t > np.median(t)).astype(float)


def ends_badly(tables, X, y):
    with pytest.warns(ConvergenceWarning) as told:
        found = hpcsgd.train(tables, X=X, y=y)
    assert [str(one.message) for one in told] == [found.advice]
    return found


def test_a_run_that_ends_above_where_it_began_is_worse():
    X, y = balanced()
    found = ends_badly({"rate": {"value": 0.1}}, 100.0 * X, y)
    assert found.loss > found.history[0]["loss"]
    assert found.status is Status.WORSE and found.status.exit_code == 1
    assert "ended above where it began" in found.advice
    below = hpcsgd.train({"rate": {"value": 0.1}}, X=X, y=y)
    assert below.status is Status.COMPLETED and not below.advice


def test_the_rate_that_is_named_is_that_of_the_data():
    X, y = balanced()
    found = ends_badly({"rate": {"value": 0.1}}, 100.0 * X, y)
    rate = float(re.search(r"--rate auto: ([\d.e-]+), not 0.1", found.advice)[1])
    good = hpcsgd.train({"rate": {"value": rate}}, X=100.0 * X, y=y)
    assert good.status is Status.COMPLETED
    assert found.report["remedies"][1:] == ["go on to the optimum (--polish)"]


def test_columns_of_unlike_spread_are_to_be_standardized():
    X, y = balanced()
    scales = np.array([1.0, 10.0, 100.0, 500.0])
    found = ends_badly({"rate": {"value": 0.1}}, X * scales, y)
    assert "--standardize" in found.advice and "factor of 5.1e+02" in found.advice
    far = ends_badly({"rate": {"value": 0.1}}, 100.0 * X + 5000.0, y)
    assert "spreads from 0" in far.advice


def test_an_intercept_is_named_where_the_null_model_gains_by_one():
    X, y = balanced()
    tables = {"problem": {"family": "gaussian"}, "rate": {"value": 1e-6}}
    far = hpcsgd.train(tables, X=X, y=y + 10.0)
    assert "learn an intercept (--intercept)" in far.report["remedies"]
    near = hpcsgd.train(tables, X=X, y=y - y.mean())
    assert "--intercept" not in near.advice
    tables["problem"]["intercept"] = True
    learnt = hpcsgd.train({**tables, "rate": {"value": 1e-9}}, X=X, y=y + 10.0)
    assert learnt.report["remedies"] and "--intercept" not in learnt.advice


def test_no_finisher_is_named_where_l1_bends_the_objective():
    X, y = balanced()
    tables = {"rate": {"value": 0.1}, "problem": {"l1": 0.01}}
    tables["schedule"] = {"steps": 1}
    assert "--polish" not in ends_badly(tables, 100.0 * X, y).advice


def test_a_run_that_diverged_names_no_finisher():
    X, y = balanced()
    tables = {"problem": {"family": "gaussian"}, "rate": {"value": 1.0}}
    tables["run"] = {"fall_back": False}
    found = ends_badly(tables, 100.0 * X, y)
    assert found.status is Status.DIVERGED
    assert "--rate auto" in found.advice and "--polish" not in found.advice


def test_a_run_that_hardly_moves_says_so():
    X, y = balanced()
    found = hpcsgd.train({"rate": {"value": 1e-9}}, X=X, y=y)
    assert found.status is Status.COMPLETED
    assert "hardly moved from 0.6931 in 1 epoch" in found.advice
    assert "--rate auto" in found.advice


def test_all_ranks_name_the_same_remedies():
    X, y = balanced()
    tables = {"rate": {"value": 0.1}, "grid": {"replicas": 2, "members": 2}}

    def on_rank(world):
        return hpcsgd.train(tables, X=X * [1.0, 10.0, 100.0, 500.0], y=y, world=world)

    with pytest.warns(ConvergenceWarning):
        found = run_ranks(4, on_rank)
    assert len({result.advice for result in found}) == 1
    assert "factor of 5.1e+02" in found[0].advice


def test_a_comparison_of_such_runs_warns_nobody(recwarn):
    X, y = balanced()
    found = compare_methods(
        "sgd,ddp", X=100.0 * X, y=y, repeats=1, config={"rate": {"value": 0.1}}
    )
    assert [row.status for row in found.rows] == ["worse", "worse"]
    assert not [w for w in recwarn if w.category is ConvergenceWarning]


def test_the_shape_of_a_file_decides_alike(tmp_path):
    """Rank 0 reads it; ranks share the rows unless there are more columns."""
    shapes = {}
    for n, d in ((60, 5), (8, 30)):
        X = np.random.default_rng(n).normal(size=(n, d))
        path = tmp_path / f"{n}.h5"
        with StoreWriter(path, StoreLayout(d), rows=n) as writer:
            writer.append(X, X[:, 0])

        def on_rank(world, path=path):
            tables = {"problem": {"family": "gaussian"}, "data": {"path": str(path)}}
            trained = hpcsgd.train(tables, world=world)
            fitted = hpcsgd.fit(str(path), "gaussian", comm=world)
            return trained.report["grid"], fitted.report["grid"]

        shapes[n] = run_ranks(2, on_rank)[0]
    rows, columns = {"replicas": 2, "members": 1}, {"replicas": 1, "members": 2}
    assert shapes == {60: (rows, rows), 8: (columns, columns)}
