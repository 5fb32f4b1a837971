"""Transfers that cross the step: the weights of ddp, whatever travels when."""

import threading
from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements.more.scheduled import Queue, Scheduled
from hpcsgd.runs.checkpoint import Capture
from hpcsgd.runs.progress import Callback
from hpcsgd.studies.folder import expected_traffic
from tests.helpers.contracts.codec import NAMES, ROWS, on_all, sections_of
from tests.helpers.gradients import check, in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.scheduled import MIB, ORDERS, TILE, WAYS, scheduled
from tests.helpers.sparse import make_sparse


@pytest.fixture
def trace(monkeypatch):
    """{thread: [(event, priority, part, bytes)]} of all queues."""
    events = {}

    def watch(event, piece):
        own = events.setdefault(threading.get_ident(), [])
        own.append((event, piece.priority, piece.part, piece.size))

    monkeypatch.setattr(Queue, "watchers", [watch])
    return events


def test_no_schedule_changes_a_bit():
    """And all are ddp's steps to rounding: scores are added up in other parts."""
    problem, found = make_problem("softmax"), set()
    for way in WAYS.values():
        for order in ORDERS:
            config = scheduled(
                problem,
                3,
                problem={"intercept": True},
                agreement={**way, "order": order, "accumulate": 2},
            )
            found.add(check(problem, config).weights_sha256)
    assert len(found) == 1


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_uneven_shards(replicas):
    """Replicas that run out of rows keep the order of all messages."""
    problem = make_problem("logistic")
    for order in ORDERS:
        asked = {"bucket": 8 * 2 * MIB, **WAYS["uneven pieces"], "order": order}
        check(problem, scheduled(problem, replicas, agreement=asked))


@pytest.mark.parametrize("kind", ["momentum", "nesterov", "nesterov-classic"])
@pytest.mark.parametrize("grid", [(3, 1), (2, 2), (3, 2)])
def test_updates_and_members(kind, grid):
    problem = make_problem("softmax")
    for product in ("direct", "gather"):
        config = scheduled(
            problem,
            *grid,
            problem={"intercept": True},
            update={"kind": kind, "momentum": 0.5},
            products={"kind": product},
            rate={"kind": "inverse", "decay": 0.1},
            agreement=WAYS["uneven pieces"],
        )
        check(problem, config, weights=True, offset=True)


@pytest.mark.parametrize("kind", ["adam", "adagrad"])
def test_rules_that_keep_moments(kind):
    problem = make_problem("softmax")
    results = [
        train_on(
            3,
            scheduled(
                problem,
                3,
                update={"kind": kind},
                problem={"intercept": True},
                agreement={"kind": one},
            ),
            problem,
        )
        for one in ("gradient", "scheduled")
    ]
    a, b = (np.asarray(result.weights) for result in results)
    assert np.abs(a - b).max() <= 1e-12 * np.abs(a).max()


ROUGH = {
    "clipped": {"update": {"clip": "norm", "clip_at": 0.05}},
    "moments of eight bits": {"update": {"kind": "adam", "bits": 8}},
    "residuals that overflow": {
        "precision": {"recipe": "fp64", "residual": "fp16"},
        "problem": {"intercept": True},
    },
}


@pytest.mark.parametrize("way", ROUGH)
def test_what_is_done_to_gradients_is_done_to_late_tiles(way):
    """Clipped, kept in few bits, left out where residuals overflow: as ddp does."""
    overflows = way == "residuals that overflow"
    problem = make_problem("gaussian" if overflows else "softmax", d=300)
    if overflows:
        problem.y[:20] *= 1e3
    ddp, own = (
        on_all(
            3,
            scheduled(
                problem,
                3,
                rate={"value": problem.rate / (1 + 9 * overflows)},
                agreement={"kind": kind, "bucket": 20 * TILE, "order": "backward"},
                **ROUGH[way],
            ),
            problem,
        )
        for kind in ("gradient", "scheduled")
    )
    assert len({r.weights_sha256 for r in own}) == 1
    np.testing.assert_allclose(own[0].weights, ddp[0].weights, rtol=1e-3, atol=1e-9)
    if overflows:
        assert own[0].report["skipped_exchanges"] == 6
    if way == "clipped":
        plain = train_on(3, scheduled(problem, 3), problem)
        assert np.abs(plain.weights - own[0].weights).max() > 1e-3


