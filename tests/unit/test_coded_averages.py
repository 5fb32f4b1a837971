"""Averages by a codec (Qsparse-local-SGD, FedPAQ): laws, bytes, resumes, refusals."""

from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements import Average
from hpcsgd.api import train
from hpcsgd.backends.task import State
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError
from hpcsgd.studies.verify import certify
from tests.helpers.averages import config_of, error_of
from tests.helpers.averages_laws import CURVATURE, HARD, L2, OPTIMUM
from tests.helpers.codec_formulas import record
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.resumed import interrupted, losses, run
from tests.helpers.verify import reader_of

# row of the averages -> [agreement] and [codec]
TOPK = {"codec": "topk"}, {"share": 0.2, "dense": "never"}
QSGD = {"codec": "qsgd"}, {"bits": 4}
ROWS = {
    "qsparse": ("average", *TOPK),
    "postlocal topk": ("postlocal", *TOPK),
    "slow topk": ("slowmo", *TOPK),
    "qsgd": ("average", *QSGD),
    "fedpaq": ("fedavg", *QSGD),
    "slow fedpaq": ("slow fedavg", *QSGD),
    "fedprox qsgd": ("proximal", *QSGD),
}


def coded(problem, name, members=1, /, **sections):
    row, agreement, codec = ROWS[name]
    sections["agreement"] = {**agreement, **sections.get("agreement", {})}
    sections["codec"] = {**codec, **sections.get("codec", {})}
    return config_of(problem, row, 4, members, **sections)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("momentum", [None, "keep", "reset"])
@pytest.mark.parametrize("name", ROWS)
def test_it_is_the_published_rule(name, momentum, members):
    """Every step and every record in longdouble, written from the papers."""
    problem = make_problem("softmax", n=58, d=7)
    more = {}
    if momentum:
        more["update"] = {"kind": "nesterov", "momentum": 0.6}
        more["agreement"] = {"momentum": momentum}
    config = coded(problem, name, members, **more)
    assert error_of(problem, config) < 1e-11


def test_it_is_the_plain_average_where_nothing_is_lost():
    problem = make_problem("softmax", n=58, d=7)
    plain = train_on(4, config_of(problem, "average"), problem)
    whole = {"share": 1.0}
    found = train_on(4, coded(problem, "qsparse", codec=whole), problem)
    np.testing.assert_allclose(found.weights, plain.weights, 0, 1e-15)
    np.testing.assert_allclose(found.intercept, plain.intercept, 0, 1e-15)


def payload(name, words):
    """Bytes of one record of `words` words in float64."""
    if ROWS[name][1]["codec"] == "topk":
        return record(max(round(0.2 * words), 1), words, 8)
    return ceil(words * 4 / 8) + 4 * ceil(words / 1024)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", ROWS)
def test_bytes_of_every_rank(name, members):
    """A record an average, K words of the intercept; the end sends all words."""
    problem = make_problem("softmax", n=58, d=7)  # four exchanges, τ = 3
    config = coded(problem, name, members)
    averages = 2 if ROWS[name][0] == "postlocal" else 1  # after 1 and 3

    def on_rank(world):
        result = train(config, X=problem.X, y=problem.y, world=world)
        return result.ledger["agreement"]["bytes"]

    for rank, sent in enumerate(run_ranks(4 * members, on_rank)):
        part = split_range(7, members, rank % members)
        words = 4 * (part.stop - part.start)
        more = 4 * 8 * (2 if members > 1 else 1)  # and a broadcast to the members
        end = 8 * (words + 4) + (4 * 8 if members > 1 else 0)
        assert sent == averages * (payload(name, words) + more) + end


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", [name for name in ROWS if name != "fedprox qsgd"])
def test_certificates_know_the_bytes(name, members, tmp_path):
    problem = make_problem("logistic", n=101, d=7)
    out = {"run": {"out": str(tmp_path), "record": 4}, "products": {"kind": "gram"}}
    config = coded(problem, name, members, **out, schedule={"epochs": 4})
    train_on(4 * members, config, problem)
    found = certify(tmp_path, exchanges=4, reader=reader_of(problem, data=False))
    assert all(check.ok for check in found.checks), found.checks
    (sent,) = [check for check in found.checks if check.name == "traffic"]
    assert list(sent.figures["expected"]["agreement"]) == ["bytes"]


