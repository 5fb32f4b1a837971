"""Certificates hold for what is right, and fail for what was tampered with."""

import dataclasses
import json

import numpy as np
import pytest

from hpcsgd.backends.exchange import HostExchange
from hpcsgd.backends.task import State
from hpcsgd.cli.verify import table
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import DataError
from hpcsgd.products.base import product_facts
from hpcsgd.runs.recording import NAME, read_recording, write_recording
from hpcsgd.runs.result import load_result
from hpcsgd.studies.verify import certify
from hpcsgd.studies.verify.replay import open_recorded_run, open_source
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.problems import FAMILIES, Problem
from tests.helpers.resumed import interrupted
from tests.helpers.sparse import as_csr, make_sparse
from tests.helpers.verify import reader_of


def train(folder, family="logistic", ranks=2, data=True, **sections):
    """A run in `folder` with six recorded exchanges, and the reader of its data."""
    drawn = make_problem(family)
    sections["run"] = {"out": str(folder), "record": 6, **sections.get("run", {})}
    train_on(ranks, config_for(drawn, **sections), drawn, weights=data, offset=data)
    return reader_of(drawn, data)


def check(folder, reader, exchanges=6):
    """The certificate, every check of which was made and holds."""
    found = certify(folder, exchanges=exchanges, reader=reader)
    assert found.ok, [c for c in found.checks if not c.ok]
    assert all(c.ok for c in found.checks), found.checks
    return found


def deviations(found):
    steps = [c for c in found.checks if c.name.startswith("exchange")]
    assert len(steps) == 6
    return [c.figures["deviation"] for c in steps]


PRODUCTS = {
    "direct": {"kind": "direct"},
    "gram": {"kind": "gram"},
    "look-ahead": {"kind": "gram", "look_ahead": "on"},
    "gather": {"kind": "gather"},
    "gather-once": {"kind": "gather-once"},
    "cached": {"kind": "cached"},
}


@pytest.mark.parametrize("product", list(PRODUCTS))
@pytest.mark.parametrize("update", ["sgd", "momentum", "nesterov", "nesterov-classic"])
def test_products_and_updates(tmp_path, product, update):
    reader = train(
        tmp_path,
        products=PRODUCTS[product],
        update={"kind": update},
        problem={"intercept": True, "l2": 0.01},
    )
    assert max(deviations(check(tmp_path, reader))) < 1e-13


@pytest.mark.cases(3)
@pytest.mark.parametrize("product", list(PRODUCTS))
@pytest.mark.parametrize("sampling", ["shuffle-once", "reshuffle"])
def test_sparse_rows(tmp_path, product, sampling):
    """Their messages are counted from the data, and theirs alone."""
    if product_facts(product).keeps_batches and sampling != "shuffle-once":
        pytest.skip("batches do not come again")
    stored, dense = make_sparse("logistic")
    config = config_for(
        stored,
        products=PRODUCTS[product],
        sampling={"mode": sampling},
        run={"out": str(tmp_path), "record": 6},
    )
    train_on(2, config, stored)
    reader = MemoryReader(stored.X, stored.y)
    assert max(deviations(check(tmp_path, reader))) < 1e-13
    if product_facts(product).holds_all_columns:
        found = certify(
            tmp_path, exchanges=6, reader=reader_of(make_problem("logistic"))
        )
        traffic = next(c for c in found.checks if c.name == "traffic")
        assert traffic.ok is None
        known = MemoryReader(dense.X, dense.y)
        kinds = {c.name: c.ok for c in certify(tmp_path, reader=known).checks}
        assert kinds["data"]


