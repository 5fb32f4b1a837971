"""One rank timed as one of many: true work, true messages, and nothing learnt."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.products import PRODUCTS
from tests.helpers.harness import config_for, make_problem, train_on

SCHEDULE = {"batch": 4, "steps": 3, "epochs": 2}


def emulate(kind, grid=None, **sections):
    problem = make_problem("logistic")
    config = config_for(
        problem,
        schedule=SCHEDULE,
        products={"kind": kind},
        grid=grid or {},
        run={"emulate_members": 6, "network": "lan"},
        **sections,
    )
    return config, problem


@pytest.mark.parametrize("kind", list(PRODUCTS))
@pytest.mark.parametrize("grid", [(1, 6), (2, 3)])
def test_it_says_what_the_first_of_so_many_ranks_says(kind, grid):
    """The same calls, words and bytes of products and agreements, kind by kind."""
    shape = {"replicas": grid[0], "members": grid[1]}
    config, problem = emulate(kind, shape)
    result = train(config, X=problem.X, y=problem.y, world=SerialCommunicator())
    real = config_for(problem, schedule=SCHEDULE, products={"kind": kind}, grid=shape)
    expected = train_on(6, real, problem)
    for purpose in ("products", "agreement"):
        one, other = result.ledger[purpose], expected.ledger[purpose]
        for name in ("calls", "words", "bytes", "wire_bytes"):
            assert one[name] == other[name], (purpose, name)
    assert result.iterations == expected.iterations
    assert result.report["grid"] == expected.report["grid"]


@pytest.mark.parametrize("kind", ["gram", "cached", "direct"])
@pytest.mark.parametrize("margins", ["fp32", "fp8-e4m3"])
def test_narrow_sums_are_those_of_the_first_of_so_many(kind, margins):
    fields = {"recipe": "d", "margin_sum": margins}
    config, problem = emulate(kind, precision=fields)
    result = train(config, X=problem.X, y=problem.y, world=SerialCommunicator())
    real = config_for(
        problem, schedule=SCHEDULE, products={"kind": kind}, precision=fields
    )
    one = result.ledger["products"]
    other = train_on(6, real, problem).ledger["products"]
    for name in ("calls", "words", "bytes", "wire_bytes"):
        assert one[name] == other[name], name


def test_it_gives_no_model():
    config, problem = emulate("gram")
    result = train(config, X=problem.X, y=problem.y)
    assert np.isnan(result.loss) and np.isnan(result.weights).all()
    assert not result.history and result.report["emulated_members"] == 6
    assert result.report["seconds_total"] > 0


def test_the_network_is_felt():
    """Six ranks are three hops: 150 µs a message."""
    config, problem = emulate("direct")
    result = train(config, X=problem.X, y=problem.y)
    assert result.report["seconds_total"] >= result.iterations * 150e-6


@pytest.mark.parametrize(
    "run", [{"out": "somewhere"}, {"out": "somewhere", "resume": "auto"}]
)
def test_nothing_of_it_is_kept(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = make_problem("logistic")
    config = config_for(problem, run={"emulate_members": 6, **run})
    with pytest.raises(ConfigError, match="without --out"):
        train(config, X=problem.X, y=problem.y)
    assert not list(tmp_path.iterdir())


def test_real_ranks_and_wrong_grids_are_refused():
    config, problem = emulate("gram")

    def on_rank(world):
        train(config, X=problem.X, y=problem.y, world=world)

    with pytest.raises(ConfigError, match="one rank"):
        run_ranks(2, on_rank)
    config, problem = emulate("gram", {"replicas": 2, "members": 4})
    with pytest.raises(ConfigError, match="2x4"):
        train(config, X=problem.X, y=problem.y)
