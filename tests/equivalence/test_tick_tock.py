"""Two fits in turns: each has its own bits, and computes while the other travels."""

import threading

import numpy as np
import pytest

import hpcsgd
from hpcsgd.agreements.more.tick_tock import OtherFailed, run_alternately
from hpcsgd.api import train
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem
from tests.helpers.scheduled import TILE, scheduled


def both(ranks, first, second, problem, hook=lambda world: world):
    """(result, result) of every rank."""

    def on_rank(world):
        given = {"X": problem.X, "y": problem.y, "world": hook(world)}
        return hpcsgd.tick_tock(first, second, **given)

    return run_ranks(ranks, on_rank)


def alone(ranks, config, problem):
    given = {"X": problem.X, "y": problem.y}
    return run_ranks(ranks, lambda world: train(config, world=world, **given))


@pytest.mark.parametrize("grid", [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("kind", ["gradient", "scheduled", "ticktock", "average"])
def test_each_fit_is_what_it_is_alone(kind, grid):
    """Bit for bit, and message for message; other penalties, rates, lengths, losses."""
    problem, ranks = make_problem("softmax"), grid[0] * grid[1]
    asked = {"kind": kind} | ({} if kind == "average" else {"bucket": TILE})
    configs = [
        agreed(problem, *grid, agreement=asked, problem={"l2": 0.5}),
        agreed(
            problem,
            *grid,
            agreement=asked,
            rate={"value": problem.rate / 3},
            schedule={"epochs": 3, "batch": 5},
            run={"evaluate_every": 1},
        ),
    ]
    for own, found in enumerate(zip(*both(ranks, *configs, problem), strict=True)):
        expected = alone(ranks, configs[own], problem)
        for a, b in zip(found, expected, strict=True):
            assert a.weights_sha256 == b.weights_sha256
            assert [h["loss"] for h in a.history] == [h["loss"] for h in b.history]
            for purpose in ("products", "agreement", "evaluate"):
                said, wanted = a.ledger[purpose], b.ledger[purpose]
                assert said["calls"] == wanted["calls"]
                assert said["bytes"] == wanted["bytes"]


def test_one_computes_while_the_other_travels(monkeypatch):
    """From the trace: never both at once, each behind the other's transfer."""
    from hpcsgd.agreements import Gradient
    from hpcsgd.agreements.buckets import PlainSender

    events = []
    watched = {"begin": (Gradient, "begin"), "receive": (PlainSender, "receive")}
    for name, (kind, method) in watched.items():
        real = getattr(kind, method)

        def told(self, *arguments, _name=name, _real=real):
            replicas = self.grid.replicas if _name == "begin" else self.replicas
            who = threading.current_thread().name
            if _name == "begin":
                events.append(("computes", replicas.rank, who))
            done = _real(self, *arguments)
            if _name == "receive":
                events.append(("arrived", replicas.rank, who))
            return done

        monkeypatch.setattr(kind, method, told)
    problem = make_problem("logistic", n=48)
    config = agreed(problem, 2)
    both(2, config, config, problem)
    for rank in (0, 1):
        own = [(what, who) for what, r, who in events if r == rank]
        names = list(dict.fromkeys(who for _, who in own))
        turns = [names.index(who) for what, who in own if what == "computes"]
        assert turns == [k % 2 for k in range(len(turns))] and len(turns) == 24
        # What was sent before a compute of the other one arrives after it began.
        for k, (what, who) in enumerate(own):
            if what == "computes" and k:
                before = [e for e in own[:k] if e[1] != who]
                assert before[-1][0] == "computes"


def test_both_share_one_network():
    """What travels at the same time takes as long as one after the other."""
    links = []

    def hook(world):
        there = DelayedCommunicator(world, Network(1e-5, 1e9))
        links.append(there.link)
        return there

    problem = make_problem("logistic", n=24)
    config = agreed(problem, 2)
    results = both(2, config, config, problem, hook)
    said = [one.report["agreement"]["transfer_seconds"] for one in results[0]]
    assert min(said) > 0
    total = sum(
        entry["calls"] * 1e-5 + entry["wire_bytes"] / 1e9
        for one in results[0]
        for purpose, entry in one.ledger.items()
        if purpose == "agreement"
    )
    assert sum(said) == pytest.approx(total)
    assert all(link.charged >= total * 0.999 for link in links)


def test_an_error_of_one_ends_both():
    problem = make_problem("logistic")
    good, bad = agreed(problem, 2), agreed(problem, 2, schedule={"steps": 4})
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(ConfigError, match="use --steps 1"):
            both(2, *pair, problem)


def test_who_waits_for_a_turn_hears_of_a_failure():
    seen = []

    def fails(turns):
        turns.yield_turn(0)
        raise ValueError("broken")

    def waits(turns):
        try:
            turns.yield_turn(1)
        except OtherFailed:
            seen.append("ended")
            raise

    with pytest.raises(ValueError, match="broken"):
        run_alternately([fails, waits])
    assert seen == ["ended"]


@pytest.mark.parametrize(
    "second, remedy",
    [
        ({"run": {"network": "lan"}}, "give both fits the same"),
        ({"run": {"out": "here"}}, "give each its own"),
        ({"run": {"emulate_members": 4}}, "one after the other"),
        ({"sweep": {"l2": [0.1, 1.0]}}, "hpcsgd.sweep"),
        ({"run": {"device": "cuda"}}, "both fits would queue"),
    ],
)
def test_what_it_refuses(second, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = make_problem("logistic")
    first = {"run": {"out": "here"}} if "out" in str(second) else {}
    with pytest.raises(ConfigError, match=remedy):
        hpcsgd.tick_tock(first, second, X=problem.X, y=problem.y)


def test_sparse_and_adaptive_fits_side_by_side():
    problem = make_problem("softmax")
    configs = [
        scheduled(problem, 3, update={"kind": "adam"}, problem={"intercept": True}),
        scheduled(problem, 3, agreement={"kind": "gradient", "codec": "fp8"}),
    ]
    found = both(3, *configs, problem)[0]
    for config, result in zip(configs, found, strict=True):
        expected = alone(3, config, problem)[0]
        np.testing.assert_array_equal(result.weights, expected.weights)