@pytest.mark.parametrize("partition", ["auto", "equal"])
@pytest.mark.parametrize("replicas, product", [(1, "gather"), (2, "direct")])
def test_sparse_rows_whose_members_have_unequal_columns(
    tmp_path, replicas, product, partition
):
    """Two of twelve columns store half of the values."""
    stored, dense = make_sparse("logistic", d=12, density=0.15)
    X = dense.X.copy()
    X[:, :2] = make_problem("logistic", 53, 12).X[:, :2]
    uneven = dataclasses.replace(stored, X=as_csr(X))
    config = config_for(
        uneven,
        data={"partition": partition},
        products={"kind": product},
        grid={"replicas": replicas, "members": 2},
        run={"out": str(tmp_path), "record": 6},
    )
    train_on(2 * replicas, config, uneven)
    check(tmp_path, MemoryReader(uneven.X, uneven.y))


@pytest.mark.cases(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "recipe, most", [("fp64", 1e-12), ("fp32", 2e-5), ("c", 5e-2), ("d", 5e-2)]
)
def test_families_and_precisions(tmp_path, family, recipe, most):
    reader = train(tmp_path, family, precision={"recipe": recipe})
    assert max(deviations(check(tmp_path, reader))) < most


@pytest.mark.parametrize("form", ["fp16", "fp8-e4m3", "int8"])
@pytest.mark.parametrize("scale", ["column", "global"])
def test_matrices_with_exponents_of_their_own(tmp_path, form, scale):
    """Replayed as they were stored: times powers of two, and back."""
    precision = {"recipe": "fp32", "matrix": form, "scale": scale}
    reader = train(tmp_path, ranks=2, precision=precision)
    assert max(deviations(check(tmp_path, reader))) < 2e-5


@pytest.mark.parametrize("form", ["tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2"])
@pytest.mark.parametrize("product", ["direct", "gram", "cached", "look-ahead"])
@pytest.mark.parametrize("reproducible", [True, False])
def test_narrow_sums(tmp_path, form, product, reproducible):
    """Messages of both fields are counted; what they round is allowed, or undecided."""
    reader = train(
        tmp_path,
        ranks=3,
        precision={"recipe": "d", "margin_sum": form},
        products=PRODUCTS[product],
        run={"reproducible": reproducible},
    )
    found = certify(tmp_path, exchanges=3, reader=reader)
    assert not found.failed and {c.name: c.ok for c in found.checks}["traffic"]
    if form in ("tf32", "fp16"):
        assert found.ok and all(c.ok for c in found.checks), found.checks


@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize("product", ["gram", "cached", "look-ahead"])
def test_narrow_sums_of_a_resumed_run(tmp_path, product, at):
    drawn = make_problem("logistic")
    sections = {
        "products": PRODUCTS[product],
        "precision": {"recipe": "c", "gram_wire": "fp8-e4m3"},
        "run": {"record": 6},
    }
    interrupted(2, drawn, tmp_path, at=at, **sections)
    check(tmp_path, reader_of(drawn, data=False))


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 1), (3, 2)])
@pytest.mark.parametrize("product", ["gram", "gather"])
@pytest.mark.parametrize("reproducible", [True, False])
def test_grids(tmp_path, grid, product, reproducible):
    reader = train(
        tmp_path,
        ranks=grid[0] * grid[1],
        grid={"replicas": grid[0], "members": grid[1]},
        products={"kind": product},
        problem={"intercept": True},
        run={"reproducible": reproducible},
        schedule={"period": 3},
    )
    check(tmp_path, reader)


SHAPES = {
    "inverse": {"decay": 0.1},
    "cosine": {},
    "milestones": {"milestones": [0.5, 1.0, 1.7], "factor": 0.5},
}


@pytest.mark.parametrize("mode", ["reshuffle", "replacement", "in-order"])
@pytest.mark.parametrize("rate", ["inverse", "cosine", "milestones"])
def test_sampling_rates_and_two_messages(tmp_path, mode, rate):
    reader = train(
        tmp_path,
        "softmax",
        sampling={"mode": mode, "seed": 3},
        rate={"kind": rate, **SHAPES[rate], "warmup": 3},
        precision={"recipe": "fp32", "gram_wire": "fp64"},
        update={"kind": "momentum"},
    )
    check(tmp_path, reader)


# Ends before, on and behind an exchange that is looked at, or where none is.
ENDS = [(2, 50), (5, 50), (2, 1), (7, 1), (2, 2), (5, 2), (5, 3), (7, 3)]


