"""Two halves that take turns: one step on their union, or gradients one batch late."""

import threading

import numpy as np
import pytest

from hpcsgd.agreements.more.tick_tock import Item, LateTickTock, TickTock
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import on_all
from tests.helpers.gradients import UPDATES, in_folder
from tests.helpers.harness import (
    make_problem,
    relative_error,
    train_on,
    union_oracle,
)
from tests.helpers.sparse import make_sparse
from tests.helpers.tick_tock import late_oracle, ticktock, union_of_both


def check_sum(problem, config, stored=None, **data):
    grid = config.grid
    result = train_on(grid.replicas * grid.members, config, stored or problem, **data)
    expected = union_oracle(union_of_both(problem, config), problem, **data)
    assert relative_error(result, expected) <= 1e-12
    return result


# --------------------------------------------------------------------- exact sum


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_both_halves_are_one_step_on_their_union(replicas):
    """Uneven replicas: some have no tock in an exchange, and some nothing at all."""
    problem = make_problem("logistic")
    for accumulate in (1, 2):
        config = ticktock(problem, replicas, agreement={"accumulate": accumulate})
        check_sum(problem, config)


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("grid", [(3, 1), (2, 2), (3, 2)])
def test_updates_and_members(kind, grid):
    problem = make_problem("softmax")
    for product in ("direct", "gather"):
        config = ticktock(
            problem,
            *grid,
            problem={"intercept": True},
            update={"kind": kind, "momentum": 0.5},
            products={"kind": product},
        )
        check_sum(problem, config, weights=True, offset=True)


def test_sparse_rows():
    stored, dense = make_sparse("softmax")
    check_sum(dense, ticktock(dense, 2, problem={"intercept": True}), stored)


@pytest.mark.parametrize("mode", ["exact-sum", "delayed"])
def test_gradients_are_shaped_and_kept_in_eight_bits(mode, tmp_path):
    """The halves as ddp does it; both go on bit for bit."""
    problem = make_problem("softmax", d=300)
    for update in ({"clip": "norm", "clip_at": 0.05}, {"kind": "adam", "bits": 8}):
        config = ticktock(problem, 2, mode=mode, update=update)
        name = tmp_path / str(len(update)) / update.get("kind", "clip")
        whole = in_folder(name / "whole", config, 2, problem)[0]
        in_folder(name / "parts", config, 2, problem, stop=3)
        again = in_folder(name / "parts", config, 2, problem)[0]
        assert again.weights_sha256 == whole.weights_sha256
        if mode == "exact-sum":
            ddp = train_on(2, union_of_both(problem, config), problem)
            np.testing.assert_allclose(whole.weights, ddp.weights, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("fault", ["the tock is dropped", "the tick counts twice"])
def test_half_a_step_is_another_method(fault, monkeypatch):
    problem = make_problem("logistic")
    config = ticktock(problem, 2)
    receive = Item.receive

    def wrong(self, tile):
        receive(self, tile)
        if self.name == 1 and fault == "the tock is dropped":
            self.buffer.flat[...] = 0.0
        if self.name == 0 and fault != "the tock is dropped":
            self.buffer.flat[...] *= 2.0

    monkeypatch.setattr(Item, "receive", wrong)
    result = train_on(2, config, problem)
    expected = union_oracle(union_of_both(problem, config), problem)
    assert relative_error(result, expected) > 1e-3


# ----------------------------------------------------------------------- delayed


@pytest.mark.cases(3)
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (3, 1), (7, 1), (2, 2), (3, 2)])
def test_each_gradient_comes_one_batch_late(family, grid, monkeypatch):
    problem = make_problem(family)
    config = ticktock(
        problem,
        *grid,
        mode="delayed",
        problem={"intercept": True},
        rate={"kind": "inverse", "decay": 0.3},
    )
    expected = late_oracle(config, problem)
    result = train_on(grid[0] * grid[1], config, problem)
    assert relative_error(result, expected) <= 1e-14
    sgd = union_oracle(config, problem)
    assert relative_error(result, sgd) > 1e-4
    monkeypatch.setattr(LateTickTock, "settle", lambda *_: None)
    left_out = train_on(grid[0] * grid[1], config, problem)
    assert relative_error(left_out, expected) > 1e-4


