"""Replicas that mix weights, average aside, or send momentum: their formulas."""

from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from hpcsgd.agreements.averaging import (
    AsyncAverage,
    MixAll,
    MixPairs,
    flat_positions,
    partner,
)
from hpcsgd.agreements.codecs.bits import piece_words
from hpcsgd.agreements.more.decentralized import OwnSteps
from hpcsgd.agreements.more.qadam import RestingAdam
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.result import Status
from tests.helpers.bagua import (
    MOMENTUM,
    ROWS,
    Clocked,
    Momentum,
    clocked,
    config_of,
    update_of,
)
from tests.helpers.bagua_runs import expected
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem, relative_error, train_on, union_oracle
from tests.helpers.sparse import make_sparse

EVEN = (
    "pairs",
    "pairs, each third",
    "async pairs",
)  # rows that need an even number of replicas


def error_of(problem, config, row, stored=None):
    grid = config.grid
    result = train_on(grid.replicas * grid.members, config, stored or problem)
    assert result.status is Status.COMPLETED
    return relative_error(result, expected(config, problem, row))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_every_row_is_its_formula(row, replicas):
    """53 rows of softmax: uneven shards, batches that end early, an intercept."""
    if row in EVEN and replicas % 2:
        return
    problem = make_problem("softmax")
    assert error_of(problem, config_of(problem, row, replicas), row) < 1e-11


@pytest.mark.cases(4)
@pytest.mark.parametrize("row", ROWS)
def test_members_momentum_and_batches_that_travel_together(row):
    problem = make_problem("logistic")
    own = {"update": update_of(row)}
    kind = {"products": {"kind": "gram"}} if "async" in row else {}
    config = config_of(problem, row, 4, 2, **own, **kind)
    assert error_of(problem, config, row) < 1e-11
    if "async" not in row:
        config = config_of(
            problem, row, 2, 3, agreement={"accumulate": 2}, rate={"kind": "cosine"}
        )
        assert error_of(problem, config, row) < 1e-11


@pytest.mark.parametrize("row", ["all", "pairs", "low", "low, each third"])
def test_momentum_is_read_where_its_rule_reads_scores(row):
    problem = make_problem("logistic")
    for kind in ("nesterov", "nesterov-classic"):
        update = {"kind": kind, "momentum": 0.5}
        config = config_of(problem, row, 2, update=update)
        assert error_of(problem, config, row) < 1e-12


@pytest.mark.parametrize("row", ROWS)
def test_sparse_and_gathered_rows(row):
    stored, dense = make_sparse("logistic")
    config = config_of(dense, row)
    assert error_of(dense, config, row, stored) < 1e-11
    config = config_of(dense, row, 2, 2, products={"kind": "gather"})
    if not any(word in row for word in ("low", "qadam", "bytes")):
        # Members of those encode all columns there.
        assert error_of(dense, config, row) < 1e-11


@pytest.mark.parametrize("row", ROWS)
def test_edges(row):
    """Replicas without rows in an exchange, one column, a gradient of nothing."""
    few = make_problem("logistic", n=5, d=1)
    config = config_of(few, row, schedule={"batch": 1}, problem={"intercept": False})
    if "async" not in row:
        assert error_of(few, config, row) < 1e-11
    flat = make_problem("gaussian", n=20, d=5)
    flat = replace(flat, y=0 * flat.y)
    result = train_on(4, config_of(flat, row), flat)
    assert result.status is Status.COMPLETED and not result.weights.any()


def test_replicas_without_any_rows_are_refused():
    few = make_problem("logistic", n=3)
    with pytest.raises(ConfigError, match="use at most 3 replicas"):
        train_on(4, config_of(few, "all"), few)


@pytest.mark.parametrize("row", ROWS)
def test_a_nan_ends_all_replicas(row):
    """One row of one replica: nobody waits for it, and all say so."""
    problem = make_problem("gaussian", n=40, d=5)
    problem.X[3, 2] = 1e200  # whose square is beyond float64
    config = config_of(problem, row, rate={"value": 1e200}, run={"check_every": 1})

    def on_rank(world):
        return train(config, X=problem.X, y=problem.y, world=world)

    with np.errstate(all="ignore"):
        results = run_ranks(4, on_rank)
    assert {r.status for r in results} == {Status.DIVERGED}


