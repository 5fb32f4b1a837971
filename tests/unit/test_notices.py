"""Settings that do nothing on this grid are said, or refused as on any other."""

import pytest

from hpcsgd import fit, race, sweep
from hpcsgd.cli.compare import plan_comparison
from hpcsgd.cli.parser import make_parser
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.studies.compare import compare
from hpcsgd.studies.plan import make_setting
from tests.helpers.harness import config_for, make_problem, train_on

PROBLEM = make_problem("logistic", n=12, d=3)


def run(ranks, replicas, **agreement):
    plain = {"schedule": {"steps": 1, "epochs": 1}, "products": {"kind": "direct"}}
    grid = {"replicas": replicas, "members": ranks // replicas}
    tables = {**plain, "grid": grid, "agreement": agreement}
    return train_on(ranks, config_for(PROBLEM, **tables), PROBLEM)


def test_a_method_whose_ranks_are_members_of_one_replica(caplog):
    run(2, 1, method="topk")
    assert "--method topk is for replicas" in caplog.text
    assert "--grid 2x1" in caplog.text
    caplog.clear()
    run(2, 1, kind="average")
    assert "--agreement average is for replicas" in caplog.text
    caplog.clear()
    run(2, 1, method="anybatch", rounds="full")
    assert "--method anybatch is for replicas" in caplog.text


def tables(**agreement):
    return {
        "agreement": agreement,
        "schedule": {"steps": 1, "epochs": 1, "batch": 4},
        "products": {"kind": "direct"},
        "precision": {"recipe": "fp64"},
    }


@pytest.mark.parametrize(
    "agreement, grid",
    [
        ({"method": "topk"}, (3, 1)),
        ({"method": "anybatch", "rounds": "full"}, (3, 1)),
        ({"kind": "average"}, (3, 1)),
        ({}, (1, 3)),
        ({"method": "accordion-batch"}, (1, 3)),
    ],
)
def test_replicas_where_no_grid_was_given(agreement, grid, caplog):
    """As with --grid 3x1, to the bit; one line says so."""
    caplog.set_level("INFO")
    config = tables(**agreement)
    open_grid = train_on(3, RunConfig.parse(config), PROBLEM)
    lines = [r.message for r in caplog.records if "no grid was given" in r.message]
    assert len(set(lines)) == (grid[0] > 1)
    named = dict(zip(("replicas", "members"), grid, strict=True))
    closed = train_on(3, RunConfig.parse({**config, "grid": named}), PROBLEM)
    assert open_grid.report["grid"] == closed.report["grid"] == named
    assert open_grid.weights_sha256 == closed.weights_sha256


def test_rounds_of_any_batch_have_so_many_rows_at_most(caplog):
    """The clock decides how many, which a line must not promise."""
    caplog.set_level("INFO")
    config = RunConfig.parse(tables(method="anybatch", accumulate=2))
    result = train_on(2, config, PROBLEM)
    assert result.report["grid"] == {"replicas": 2, "members": 1}
    assert "a round of all has at most 2 x 8 rows" in caplog.text


def test_a_comparison_knows_the_grid_before_it_weighs_batches():
    base = {"data": {"path": "x.h5"}, "schedule": {"batch": 4, "steps": 1}}
    own = {"agreement": {"method": "ddp"}}
    settings = [make_setting("sgd", base, {}), make_setting("ddp", base, own)]
    with pytest.raises(ConfigError, match="ddp 12 .batch 4 x 3 replicas"):
        run_ranks(3, lambda world: compare(settings, world=world))
    line = ["compare", "--data", "x.h5", "--ranks", "3", "--setting", "a: method=ddp"]
    _, (found,) = plan_comparison(make_parser().parse_args(line))
    assert (found.config.grid.replicas, found.global_batch) == (3, 96)


@pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
@pytest.mark.parametrize("method", ["ddp", "local", "anybatch"])
def test_a_fit_with_a_method_has_replicas(method):
    def on_rank(world):
        config = {"agreement": {"method": method}}
        return fit(
            PROBLEM.X, "logistic", PROBLEM.y, epochs=2, comm=world, config=config
        )

    result = run_ranks(3, on_rank)[0]
    assert result.report["grid"] == {"replicas": 3, "members": 1}


def test_several_models_and_a_race_have_them_too():
    asked = tables(kind="average")
    X, y = PROBLEM.X, PROBLEM.y

    def on_rank(world):
        found = sweep(asked, l2=[0.1, 1.0], X=X, y=y, world=world)
        grid = {**asked, "grid": {"replicas": 3, "members": 1}}
        rates = [race(c, share=1.0, X=X, y=y, world=world) for c in (asked, grid)]
        return found, rates

    found, rates = run_ranks(3, on_rank)[0]
    assert found.outcome.report["grid"] == {"replicas": 3, "members": 1}
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    "agreement, said",
    [
        ({}, r"use --period 16, or set agreement.periods"),
        ({"groups": "1,2,4"}, "names 3 groups, and periods.*'1,4,16'"),
    ],
)
def test_periods_that_nobody_wrote_are_not_found_fault_with(agreement, said):
    with pytest.raises(ConfigError, match=said):
        train_on(4, RunConfig.parse(tables(kind="hierarchical", **agreement)), PROBLEM)


@pytest.mark.parametrize(
    "ranks, replicas, agreement",
    [
        (2, 2, {"method": "topk"}),
        (1, 1, {"method": "topk"}),
        (2, 1, {}),
        (2, 1, {"method": "accordion-batch"}),
    ],
)
def test_nothing_is_said_where_it_does_something(ranks, replicas, agreement, caplog):
    run(ranks, replicas, **agreement)
    assert "is for replicas" not in caplog.text


@pytest.mark.parametrize(
    "method, section, said",
    [
        ("nuqsgd", {"codec": {"bits": 32}}, "bits"),
        ("accordion", {"accordion": {"codec": "bogus"}}, "bogus"),
        ("accordion", {"accordion": {"codec": "topk", "low": "share=2"}}, "share"),
        ("dgc", {"codec": {"feedback": "on"}}, "feedback = 'on'"),
        ("dgc", {"codec": {"feedback": "off"}}, "feedback = 'off' .*use.*'auto'"),
    ],
)
def test_codecs_are_checked_where_nothing_is_encoded(method, section, said):
    """On one replica; another grid would refuse it."""
    tables = {
        "agreement": {"method": method},
        "schedule": {"steps": 1},
        "products": {"kind": "auto"},
    }
    config = config_for(PROBLEM, **tables, **section)
    with pytest.raises(ConfigError, match=said):
        train_on(1, config, PROBLEM)