def test_one_tile_without_limits_is_ddp_bit_for_bit():
    """The same messages, too: one a bucket, in the order in which they are ready."""
    problem = make_problem("softmax")
    for bucket, tiles in ((4.0, 1), (TILE, 4)):
        asked = {**WAYS["everything at once"], "bucket": bucket}
        ddp, own = (
            train_on(3, scheduled(problem, 3, agreement=asked | {"kind": k}), problem)
            for k in ("gradient", "scheduled")
        )
        assert own.ledger["agreement"]["calls"] == tiles * own.exchanges
        for figure in ("calls", "words", "bytes", "wire_bytes"):
            said, expected = (r.ledger["agreement"][figure] for r in (own, ddp))
            assert said == pytest.approx(expected, rel=1e-14)
        if tiles == 1:
            assert own.weights_sha256 == ddp.weights_sha256


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_codecs_travel_in_whole_tiles(name):
    """One tile has the bits of ddp with that codec; several learn, and all agree."""
    problem = make_problem("softmax")
    sections = sections_of(ROWS[name].rough)
    if name == "dgc":
        sections["update"] = {"kind": "sgd"}
    ddp, own = (
        train_on(
            3,
            scheduled(
                problem,
                3,
                agreement={"kind": kind, "codec": name, "bucket": 4.0},
                **sections,
            ),
            problem,
        )
        for kind in ("gradient", "scheduled")
    )
    assert own.weights_sha256 == ddp.weights_sha256
    for order in ("forward", "backward"):
        asked = {"codec": name, "credit": 8 * MIB, "order": order}
        config = scheduled(problem, 2, 2, agreement=asked, **sections)
        assert len({r.weights_sha256 for r in on_all(4, config, problem)}) == 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("asked", [{"codec": "bf16"}, {"codec": "sign"}, {"codec": ""}])
def test_whole_tiles_are_no_larger_than_the_partition(asked):
    """With a codec or leaders: the tiles, bytes and credit of a bucket as small."""
    problem = make_problem("softmax", d=11)
    asked = asked if asked["codec"] else {"hierarchical": "2"}
    replicas, partition = (2 if "codec" in asked else 4), 8 * 4 * 3 * MIB
    sizes = {"bucket": 4.0, "partition": partition, "credit": partition}
    config = scheduled(problem, replicas, agreement={**asked, **sizes})
    result = train_on(replicas, config, problem)
    told = result.report["agreement"]
    assert told["buckets"] == told["messages"] == ceil(11 / 3)
    assert told["most_in_flight"] < 2 * partition / MIB
    plain = {**asked, "kind": "gradient", "bucket": partition}
    ddp = train_on(replicas, scheduled(problem, replicas, agreement=plain), problem)
    for figure in ("calls", "words", "bytes"):
        said, expected = (r.ledger["agreement"][figure] for r in (result, ddp))
        assert said == expected, figure
    np.testing.assert_allclose(result.weights, ddp.weights, 0, 1e-10)
    expected = expected_traffic(result.as_dict())
    assert expected == expected_traffic(ddp.as_dict())
    for figure, value in (expected or {}).items():
        said = sum(result.ledger[p][figure] for p in ("products", "agreement"))
        assert said == value, figure


