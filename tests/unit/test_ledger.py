"""What the ledger holds, and what one entry costs."""

from time import perf_counter

import numpy as np
import pytest

from hpcsgd.comm import communicator
from hpcsgd.comm.ledger import PURPOSES, Ledger
from hpcsgd.comm.threads import SerialCommunicator


def test_all_purposes_are_there_before_anything_is_said():
    said = Ledger().as_dict()
    assert tuple(said) == PURPOSES == ("products", "agreement", "evaluate", "control")
    for entry in said.values():
        assert set(entry) == {"calls", "words", "bytes", "wire_bytes", "seconds"}
        assert not any(entry.values())


def test_entries_add_up_and_waiting_is_no_call():
    ledger = Ledger()
    ledger.record("products", 10, 80, 80.0, 0.5)
    ledger.record("products", 5, 20, 20.0, 0.25)
    ledger.wait("products", 1.0)
    assert ledger.as_dict()["products"] == {
        "calls": 2,
        "words": 15,
        "bytes": 100,
        "wire_bytes": 100.0,
        "seconds": 1.75,
    }
    assert ledger.calls("products") == 2 and ledger.words("products") == 15
    assert ledger.calls("agreement") == 0


def test_an_unknown_purpose_is_refused():
    with pytest.raises(KeyError):
        Ledger().record("gossip", 1, 8, 8.0, 0.0)


def test_a_copy_does_not_change_with_the_ledger():
    ledger = Ledger()
    before = ledger.as_dict()
    ledger.record("control", 1, 8, 8.0, 0.0)
    assert before["control"]["calls"] == 0


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_wire_bytes_of_all_ranks_are_those_of_a_ring(ranks):
    """Totals over ranks: 2(p−1)N, (p−1)N, (p−1)Σm; a sum is a reduce and a gather."""
    assert ranks * communicator.sum_bytes(800, ranks) == pytest.approx(
        2 * (ranks - 1) * 800
    )
    assert ranks * communicator.reduce_bytes(800, ranks) == pytest.approx(
        (ranks - 1) * 800
    )
    assert ranks * communicator.gather_bytes(800, ranks) == pytest.approx(
        (ranks - 1) * 800
    )
    assert communicator.broadcast_bytes(800, ranks) == 800


def test_one_rank_moves_nothing():
    models = (
        communicator.sum_bytes,
        communicator.reduce_bytes,
        communicator.gather_bytes,
        communicator.broadcast_bytes,
    )
    assert [model(800, 1) for model in models] == [0, 0, 0, 0]


def test_overhead_is_small_beside_an_exchange():
    """An exchange has 60 µs of Python; bounds are loose, the machine is shared."""
    comm, ledger, buffer = SerialCommunicator(), Ledger(), np.ones(4)
    assert _fastest(lambda: comm.sum(buffer, "products")) < 2e-6
    assert _fastest(lambda: ledger.record("products", 4, 32, 32.0, 0.0)) < 10e-6


def _fastest(action, repeats=20, calls=200):
    def once():
        began = perf_counter()
        for _ in range(calls):
            action()
        return (perf_counter() - began) / calls

    return min(once() for _ in range(repeats))