@pytest.mark.parametrize("name", ["qsparse", "slow topk", "fedpaq", "fedprox qsgd"])
@pytest.mark.parametrize("members, at", [(1, 3), (1, 5), (2, 4)])
def test_it_resumes_bit_for_bit(name, members, at, tmp_path):
    """Errors, the weights agreed on and the number of averages are saved."""
    problem = make_problem("softmax", n=117, d=7)
    more = {"schedule": {"epochs": 3}, "products": {"kind": "gram"}}
    sections = coded(problem, name, members, **more).tables()
    del sections["run"]
    ranks = 4 * members
    whole = run(ranks, problem, tmp_path / "whole", **sections)[0]
    again = interrupted(ranks, problem, tmp_path / "parts", at, **sections)
    assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
    assert losses(again[0]) == losses(whole)
    entries = [r.ledger["agreement"]["bytes"] for r in (again[0], whole)]
    assert entries[0] == entries[1]


def gap(codec, **settings):
    """Relative gap of local SGD with τ = 4 on sorted shards, at a tenth of 1/L."""
    config = config_for(
        HARD,
        problem={"l2": L2, "intercept": False},
        schedule={"batch": 200, "steps": 1, "epochs": 3000, "period": 4},
        products={"kind": "direct"},
        agreement={"kind": "average", "codec": codec},
        codec=settings,
        grid={"replicas": 4},
        rate={"value": 0.1 / CURVATURE},
    )
    return (train_on(4, config, HARD).loss - OPTIMUM) / OPTIMUM


def test_memory_of_what_was_not_sent_is_what_makes_it_converge():
    settings = {"share": 0.2, "dense": "never"}
    kept = gap("topk", **settings)
    assert kept < 1e-3
    assert gap("topk", **settings, feedback="off") > 5 * kept


REFUSED = [
    ({"kind": "average", "codec": "dgc"}, {}, "follows gradients"),
    ({"kind": "fedavg", "codec": "topk"}, {}, "replicas that rest"),
    ({"kind": "slowmo", "base": "fedavg", "codec": "sign"}, {}, "replicas that rest"),
    ({"kind": "hierarchical", "groups": "1,2", "codec": "qsgd"}, {}, "no codecs"),
    (
        {"kind": "async-average", "codec": "qsgd", "peers": "shift_one"},
        {},
        "to all replicas.*leave agreement.peers",
    ),
    (
        {"kind": "async-average", "codec": "qsgd", "sync_interval_ms": 5.0},
        {},
        "every --period exchanges",
    ),
    (
        {"kind": "slowmo", "base": "hierarchical", "groups": "1,2", "codec": "qsgd"},
        {},
        "no codec; leave",
    ),
    ({"kind": "slowmo", "slow_sharded": True, "codec": "qsgd"}, {}, "piece by piece"),
    (
        {"kind": "average", "codec": "topk"},
        {"update": {"kind": "momentum", "momentum": 0.5}},
        "would average momenta",
    ),
    ({"kind": "average", "codec": "topk"}, {"update": {"kind": "svrg"}}, "snapshot"),
    ({"kind": "average", "codec": "nuqsgd"}, {"codec": {"bits": 9}}, "too large"),
]


@pytest.mark.parametrize("agreement, sections, why", REFUSED)
def test_it_is_refused(agreement, sections, why):
    problem = make_problem("logistic", n=58, d=3)
    with pytest.raises(ConfigError, match=why):
        config = config_for(
            problem,
            schedule={"period": 4},
            agreement=agreement,
            grid={"replicas": 2},
            **sections,
        )
        train_on(2, config, problem)


def test_one_replica_encodes_nothing():
    problem = make_problem("logistic", n=58, d=7)
    row = {"kind": "average", "codec": "qsgd"}
    found = [
        train_on(1, config_for(problem, agreement=a, grid={"replicas": 1}), problem)
        for a in (row, {"kind": "average"})
    ]
    assert found[0].weights_sha256 == found[1].weights_sha256


def test_one_replica_makes_good_what_several_had_not_sent():
    """It goes on from the mean weights, less the mean of all errors, and once."""
    average = Average(Grid(SerialCommunicator(), 1, 1), 1.0, 4, classes=2)
    weights, error = np.arange(12.0).reshape(3, 4), np.full((3, 2), 0.5)
    state = State(weights=weights.copy(), intercept=None)
    average.inherit(state, "codec_error", error)
    average.inherit(state, "agreed", np.full((3, 2), 9.0))
    np.testing.assert_array_equal(state.weights[:, :2], weights[:, :2] - 0.5)
    np.testing.assert_array_equal(state.weights[:, 2:], weights[:, 2:])
