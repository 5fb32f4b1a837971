"""The gap monitor: silent where rounding is at work, loud where anything else is."""

import logging

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends import exchange
from hpcsgd.backends.compiled import NativeBackend, SampledRows
from hpcsgd.backends.numpy_rows import DenseRows, HostBackend
from hpcsgd.comm.threads import run_ranks
from hpcsgd.formats import round_through
from tests.helpers.gap import (
    BATCH,
    COLUMNS,
    EVERY,
    ROWS,
    STEPS,
    alarms,
    bend,
    one_entry,
    settings,
)
from tests.helpers.harness import make_problem, train_on
from tests.helpers.problems import FAMILIES
from tests.helpers.resumed import interrupted, run
from tests.helpers.sparse import make_sparse


@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "members, product, update",
    [
        (1, "gram", "sgd"),
        (2, "cached", "nesterov"),
        (3, "look-ahead", "momentum"),
        (4, "gram", "nesterov-classic"),
    ],
)
def test_rounding_is_no_alarm(family, recipe, members, product, update, ratios):
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    config = settings(
        problem,
        product,
        recipe,
        problem={"intercept": True, "l2": 1e-3, "family": family},
        update={"kind": update},
        rate={"value": 0.05},
        run={"gap_every": 1},
    )
    result = train_on(members, config, problem, weights=True, offset=True)
    assert not result.events
    # The last look has no message to go with.
    assert len(ratios["scores"]) == (result.exchanges - 1) * members
    assert len(ratios["residuals"]) == result.exchanges * members
    assert max(ratios["scores"]) < 0.5 and max(ratios["residuals"]) < 0.7
    # And not because everything is allowed: roundoff is a tenth of the tolerance.
    assert np.median(ratios["scores"]) > 2e-3


@pytest.mark.parametrize("product", ["gram", "cached", "look-ahead"])
@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
def test_sparse_rows_are_no_alarm(product, recipe, ratios):
    stored, _ = make_sparse("logistic", n=ROWS)
    config = settings(stored, product, recipe, run={"gap_every": 1})
    assert not train_on(3, config, stored).events
    assert ratios["scores"] and max(ratios["scores"]) < 0.5