@pytest.mark.parametrize("share, converges", [(0.95, True), (1.05, False)])
def test_it_is_stable_below_the_inverse_of_the_curvature(share, converges):
    """z² − z + ηL = 0: |z| < 1 for ηL < 1; SGD goes to 2. Full batches, λ = 0."""
    problem = make_problem("gaussian", n=30, d=4)
    curvature = np.linalg.eigvalsh(problem.X.T @ problem.X / 30).max()
    gaps = {}
    best = np.linalg.lstsq(problem.X, problem.y, rcond=None)[0]
    for kind, mode in (("ticktock", "delayed"), ("gradient", "exact-sum")):
        config = ticktock(
            problem,
            2,
            mode=mode,
            schedule={"batch": 15, "epochs": 500},
            problem={"l2": 0.0},
            rate={"value": float(share / curvature)},
            agreement={"kind": kind},
        )
        result = train_on(2, config, problem)
        gaps[kind] = np.abs(result.weights - best).max()
        if not converges and kind == "ticktock":
            assert result.status.value == "diverged" or gaps[kind] > 1.0
        else:
            assert gaps[kind] < 1e-4


def test_losses_are_those_with_the_late_gradient():
    """The last of the history is the loss of the result, and training goes on."""
    problem = make_problem("logistic")
    config = ticktock(problem, 2, mode="delayed", run={"evaluate_every": 1})
    seen = train_on(2, config, problem)
    unseen = train_on(2, ticktock(problem, 2, mode="delayed"), problem)
    assert seen.weights_sha256 == unseen.weights_sha256
    assert seen.history[-1]["loss"] == seen.loss == unseen.loss


# ------------------------------------------------------------------------- both


@pytest.mark.parametrize("d", [9, 11])
@pytest.mark.parametrize("mode", ["exact-sum", "delayed"])
def test_bytes(mode, d):
    """Two sums an exchange of the halves, each with a tail; one of late batches."""
    problem = make_problem("softmax", n=53, d=d)
    result = train_on(
        3, ticktock(problem, 3, mode=mode, problem={"intercept": True}), problem
    )
    sums = 2 if mode == "exact-sum" else 1
    buckets, sent = -(-d // 2), result.ledger["agreement"]
    assert result.exchanges == 2 * (3 if mode == "exact-sum" else 5)
    assert sent["calls"] == sums * buckets * result.exchanges
    assert sent["words"] == sums * (d * 4 + 4 + 1) * result.exchanges
    assert sent["bytes"] == 8 * sent["words"]


@pytest.mark.parametrize("mode", ["exact-sum", "delayed"])
def test_each_computes_while_the_other_travels(mode, monkeypatch):
    """Computes never overlap; late ones all hide a transfer, of halves every tock."""
    events = {}

    def watch(event, name):
        events.setdefault(threading.get_ident(), []).append((event, name))

    monkeypatch.setattr(Item, "watchers", [watch])
    problem = make_problem("softmax", n=48)
    result = train_on(3, ticktock(problem, 3, mode=mode), problem)
    sums = result.exchanges * (2 if mode == "exact-sum" else 1)
    for own in events.values():
        computing, travelling, hides = None, set(), []
        for event, name in own:
            if event == "computes":
                assert computing is None and name not in travelling
                computing = name
                hides.append(1 - name in travelling)
            elif event == "sent":
                assert computing == name
                # What travelled when it began still does: it hides all of it.
                assert not hides[-1] or 1 - name in travelling
                computing = None
                travelling.add(name)
            else:
                travelling.remove(name)
        assert len(hides) == sums
        expected = [bool(k % 2) if mode == "exact-sum" else k > 0 for k in range(sums)]
        assert hides == expected


@pytest.mark.parametrize("mode", ["exact-sum", "delayed"])
@pytest.mark.parametrize("kind", ["nesterov", "adam"])
def test_a_run_goes_on_bit_for_bit(mode, kind, tmp_path):
    """With a gradient under way, where there is one."""
    problem = make_problem("softmax")
    for grid in ((3, 1), (2, 2)):
        config = ticktock(
            problem,
            *grid,
            mode=mode,
            problem={"intercept": True},
            update={"kind": kind, "momentum": 0.5},
        )
        place, ranks = tmp_path / str(grid), grid[0] * grid[1]
        whole = in_folder(place / "whole", config, ranks, problem)[0]
        first = in_folder(place / "parts", config, ranks, problem, stop=3)
        assert {r.status.value for r in first} == {"preempted"}
        again = in_folder(place / "parts", config, ranks, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}


def test_a_checkpoint_without_what_is_late_is_another_run(tmp_path, monkeypatch):
    problem = make_problem("softmax")
    config = ticktock(problem, 2, mode="delayed")
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]
    arrive = LateTickTock.arrive

    def forgetful(self, state):
        arrive(self, state)
        for array in (*state.memory.values(), *state.shared.values()):
            array[...] = 0.0

    monkeypatch.setattr(LateTickTock, "arrive", forgetful)
    in_folder(tmp_path / "parts", config, 2, problem, stop=3)
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 != whole.weights_sha256


