"""Ranks that vanish: the others go on from the last state in memory."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.threads import RankDied, SerialCommunicator, run_ranks
from hpcsgd.errors import TransportError
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.recovery import last_common, smaller_grid
from hpcsgd.runs.result import Status
from tests.helpers.harness import config_for, make_problem, oracle_for, relative_error


class Vanish(Callback):
    def __init__(self, exchanges):
        self.exchanges = exchanges

    def on_exchange(self, view):
        if view.exchanges == self.exchanges:
            raise RankDied


def run(ranks, config, problem, deaths):
    """Results by rank; `deaths` says after which exchange a rank vanishes."""

    def on_rank(world):
        callbacks = [Vanish(deaths[world.rank])] if world.rank in deaths else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=callbacks)

    return run_ranks(ranks, on_rank)


def shrinking(problem, **sections):
    run_section = {"on_failure": "shrink", **sections.pop("run", {})}
    sections = {"checkpoint": {"every": 2}, **sections}
    return config_for(problem, run=run_section, **sections)


@pytest.mark.parametrize(
    "product", ["direct", "gram", "gather", "gather-once", "cached"]
)
@pytest.mark.parametrize("deaths", [{0: 5}, {2: 5}, {1: 5, 3: 5}, {3: 2, 1: 9}, {1: 1}])
def test_members_that_are_left_finish_the_run(product, deaths):
    """The iterates do not depend on how many members there are."""
    problem = make_problem("logistic")
    config = shrinking(problem, products={"kind": product}, update={"kind": "momentum"})
    results = [r for r in run(4, config, problem, deaths) if r is not None]
    assert len(results) == 4 - len(deaths)
    for result in results:
        assert result.status is Status.COMPLETED and result.exchanges == 10
        assert relative_error(result, oracle_for(config, problem)) <= 1e-10
        assert result.report["lost_ranks"] == len(deaths)
        assert result.report["ranks"] == 4 - len(deaths)
    assert len({r.weights_sha256 for r in results}) == 1


NETWORK = Network(1e-6, 1e12)


@pytest.mark.parametrize("wraps", [False, True])
def test_a_run_on_an_emulated_network_goes_on_without_a_lost_rank(wraps):
    """The delays are those of the run, or of the world that the caller passes."""
    problem = make_problem("logistic")
    config = shrinking(problem, run={"network": "alpha=1e-6,bandwidth=1e12"})

    def on_rank(world):
        if wraps:
            world = DelayedCommunicator(world, NETWORK)
        lost = [Vanish(5)] if world.rank == 1 else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=lost)

    results = [result for result in run_ranks(3, on_rank) if result is not None]
    assert [result.report["lost_ranks"] for result in results] == [1, 1]
    for result in results:
        assert result.status is Status.COMPLETED
        assert relative_error(result, oracle_for(config, problem)) <= 1e-10


def test_work_is_not_done_again_from_the_start():
    problem = make_problem("logistic")
    late = [r for r in run(3, shrinking(problem), problem, {1: 9}) if r][0]
    early = [r for r in run(3, shrinking(problem), problem, {1: 1}) if r][0]
    assert late.report["resumes"] == 1  # from 8, the last one in memory
    assert early.report["resumes"] == 0  # nothing was in memory yet


def test_replicas_that_are_left_go_on_from_the_mean():
    problem = make_problem("logistic", n=120)
    config = shrinking(
        problem,
        grid={"replicas": 2, "members": 2},
        schedule={"batch": 4, "steps": 3, "epochs": 4},
    )
    results = [r for r in run(4, config, problem, {3: 12}) if r]
    assert {r.status for r in results} == {Status.COMPLETED}
    assert {tuple(r.report["grid"].values()) for r in results} == {(1, 3)}
    assert results[0].loss < np.log(2)


def test_without_the_setting_a_lost_rank_ends_the_run():
    problem = make_problem("logistic")
    with pytest.raises(TransportError, match="another rank failed"):
        run(3, config_for(problem), problem, {1: 5})


def test_the_run_folder_goes_to_the_new_first_rank(tmp_path):
    from hpcsgd.runs.result import load_result

    problem = make_problem("logistic")
    config = shrinking(problem, run={"out": str(tmp_path)})
    results = [r for r in run(3, config, problem, {0: 7}) if r]
    assert load_result(tmp_path).weights_sha256 == results[0].weights_sha256
    assert not (tmp_path / "earlier-1").exists(), "it is still this run"


@pytest.mark.parametrize(
    "replicas, ranks, grid",
    [(1, 3, (1, 3)), (2, 6, (2, 3)), (2, 7, (1, 7)), (4, 6, (3, 2)), (4, 1, (1, 1))],
)
def test_the_grid_that_is_left(replicas, ranks, grid):
    problem = make_problem("logistic")
    config = config_for(problem, grid={"replicas": replicas, "members": 2})
    left = smaller_grid(config.grid, ranks)
    assert (left.replicas, left.members) == grid


def test_a_checkpoint_that_some_have_missed_is_not_taken():
    class Known:
        def __init__(self, exchanges):
            self.exchanges = exchanges

    def on_rank(world):
        known = {0: [4, 6], 1: [2, 4], 2: [4, 6]}[world.rank]
        found = last_common(world, [Known(e) for e in known])
        nothing = last_common(world, [Known(world.rank)])
        return found.exchanges, nothing

    assert run_ranks(3, on_rank) == [(4, None)] * 3


def test_a_transport_that_cannot_says_so():
    with pytest.raises(TransportError, match="--on-failure stop"):
        SerialCommunicator().survivors()
