"""The queue, the cut and the tuner of scheduled transfers, without a run."""

import heapq
from itertools import cycle
from math import log2
from threading import Event, local

import numpy as np
import pytest

from hpcsgd.agreements.base import tiles_of
from hpcsgd.agreements.more import scheduled as scheduled_transfers
from hpcsgd.agreements.more.scheduled import (
    MOST,
    ROUNDS,
    BayesianSearch,
    OrderedTiles,
    Queue,
    Search,
    TilePiece,
    cut,
    log_grid,
    matern,
    predicted,
)
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import on_all
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.limits import HANG
from tests.helpers.scheduled import MIB, scheduled


class Dice:
    """A wire on which transfers arrive when the dice say so."""

    can_tell = True

    def __init__(self, seed):
        self.dice = np.random.default_rng(seed)
        self.started, self.here = [], 0

    def start(self, piece):
        self.started.append(piece)

    def finish(self, piece):
        assert piece is self.started[self.here]
        self.here += 1

    def has_arrived(self):
        return self.dice.random() < 0.4


def pieces(numbers, sizes):
    return [
        TilePiece(n, part, np.zeros(size, np.uint8))
        for n in numbers
        for part, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("polls", [True, False])
def test_credit_and_priorities(seed, polls):
    """In flight < credit + piece; credit comes back; the best of what is ready goes."""
    dice, wire, credit = np.random.default_rng(seed), Dice(seed), 25.0
    numbers = list(range(8)) if polls else [int(n) for n in dice.permutation(8)]
    queue, ready = Queue(wire, credit, polls), []
    for piece in pieces(numbers, (10, 20, 5)):
        queue.push(piece)
        heapq.heappush(ready, piece)
        before = len(wire.started)
        queue.pump()
        for started in wire.started[before:]:
            assert started is heapq.heappop(ready)
        assert queue.in_flight < credit + 20
    for number in range(8):
        queue.take(number)
    assert wire.here == len(wire.started) == queue.messages == 24
    assert queue.credit == queue.limit == credit and queue.in_flight == 0
    assert credit <= queue.most < credit + 20
    if polls:
        assert [p.priority for p in wire.started] == sorted(numbers * 3)


def test_without_a_clock_the_order_is_everybodys():
    """Where pieces overtake, arrivals that differ from rank to rank change nothing."""
    orders = set()
    for seed in range(20):
        wire = Dice(seed)
        queue = Queue(wire, 25.0, polls=False)
        for piece in pieces((5, 3, 0, 4, 1, 2), (10, 20)):
            queue.push(piece)
            queue.pump()
        for number in range(6):
            queue.take(number)
        orders.add(tuple((p.priority, p.part) for p in wire.started))
    assert len(orders) == 1
    by_clock = set()
    for seed in range(20):
        wire = Dice(seed)
        queue = Queue(wire, 25.0, polls=True)
        for piece in pieces((5, 3, 0, 4, 1, 2), (10, 20)):
            queue.push(piece)
            queue.pump()
        by_clock.add(tuple((p.priority, p.part) for p in wire.started))
    assert len(by_clock) > 1, "so that the rule is needed"


@pytest.mark.parametrize("partition", [8 * MIB, 24 * MIB, 4.0, float("inf")])
def test_pieces_are_views_of_the_words(partition):
    words = np.arange(11.0)
    found = list(cut(3, words, partition))
    np.testing.assert_array_equal(np.concatenate([p.words for p in found]), words)
    assert all(p.words.base is words and p.size <= partition / MIB for p in found)
    assert len(found) == -(-88 // min(partition / MIB, 88))


def test_the_first_tile_brings_what_all_steps_need():
    buffer = OrderedTiles((7, 2), np.dtype(float), tiles_of(7, 3), intercept=True)
    assert [t.columns for t in buffer] == [slice(0, 3), slice(3, 5), slice(5, 7)]
    buffer.tail[...] = 9.0
    for tile in buffer:
        tile.gradient[...] = tile.columns.start
    assert buffer.flat.tolist() == [9.0] * 3 + [0.0] * 6 + [3.0] * 4 + [5.0] * 4
    assert [len(buffer.with_tail(t)) for t in buffer] == [3 + 6, 4, 4]
    assert buffer.in_order("backward") == [2, 1, 0]
    assert sorted(buffer.in_order("shuffled")) == [0, 1, 2]


# ------------------------------------------------------------------------- tuner

CURVES = {
    "latency and overlap": lambda p, c: 40 / p + 0.5 * p + 12 / c + 0.02 * c,
    "a narrow valley": lambda p, c: 1 + (log2(p) - 1.3) ** 2 + (log2(c) - 3.7) ** 2 / 2,
    "at the edge": lambda p, c: 10 + p + c,
    "flat": lambda p, c: 1.0,
}


def found_by(search, cost):
    count = 0
    while search.point is not None:
        search.tell(cost(*search.point))
        count += 1
    return cost(*search.best), count


@pytest.mark.parametrize("kind", [Search, BayesianSearch])
@pytest.mark.parametrize("name", CURVES)
def test_the_search_comes_within_a_tenth_in_fifteen_evaluations(name, kind):
    cost = CURVES[name]
    partitions, credits = log_grid(1 / 16, 64.0), log_grid(1 / 16, 256.0)
    found, count = found_by(kind(partitions, credits), cost)
    best = min(
        cost(p, c)
        for p in np.geomspace(1 / 16, 64.0, 200)
        for c in np.geomspace(1 / 16, 256.0, 200)
    )
    assert count <= MOST == 15
    assert found <= 1.1 * best


def test_the_grid_alone_does_not(monkeypatch):
    """The sections are what comes near."""
    monkeypatch.setattr(scheduled_transfers, "SECTIONS", 0)
    cost = CURVES["a narrow valley"]
    search = Search(log_grid(1 / 16, 64.0), log_grid(1 / 16, 256.0))
    assert found_by(search, cost)[0] > 1.1


def test_the_process_is_that_of_the_formula():
    """Mean and deviation of a Gaussian process, by its covariance matrix as a whole."""
    draws = np.random.default_rng(3)
    lattice = draws.random((40, 2))
    measured = [3, 17, 22, 30, 31]
    heights = draws.standard_normal(5)
    heights = (heights - heights.mean()) / heights.std()
    found = predicted(lattice, measured, heights)
    fits = []
    for length in scheduled_transfers.LENGTHS:
        for noise in scheduled_transfers.NOISES:
            distances = np.linalg.norm(lattice[:, None] - lattice[None], axis=2)
            r = np.sqrt(5) * distances / length
            kernel = (1 + r + r**2 / 3) * np.exp(-r)
            np.testing.assert_allclose(matern(lattice, lattice, length), kernel)
            inner = kernel[np.ix_(measured, measured)] + noise * np.eye(5)
            across = kernel[measured]
            evidence = -heights @ np.linalg.inv(inner) @ heights / 2
            evidence -= np.linalg.slogdet(inner)[1] / 2
            mean = across.T @ np.linalg.inv(inner) @ heights
            variance = 1 - np.diag(across.T @ np.linalg.inv(inner) @ across)
            fits.append((evidence, mean, np.sqrt(variance)))
    _, mean, deviation = max(fits, key=lambda fit: fit[0])
    np.testing.assert_allclose(found[0], mean, 1e-6, 1e-8)
    np.testing.assert_allclose(found[1], deviation, 1e-4, 1e-5)


def test_a_single_partition_is_searched_along_the_credit():
    search = BayesianSearch([4.0], log_grid(1 / 16, 256.0))
    found, count = found_by(search, lambda p, c: 1 + (log2(c) - 1.5) ** 2)
    assert {p for p, _ in search.costs} == {4.0} and count <= MOST
    assert found < 1.1


@pytest.mark.parametrize("codec", ["identity", "bf16"])
def test_a_bayesian_search_changes_no_bit(codec):
    """All ranks end it at the same point; a codec has tiles of one partition."""
    problem = make_problem("softmax")
    epochs = -(-(MOST + 1) * ROUNDS // 5)
    tuned, plain = (
        on_all(
            3,
            scheduled(
                problem,
                3,
                schedule={"epochs": epochs},
                agreement={"codec": codec, **more},
            ),
            problem,
        )
        for more in ({"tune_schedule": True, "search": "bayesian"}, {})
    )
    told = [r.report["agreement"] for r in tuned]
    assert len({(t["partition"], t["credit"], t["tuned_points"]) for t in told}) == 1
    assert told[0]["tuned"] and 1 <= told[0]["tuned_points"] <= MOST
    if codec != "identity":
        assert told[0]["partition"] == tuned[0].config["agreement"]["partition"]
    assert {r.weights_sha256 for r in tuned} == {r.weights_sha256 for r in plain}


def test_all_ranks_switch_alike_and_no_bit_changes():
    problem = make_problem("softmax")
    epochs = -(-(MOST + 1) * ROUNDS // 5)
    tuned, plain = (
        on_all(
            3,
            scheduled(
                problem, 3, schedule={"epochs": epochs}, agreement={"tune_schedule": on}
            ),
            problem,
        )
        for on in (True, False)
    )
    said = {
        tuple(r.report["agreement"][k] for k in ("partition", "credit", "tuned"))
        for r in tuned
    }
    assert len(said) == 1 and said.pop()[2]
    assert {r.weights_sha256 for r in tuned} == {r.weights_sha256 for r in plain}
    assert 1 <= tuned[0].report["agreement"]["tuned_points"] <= MOST


def test_nothing_is_under_way_where_the_schedule_changes(monkeypatch):
    """Else what comes back would be credit of another limit."""
    flying, allow = [], Queue.allow

    def noted(self, credit):
        flying.append(self.in_flight)
        allow(self, credit)

    monkeypatch.setattr(Queue, "allow", noted)
    problem = make_problem("softmax")
    epochs = -(-(MOST + 1) * ROUNDS // 5)
    asked = {"tune_schedule": True}
    config = scheduled(problem, 2, schedule={"epochs": epochs}, agreement=asked)
    train_on(2, config, problem)
    assert len(flying) > 4 and not any(flying)


class RoundClock(local):
    """The six rounds of a point last 99, 1, 5, 2, 4 and 3 seconds on every rank."""

    def __init__(self):
        self.now, self.calls = 0.0, 0
        self.seconds = cycle([99.0, 1.0, 5.0, 2.0, 4.0, 3.0])

    def __call__(self):
        if self.calls % 2:  # it is read where a round begins and where it ends
            self.now += next(self.seconds)
        self.calls += 1
        return self.now


def test_a_point_costs_the_median_of_its_rounds(monkeypatch):
    """But for the first, which still has what was under way before."""
    problem, told, tell = make_problem("softmax"), [], Search.tell
    monkeypatch.setattr(scheduled_transfers, "perf_counter", RoundClock())

    def telling(self, cost):
        told.append(cost)
        tell(self, cost)

    monkeypatch.setattr(Search, "tell", telling)
    config = scheduled(
        problem, 2, schedule={"epochs": 3}, agreement={"tune_schedule": True}
    )
    train_on(2, config, problem)
    assert told and set(told) == {3.0}


def test_a_run_goes_on_with_what_was_measured(tmp_path):
    problem = make_problem("softmax")
    config = scheduled(
        problem, 2, schedule={"epochs": 40}, agreement={"tune_schedule": True}
    )
    first = in_folder(tmp_path, config, 2, problem, stop=3 * ROUNDS)[0]
    again = in_folder(tmp_path, config, 2, problem)[0]
    assert first.report["agreement"]["tuned_points"] == 2
    said = again.report["agreement"]
    assert said["tuned"] and said["tuned_points"] > 2


@pytest.mark.parametrize(
    "key, value",
    [("partition", 0.0), ("credit", -1.0), ("order", "any"), ("mode", "both")],
)
def test_settings_are_checked_at_birth(key, value):
    with pytest.raises(ConfigError, match=key):
        RunConfig.parse({"agreement": {key: value}})


def test_whether_a_sum_is_here_can_be_asked():
    """Only once all ranks have said theirs."""

    asked = Event()

    def on_rank(world):
        if world.rank:
            asked.wait(HANG)
        pending = world.start_sum(np.ones(3), "agreement")
        if not world.rank:
            assert not pending.has_arrived()
            asked.set()
        world.max_flag(0)
        assert pending.has_arrived()
        assert pending.wait().tolist() == [2.0] * 3 and pending.has_arrived()

    run_ranks(2, on_rank)


def test_one_replica_has_nothing_to_schedule():
    problem = make_problem("logistic")
    result = train_on(1, scheduled(problem, 1), problem)
    assert result.ledger["agreement"]["calls"] == 0