@pytest.mark.parametrize("row", ROWS)
def test_float32_stays_near(row):
    problem = make_problem("softmax", dtype=np.float32)
    wide, narrow = (
        train_on(4, config_of(problem, row, precision={"recipe": recipe}), problem)
        for recipe in ("fp64", "fp32")
    )
    np.testing.assert_allclose(narrow.weights, wide.weights, atol=2e-3)
    assert np.isfinite(narrow.weights).all()


@pytest.mark.parametrize("row", ROWS)
def test_looks_change_nothing_and_all_end_with_the_mean(row):
    problem = make_problem("logistic", n=58)
    prints, words = set(), set()
    for every in (1, 0):
        config = config_of(problem, row, run={"evaluate_every": every})

        def on_rank(world, config=config):
            return train(config, X=problem.X, y=problem.y, world=world)

        results = run_ranks(4, on_rank)
        prints |= {r.weights_sha256 for r in results}
        words.add(results[0].ledger["agreement"]["words"])
    assert len(prints) == len(words) == 1


# -------------------------------------------------------------------- mixing


@pytest.mark.parametrize("replicas", [2, 4, 6, 10])
def test_pairs_are_pairs_and_all_meet(replicas):
    half, met = replicas // 2, set()
    for number in range(half):
        pairs = [partner(r, number, replicas) for r in range(replicas)]
        assert [pairs[p] for p in pairs] == list(range(replicas))
        assert all((r < half) != (p < half) for r, p in enumerate(pairs))
        met |= {(r, p) for r, p in enumerate(pairs) if r < half}
    assert len(met) == half**2


@pytest.mark.parametrize("mixer", [MixAll, MixPairs])
def test_mixing_leaves_the_mean_by_rows_alone(mixer):
    rows, rng = (3, 5, 2, 7), np.random.default_rng(0)
    before = rng.normal(size=(4, 9))

    def on_rank(world):
        mix = mixer(world, rows)
        return mix.start(before[world.rank].copy(), 1).wait()

    after = np.array(run_ranks(4, on_rank))
    np.testing.assert_allclose(rows @ after, rows @ before, rtol=1e-14)
    assert np.var(after, axis=0).sum() < np.var(before, axis=0).sum()


def test_two_alike_stay_as_they_are():
    words = np.random.default_rng(1).normal(size=9)

    def on_rank(world):
        return MixPairs(world, (5, 5)).start(words.copy(), 0).wait()

    for mixed in run_ranks(2, on_rank):
        np.testing.assert_array_equal(mixed, words)


@pytest.mark.parametrize("row", ["all", "pairs", "low"])
def test_replicas_with_equal_rows_are_one_process(row):
    """They never differ; what travels in bytes is near."""
    base = make_problem("logistic", n=16, d=5)
    problem = replace(base, X=np.tile(base.X, (4, 1)), y=np.tile(base.y, 4))
    schedule = {"batch": 16, "epochs": 12}
    many = train_on(4, config_of(problem, row, schedule=schedule), problem)
    alone = train_on(1, config_of(base, "all", 1, schedule=schedule), base)
    tolerance = 1e-3 if row == "low" else 1e-13
    np.testing.assert_allclose(many.weights, alone.weights, atol=tolerance)


# -------------------------------------------------------- replicas of neighbours


def watched(monkeypatch, spoil=None):
    """Whether neighbours were what they should be, after every step of a run."""
    seen, after_exchange = [], OwnSteps.after_exchange

    def looking(self, state, exchanges):
        after_exchange(self, state, exchanges)
        number = exchanges - 1
        self.arrive(state)
        if spoil is not None and (number, self.grid.replica) == spoil:
            self.neighbours[0][0] += 1.0
        own = flat_positions(state, self.columns)
        all_of_them = self.grid.replicas.exchange_objects(own)
        pairs = zip(self.peers, self.neighbours, strict=True)
        good = [all_of_them[p].tobytes() == n.tobytes() for p, n in pairs]
        seen.append((number, all(good)))

    monkeypatch.setattr(OwnSteps, "after_exchange", looking)
    return seen


