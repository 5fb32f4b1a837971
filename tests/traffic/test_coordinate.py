"""One message for s blocks of coordinates, counted to the word."""

import numpy as np
import pytest

from hpcsgd.data.sampling import plan_groups
from hpcsgd.solvers.coordinate_forms import SWEEPS, TRIALS
from tests.helpers.coordinate import ELASTIC, MACHINE, descend
from tests.helpers.problems import make_problem


def words(m):
    """The lower triangle of G, and z."""
    return m * (m + 1) // 2 + m


@pytest.mark.parametrize("form, items", [(ELASTIC, 11), (MACHINE, 29)])
@pytest.mark.parametrize("ranks, batch, steps", [(2, 1, 4), (3, 2, 3), (2, 4, 1)])
@pytest.mark.parametrize("kind", ["gram", "cached"])
def test_words_of_an_epoch(form, items, ranks, batch, steps, kind):
    problem = make_problem(form["family"], n=29, d=11)
    epochs = 3
    result = descend(
        problem,
        ranks,
        problem=form,
        schedule={"batch": batch, "steps": steps, "epochs": epochs},
        products={"kind": kind},
    )
    groups = [sum(sizes) for sizes in plan_groups(items, batch, steps)]
    first, later = sum(words(m) for m in groups), items
    again = later if kind == "cached" else first
    sent = result.ledger["products"]
    assert sent["calls"] == epochs * len(groups) == result.exchanges
    assert sent["words"] == first + (epochs - 1) * again
    assert result.iterations == epochs * -(-items // batch)
    assert result.ledger["agreement"]["calls"] == 0


def test_s_times_fewer_messages_to_the_same_point():
    problem = make_problem("gaussian", n=40, d=24)
    one, many = (
        descend(
            problem,
            2,
            problem=ELASTIC,
            schedule={"batch": 1, "steps": steps, "epochs": 200},
            coordinate={"tol": 1e-12},
        )
        for steps in (1, 8)
    )
    assert one.ledger["products"]["calls"] == 8 * many.ledger["products"]["calls"]
    assert abs(one.weights - many.weights).max() < 1e-11


@pytest.mark.parametrize("intercept", [False, True])
def test_words_of_newton(intercept):
    """A Gram an epoch, z in every sweep; two sums more, and who says how far."""
    problem, epochs = make_problem("logistic", n=29, d=11), 2
    result = descend(
        problem,
        2,
        problem={"family": "logistic", "l1": 0.01, "intercept": intercept},
        schedule={"batch": 2, "steps": 3, "epochs": epochs},
    )
    groups = [sum(sizes) for sizes in plan_groups(11, 2, 3)]
    first = sum(words(m) for m in groups)
    each = first + (SWEEPS - 1) * 11 + (TRIALS + 2) + 1 + intercept * (11 + 2)
    sent = result.ledger["products"]
    assert sent["calls"] == epochs * (SWEEPS * len(groups) + 2 + intercept)
    assert sent["words"] == epochs * each
    assert result.exchanges == epochs * SWEEPS * len(groups)


@pytest.mark.parametrize("steps", [3, 16])
def test_a_working_set_is_one_message_an_epoch(steps):
    """Its Gram; then which items, where they end, the intercept's sum and the line."""
    problem, epochs = make_problem("logistic", n=40, d=300), 3
    result = descend(
        problem,
        2,
        problem={"family": "logistic", "l1": 0.01, "intercept": True},
        schedule={"batch": 1, "steps": steps, "epochs": epochs},
    )
    assert 0 < np.count_nonzero(result.weights) < 100
    sent = result.ledger["products"]
    assert result.exchanges == epochs
    assert sent["calls"] == epochs * (1 + 2 + 1 + 1 + 2)
    assert sent["words"] < epochs * words(100)