def uneven(kind, n=ROWS, d=60):
    """Rows or columns of very unlike size, or all of one sign."""
    rng = np.random.default_rng(3)
    problem = make_problem("logistic", n=n, d=d)
    X = problem.X
    if kind == "rows":
        X = X * 10.0 ** rng.uniform(-3, 1, size=(n, 1))
    elif kind == "columns":
        X = X * 10.0 ** rng.uniform(-4, 0.5, size=d)
    elif kind == "positive":
        X = np.abs(X) + 1.0
    else:  # members whose parts cancel
        X = np.hstack([X[:, : d // 2] + 30.0, -X[:, : d // 2] - 30.0])
    object.__setattr__(problem, "X", X)
    return problem


@pytest.mark.parametrize("kind", ["rows", "columns", "positive", "cancelling"])
@pytest.mark.parametrize("members", [1, 2, 4])
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_ill_scaled_data_is_no_alarm(kind, members, recipe, ratios):
    problem = uneven(kind)
    config = settings(
        problem, "gram", recipe, run={"gap_every": 1}, rate={"value": 1e-3}
    )
    assert not train_on(members, config, problem).events
    assert max(ratios["scores"]) < 0.7


@pytest.mark.parametrize(
    "low",
    [
        {"margin_sum": "bf16"},
        {"gram_sum": "bf16", "gram_wire": "bf16"},
        {"margin_sum": "fp16", "gram_sum": "fp16", "gradient_sum": "fp16"},
        {"inner": "bf16"},
        {"residual": "bf16", "weights": "bf16"},
        {"recipe": "d"},
        {"recipe": "bf16"},
    ],
    ids=str,
)
@pytest.mark.parametrize("members", [1, 3])
def test_low_fields_are_no_alarm(low, members, ratios):
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    form = {"recipe": "fp32", **low}
    config = settings(problem, precision=form, run={"gap_every": 1})
    assert not train_on(members, config, problem).events
    assert ratios["scores"] and max(ratios["scores"]) < 0.8
    assert max(ratios["residuals"]) < 0.8


@pytest.mark.parametrize("product", ["gram", "look-ahead"])
def test_steps_that_are_left_out_are_no_alarm(product):
    """Residuals that overflow in fp16 are smaller next time; nothing is wrong."""
    problem = make_problem("gaussian", n=ROWS, d=COLUMNS)
    object.__setattr__(problem, "y", problem.y * 1e3)
    fields = {"recipe": "fp64", "residual": "fp16"}
    every = {"gap_every": 1, "fall_back": True}
    config = settings(problem, product, precision=fields, run=every)
    result = train_on(2, config, problem)
    assert result.report["skipped_exchanges"] > 0
    assert not result.events and result.status.value == "completed"


@pytest.mark.cases(3)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (2, 3), (3, 1), (7, 4), (64, 4)])
@pytest.mark.parametrize("members", [1, 3])
def test_any_batch_and_steps_are_no_alarm(sizes, members, ratios):
    problem = make_problem("logistic", n=53, d=9)
    schedule = {"batch": sizes[0], "steps": sizes[1], "epochs": 6}
    config = settings(problem, schedule=schedule, run={"gap_every": 1})
    assert not train_on(members, config, problem).events
    assert ratios["scores"] and max(ratios["scores"]) < 0.8


@pytest.mark.parametrize("product", ["gram", "cached"])
@pytest.mark.parametrize("update", ["sgd", "momentum"])
def test_replicas_look_each_for_itself(product, update, ratios):
    problem = make_problem("logistic", n=101, d=COLUMNS)
    config = settings(
        problem,
        product,
        grid={"replicas": 2, "members": 2},
        update={"kind": update},
        rate={"value": 0.05},
        run={"gap_every": 1},
    )
    result = train_on(4, config, problem)
    # 51 and 50 rows are two exchanges an epoch each; the last look has no message.
    assert not result.events and len(ratios["scores"]) == 2 * (2 * 8 - 2)


@pytest.mark.parametrize("product", ["gram", "cached", "look-ahead"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
@pytest.mark.parametrize("members", [1, 3])
def test_the_weights_are_the_same_bits_with_and_without(
    product, family, recipe, members
):
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    found = {
        train_on(
            members,
            settings(problem, product, recipe, run={"gap_every": every}),
            problem,
        ).weights_sha256
        for every in (0, 1, EVERY)
    }
    assert len(found) == 1


WORDS = BATCH**2 * STEPS * (STEPS - 1) // 2


@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize("product", ["gram", "cached", "look-ahead"])
@pytest.mark.parametrize("place", [0, 63, 64, 100, 191, 192, 300, WORDS - 1])
def test_one_wrong_entry_of_the_gram_is_found(recipe, product, place, monkeypatch):
    bend(monkeypatch, one_entry(place))
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    found = alarms(train_on(2, settings(problem, product, recipe), problem))
    assert found[0]["looked_at"] == EVERY, "at the first look"
    assert found[0]["of"] == "scores" and found[0]["gap"] > found[0]["tolerance"] > 0


@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_every_entry_is_covered(recipe, monkeypatch):
    """Each of them on its own, in one exchange."""
    problem = make_problem("gaussian", n=STEPS * BATCH * 2, d=COLUMNS)
    missed = []
    for place in range(0, WORDS, 7):
        with monkeypatch.context() as patch:
            bend(patch, one_entry(place))
            schedule = {"batch": BATCH, "steps": STEPS, "epochs": 1}
            config = settings(
                problem, "gram", recipe, schedule=schedule, run={"gap_every": 1}
            )
            if not alarms(train_on(1, config, problem)):
                missed.append(place)
    assert not missed


@pytest.mark.parametrize(
    "family, update", [("softmax", "sgd"), ("poisson", "momentum")]
)
def test_columns_of_classes_and_states_are_covered(family, update, monkeypatch):
    bend(monkeypatch, one_entry(77))
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    config = settings(problem, update={"kind": update}, rate={"value": 0.05})
    assert alarms(train_on(3, config, problem))


def in_gram(rows):
    """The rows as bf16 rounds them, for one product only."""
    if isinstance(rows, DenseRows):
        rounded = rows.values.copy()
        round_through(rounded, "bf16")
        return DenseRows(rounded)
    matrix = rows.matrix.copy()
    round_through(matrix, "bf16")
    return SampledRows(matrix, rows.numbers, rows.room.copy(), rows.backend)


def on_member(monkeypatch, method, which, change):
    """`method` of every backend takes other rows where `which` says so."""
    true = getattr(HostBackend, method)
    assert method not in NativeBackend.__dict__

    def bent(self, rows, *more):
        return true(self, change(rows) if which(self) else rows, *more)

    monkeypatch.setattr(HostBackend, method, bent)


def on_ranks(ranks, config, problem, mark):
    """As `train_on`; rank `mark` has a backend that knows it."""
    import threading

    marked = threading.local()

    def on_rank(world):
        marked.value = world.rank == mark
        return train(config, X=problem.X, y=problem.y, world=world)

    return marked, lambda: run_ranks(ranks, on_rank)[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_member_that_rounds_its_rows_for_the_gram_alone_is_found(ranks, monkeypatch):
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    marked, go = on_ranks(ranks, settings(problem), problem, 1)
    on_member(monkeypatch, "strict_gram", lambda _: marked.value, in_gram)
    assert alarms(go())[0]["looked_at"] == EVERY


def test_a_member_whose_rounding_changes_with_time_is_found(monkeypatch):
    """Its matrix is rounded after the first epoch: the cached Gram is of another."""
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    marked, go = on_ranks(3, settings(problem, "cached"), problem, 2)
    begun = []

    def late(_):
        return marked.value and len(begun) > ROWS // (BATCH * STEPS)

    def counting(task, group, room):
        if marked.value:
            begun.append(group)
        rows = gather(task, group, room)
        return in_gram(rows) if late(None) else rows

    gather = exchange.gather_rows
    monkeypatch.setattr(exchange, "gather_rows", counting)
    found = alarms(go())
    assert found and found[0]["looked_at"] == 2 * EVERY, "the first one was right"


def test_residuals_that_are_not_those_of_their_scores_are_found(monkeypatch):
    for kind in (HostBackend, NativeBackend):
        true = kind.corrected_residuals

        def bent(self, *arguments, _true=true):
            found = _true(self, *arguments)
            found[5] *= found.dtype.type(1 + 1e-4)
            return found

        monkeypatch.setattr(kind, "corrected_residuals", bent)
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    found = alarms(train_on(2, settings(problem), problem))
    assert found[0]["of"] == "residuals" and found[0]["looked_at"] == EVERY


def test_every_alarm_is_a_warning_and_an_event(monkeypatch, caplog):
    bend(monkeypatch, one_entry(100, 2.0))
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    with caplog.at_level(logging.WARNING):
        result = train_on(1, settings(problem), problem)
    assert len(alarms(result)) == 4, "at 4, 8, 12 and 16; that of 20 is not judged"
    assert "off from fresh products" in caplog.text
    assert result.status.value == "completed"


def test_coarser_accumulators_allow_more(ratios):
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    allowed = []
    for name in ("fp64", "fp32", "tf32", "bf16"):
        form = {"recipe": "fp32", "gram_sum": name}
        allowed.append(_tolerance(settings(problem, precision=form), problem))
    assert allowed == sorted(allowed) and allowed[-1] > 100 * allowed[0]


def _tolerance(config, problem):
    """Of the scores of the first look, with a Gram that is wrong for certain."""
    from hpcsgd.glm.unrolling import uniform_blocks
    from hpcsgd.products.monitor import RoundoffModel

    model = RoundoffModel(
        config.precision.resolve(), uniform_blocks(BATCH, STEPS), float(COLUMNS), 2
    )
    return model.unit * (model.of_weights + model.of_steps) ** 0.5


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_what_a_field_says_is_what_it_may_lose(wire, monkeypatch, ratios):
    """A Gram rounded to its wire is right where that is the wire, and else wrong."""

    def rounded(packed):
        packed = packed.copy()
        round_through(packed, wire)
        return packed

    bend(monkeypatch, rounded)
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    wide = alarms(train_on(1, settings(problem), problem))
    assert wide and wide[0]["looked_at"] == EVERY
    del ratios["scores"][:]
    low = {"recipe": "fp32", "gram_wire": wire}
    assert not alarms(train_on(1, settings(problem, precision=low), problem))
    assert max(ratios["scores"]) < 0.5


@pytest.mark.cases(4)
@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("stopped", range(1, 12))
def test_messages_of_a_resumed_run_have_the_same_sizes(
    every, stopped, tmp_path, monkeypatch
):
    """Of replicas with unlike numbers of exchanges, too: MPI then sums in one order."""
    problem = make_problem("logistic", n=49, d=9)  # 25 rows and 24: 4 exchanges and 3
    said = {}
    true = exchange.HostExchange.products

    def noting(self):
        key = (self.task.shard.rows.start, self.group.epoch, self.group.index)
        said.setdefault(key, set()).add(self.task.monitor.words)
        return true(self)

    monkeypatch.setattr(exchange.HostExchange, "products", noting)
    sections = {
        "grid": {"replicas": 2, "members": 1},
        "schedule": {"batch": 4, "steps": 2, "epochs": 3},
        "products": {"kind": "gram"},
        "run": {"gap_every": every},
    }
    interrupted(2, problem, tmp_path, at=stopped, **sections)
    legs, said = said, {}
    run(2, problem, tmp_path / "whole", **sections)
    assert legs == said and max(map(max, said.values())) == 4


@pytest.mark.parametrize("sizes", [(8, 8, 8), (4, 4, 1), (1, 1), (2,), (5, 5, 5, 2)])
def test_a_fold_has_a_word_for_each_place_and_covers_every_row(sizes):
    from hpcsgd.glm.unrolling import Blocks
    from hpcsgd.products.monitor import Fold, words_of

    fold = Fold(Blocks(sizes), 3, (0, 1))
    assert words_of(sizes) == max(max(sizes), 2)
    assert fold.places == words_of(sizes) - 1
    ones = np.zeros((sum(sizes), 3))
    seen = set()
    for row in range(len(ones)):
        for column in range(3):
            ones[row, column] = 1.0
            word = fold.signed(ones)
            ones[row, column] = 0.0
            assert np.abs(word).sum() == 1.0
            seen.add(int(np.argmax(np.abs(word))))
    assert seen == set(range(min(fold.places, max(sizes))))
    assert set(np.unique(fold.signs)) <= {-1.0, 1.0}
