"""What replicas send to agree is what the formulas say, to the byte."""

import json

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.shard import split_range
from hpcsgd.errors import DataError
from hpcsgd.studies.folder import expected_traffic
from hpcsgd.studies.verify import certify
from tests.helpers.averages import PLAIN, ROWS, config_of
from tests.helpers.harness import make_problem, train_on
from tests.helpers.verify import reader_of

N = 58  # 15, 15, 14 and 14 rows: 2 exchanges an epoch, 4 in all
EXCHANGES = 4
WORDS = {"logistic": 1, "softmax": 4}

# row -> (sums of all, sums of two replicas, averages in parts), for τ = 3
TIMES = {
    "average": (2, 0, 0),  # after 3, and at the end
    "postlocal": (3, 0, 0),  # after 1, too
    "hierarchical": (2, 3, 0),  # after 3 and the end; after 1, 2 and 4 in pairs
    "fedavg": (2, 0, 0),
    "slowmo": (2, 0, 0),
    "sharded": (1, 0, 1),  # a slow step after 3; the end is no slow step
    "slow hierarchical": (2, 3, 0),  # no slow step in four exchanges of six
    "slow fedavg": (2, 0, 0),
    "gossip": (2, 0, 0),  # and halves to one other after 1, 2 and 4
    "slow gossip": (2, 0, 0),
    "proximal": (2, 0, 0),  # the anchor, where all were last, does not travel
    "slow proximal": (1, 0, 1),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("members, d", [(1, 7), (2, 7), (2, 2)])
@pytest.mark.parametrize(
    "family, momentum", [("logistic", "average"), ("softmax", "reset")]
)
def test_calls_words_and_bytes(row, members, d, family, momentum):
    """Of every rank; what is reset does not travel."""
    problem = make_problem(family, n=N, d=d)
    config = config_of(
        *(problem, row, 4, members),
        update={"kind": "momentum", "momentum": 0.5},
        agreement={"momentum": momentum},
    )

    def on_rank(world):
        result = train(config, X=problem.X, y=problem.y, world=world)
        assert result.exchanges == EXCHANGES
        return result.ledger["agreement"]

    wide = WORDS[family] * (2 if momentum == "average" else 1)
    for rank, entry in enumerate(run_ranks(4 * members, on_rank)):
        replica, member = divmod(rank, members)
        columns = split_range(d, members, member)
        held = columns.stop - columns.start
        part = split_range(held, 4, replica)
        calls, words, size = expected(row, held, part.stop - part.start, wide, members)
        if "gossip" in row:  # without momentum, and with the push-sum weight
            half = WORDS[family] * (held + 1) + 1
            calls, words, size = calls + 3, words + 3 * half, size + 3 * 8 * half
        assert (entry["calls"], entry["words"], entry["bytes"]) == (calls, words, size)


def expected(row, held, own, wide, members):
    """Sums of d_c·W + W words, exchanges of d_c·W + 4 W, gathers of d_r·W."""
    whole, pairs, parts = TIMES[row]
    state = held * wide
    calls, words = whole + pairs, (whole + pairs) * (state + wide)
    size = 8 * words
    if members > 1:  # behind a sum of four
        more = whole * wide
        calls, words, size = calls + whole, words + more, size + 8 * more
    moved = parts * (state + 4 * wide + own * wide)
    return calls + 2 * parts, words + moved, size + 8 * moved


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("members, reproducible", [(1, True), (2, False)])
def test_certificates_and_studies_know_the_formulas(
    row, members, reproducible, tmp_path
):
    """With the looks at a recurrence that rests, and the exchanges in which it did."""
    problem = make_problem("logistic", n=101, d=7)
    config = config_of(
        *(problem, row, 4, members),
        schedule={"epochs": 4},
        products={"kind": "gram"},
        run={
            "out": str(tmp_path),
            "record": 4,
            "gap_every": 2,
            "reproducible": reproducible,
        },
    )
    result = train_on(4 * members, config, problem)
    if row in PLAIN:
        found = certify(tmp_path, exchanges=4, reader=reader_of(problem, data=False))
        assert all(check.ok for check in found.checks), found.checks
    else:
        with pytest.raises(DataError, match="is of FedProx"):
            certify(tmp_path, exchanges=4, reader=reader_of(problem, data=False))
    wanted = expected_traffic(result.report | report_of(result))
    both = [result.ledger[p] for p in ("products", "agreement")]
    for figure in ("calls", "words", "bytes"):
        assert wanted[figure] == sum(entry[figure] for entry in both)


def report_of(result):
    """The document that a study reads."""
    return json.loads(result.json())


PRODUCTS = [(k, "off") for k in ("gram", "cached", "direct", "gather", "gather-once")]


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind, look_ahead", [*PRODUCTS, ("gram", "on")])
def test_products_of_replicas_that_rest(kind, look_ahead, tmp_path):
    """Replica 0 is in some of the rounds, and no Gram is sent ahead for nothing."""
    problem = make_problem("logistic", n=101, d=7)
    config = config_of(
        *(problem, "fedavg", 3, 2, 2),
        schedule={"epochs": 6},
        agreement={"fraction": 0.34},
        products={"kind": kind, "look_ahead": look_ahead},
        run={"out": str(tmp_path), "gap_every": 3},
    )
    result = train_on(6, config, problem)
    found = certify(tmp_path, reader=reader_of(problem, data=False))
    assert all(check.ok for check in found.checks), found.checks
    assert result.ledger["products"]["calls"] > 0


def test_an_average_moves_what_an_all_reduce_does():
    """In parts, too: 2 (R − 1)/R of the words, on the wire of all ranks together."""
    problem = make_problem("logistic", n=64, d=8)
    moved = {}
    for row in ("slowmo", "sharded"):
        config = config_of(
            *(problem, row, 4, 1, 2), problem={"intercept": False, "l2": 0.0}
        )
        ledger = train_on(4, config, problem).ledger["agreement"]
        moved[row] = ledger["wire_bytes"]
    np.testing.assert_allclose(moved["sharded"], moved["slowmo"], rtol=1e-12)
