"""What a run says on the wire is what the formulas say, to the word."""

import numpy as np
import pytest

from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.data.shard import split_range
from tests.helpers.harness import config_for, train_on
from tests.helpers.problems import make_problem
from tests.helpers.sparse import make_sparse

ROWS, COLUMNS, BATCH, STEPS, EPOCHS = 53, 7, 4, 3, 2


def run(kind, members, family="logistic", steps=STEPS, **sections):
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    sections = {"products": {"kind": kind}, **sections}
    config = config_for(
        problem,
        schedule={"batch": BATCH, "steps": steps, "epochs": EPOCHS},
        **sections,
    )
    return train_on(members, config, problem)


def groups(steps=STEPS):
    return plan_groups(ROWS, BATCH, steps)


def gram_words(sizes):
    m = sum(sizes)
    return (m * m - sum(b * b for b in sizes)) // 2


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("family, columns", [("logistic", 1), ("softmax", 4)])
@pytest.mark.parametrize("update, states", [("sgd", 1), ("nesterov", 2)])
def test_gram(members, family, columns, update, states):
    """One sum of (m² − Σb²)/2 + m·K·states words per exchange."""
    ledger = run("gram", members, family, update={"kind": update}).ledger["products"]
    words = sum(gram_words(g) + sum(g) * columns * states for g in groups())
    assert ledger["calls"] == len(groups()) * EPOCHS
    assert ledger["words"] == words * EPOCHS
    assert ledger["bytes"] == 8 * ledger["words"]


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("family, columns", [("logistic", 1), ("softmax", 4)])
@pytest.mark.parametrize("update", ["sgd", "momentum", "nesterov-classic"])
def test_direct(members, family, columns, update):
    """s sums of b·K words per exchange, momentum or not."""
    ledger = run("direct", members, family, update={"kind": update}).ledger["products"]
    assert ledger["calls"] == -(-ROWS // BATCH) * EPOCHS
    assert ledger["words"] == ROWS * columns * EPOCHS


@pytest.mark.parametrize("members", [2, 3])
def test_gather(members):
    """One all-gather per exchange; rank 0 contributes m·d_c words."""
    ledger = run("gather", members).ledger["products"]
    own = split_range(COLUMNS, members, 0)
    assert ledger["calls"] == len(groups()) * EPOCHS
    assert ledger["words"] == ROWS * (own.stop - own.start) * EPOCHS


@pytest.mark.parametrize("members", [2, 3])
def test_gather_once(members):
    """The first epoch as gather, the second without a message."""
    ledger = run("gather-once", members).ledger["products"]
    own = split_range(COLUMNS, members, 0)
    assert EPOCHS > 1
    assert ledger["calls"] == len(groups())
    assert ledger["words"] == ROWS * (own.stop - own.start)


def test_cached():
    """The first epoch as gram, the second m words per exchange."""
    ledger = run("cached", 2).ledger["products"]
    assert ledger["calls"] == len(groups()) * EPOCHS
    assert ledger["words"] == sum(map(gram_words, groups())) + ROWS * EPOCHS


def test_look_ahead():
    """The same words in two messages per exchange."""
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    config = config_for(
        problem,
        schedule={"batch": BATCH, "steps": STEPS, "epochs": EPOCHS},
        products={"kind": "gram", "look_ahead": "on"},
    )
    ledger = train_on(2, config, problem).ledger["products"]
    assert ledger["calls"] == 2 * len(groups()) * EPOCHS
    assert ledger["words"] == (sum(map(gram_words, groups())) + ROWS) * EPOCHS


def test_formats_that_differ_travel_apart():
    """gram_wire unlike margin_sum: two messages, each in its own width."""
    ledger = run("gram", 2, precision={"recipe": "fp64", "gram_wire": "fp32"}).ledger[
        "products"
    ]
    g = sum(map(gram_words, groups()))
    assert ledger["calls"] == 2 * len(groups()) * EPOCHS
    assert ledger["bytes"] == EPOCHS * (4 * g + 8 * ROWS)


@pytest.mark.parametrize("kind", ["gram", "cached", "look-ahead"])
@pytest.mark.parametrize(
    "family, update", [("logistic", "sgd"), ("softmax", "momentum")]
)
@pytest.mark.parametrize("every", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("wire", ["fp64", "fp32"])
def test_looks_at_the_recurrence(kind, family, update, every, wire):
    """b words more in the exchange behind each look; never a message more."""
    ahead = kind == "look-ahead"
    products = {
        "kind": "gram" if ahead else kind,
        "look_ahead": "on" if ahead else "off",
    }
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    with_looks, without = (
        train_on(
            3,
            config_for(
                problem,
                schedule={"batch": BATCH, "steps": STEPS, "epochs": EPOCHS},
                products=products,
                update={"kind": update},
                precision={"recipe": "fp64", "gram_wire": wire},
                run={"gap_every": n},
            ),
            problem,
        ).ledger["products"]
        for n in (every, 0)
    )
    sizes = groups() * EPOCHS
    looked = [g for k, g in enumerate(sizes[:-1], start=1) if k % every == 0]
    more = sum(max(g) for g in looked)
    assert with_looks["calls"] == without["calls"]
    assert with_looks["words"] == without["words"] + more
    assert with_looks["bytes"] == without["bytes"] + 8 * more


@pytest.mark.parametrize("kind", ["direct", "gram", "gather", "gather-once", "cached"])
def test_one_member_says_nothing(kind):
    assert run(kind, 1).ledger["products"]["calls"] == 0


def test_steps_save_messages():
    """What the method is for: s times fewer synchronisations."""
    plain = run("gram", 2, steps=1).ledger["products"]["calls"]
    saved = run("gram", 2, steps=7).ledger["products"]["calls"]
    assert plain == 14 * EPOCHS
    assert saved == 2 * EPOCHS


@pytest.mark.parametrize("period", [1, 2, 3])
def test_average(period):
    """R = 2: ceil(exchanges / τ) sums of d words, the last one at the end."""
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    config = config_for(
        problem,
        schedule={"batch": BATCH, "steps": STEPS, "epochs": EPOCHS, "period": period},
        products={"kind": "direct"},
        grid={"replicas": 2, "members": 1},
    )
    ledger = train_on(2, config, problem).ledger["agreement"]
    exchanges = len(plan_groups(-(-ROWS // 2), BATCH, STEPS)) * EPOCHS
    assert ledger["calls"] == -(-exchanges // period)
    assert ledger["words"] == ledger["calls"] * COLUMNS


@pytest.mark.parametrize("kind", ["direct", "gram", "cached", "look-ahead"])
def test_sparse_rows_change_nothing(kind):
    """What is summed are scores and Grams, whatever the storage of the rows."""
    stored, dense = make_sparse("logistic", n=ROWS)
    ahead = kind == "look-ahead"
    products = {
        "kind": "gram" if ahead else kind,
        "look_ahead": "on" if ahead else "off",
    }
    config = config_for(stored, products=products)
    one, two = (train_on(3, config, p).ledger["products"] for p in (stored, dense))
    for what in ("calls", "words", "bytes", "wire_bytes"):
        assert one[what] == two[what] > 0


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("recipe, value", [("fp64", 8), ("fp32", 4), ("c", 2)])
@pytest.mark.parametrize("mode", ["shuffle-once", "replacement"])
def test_sparse_gather(members, recipe, value, mode):
    """One all-gather per exchange: k values of sampled rows are k·(4 + e_Y) bytes.

    Before the first, one more of 4 bytes a row: how many values each has.
    """
    stored, dense = make_sparse("logistic", n=ROWS)
    config = config_for(
        stored,
        data={"partition": "equal"},
        schedule={"batch": BATCH, "steps": STEPS, "epochs": EPOCHS},
        products={"kind": "gather"},
        precision={"recipe": recipe},
        sampling={"mode": mode},
    )
    one, two = (train_on(members, config, p).ledger for p in (stored, dense))
    own = split_range(stored.X.shape[1], members, 0)
    lengths = np.diff(stored.X[:, own].indptr)
    sampler = Sampler(mode, config.sampling.seed, ROWS, 0)
    k = sum(int(lengths[sampler.order(epoch)].sum()) for epoch in range(EPOCHS))
    assert one["products"]["calls"] == len(groups()) * EPOCHS
    assert one["products"]["bytes"] == k * (4 + value)
    assert one["products"]["words"] == k * (4 + value) // 2
    # Twice more: the rows' lengths, and how many values are stored, for the density.
    known = one["control"]["calls"] - two["control"]["calls"]
    assert known == 2
    assert one["control"]["bytes"] >= 4 * ROWS


NARROW = {"bf16": (2, 0), "fp16": (2, 1), "fp8-e4m3": (1, 1), "fp8-e5m2": (1, 1)}


def narrow_sum(words, members, form):
    """(calls, words, bytes) of rank 0: an exchange of pieces and a gather.

    Formats with few exponents carry one before each piece.
    """
    size, head = NARROW[form]
    sent = words + members * head + words // members + head
    return np.array([2, sent, size * sent])


def wide_sum(words, size):
    return np.array([1, words, size * words])


def said(result):
    ledger = result.ledger["products"]
    return [ledger[name] for name in ("calls", "words", "bytes")]


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("form", [*NARROW, "tf32"])
@pytest.mark.parametrize("look_ahead", ["off", "on"])
def test_a_narrow_gram_travels_in_its_own_bytes(members, form, look_ahead):
    """Beside margins in float32; the last group of an epoch is ragged."""
    result = run(
        "gram",
        members,
        precision={"recipe": "fp32", "gram_wire": form},
        products={"kind": "gram", "look_ahead": look_ahead},
    )
    expected = np.zeros(3, dtype=int)
    for sizes in groups():
        g = gram_words(sizes)
        gram = wide_sum(g, 4) if form == "tf32" else narrow_sum(g, members, form)
        expected += gram + wide_sum(sum(sizes), 4)
    assert said(result) == list(EPOCHS * expected)


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("form", NARROW)
@pytest.mark.parametrize("kind", ["direct", "gram", "cached"])
def test_both_narrow_are_one_message(members, form, kind):
    fields = {"recipe": "fp32", "gram_wire": form, "margin_sum": form}
    result = run(kind, members, precision=fields)
    whole = [gram_words(sizes) + sum(sizes) for sizes in groups()]
    margins = [sum(sizes) for sizes in groups()]
    sums = {
        "direct": EPOCHS * [b for sizes in groups() for b in sizes],
        "gram": EPOCHS * whole,
        "cached": whole + margins,
    }[kind]
    expected = sum(narrow_sum(words, members, form) for words in sums)
    assert said(result) == list(expected)


@pytest.mark.parametrize("kind", ["direct", "gram", "cached", "look-ahead"])
@pytest.mark.parametrize("form", NARROW)
def test_narrow_margins_alone(kind, form):
    ahead = {"kind": "gram", "look_ahead": "on"}
    products = ahead if kind == "look-ahead" else {"kind": kind}
    fields = {"recipe": "fp32", "margin_sum": form}
    result = run(products["kind"], 3, products=products, precision=fields)
    expected = np.zeros(3, dtype=int)
    for epoch in range(EPOCHS):
        for sizes in groups():
            if kind != "direct" and (kind != "cached" or epoch == 0):
                expected += wide_sum(gram_words(sizes), 4)
            for words in sizes if kind == "direct" else [sum(sizes)]:
                expected += narrow_sum(words, 3, form)
    assert said(result) == list(expected)


def test_recipe_d_halves_the_bytes_of_the_gram():
    """To the byte, and with the rounding of ⌊w/C⌋ alone: G once, and its own half."""
    c, d = (run("gram", 2, precision={"recipe": name}) for name in "cd")
    g, z = sum(map(gram_words, groups())), ROWS
    halves = sum(gram_words(sizes) // 2 for sizes in groups())
    ring = {n: r.ledger["products"]["wire_bytes"] for n, r in (("c", c), ("d", d))}
    assert said(c)[2] == EPOCHS * 4 * (g + z)
    assert said(d)[2] == EPOCHS * (2 * (g + halves) + 4 * z)
    assert ring["c"] - 4 * EPOCHS * z == pytest.approx(4 * EPOCHS * g)
    assert ring["d"] - 4 * EPOCHS * z == pytest.approx(2 * EPOCHS * g)


@pytest.mark.parametrize("form", [*NARROW, "tf32"])
def test_reproducible_narrow_sums_are_two_calls_as_well(form):
    """They are in rank order anyway; the wide one beside them is Reduce + Broadcast."""
    result = run(
        "gram",
        3,
        precision={"recipe": "fp32", "gram_wire": form},
        run={"reproducible": True},
    )
    expected = np.zeros(3, dtype=int)
    for sizes in groups():
        g = gram_words(sizes)
        gram = 2 * wide_sum(g, 4) if form == "tf32" else narrow_sum(g, 3, form)
        expected += gram + 2 * wide_sum(sum(sizes), 4)
    assert said(result) == list(EPOCHS * expected)
