"""Which models a sweep has, which of them is best, and each as a result of its own."""

from dataclasses import replace

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig, SweepConfig
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.sweep import Sweep, load_sweep, with_sweep
from hpcsgd.glm import UPDATES, make_update, unroll
from hpcsgd.glm.penalties import SweepModel
from hpcsgd.glm.unrolling import one_step_many, unroll_many
from hpcsgd.runs.predict import evaluate, predict
from hpcsgd.runs.result import load_result
from tests.helpers.harness import config_for
from tests.helpers.many import sweep_on
from tests.helpers.problems import make_problem


def test_models_are_the_product_of_the_lists():
    """Penalties outermost, then rates, then folds, then the model on all rows."""
    found = SweepConfig(l2=(0.0, 1.0), rate=(0.1, 0.2), folds=2).models(9.0, 9.0)
    assert len(found) == 12
    assert found.each[:4] == (
        SweepModel(0.0, 0.1, 0),
        SweepModel(0.0, 0.1, 1),
        SweepModel(0.0, 0.1, None),
        SweepModel(0.0, 0.2, 0),
    )
    assert found.each[-1] == SweepModel(1.0, 0.2, None)
    assert found.weights[:3] == (0, 1, 2)


def test_what_no_list_names_is_that_of_the_run():
    (only,) = SweepConfig(l2=(0.5,)).models(9.0, 7.0).each
    assert only == SweepModel(0.5, 7.0, None)
    assert not SweepConfig().is_many and SweepConfig(rate=(0.5,)).is_many