@pytest.mark.parametrize("d", [9, 11])
def test_messages_are_counted_by_formula(d):
    """Σ ⌈bytes of a tile / partition⌉, the first tile with the tail."""
    problem = make_problem("softmax", n=53, d=d)
    for partition in (8 * 3 * MIB, 8 * 5 * MIB, 4.0):
        config = scheduled(
            problem, 3, problem={"intercept": True}, agreement={"partition": partition}
        )
        result = train_on(3, config, problem)
        said = result.report["agreement"]
        count = ceil(d / 2)
        edges = [k * d // count for k in range(count + 1)]
        widths = sorted(b - a for a, b in zip(edges, edges[1:], strict=False))
        sizes = [8 * 4 * width for width in widths[::-1]]
        sizes[0] += 8 * 5
        messages = sum(ceil(size / (partition / MIB)) for size in sizes)
        sent = result.ledger["agreement"]
        assert said["messages"] == messages and said["buckets"] == count
        assert sent["calls"] == messages * result.exchanges
        assert sent["words"] == (d * 4 + 4 + 1) * result.exchanges
        assert sent["bytes"] == 8 * sent["words"]
        expected = expected_traffic(result.as_dict())
        for figure, value in expected.items():
            assert value == sum(
                result.ledger[p][figure] for p in ("products", "agreement")
            )


# ----------------------------------------------------------------------- traces


@pytest.mark.parametrize("order", ORDERS)
def test_what_starts_is_the_best_of_what_is_ready(trace, order):
    """On all ranks in one order, with less than credit + one piece under way."""
    problem, way = make_problem("softmax"), WAYS["uneven pieces"]
    config = scheduled(problem, 3, agreement={**way, "order": order})
    result = train_on(3, config, problem)
    assert len(trace) == 3
    starts = {tuple(e[1:3] for e in own if e[0] == "start") for own in trace.values()}
    assert len(starts) == 1
    overtaken = 0
    for own in trace.values():
        waiting, flying, came = set(), 0, []
        for event, priority, part, size in own:
            if event == "ready":
                waiting.add((priority, part))
                came.append((priority, part))
            elif event == "start":
                assert (priority, part) == min(waiting)
                assert flying < way["credit"] / MIB
                overtaken += (priority, part) != came[0]
                came.remove((priority, part))
                waiting.remove((priority, part))
                flying += size
                assert flying < (way["credit"] + way["partition"]) / MIB
            else:
                flying -= size
        assert flying == 0 and not waiting
    assert bool(overtaken) == (order != "forward")
    assert result.report["agreement"]["most_in_flight"] <= 8 * (5 + 3 - 1)


class Look(Callback):
    """How much of an exchange is under way when it is over."""

    def __init__(self, trace):
        self.trace, self.seen = trace, []

    def on_exchange(self, view):
        own = [e[0] for e in self.trace.get(threading.get_ident(), ())]
        self.seen.append(own.count("ready") - own.count("finish"))


def test_transfers_cross_the_step(trace, monkeypatch):
    """All four tiles, where nothing asks for the weights; none where somebody does."""
    problem = make_problem("softmax")
    config = scheduled(problem, 2, agreement={"order": "backward"})
    look = Look(trace)
    train_on(2, config, problem, callbacks=[look])
    assert set(look.seen) == {4}
    waits = Look(trace)
    crossing = Scheduled.after_exchange

    def waiting(self, state, exchanges):
        crossing(self, state, exchanges)
        self.arrive(state)

    monkeypatch.setattr(Scheduled, "after_exchange", waiting)
    train_on(2, config, problem, callbacks=[waits])
    assert set(waits.seen) == {0}


def test_losses_and_tail_means_are_those_of_weights_that_arrived():
    """Whoever reads the weights waits for them: the history of ddp, the mean too."""
    problem = make_problem("logistic")
    sections = {"run": {"evaluate_every": 1}, "average": {"kind": "tail", "share": 0.5}}
    ddp, own = (
        train_on(
            2,
            scheduled(
                problem,
                2,
                agreement={"kind": kind, "bucket": 8 * 2 * MIB, "order": "backward"},
                **sections,
            ),
            problem,
        )
        for kind in ("gradient", "scheduled")
    )
    for figure in ("loss_of_mean", "loss_of_last"):
        said, expected = (r.report["average"][figure] for r in (own, ddp))
        assert said == pytest.approx(expected, rel=1e-12)
    for a, b in zip(own.history, ddp.history, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-12)
    np.testing.assert_allclose(own.weights, ddp.weights, rtol=1e-12)


# ------------------------------------------------------------------- checkpoints


@pytest.mark.cases(2)
@pytest.mark.parametrize("way", ["sgd", "adam", "fp8", "sparse", "tuned"])
def test_a_run_goes_on_bit_for_bit(way, tmp_path):
    """With transfers under way at the checkpoint."""
    problem = make_problem("softmax")
    stored = make_sparse("softmax")[0] if way == "sparse" else problem
    sections = {
        "agreement": {
            "order": "backward",
            "codec": "fp8" if way == "fp8" else "identity",
            "tune_schedule": way == "tuned",
        },
        "problem": {"intercept": True},
        "update": {"kind": "adam" if way == "adam" else "momentum", "momentum": 0.5},
    }
    for grid in ((3, 1), (2, 2)):
        config, place = scheduled(problem, *grid, **sections), tmp_path / str(grid)
        ranks = grid[0] * grid[1]
        whole = in_folder(place / "whole", config, ranks, stored)[0]
        first = in_folder(place / "parts", config, ranks, stored, stop=4)
        assert {r.status.value for r in first} == {"preempted"}
        again = in_folder(place / "parts", config, ranks, stored)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}


def test_a_checkpoint_that_does_not_wait_is_another_run(tmp_path, monkeypatch):
    problem = make_problem("softmax")
    config = scheduled(problem, 2, agreement={"order": "backward"})
    whole = in_folder(tmp_path / "whole", config, 2, problem)[0]

    take = Capture.take_to_write

    def at_once(self, state, view):
        self.agreement.arrive = lambda state: None
        snapshot = take(self, state, view)
        del self.agreement.arrive
        return snapshot

    monkeypatch.setattr(Capture, "take_to_write", at_once)
    in_folder(tmp_path / "parts", config, 2, problem, stop=4)
    again = in_folder(tmp_path / "parts", config, 2, problem)[0]
    assert again.weights_sha256 != whole.weights_sha256


# ------------------------------------------------------------------------- edges


@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_sparse_rows_are_one_tile(family):
    """Columns of CSR cannot be cut: scores wait for all, which still come in pieces."""
    stored, dense = make_sparse(family)
    config = scheduled(dense, 2, agreement=WAYS["uneven pieces"])
    result = check(dense, config, stored)
    said = result.report["agreement"]
    assert said["buckets"] == 1 and said["messages"] > 1


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("edge", ["zeros", "one column", "not finite"])
def test_edges(edge, order):
    """Ends as ddp does, with the same weights on all ranks."""
    problem = make_problem("gaussian", d=1 if edge == "one column" else 7)
    if edge == "zeros":
        problem.X[:] = 0.0
    rate = {"value": 1e200 if edge == "not finite" else problem.rate}
    asked = {"bucket": 8 * 2 * MIB, "order": order}
    ddp, own = (
        on_all(
            3,
            scheduled(problem, 3, agreement=asked | {"kind": kind}, rate=rate),
            problem,
        )
        for kind in ("gradient", "scheduled")
    )
    said = {(r.status.value, r.weights_sha256) for r in own}
    assert said == {(r.status.value, r.weights_sha256) for r in ddp} and len(said) == 1
    assert (own[0].status.value == "diverged") == (edge == "not finite")
