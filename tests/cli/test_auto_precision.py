"""`--precision auto`: pilots choose, the result says why, resumed runs keep it."""

import json

import pytest

from hpcsgd.data.readers import MemoryReader
from hpcsgd.precision import RECIPES
from hpcsgd.tuning.pilots import choose_recipe
from tests.helpers.command_line import only_json
from tests.helpers.harness import config_for, make_problem, train_on


def configured(problem, **sections):
    precision = {"recipe": "auto", **sections.pop("precision", {})}
    schedule = {"batch": 16, "steps": 4, "epochs": 2}
    return config_for(problem, precision=precision, schedule=schedule, **sections)


@pytest.mark.parametrize("members", [1, 3])
def test_the_run_is_that_of_the_recipe_that_was_chosen(members):
    problem = make_problem("logistic", n=600, d=12)
    found = train_on(members, configured(problem), problem)
    said = found.report["precision_auto"]
    name = said["recipe"]
    assert found.report["precision"] == vars(RECIPES[name])
    assert said["predicted_gap"] == said["considered"][name]["predicted_gap"] <= 0.005
    assert set(said["considered"]) == {"fp64", "fp32", "c", "d"}
    cheapest = min(
        (
            kind
            for kind in said["considered"].values()
            if kind["predicted_gap"] <= 0.005
        ),
        key=lambda kind: kind["seconds"],
    )
    assert said["considered"][name] == cheapest
    alone = configured(problem, precision={"recipe": name})
    assert (train_on(members, alone, problem).weights == found.weights).all()


def test_a_tolerance_that_nothing_low_meets():
    problem = make_problem("logistic", n=600, d=12)
    config = configured(problem, precision={"tolerance": 1e-12})
    assert train_on(2, config, problem).report["precision_auto"]["recipe"] == "fp64"


def test_what_is_set_by_hand_stays():
    problem = make_problem("logistic", n=600, d=12)
    config = configured(problem, precision={"matrix": "fp32", "margin": "fp32"})
    result = train_on(1, config, problem)
    assert result.report["precision"]["matrix"] == "fp32"


def test_reproducible_runs_choose_without_a_clock():
    """Weights differ from recipe to recipe: the choice may not hang on timings."""
    problem = make_problem("logistic", n=600, d=12)
    config = configured(problem, run={"reproducible": True})
    reader = MemoryReader(problem.X, problem.y)
    names = {choose_recipe(config, 2, reader).recipe for _ in range(3)}
    assert names == {"c"}


def test_a_recipe_that_fails_the_pilot_is_not_chosen():
    """A tolerance between the gaps of c and of fp32."""
    problem = make_problem("logistic", n=600, d=12)
    config = configured(problem, precision={"tolerance": 2e-7})
    said = train_on(1, config, problem).report["precision_auto"]
    gaps = {name: kind["predicted_gap"] for name, kind in said["considered"].items()}
    assert gaps["fp32"] < 2e-7 < gaps["c"]
    assert said["recipe"] in ("fp32", "fp64")


def test_a_run_that_goes_on_keeps_its_precision(hpcsgd, susy, tmp_path):
    flags = ("--data", susy, "--batch", 16, "--steps", 4, "--rate", 0.2)
    flags = (*flags, "--precision", "auto", "--out", "run", "--json", "--quiet")
    flags = (*flags, "--checkpoint-every", 5)
    first = only_json(hpcsgd("train", *flags, "--epochs", 1))
    name = first["precision_auto"]["recipe"]
    written = (tmp_path / "run" / "resolved.toml").read_text()
    assert f'recipe = "{name}"' in written
    again = only_json(hpcsgd("train", *flags, "--epochs", 2, "--resume", "auto"))
    assert again["precision_auto"]["recipe"] == name and again["resumes"] == 1
    assert again["precision"] == first["precision"]


def test_real_ranks_agree(hpcsgd, susy):
    flags = ("--batch", 16, "--steps", 4, "--rate", 0.2, "--ranks", 2, "--json")
    process = hpcsgd("train", "--data", susy, *flags, "--precision", "auto")
    assert only_json(process)["precision_auto"]["recipe"] in RECIPES
    assert "precision: " in process.stderr
    json.loads(process.stdout)