@pytest.mark.parametrize(
    "section, sentence",
    [
        ({"l2": [-1.0]}, "at least 0"),
        ({"l2": [float("nan")]}, "at least 0"),
        ({"rate": [0.0]}, "above 0"),
        ({"rate": [float("inf")]}, "finite"),
        ({"rate": [0.1, 0.1]}, "twice"),
        ({"folds": 1}, "0 or at least 2"),
        ({"fold_seed": -1}, "at least 0"),
        ({"l2": 0.1}, "list of numbers"),
        ({"l2": ["a"]}, "list of numbers"),
        ({"l2": [True]}, "list of numbers"),
        ({"l2": list(range(100)), "folds": 50}, "at most 4096"),
    ],
)
def test_what_makes_no_sweep_is_refused(section, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig.parse({"sweep": section})


def test_one_value_and_arrays_are_lists_too():
    config = with_sweep({}, {"l2": 0.5, "rate": np.array([0.1, 0.2])})
    assert config.sweep.l2 == (0.5,) and config.sweep.rate == (0.1, 0.2)


def test_a_list_with_text_is_refused_by_its_name():
    with pytest.raises(ConfigError, match="rate = 'fast' must be a number"):
        with_sweep({}, {"l2": 0.5, "rate": ["fast"]})


def test_lists_go_through_toml():
    asked = {"sweep": {"l2": [0.0, 1e-5], "rate": [2], "folds": 3}}
    config = RunConfig.parse(asked)
    assert config.sweep.rate == (2.0,)
    assert "l2 = [0.0, 1e-05]" in config.toml()
    assert RunConfig.parse(config.tables()) == config


@pytest.mark.parametrize("kind", UPDATES)
def test_coefficients_of_many_are_those_of_each(kind):
    update = make_update(kind, 0.7)
    rates = np.random.default_rng(0).uniform(0.01, 0.5, size=(4, 3))
    l2, counts = np.array([0.0, 0.3, 2.0]), (5, 5, 5, 2)
    many = unroll_many(update, rates, counts, l2)
    for k in range(3):
        one = unroll(update, rates[:, k].tolist(), counts, float(l2[k]))
        for name in ("lead", "carry", "gain", "free", "push"):
            got = getattr(many, name)[..., k]
            np.testing.assert_allclose(got, getattr(one, name), rtol=1e-14, atol=1e-15)
        for got, wanted in zip(many.couple, one.couple, strict=True):
            np.testing.assert_allclose(got[..., k], wanted, rtol=1e-13, atol=1e-15)
        step = one_step_many(update, rates[1], 5, l2)
        assert step.lead.shape == (1, 1, 3)
        alone = unroll(update, [rates[1, k]], [5], float(l2[k]))
        np.testing.assert_allclose(step.carry[..., k], alone.carry, atol=1e-15)


def trained(family="logistic", run=None, **sections):
    problem = make_problem(family)
    sections.setdefault("sweep", {"l2": [1e-3, 1.0], "rate": [0.05, 0.2], "folds": 2})
    config = config_for(problem, run=run or {}, **sections)
    return problem, sweep_on(2, config, problem)


@pytest.mark.parametrize("family", ["gaussian", "softmax"])
def test_each_is_a_result_of_its_own(family, tmp_path):
    problem, found = trained(family, problem={"intercept": True})
    number = 5
    one = found.result(number)
    K = problem.classes
    assert one.weights.shape == ((7,) if K == 1 else (7, K))
    assert one.config["problem"]["l2"] == found.models[number].l2 == 1e-3
    assert one.config["rate"]["value"] == found.models[number].rate == 0.2
    assert one.loss == found.losses[number]
    one.save(tmp_path / "one")
    again = load_result(tmp_path / "one")
    assert again.weights_sha256 == one.weights_sha256
    said = evaluate(again, problem.X, problem.y)
    assert said["objective"] == pytest.approx(one.loss, rel=1e-12)
    assert len(predict(again, problem.X)) == 53
    assert [r["loss"] for r in one.history][-1] == one.loss
    RunConfig.parse(one.config)


def test_a_sweep_is_read_back(tmp_path):
    _, found = trained()
    found.save(tmp_path)
    again = load_sweep(tmp_path)
    assert again.models == found.models and again.best == found.best
    np.testing.assert_array_equal(again.weights, found.weights)
    lines = (tmp_path / "sweep.csv").read_text().splitlines()
    assert len(lines) == 13
    assert lines[0] == "model,l2,rate,fold,status,loss,held,mean_held"
    best = load_result(tmp_path / "best")
    assert best.loss == found.losses[found.best]
    with pytest.raises(DataError, match="no sweep"):
        load_sweep(tmp_path / "best")
    with pytest.raises(ConfigError, match="models of a sweep"):
        predict(load_result(tmp_path), np.zeros((1, 7)))


def test_best_is_the_setting_with_the_least_loss_over_its_folds():
    _, found = trained()
    settings = [(m.l2, m.rate) for m in found.models]
    means = {
        one: np.mean(
            [
                held
                for held, m, own in zip(found.held, found.models, settings, strict=True)
                if own == one and m.fold is not None
            ]
        )
        for one in settings
    }
    best = found.models[found.best]
    assert (best.l2, best.rate) == min(means, key=means.get)
    assert best.fold is None
    assert found.mean_held[found.best] == pytest.approx(min(means.values()))


def with_report(found, **changes):
    outcome = found.outcome
    return Sweep(replace(outcome, report=outcome.report | changes))


def test_a_setting_of_which_a_fold_diverged_is_not_best():
    _, found = trained()
    held = [float(h) if np.isfinite(h) else None for h in found.held]
    first = next(
        k
        for k, m in enumerate(found.models)
        if (m.l2, m.rate)
        == (found.models[found.best].l2, found.models[found.best].rate)
    )
    held[first] = None
    assert with_report(found, held=held).best != found.best
    with pytest.raises(ConfigError, match="smaller rates"):
        _ = with_report(found, held=[None] * 12).best


def test_rates_are_compared_by_loss_and_penalties_are_not():
    _, found = trained(sweep={"rate": [0.01, 0.3]})
    assert found.best == int(np.argmin(found.losses))
    _, found = trained(sweep={"l2": [0.01, 0.3]})
    with pytest.raises(ConfigError, match="add folds"):
        _ = found.best
    assert np.isnan(found.held).all() and "held" not in found.history[0]


def test_models_that_end_above_where_they_began_are_worse():
    """In the table, whatever else becomes of them; their runs went to the end."""
    _, found = trained("logistic", sweep={"rate": [0.1, 100.0]})
    first = found.outcome.report["first_losses"]
    assert found.losses[0] < first[0] and found.losses[1] > first[1]
    assert [row["status"] for row in found.rows()] == ["completed", "worse"]
    assert [found.result(k).is_worse for k in range(2)] == [False, True]
    assert found.status(1).value == "completed"


def test_rows_held_out_judge_all_models():
    sections = {"sweep": {"l2": [1e-4, 3.0]}, "sampling": {"hold_out": 0.2}}
    _, found = trained(**sections)
    assert found.best == int(np.argmin(found.held))
    np.testing.assert_array_equal(found.mean_held, found.held)


@pytest.mark.parametrize(
    "sections, sentence",
    [
        ({"run": {"device": "cuda"}}, "one model at a time"),
        ({"update": {"clip": "norm"}}, "one size for all"),
        ({"precision": {"residual": "fp16"}}, "one scale for all"),
        ({"sweep": {"rate": [0.1, 0.2]}, "rate": {"per_batch": 4}}, "scale those"),
        ({"precision": {"recipe": "auto"}}, "name a recipe"),
        ({"sampling": {"hold_out": 0.1}}, "use one of"),
        ({"sweep": {}}, "needs more than one model"),
    ],
)
def test_what_is_not_offered_is_said_in_one_sentence(sections, sentence):
    problem = make_problem("logistic")
    tables = {"sweep": {"l2": [0.0, 0.1], "folds": 2}, **sections}
    with pytest.raises(ConfigError, match=sentence) as error:
        hpcsgd.sweep(tables, X=problem.X, y=problem.y, world=SerialCommunicator())
    assert str(error.value).count(". ") == 0


def test_train_refuses_a_sweep():
    with pytest.raises(ConfigError, match="use hpcsgd.sweep"):
        hpcsgd.train({"sweep": {"l2": [0.0, 0.1]}}, X=np.eye(2), y=[0, 1])


def test_a_share_that_holds_out_all_rows_is_refused():
    with pytest.raises(ConfigError, match="hold_out"):
        RunConfig.parse({"sampling": {"hold_out": 1.0}})


def test_a_sweep_of_one_model_that_was_listed_is_a_sweep():
    """What a program asks for with a list of one comes back as a list of one."""
    problem = make_problem("logistic", dtype=np.float32)
    config = config_for(
        problem,
        sweep={"l2": [0.1]},
        precision={"recipe": "fp32"},
        schedule={"steps": 2},
    )
    found = sweep_on(2, config, problem)
    assert len(found) == 1 and found.weights.shape == (7, 1)


def test_the_first_loss_is_that_of_all_alike():
    """Before the first step one model is looked at, and all have its loss."""
    problem, found = trained(run={"evaluate_every": 1}, sampling={"seed": 3})
    first = found.history[0]["losses"]
    assert first == pytest.approx([np.log(2)] * 12, rel=1e-12)
    assert found.history[0]["held"][0] == pytest.approx(np.log(2), rel=1e-12)
    assert found.history[0]["held"][2] is None
