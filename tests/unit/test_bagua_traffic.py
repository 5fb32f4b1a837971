"""What the rows of Bagua say: bytes, charges of a network, what lies behind work."""

import pytest

from hpcsgd.agreements.codecs.bits import piece_words
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from tests.helpers.bagua import config_of
from tests.helpers.harness import make_problem, train_on

# --------------------------------------------------------------------- overlap


def told_of(monkeypatch, row, replicas=2):
    """What replica 0 does in turn: s(cores), g(radient), p(ost), w(ait)."""
    from hpcsgd.agreements.base import Overlap
    from hpcsgd.agreements.gradient import Gradient

    events = []

    def note(kind, letter, name, who):
        known = getattr(kind, name)

        def noted(self, *args, **options):
            if who(self) == 0:
                events.append(letter)
            return known(self, *args, **options)

        monkeypatch.setattr(kind, name, noted)

    def replica(agreement):
        return agreement.grid.replica

    note(Gradient, "s", "scores", replica)
    note(Gradient, "g", "add_gradient", replica)
    note(Overlap, "p", "posting", lambda overlap: overlap.replicas.rank)
    note(Overlap, "w", "waiting", lambda overlap: overlap.replicas.rank)
    problem = make_problem("logistic", n=32)
    config = config_of(problem, row, replicas, schedule={"epochs": 1})
    exchanges = train_on(replicas, config, problem).exchanges
    return "".join(events), exchanges


@pytest.mark.parametrize(
    "row, before, each, after",
    [
        ("all", "", "psgw", ""),  # behind scores and gradient
        ("pairs", "", "psgw", ""),
        ("low", "sgp", "sgwp", "w"),  # behind those of the next step
    ],
)
def test_transfers_lie_behind_computing(row, before, each, after, monkeypatch):
    """Posted before what they travel behind, and waited for after it."""
    events, exchanges = told_of(monkeypatch, row)
    times = exchanges - (row == "low")
    assert events == before + each * times + after


# ------------------------------------------------------------------------ bytes


@pytest.mark.parametrize("delay", [0, 2])
def test_a_study_knows_what_averages_aside_must_have_said(delay):
    from hpcsgd.studies.folder import expected_traffic

    problem = make_problem("softmax")
    for replicas, members in ((4, 1), (3, 2)):
        for epochs in (2, 3):  # one ends with an average, one between two
            kind = {"agreement": {"delay": delay}, "schedule": {"epochs": epochs}}
            config = config_of(problem, "async", replicas, members, **kind)
            result = train_on(replicas * members, config, problem)
            for figure, value in expected_traffic(result.as_dict()).items():
                parts = (result.ledger[p][figure] for p in ("products", "agreement"))
                assert sum(parts) == value, figure


def test_what_to_do_where_mixing_takes_the_time():
    from hpcsgd.runs import advice

    problem = make_problem("logistic")
    for kind in ("decentralized", "local-steps"):  # the last takes no batches together
        config = config_of(problem, "all", 2, agreement={"kind": kind})
        result = train_on(2, config, problem)
        assert "--period 2 agrees half as often" in advice.advise_fewer_messages(result)


def said(config, problem):
    grid = config.grid
    result = train_on(grid.replicas * grid.members, config, problem)
    entry = result.ledger["agreement"]
    return result.exchanges, [entry[k] for k in ("calls", "words", "bytes")], entry


@pytest.mark.parametrize("d, family", [(7, "softmax"), (13, "logistic")])
@pytest.mark.parametrize("row", ["all", "pairs", "low"])
def test_bytes_of_mixing(row, d, family):
    """D + K words at once, or two messages of D + 8 bytes and K words; one mean."""
    problem = make_problem(family, d=d)
    K = 4 if family == "softmax" else 1
    for replicas in (2, 4):
        exchanges, told, entry = said(config_of(problem, row, replicas), problem)
        whole = d * K + K
        final = 2 * (replicas - 1) / replicas * 8 * whole
        if row == "low":
            record = d * K + 8 + 8 * K
            sent = 2 * record * exchanges
            wanted = [2 * exchanges + 1, sent + whole, sent + 8 * whole]
            assert entry["wire_bytes"] == pytest.approx(sent + final)
        else:
            wanted = [f * (exchanges + 1) for f in (1, whole, 8 * whole)]
            each = final if row == "all" else 8 * whole
            assert entry["wire_bytes"] == pytest.approx(exchanges * each + final)
        assert told == wanted


def test_bytes_of_resyncing():
    problem = make_problem("logistic", d=13)
    config = config_of(problem, "low", agreement={"resync": 3})
    exchanges, told, _ = said(config, problem)
    record, whole = 13 + 8 + 8, 14
    again = 2 * (exchanges // 3)
    assert again
    assert told[0] == 2 * exchanges + again + 1
    assert told[2] == 2 * record * exchanges + 8 * whole * (again + 1)


@pytest.mark.parametrize("d", [7, 13])
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_bytes_of_averages_aside(delay, d):
    problem = make_problem("softmax", d=d)
    config = config_of(problem, "async", 3, agreement={"delay": delay})
    exchanges, told, _ = said(config, problem)
    assert exchanges % 3
    sums = exchanges // 3 + 1  # and the mean at the end
    words = sums * (4 * d + 4)
    assert told == [sums, words, 8 * words]


@pytest.mark.parametrize("d", [7, 13])
def test_bytes_of_momentum(d):
    """Sums as they are at first; then R pieces and one, and the tail ahead of them."""
    problem = make_problem("softmax", d=d)
    exchanges, told, _ = said(config_of(problem, "qadam", 3), problem)
    D, tail, warm = 4 * d, 4 + 1, 5
    rest = exchanges - warm
    assert rest > 0
    coded = 4 * (piece_words(D, 3) + 8)
    assert told[0] == warm + 3 * rest
    assert told[2] == 8 * warm * (D + tail) + rest * (8 * tail + coded)


def behind_a_network(world):
    return DelayedCommunicator(world, Network(alpha=1e-4, bandwidth=1e9))


@pytest.mark.parametrize("row", ["all", "pairs", "low", "async"])
def test_transfers_are_those_that_the_network_charged(row):
    """All but the mean at the end, a swap one latency and a sum of four two."""
    problem = make_problem("logistic", n=48, d=9)
    result = train_on(4, config_of(problem, row), problem, world_hook=behind_a_network)
    told, sent = result.report["agreement"], result.ledger["agreement"]
    last = 2 * 3 / 4 * 80
    hops = 1 if row in ("pairs", "low") else 2
    charged = (sent["calls"] - 1) * hops * 1e-4 + (sent["wire_bytes"] - last) / 1e9
    assert told["transfer_by"] == "network"
    if row == "async":  # what travels at the end is not told of
        charged = pytest.approx(charged)
    assert told["transfer_seconds"] == pytest.approx(charged)
    assert 0 <= told["hidden_seconds"] <= told["transfer_seconds"]