@pytest.mark.parametrize("mode", ["exact-sum", "delayed"])
@pytest.mark.parametrize("edge", ["zeros", "one column", "not finite", "one batch"])
def test_edges(edge, mode):
    problem = make_problem("gaussian", d=1 if edge == "one column" else 7)
    if edge == "zeros":
        problem.X[:] = 0.0
    config = ticktock(
        problem,
        3,
        mode=mode,
        rate={"value": 1e200 if edge == "not finite" else problem.rate},
        schedule={"batch": 100 if edge == "one batch" else 4},
    )
    results = on_all(3, config, problem)
    assert len({r.weights_sha256 for r in results}) == 1
    diverged = results[0].status.value == "diverged"
    assert diverged == (edge == "not finite")
    if edge == "zeros":
        assert not np.any(results[0].weights)
    elif mode == "exact-sum" and not diverged:
        expected = union_oracle(union_of_both(problem, config), problem)
        assert relative_error(results[0], expected) <= 1e-12


@pytest.mark.parametrize(
    "sections, remedy",
    [
        ({"agreement": {"mode": "independent"}}, "use hpcsgd.tick_tock"),
        ({"agreement": {"codec": "bf16"}}, "supports no codecs"),
        ({"codec": {"feedback": "on"}}, "feedback = 'on' is for"),
        ({"schedule": {"steps": 4}}, "use --steps 1"),
        ({"precision": {"residual": "fp16"}}, "precision.residual=fp32"),
    ],
)
def test_what_it_cannot_do_is_said_with_the_remedy(sections, remedy):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=remedy):
        on_all(2, ticktock(problem, 2, **sections), problem)


@pytest.mark.parametrize("replicas, batch", [(1, 4), (3, 18)])
def test_where_nothing_can_hide_it_is_plain(replicas, batch):
    """One replica, or no second batch in any exchange: one sum a bucket, as ddp."""
    problem = make_problem("softmax")
    config = ticktock(problem, replicas, schedule={"batch": batch})
    result = check_sum(problem, config)
    buckets = 4 if replicas > 1 else 0
    assert result.ledger["agreement"]["calls"] == buckets * result.exchanges
    assert "mode" not in result.report["agreement"]


def test_each_item_has_a_communicator_of_its_own(monkeypatch):
    """Which are closed with the run, as tests/unit/test_closed_groups.py has it."""
    closed = []
    close = TickTock.close

    def counting(self):
        close(self)
        closed.append([item.sender.replicas for item in self.items])

    monkeypatch.setattr(TickTock, "close", counting)
    problem = make_problem("logistic")
    train_on(2, ticktock(problem, 2), problem)
    assert all(a is not b for a, b in closed) and len(closed) == 2