@pytest.mark.cases(5)
@pytest.mark.parametrize("product", list(PRODUCTS))
@pytest.mark.parametrize("at, gap_every", ENDS)
def test_a_resumed_run(tmp_path, product, at, gap_every):
    """What is summed again is counted again, to the byte."""
    drawn = make_problem("logistic")
    sections = {
        "products": PRODUCTS[product],
        "run": {"record": 6, "gap_every": gap_every},
    }
    interrupted(2, drawn, tmp_path, at=at, **sections)
    check(tmp_path, reader_of(drawn, data=False), exchanges=2)


def test_a_run_that_ends_behind_a_checked_exchange(tmp_path):
    """The monitor's exchange begins no Gram ahead, so that none is summed again."""
    drawn, run = make_problem("logistic"), {"record": 6, "gap_every": 2}
    look_ahead = {"products": PRODUCTS["look-ahead"], "run": run}
    for at in (2, 3):  # checked, and not
        interrupted(2, drawn, tmp_path / str(at), at=at, **look_ahead)
        check(tmp_path / str(at), reader_of(drawn, data=False), exchanges=2)


def test_a_leg_without_a_record_is_not_guessed(tmp_path):
    """As a kill leaves it: the traffic is not checked, and the reason is said."""
    drawn = make_problem("logistic")
    interrupted(2, drawn, tmp_path)
    found = read_recording(tmp_path / NAME)
    del found.legs[0]
    write_recording(tmp_path / NAME, found)
    certificate = certify(tmp_path, reader=reader_of(drawn, data=False))
    assert [c.name for c in certificate.checks if c.ok is None] == ["traffic"]
    assert json.loads(certificate.json())["not_checked"] == ["traffic"]


def test_the_same_bytes_twice(tmp_path):
    reader = train(tmp_path)
    check(tmp_path, reader)
    first = (tmp_path / "verification.json").read_bytes()
    check(tmp_path, reader)
    assert (tmp_path / "verification.json").read_bytes() == first
    assert json.loads(first)["verified"] is True


# Broken twins: exactly the check that speaks of what was broken fails.


def failing(folder, reader):
    return certify(folder, exchanges=6, reader=reader).failed


def alter_recording(folder, change):
    """Apply `change` to the first recorded exchange; its number."""
    found = read_recording(folder / NAME)
    number = min(found.states)
    change(found.states[number])
    write_recording(folder / NAME, found)
    return number


def one_sign(state):
    largest = np.unravel_index(
        np.abs(state["weights_after"]).argmax(), state["weights_after"].shape
    )
    state["weights_after"][largest] *= -1


def small_error(state, part=1e-3):
    step = state["weights_after"] - state["weights_before"]
    state["weights_after"] += (part * step).astype(step.dtype)


def tenth(state):
    small_error(state, 0.1)


@pytest.mark.parametrize(
    "change, recipe",
    [
        (one_sign, "fp64"),
        (one_sign, "fp32"),
        (one_sign, "c"),
        (small_error, "fp32"),
        (tenth, "c"),
    ],
)
def test_a_wrong_state(tmp_path, change, recipe):
    reader = train(tmp_path, precision={"recipe": recipe})
    number = alter_recording(tmp_path, change)
    assert failing(tmp_path, reader) == [f"exchange {number}"]


