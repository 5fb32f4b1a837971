"""One collective an exchange, however many models: words b²s(s−1)/2 + m·K."""

import pytest

from hpcsgd.data.sampling import plan_groups
from tests.helpers.harness import config_for
from tests.helpers.many import sweep_on
from tests.helpers.problems import make_problem

ROWS, COLUMNS, BATCH, STEPS, EPOCHS = 53, 7, 4, 3, 2
GROUPS = plan_groups(ROWS, BATCH, STEPS)


def ledger(kind, members, family="logistic", **sections):
    """Of products, with as many models as the second figure says."""
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    config = config_for(
        problem,
        schedule={"batch": BATCH, "steps": STEPS, "epochs": EPOCHS},
        products={"kind": kind},
        sweep={"l2": [0.0, 0.1, 0.2], "rate": [0.1, 0.2], "folds": 2},
        run={"gap_every": 0},
        **sections,
    )
    found = sweep_on(members, config, problem)
    return found.ledger["products"], len(found)


def gram_words(sizes):
    m = sum(sizes)
    return (m * m - sum(b * b for b in sizes)) // 2


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("family, classes", [("logistic", 1), ("softmax", 4)])
@pytest.mark.parametrize("update, states", [("sgd", 1), ("nesterov", 2)])
def test_gram(members, family, classes, update, states):
    said, models = ledger("gram", members, family, update={"kind": update})
    assert models == 18
    words = sum(gram_words(g) + sum(g) * models * classes * states for g in GROUPS)
    assert said["calls"] == len(GROUPS) * EPOCHS
    assert said["words"] == words * EPOCHS


def test_an_exchange_that_is_not_ragged():
    """b²s(s−1)/2 + m·K, as the formula has it."""
    sizes = GROUPS[0]
    assert gram_words(sizes) == BATCH**2 * STEPS * (STEPS - 1) // 2


def test_cached():
    said, models = ledger("cached", 2)
    assert said["calls"] == len(GROUPS) * EPOCHS
    assert said["words"] == sum(map(gram_words, GROUPS)) + ROWS * models * EPOCHS


def test_direct():
    said, models = ledger("direct", 3)
    assert said["calls"] == -(-ROWS // BATCH) * EPOCHS
    assert said["words"] == ROWS * models * EPOCHS


def test_gather_sends_rows_whatever_is_learnt():
    said, _ = ledger("gather", 2)
    assert said["calls"] == len(GROUPS) * EPOCHS
    assert said["words"] == ROWS * -(-COLUMNS // 2) * EPOCHS


def test_folds_and_rows_held_out_cost_no_message():
    """Who is left out is known without asking; an evaluation sends losses alone."""
    problem = make_problem("logistic")
    calls = {}
    for hold_out in (0.0, 0.2):
        config = config_for(
            problem, sweep={"rate": [0.1, 0.2]}, sampling={"hold_out": hold_out}
        )
        calls[hold_out] = sweep_on(2, config, problem).ledger
    for purpose in ("products", "evaluate"):
        one, other = (calls[h][purpose]["calls"] for h in (0.0, 0.2))
        assert one == other