@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
@pytest.mark.parametrize("replicas, members", [(2, 1), (3, 1), (4, 2)])
def test_replicas_of_neighbours_are_what_they_are(
    replicas, members, recipe, monkeypatch
):
    seen = watched(monkeypatch)
    problem = make_problem("softmax", dtype=np.float32)
    config = config_of(problem, "low", replicas, members, precision={"recipe": recipe})
    result = train_on(replicas * members, config, problem)
    assert len(seen) == replicas * members * result.exchanges
    assert all(good for _, good in seen)


def test_weights_as_they_are_change_nothing_but_what_was_lost(monkeypatch):
    problem = make_problem("softmax")
    prints = {
        train_on(
            3, config_of(problem, "low", 3, agreement={"resync": n}), problem
        ).weights_sha256
        for n in (0, 1, 4)
    }
    assert len(prints) == 1
    for resync in (0, 4):
        seen = watched(monkeypatch, spoil=(1, 2))
        config = config_of(problem, "low", 3, agreement={"resync": resync})
        train_on(3, config, problem)
        bad = {number for number, good in seen if not good}
        last = max(number for number, _ in seen)
        assert bad == ({1, 2, 3} if resync else set(range(1, last + 1)))
        monkeypatch.undo()


# ------------------------------------------------------------- averages aside


@pytest.mark.parametrize("codec", ["topk", "bytegrad", "qsgd"])
def test_no_delay_of_a_codec_is_local_sgd_by_it_to_the_bit(codec):
    problem = make_problem("softmax", n=58)
    prints = {
        train_on(
            3, config_of(problem, "async", 3, agreement=asked), problem
        ).weights_sha256
        for asked in (
            {"delay": 0, "codec": codec},
            {"kind": "average", "delay": 1, "codec": codec},
        )
    }
    assert len(prints) == 1


@pytest.mark.parametrize("momentum", ["average", "keep", "reset"])
@pytest.mark.parametrize("members", [1, 2])
def test_no_delay_is_local_sgd_to_the_bit(members, momentum):
    problem = make_problem("softmax", n=58)
    own = {"update": MOMENTUM, "products": {"kind": "gather"}}
    prints = {
        train_on(
            3 * members,
            config_of(problem, "async", 3, members, agreement=asked, **own),
            problem,
        ).weights_sha256
        for asked in (
            {"delay": 0, "momentum": momentum},
            {"kind": "average", "delay": 1, "momentum": momentum},
        )
    }
    assert len(prints) == 1
    asked = {"delay": 1, "momentum": momentum}
    config = config_of(problem, "async", 3, members, agreement=asked, **own)
    assert train_on(3 * members, config, problem).weights_sha256 not in prints


def test_nothing_travels_when_a_run_is_over(monkeypatch):
    """An average sets out with the last exchange; it is waited for, and let go."""
    settled, settle = [], AsyncAverage.settle

    def watching(self, state, exchanges):
        under_way = self._travelling
        settle(self, state, exchanges)
        settled.append((under_way, self._travelling))

    monkeypatch.setattr(AsyncAverage, "settle", watching)
    problem = make_problem("logistic", n=48)
    config = config_of(problem, "async", 4, agreement={"delay": 2})
    assert error_of(problem, config, "async") < 1e-12
    assert len(settled) == 4
    for before, after in settled:
        assert before is not None and not before.pending.is_under_way
        assert after is None


# ------------------------------------------------------------ averages by clocks


class Gate(Callback):
    """Replica 0 stands after its exchange 3 until replica 1 has done 20."""

    def __init__(self, replica, far):
        self.replica, self.far = replica, far

    def on_exchange(self, view):
        if self.replica == 1 and view.exchanges == 20:
            self.far.set()
        if self.replica == 0 and view.exchanges == 3:
            assert self.far.wait(300), "replica 1 waited for replica 0"


def check_clocked(result, config, problem):
    averages = result.report["agreement"]["averages"]
    told = Clocked(config, problem, averages).run()
    assert relative_error(result, told) < 1e-11
    words = len(problem.X[0]) * problem.classes + problem.classes
    sums = len(averages["started"][0]) + config.agreement.warmup_exchanges + 1
    if config.grid.members == 1:  # momentum is averaged, too
        assert result.ledger["agreement"]["words"] == 2 * words * sums
    return averages


