"""The loop: who may stop it, what divergence keeps, what guards mend."""

import errno
import os

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.task import State
from hpcsgd.comm.communicator import DONE
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import DataError
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.recording import MemberCheck
from hpcsgd.runs.result import Result, Status, load_result
from hpcsgd.solvers.callbacks import Request
from tests.helpers.harness import config_for, make_problem, train_on


class StopAfter(Callback):
    """Wishes to stop, on one rank only."""

    def __init__(self, exchanges):
        self.exchanges = exchanges

    def on_exchange(self, view):
        return view.exchanges >= self.exchanges


def test_one_rank_may_stop_all_and_they_leave_together():
    problem = make_problem("logistic")
    config = config_for(problem, schedule={"epochs": 50}, run={"check_every": 3})

    def on_rank(world):
        callbacks = [StopAfter(2)] if world.rank == 1 else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=callbacks)

    results = run_ranks(3, on_rank)
    assert {r.status for r in results} == {Status.STOPPED}
    # 5 exchanges an epoch: looks at 1, 4, 5 (epoch), 8, ...: 2's wish is heard at 4
    assert {r.exchanges for r in results} == {4}
    assert len({r.weights_sha256 for r in results}) == 1


class Wishes(Callback):
    """Asks for what the table says after that exchange, on one rank only."""

    def __init__(self, table):
        self.table = table

    def on_exchange(self, view):
        return self.table.get(view.exchanges)


def trained_with_wishes(folder, table, **run):
    problem = make_problem("logistic")
    config = config_for(
        problem, schedule={"epochs": 4}, run={"out": str(folder), **run}
    )

    def on_rank(world):
        callbacks = [Wishes(table)] if world.rank == 1 else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=callbacks)

    return run_ranks(2, on_rank)[0]


def test_a_wish_for_a_checkpoint_is_granted_once(tmp_path):
    """20 exchanges, a look after each: one file a wish, and the one at the end."""
    wishes = {3: Request.SAVE, 4: Request.SAVE, 11: Request.SAVE}
    result = trained_with_wishes(tmp_path, wishes, check_every=1)
    assert result.status is Status.COMPLETED and result.exchanges == 20
    assert result.report["checkpoints_written"] == 3 + 1


def test_a_due_checkpoint_grants_the_wish_too(tmp_path):
    result = trained_with_wishes(tmp_path, {20: Request.SAVE}, check_every=1)
    assert result.report["checkpoints_written"] == 1


def test_a_wish_to_stop_still_stops_beside_one_to_save(tmp_path):
    wishes = {3: Request.SAVE, 6: Request.SAVE, 7: Request.STOP, 8: Request.SAVE}
    result = trained_with_wishes(tmp_path, wishes, check_every=5)
    assert result.status is Status.STOPPED
    # Looks after 1 and then 5, 6, 10, ...: epochs end there, and looks come in fives.
    assert result.exchanges == 10
    assert CheckpointStore(tmp_path, 2).newest()[1].exchanges == 10


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", ["direct", "gram"])
def test_divergence_keeps_the_last_good_weights(members, kind):
    problem = make_problem("gaussian", n=200)
    config = config_for(
        problem,
        schedule={"epochs": 40, "batch": 2},
        products={"kind": kind},
        rate={"value": 80.0},
        run={"evaluate_every": 1},
    )
    result = train_on(members, config, problem)
    assert result.status is Status.DIVERGED
    assert "lower the rate" in result.status.advice
    assert np.isfinite(result.weights).all()
    residual = problem.X @ result.weights - problem.y
    assert result.loss == pytest.approx(np.mean(residual**2) / 2)


def test_a_good_run_evaluates_at_both_ends():
    problem = make_problem("logistic")
    result = train_on(1, config_for(problem, schedule={"epochs": 3}), problem)
    assert [r["epoch"] for r in result.history] == [0, 3]
    assert result.history[-1]["loss"] == result.loss