def converged(folder, recipe="c", **sections):
    """A run whose scores are large and whose steps are small, and its data."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(240, 6))
    y = X @ rng.normal(size=6) * 3 + 0.1 * rng.normal(size=240)
    drawn = Problem("gaussian", X, y, np.ones(240), np.zeros(240), 1, 0.1)
    sections = {
        "precision": {"recipe": recipe},
        "schedule": {"batch": 8, "steps": 5, "epochs": 5},
        **sections,
    }
    sections["run"] = {"out": str(folder), "record": 6}
    train_on(2, config_for(drawn, **sections), drawn)
    return MemoryReader(X, y)


SETTINGS = {
    "gram": {},
    "look-ahead": {"products": {"kind": "gram", "look_ahead": "on"}},
    "direct": {"products": {"kind": "direct"}},
    "gather": {"products": {"kind": "gather"}},
    "ridge and an intercept": {"problem": {"intercept": True, "l2": 1e-4}},
    "momentum": {
        "update": {"kind": "momentum", "momentum": 0.5},
        "rate": {"value": 0.05},
    },
    "nesterov by steps": {
        "products": {"kind": "direct"},
        "update": {"kind": "nesterov-classic", "momentum": 0.5},
        "rate": {"value": 0.05},
    },
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("recipe", ["c", "d"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_tenth_of_a_small_step_is_found(tmp_path, name, recipe):
    """Stored margins are off by more than that, and are replayed as stored."""
    reader = converged(tmp_path, recipe, **SETTINGS[name])
    found = check(tmp_path, reader)
    steps = [c for c in found.checks if c.name.startswith("exchange")]
    assert max(c.figures["tolerance"] for c in steps) <= 1 / 50
    number = alter_recording(tmp_path, tenth)
    assert failing(tmp_path, reader) == [f"exchange {number}"]


def test_what_cannot_be_decided_says_what_would(tmp_path):
    """Weights in bf16 are off by more than their steps: nothing is proved, and said."""
    reader = converged(tmp_path / "low", "bf16")
    found = certify(tmp_path / "low", exchanges=6, reader=reader)
    assert not found.failed and not found.ok and len(found.undecided) == 6
    document = json.loads(found.json())
    assert document["verified"] is False and document["not_checked"] == []
    assert document["undecided"] == found.undecided
    steps = [c for c in found.checks if c.undecided]
    assert all(c.ok is None and "a wrong step could pass" in c.why for c in steps)
    assert all("record an exchange with --precision fp32" in c.why for c in steps)
    assert "UNDECIDED" in table(found)
    check(tmp_path / "wide", converged(tmp_path / "wide", "fp32"))


def test_one_field_is_named_where_it_is_enough(tmp_path):
    fields = {"recipe": "fp32", "gradient_sum": "bf16"}
    reader = converged(tmp_path / "low", precision=fields)
    found = certify(tmp_path / "low", exchanges=6, reader=reader)
    said = {c.why.rpartition("with ")[2] for c in found.checks if c.undecided}
    assert said == {"--set precision.gradient_sum=fp32 to decide"}


def test_what_is_wrong_by_more_than_any_rounding_fails_undecided_or_not(tmp_path):
    reader = converged(tmp_path, precision={"recipe": "fp32", "gradient_sum": "bf16"})
    number = alter_recording(tmp_path, lambda state: small_error(state, 100.0))
    assert failing(tmp_path, reader) == [f"exchange {number}"]


def replayed_wrongly(folder, reader, monkeypatch, wrong):
    """The names that fail where the replay takes `wrong` exchanges."""
    from hpcsgd.studies.verify.replay import RecordedRun

    right = RecordedRun.exchange
    monkeypatch.setattr(RecordedRun, "exchange", lambda s, n, f: wrong(right(s, n, f)))
    return failing(folder, reader)


def reordered(exchange, order):
    """The exchange with its rows in another order, and their targets with them."""
    sides = exchange.sides.of_rows(order)
    return dataclasses.replace(exchange, rows=exchange.rows[order], sides=sides)


def swap_a_row(exchange):
    """The first row of the first batch and the first of the last change places."""
    order = np.arange(len(exchange.rows))
    last = len(order) - exchange.steps.sizes[-1]
    order[[0, last]] = order[[last, 0]]
    return reordered(exchange, order)


def stale_batch(exchange):
    """The last batch comes first: the others see weights that it has moved."""
    sizes = exchange.steps.sizes
    order = np.roll(np.arange(len(exchange.rows)), sizes[-1])
    steps = dataclasses.replace(exchange.steps, sizes=(sizes[-1], *sizes[:-1]))
    return dataclasses.replace(reordered(exchange, order), steps=steps)


@pytest.mark.parametrize("wrong", [swap_a_row, stale_batch])
@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
def test_wrong_rows_or_order(tmp_path, monkeypatch, wrong, recipe):
    reader = train(tmp_path, precision={"recipe": recipe})
    failed = replayed_wrongly(tmp_path, reader, monkeypatch, wrong)
    assert len(failed) == 6 and all(name.startswith("exchange") for name in failed)


@pytest.mark.parametrize(
    "purpose, key", [("products", "calls"), ("agreement", "words")]
)
def test_a_wrong_ledger(tmp_path, purpose, key):
    reader = train(tmp_path)
    result = load_result(tmp_path)
    result.ledger[purpose][key] += 1
    result.save(tmp_path)
    assert failing(tmp_path, reader) == ["traffic"]


def test_a_sum_too_many(tmp_path, monkeypatch):
    """Members add up a word that nobody needs."""
    products = HostExchange.products

    def more(self):
        self.task.members.sum(np.zeros(1), "products")
        products(self)

    monkeypatch.setattr(HostExchange, "products", more)
    reader = train(tmp_path)
    assert failing(tmp_path, reader) == ["traffic"]


def test_a_word_too_few(tmp_path, monkeypatch):
    """Replicas average their weights, and not their intercepts."""
    portion = State.portion

    def shorter(self, share, group):
        return portion(dataclasses.replace(self, intercept=None), share, group)

    def become(self, total):
        self.weights[...] = total.reshape(self.weights.shape)
        return self.intercept

    monkeypatch.setattr(State, "portion", shorter)
    monkeypatch.setattr(State, "become", become)
    grid = {"replicas": 2, "members": 1}
    reader = train(tmp_path, grid=grid, problem={"intercept": True})
    assert "traffic" in failing(tmp_path, reader)


@pytest.mark.parametrize("recipe", ["fp64", "fp32"])
def test_a_wrong_loss(tmp_path, recipe):
    reader = train(tmp_path, precision={"recipe": recipe})
    result = load_result(tmp_path)
    dataclasses.replace(result, loss=result.loss * (1 + 1e-10)).save(tmp_path)
    assert failing(tmp_path, reader) == ["loss"]


def test_another_model(tmp_path):
    reader = train(tmp_path)
    text = (tmp_path / "result.json").read_text()
    sha = load_result(tmp_path).weights_sha256
    (tmp_path / "result.json").write_text(text.replace(sha, "0" * 64))
    assert failing(tmp_path, reader) == ["model"]


@pytest.mark.parametrize("place", ["X", "y"])
def test_other_data(tmp_path, place):
    reader = train(tmp_path, "gaussian")
    changed = getattr(reader, place).copy()
    changed.reshape(-1)[5] += 1e-9
    setattr(reader, place, changed)
    found = certify(tmp_path, exchanges=6, reader=reader)
    assert found.failed == ["data"]
    assert {c.name for c in found.checks if c.ok} == {"model", "traffic"}


def test_no_recording_is_said(tmp_path):
    train(tmp_path, run={"record": 0})
    with pytest.raises(DataError, match="--record"):
        certify(tmp_path)


def test_a_recording_of_another_run_is_refused(tmp_path):
    train(tmp_path / "a", "softmax")
    train(tmp_path / "b", "logistic")
    (tmp_path / "b" / NAME).write_bytes((tmp_path / "a" / NAME).read_bytes())
    with pytest.raises(DataError, match="train the run again"):
        open_recorded_run(tmp_path / "b")


def test_rows_are_those_asked_for_in_their_order(tmp_path):
    """Neighbours are read together, repeats once; what comes back is what was asked."""
    reader = train(tmp_path, data=False)
    scene = open_recorded_run(tmp_path)
    source = open_source(reader, scene.family, scene.precision)
    numbers = np.array([7, 3, 4, 52, 3, 0])
    np.testing.assert_array_equal(source.rows(numbers), reader.X[numbers])