def test_replicas_drift_apart_and_their_log_gives_the_weights(monkeypatch):
    """One goes 17 exchanges ahead of another, and nobody waits until the end."""
    monkeypatch.setattr("hpcsgd.runs.loop.SECONDS_BETWEEN_POLLS", 1e9)
    problem, far = make_problem("softmax", n=240), Event()
    config = clocked(problem, 2)

    def on_rank(world):
        gate = [Gate(world.rank, far)]
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=gate)

    results = run_ranks(2, on_rank)
    assert far.is_set() and len({r.weights_sha256 for r in results}) == 1
    averages = check_clocked(results[0], config, problem)
    assert len(averages["started"][0]) == len(averages["started"][1]) > 1
    starts = np.array(averages["started"])
    assert results[0].report["agreement"]["drift"] == np.ptp(starts, axis=0).max()


@pytest.mark.parametrize("replicas, members", [(1, 1), (3, 1), (2, 2)])
def test_clocks_of_members_and_a_warm_up(replicas, members):
    """Members of a replica do as one of them decides."""
    problem = make_problem("logistic", n=90)
    config = clocked(problem, replicas, members, agreement={"warmup_exchanges": 5})
    result = train_on(replicas * members, config, problem)
    averages = check_clocked(result, config, problem) if replicas > 1 else {"used": []}
    assert min((k for row in averages["used"] for k in row if k), default=9) > 5


def test_a_clock_that_is_never_due_leaves_replicas_alone():
    problem = make_problem("logistic", n=90)
    config = clocked(problem, 2, agreement={"sync_interval_ms": 1e9})
    averages = check_clocked(train_on(2, config, problem), config, problem)
    assert len(averages["started"][0]) == 1  # the first one is due at once


# ------------------------------------------------------------------- momentum


@pytest.mark.parametrize("members", [1, 2])
def test_the_warm_up_is_adam_to_the_bit(members):
    problem = make_problem("softmax")
    adam = {"update": {"kind": "adam"}, "problem": {"intercept": True}}
    plain = train_on(3 * members, agreed(problem, 3, members, **adam), problem)
    warm, cold = (
        train_on(
            3 * members,
            config_of(problem, "qadam", 3, members, agreement={"warmup_steps": n}),
            problem,
        ).weights_sha256
        for n in (10**6, 5)
    )
    assert warm == plain.weights_sha256 != cold


def test_without_a_codec_it_is_adam_with_variances_at_rest():
    problem = make_problem("softmax")
    config = config_of(problem, "qadam", 3, agreement={"codec": "identity"})
    result = train_on(3, config, problem)
    assert relative_error(result, Momentum(config, problem).run()) < 1e-12


def test_variances_rest():
    rule = RestingAdam(warmup_steps=2)
    assert [rule.rests(number) for number in range(4)] == [False, False, True, True]


# --------------------------------------------------------------------- leaders


@pytest.mark.parametrize("of, groups", [("2", 2), ("3", 2), ("node", 1), ("1", 4)])
def test_leaders_speak_for_gradients(of, groups):
    """The union's steps; leaders exchange, the others give and are told."""
    problem = make_problem("softmax")
    own = {"hierarchical": of, "bucket": 8 * 9 * 2.0**-20, "accumulate": 2}
    for members in (1, 2):
        config = agreed(problem, 4, members, agreement=own, problem={"intercept": True})
        result = train_on(4 * members, config, problem)
        assert relative_error(result, union_oracle(config, problem)) < 1e-12
        assert result.report["agreement"]["groups"] == groups


@pytest.mark.parametrize("codec", ["identity", "bytegrad"])
def test_bytes_of_leaders(codec):
    """Each group's sum once, between leaders as if they were all, and once back."""
    problem = make_problem("logistic", d=13)
    config = agreed(
        problem,
        4,
        agreement={"hierarchical": "2", "codec": codec},
        codec={"feedback": "off"},
    )

    def on_rank(world):
        result = train(config, X=problem.X, y=problem.y, world=world)
        return result.exchanges, result.ledger["agreement"], result.weights_sha256

    found = run_ranks(4, on_rank)
    exchanges = found[0][0]
    inside = 8 * (1 + 13 + 13)  # the count and the gradient, the gradient back
    between = 8 * 14 if codec == "identity" else 8 + 3 * (piece_words(13, 2) + 8)
    for rank, (_, entry, _) in enumerate(found):
        leads = rank % 2 == 0
        assert entry["bytes"] == exchanges * (inside + leads * between)
    assert len({sha for *_, sha in found}) == 1