def test_rows_are_counted_over_replicas():
    problem = make_problem("logistic", n=48)
    config = config_for(
        problem, products={"kind": "direct"}, grid={"replicas": 2, "members": 1}
    )
    assert train_on(2, config, problem).history[-1]["rows"] == 2 * 48


def test_members_that_differ_are_found_and_mended():
    def on_rank(members):
        check = MemberCheck(members, every=2, whole=True)
        state = State(
            weights=np.full((3, 1), float(members.rank)),
            intercept=np.full((1, 1), float(members.rank)),
            residuals=np.zeros((2, 1)),
        )
        check.after_exchange(state, 1)
        untouched = state.weights.copy()
        check.after_exchange(state, 2)
        check.after_exchange(state, 4)
        return untouched, state, check.mended

    for rank, (untouched, state, mended) in enumerate(run_ranks(3, on_rank)):
        assert (untouched == rank).all()
        assert (state.weights == 0).all() and (state.intercept == 0).all()
        assert mended == 1, "the second look finds them equal"


class Crooked(DelayedCommunicator):
    """A transport that gives rank 1 other last bits than the rest."""

    def __init__(self, inner, network=None, link=None):
        super().__init__(inner, Network(0.0, 1e30), link)

    def split(self, color, key):
        return Crooked(self.inner.split(color, key))

    def begin(self, collective, blocking):
        super().begin(collective, blocking).wait()
        if self.rank == 1 and collective.kind == "sum":
            collective.receive[...] *= 1 + 1e-9
        return DONE


@pytest.mark.parametrize("every, mended", [(0, 0), (2, 5), (5, 2)])
def test_a_transport_with_other_bits_on_one_rank_is_seen_by_the_run(every, mended):
    """10 exchanges, compared when asked; each comparison finds and mends it."""
    problem = make_problem("logistic")
    config = config_for(problem, run={"check_members": every})
    result = train_on(2, config, problem, world_hook=Crooked)
    assert result.exchanges == 10
    assert result.report["mended_members"] == mended


def test_results_survive_the_disk(tmp_path):
    problem = make_problem("softmax")
    config = config_for(problem, problem={"intercept": True})
    result = train_on(1, config, problem)
    result.save(tmp_path)
    again = load_result(tmp_path)
    assert isinstance(again, Result)
    assert again.as_dict() == result.as_dict()
    np.testing.assert_array_equal(again.weights, result.weights)
    np.testing.assert_array_equal(again.intercept, result.intercept)


def test_a_broken_save_leaves_the_old_result(tmp_path, monkeypatch):
    problem = make_problem("logistic")
    result = train_on(1, config_for(problem), problem)
    result.save(tmp_path)
    before = (tmp_path / "result.h5").read_bytes()

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="make room"):
        result.save(tmp_path)
    assert (tmp_path / "result.h5").read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"result.h5", "result.json"}


def test_the_sequence_of_rows_is_the_same_for_every_s_and_product():
    """Runs with other s, product and C end at one model: they saw the same rows."""
    problem = make_problem("logistic")
    finals = [
        train_on(
            c, config_for(problem, schedule={"steps": s}, products={"kind": k}), problem
        )
        for s, k, c in ((1, "direct", 1), (5, "gram", 2), (14, "gather", 3))
    ]
    for other in finals[1:]:
        np.testing.assert_allclose(other.weights, finals[0].weights, rtol=1e-10)
    assert len({f.iterations for f in finals}) == 1


def test_reproducible_is_a_setting_of_the_run():
    """Whoever opened the world: two calls for every sum, the same model."""
    problem = make_problem("logistic")
    plain = train_on(2, config_for(problem), problem)
    config = config_for(problem, run={"reproducible": True})
    twice = train_on(2, config, problem)
    assert twice.ledger["products"]["calls"] == 2 * plain.ledger["products"]["calls"]
    np.testing.assert_allclose(twice.weights, plain.weights, rtol=1e-12)
