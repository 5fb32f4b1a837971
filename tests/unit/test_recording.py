"""What a run records, and that recording leaves the run as it is."""

import numpy as np
import pytest

from hpcsgd.runs.recording import NAME, choose_exchanges, read_recording
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.resumed import interrupted

PLANNED = 10  # 53 rows, b = 4, s = 3: 5 exchanges an epoch, 2 epochs


def trained(folder, ranks=2, record=3, **sections):
    drawn = make_problem("logistic")
    out = None if folder is None else str(folder)
    run = {"out": out, "record": record}
    return train_on(ranks, config_for(drawn, run=run, **sections), drawn)


def test_the_choice_is_a_function_of_seed_and_length():
    assert choose_exchanges(3, 5, 100) == choose_exchanges(3, 5, 100)
    assert choose_exchanges(3, 5, 100) != choose_exchanges(3, 6, 100)
    assert choose_exchanges(9, 0, 4) == {1, 2, 3, 4}
    assert choose_exchanges(0, 0, 4) == frozenset()


@pytest.mark.parametrize("kind", ["gram", "gather"])
def test_what_is_recorded_is_the_state(tmp_path, kind):
    """Neighbouring exchanges of one replica meet; the last one ends in the model."""
    result = trained(
        tmp_path, record=99, products={"kind": kind}, problem={"intercept": True}
    )
    states = read_recording(tmp_path / NAME).states
    assert sorted(states) == list(range(1, PLANNED + 1))
    assert not states[1]["weights_before"].any()
    for number in range(1, PLANNED):
        after, before = states[number], states[number + 1]
        assert (after["weights_after"] == before["weights_before"]).all()
        assert (after["intercept_after"] == before["intercept_before"]).all()
    assert (states[PLANNED]["weights_after"][:, 0] == result.weights).all()
    assert states[PLANNED]["intercept_after"][0, 0] == result.intercept


@pytest.mark.parametrize("look_ahead", ["on", "off"])
def test_it_changes_neither_bits_nor_messages(tmp_path, look_ahead):
    products = {"kind": "gram", "look_ahead": look_ahead}
    with_it = trained(tmp_path / "a", products=products)
    without = trained(tmp_path / "b", record=0, products=products)
    assert with_it.weights_sha256 == without.weights_sha256
    for purpose in ("products", "agreement"):
        for key in ("calls", "words", "bytes"):
            a, b = with_it.ledger[purpose], without.ledger[purpose]
            assert a[key] == b[key]
    extra = {p: with_it.ledger[p]["calls"] - without.ledger[p]["calls"] for p in a_few}
    assert extra == {"control": 6, "evaluate": 0}
    assert not (tmp_path / "b" / NAME).exists()


a_few = ("control", "evaluate")


def test_without_a_folder_nothing_is_said():
    assert (
        trained(None).ledger["control"]["calls"]
        == trained(None, record=0).ledger["control"]["calls"]
    )


def test_a_resume_keeps_what_was_recorded(tmp_path):
    drawn, run = make_problem("logistic"), {"record": 99}
    interrupted(2, drawn, tmp_path, run=run)
    found = read_recording(tmp_path / NAME)
    assert sorted(found.states) == list(range(1, PLANNED + 1))
    assert [(g["first"], g["last"]) for g in found.legs] == [(0, 7), (7, PLANNED)]
    seven, eight = found.states[7], found.states[8]
    np.testing.assert_array_equal(seven["weights_after"], eight["weights_before"])
