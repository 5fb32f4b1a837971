"""Certificates of runs whose replicas agree on gradients: what holds, what is found."""

import dataclasses

import numpy as np
import pytest

from hpcsgd.agreements import Gradient
from hpcsgd.agreements.buckets import Buffer, CodecSender
from hpcsgd.cli.verify import table
from hpcsgd.errors import DataError
from hpcsgd.glm import ADAPTIVE
from hpcsgd.runs.recording import NAME, read_recording, write_recording
from hpcsgd.runs.result import load_result
from hpcsgd.studies.verify import certify
from hpcsgd.studies.verify.replay import Union
from tests.helpers.contracts.codec import NAMES, ROWS, coded
from tests.helpers.gradients import UPDATES, agreed
from tests.helpers.harness import make_problem, replica_batches, train_on
from tests.helpers.resumed import interrupted
from tests.helpers.sparse import make_sparse
from tests.helpers.verify import reader_of

MADE = "data", "loss", "model", "traffic"


def train(folder, config, problem, stored=None, **data):
    """A run in `folder` with six recorded exchanges, and the reader of its data."""
    tables = config.tables()
    tables["run"] |= {"out": str(folder), "record": 6}
    config, grid = type(config).parse(tables), config.grid
    train_on(grid.replicas * grid.members, config, stored or problem, **data)
    return reader_of(stored or problem, data=bool(data))


def kinds(folder, reader):
    """name -> whether it holds, of every check; the certificate."""
    found = certify(folder, exchanges=6, reader=reader)
    return {check.name: check.ok for check in found.checks}, found


def check(folder, reader, most=1e-13):
    """All of it was checked and holds, six exchanges of all replicas' rows."""
    names, found = kinds(folder, reader)
    assert all(names.values()), [c for c in found.checks if not c.ok]
    steps = [c.figures for c in found.checks if c.name.startswith("exchange")]
    assert len(steps) == 6 and max(s["deviation"] for s in steps) < most
    return found


@pytest.mark.parametrize("update", UPDATES)
def test_every_update_on_uneven_rows_and_batches_that_travel_together(tmp_path, update):
    """53 rows on 3 replicas, weights and offsets; the last of an epoch is smaller."""
    problem = make_problem("logistic")
    config = agreed(
        problem,
        3,
        problem={"intercept": True},
        update={"kind": update, "momentum": 0.5},
        agreement={"accumulate": 2, "bucket": 8 * 2 * 2.0**-20},
        rate={"kind": "cosine", "warmup": 3},
    )
    check(tmp_path, train(tmp_path, config, problem, weights=True, offset=True))


@pytest.mark.parametrize("kind", ["direct", "gather", "gather-once"])
@pytest.mark.parametrize("reproducible", [True, False])
def test_members_and_products(tmp_path, kind, reproducible):
    problem = make_problem("softmax")
    config = agreed(
        problem,
        3,
        2,
        problem={"intercept": True},
        products={"kind": kind},
        agreement={"accumulate": 2, "bucket": 8 * 8 * 2.0**-20},
        run={"reproducible": reproducible},
    )
    check(tmp_path, train(tmp_path, config, problem))


@pytest.mark.parametrize("mode", ["reshuffle", "replacement", "blocks"])
@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_row_orders_and_replicas_that_run_out_of_rows(tmp_path, mode, replicas):
    problem = make_problem("poisson")
    sampling = {"mode": mode, "seed": 3, "block": 2, "window": 3}
    config = agreed(problem, replicas, sampling=sampling, schedule={"batch": 2})
    check(tmp_path, train(tmp_path, config, problem))


@pytest.mark.parametrize("recipe, most", [("fp32", 2e-5), ("c", 5e-2)])
def test_narrower_recipes(tmp_path, recipe, most):
    problem = make_problem("softmax")
    config = agreed(problem, 3, precision={"recipe": recipe})
    check(tmp_path, train(tmp_path, config, problem), most)


@pytest.mark.parametrize("kind", ["direct", "gather"])
def test_sparse_rows(tmp_path, kind):
    stored, dense = make_sparse("logistic")
    config = agreed(dense, 2, 2, products={"kind": kind})
    check(tmp_path, train(tmp_path, config, dense, stored))


def test_sparse_rows_in_eight_bits(tmp_path):
    """All of their columns share one exponent."""
    stored, dense = make_sparse("logistic")
    config = agreed(dense, 2, precision={"recipe": "fp32", "matrix": "fp8-e4m3"})
    check(tmp_path, train(tmp_path, config, dense, stored), 2e-5)


@pytest.mark.parametrize("at", [2, 5])
def test_a_resumed_run(tmp_path, at):
    problem = make_problem("logistic")
    sections = agreed(problem, 2, agreement={"accumulate": 2}).tables()
    kept = ("schedule", "products", "problem", "agreement", "grid")
    sections = {name: sections[name] for name in kept}
    sections["update"] = {"kind": "momentum"}
    interrupted(2, problem, tmp_path, at=at, **sections, run={"record": 6})
    check(tmp_path, reader_of(problem, data=False))


def test_a_rate_with_milestones_is_replayed(tmp_path):
    problem = make_problem("softmax")
    rate = {"kind": "milestones", "milestones": [0.4, 1.0], "value": 0.1}
    config = agreed(problem, 3, agreement={"accumulate": 2}, rate=rate)
    check(tmp_path, train(tmp_path, config, problem))


def test_the_rows_are_those_of_all_replicas():
    """A third writing of the order: that of the oracle of the tests."""
    problem = make_problem("logistic")
    config = agreed(problem, 3, agreement={"accumulate": 2})
    union, epochs = Union(config, 53, 3), config.schedule.epochs
    each = [replica_batches(config, 53, 3, p) for p in range(3)]
    for number in range(epochs * union.each):
        epoch, index = divmod(number, union.each)
        counts = [len(batches) // epochs for batches in each]
        places = [(epoch * k + index, b) for k, b in zip(counts, each, strict=True)]
        own = [b[n] for (n, b), k in zip(places, counts, strict=True) if index < k]
        np.testing.assert_array_equal(union.taken(number), np.concatenate(own))


# ------------------------------------------------------------------------- codecs


@pytest.mark.cases(4)
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_what_of_a_codec_can_be_verified(tmp_path, name, members):
    """The loss and the intercept's steps always, bytes where nothing decides them."""
    problem = make_problem("softmax")
    config = coded(problem, name, 3, members, codec=ROWS[name].rough)
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    fixed = name not in ("threshold", "wangni", "alq", "amq", "accordion")
    assert all(names[check] for check in MADE), found.failed
    assert ("traffic of agreement" not in names) == fixed
    steps = [c for c in found.checks if c.name.startswith("exchange")]
    assert len(steps) == 6 and all(step.ok for step in steps)
    assert ("to agree" in table(found)) == fixed
    parts = {tuple(step.figures.get("replayed", "all")) for step in steps}
    assert parts == {tuple("all") if name == "identity" else ("b", "bv")}


@pytest.mark.parametrize("members", [1, 2])
def test_bytes_of_a_run_that_clips_are_verified(tmp_path, members):
    """The word that members sum to clip by is among them."""
    problem = make_problem("softmax")
    config = coded(problem, "dgc", 3, members, codec={"share": 0.2, "clip": 0.02})
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert "traffic of agreement" not in names
    assert all(names[check] for check in MADE), found.failed


def test_without_an_intercept_steps_of_a_codec_are_said_to_be_unchecked(tmp_path):
    problem = make_problem("logistic")
    config = coded(problem, "topk", 2, problem={"intercept": False})
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    steps = [c for c in found.checks if c.name.startswith("exchange")]
    assert len(steps) == 6 and {c.ok for c in steps} == {None}
    assert all("sent as topk" in c.why for c in steps)
    assert all(names[check] for check in MADE)


def test_feedback_around_nothing_that_is_lost_is_replayed_whole(tmp_path):
    problem = make_problem("softmax")
    config = coded(problem, "identity", 3, codec={"feedback": "on"})
    check(tmp_path, train(tmp_path, config, problem))


# ---------------------------------------------------------------- planted faults


def plain(**sections):
    problem = make_problem("softmax")
    asked = {"problem": {"intercept": True}, "schedule": {"batch": 8}, **sections}
    return problem, agreed(problem, 3, **asked)


def test_counts_of_replicas_taken_for_alike_are_found(tmp_path, monkeypatch):
    """Means of means, which is another method: every replica says eight rows."""
    counted = Buffer.count_in

    def alike(self, residuals):
        counted(self, residuals)
        self.tail[-1] = 8

    monkeypatch.setattr(Buffer, "count_in", alike)
    problem, config = plain()
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert found.failed and all(name.startswith("exchange") for name in found.failed)


def test_a_replica_that_is_left_out_is_found(tmp_path, monkeypatch):
    """Its rows count, its gradient is lost."""
    add = Gradient.add_gradient

    def not_the_second(self, gradient, rows, residuals):
        if self.grid.replica != 1:
            add(self, gradient, rows, residuals)

    monkeypatch.setattr(Gradient, "add_gradient", not_the_second)
    problem, config = plain()
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert len(found.failed) == 6 and all("exchange" in n for n in found.failed)


def test_an_intercept_that_codecs_would_have_spoilt_is_found(tmp_path, monkeypatch):
    """Wrong by a thousandth, behind a codec whose weights cannot be replayed."""
    tail = CodecSender.tail

    def bent(self):
        found = tail(self).copy()
        found[:-1] *= 1.001
        return found

    monkeypatch.setattr(CodecSender, "tail", bent)
    problem = make_problem("softmax")
    config = coded(problem, "sign", 3)
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert len(found.failed) == 6 and all("exchange" in n for n in found.failed)


def test_a_word_that_does_not_travel_is_found(tmp_path, monkeypatch):
    """The first of a gradient is left to each replica."""
    with_tail = Buffer.with_tail
    monkeypatch.setattr(Buffer, "with_tail", lambda *args: with_tail(*args)[1:])
    problem, config = plain()
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert names["traffic"] is False


def test_a_sum_too_many_is_found(tmp_path, monkeypatch):
    """Replicas say their gradients twice."""
    receive = Gradient.add_gradient

    def twice(self, gradient, rows, residuals):
        receive(self, gradient, rows, residuals)
        self.grid.replicas.sum(np.zeros(3), "agreement")

    monkeypatch.setattr(Gradient, "add_gradient", twice)
    problem, config = plain(schedule={"batch": 9})  # as many batches on all
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert found.failed == ["traffic"]


@pytest.mark.parametrize("name, key", [("identity", "words"), ("bf16", "bytes")])
def test_a_word_more_in_the_ledger_is_found(tmp_path, name, key):
    problem = make_problem("softmax")
    reader = train(tmp_path, coded(problem, name, 3), problem)
    result = load_result(tmp_path)
    result.ledger["agreement"][key] += 1 if key == "words" else 2
    result.save(tmp_path)
    assert kinds(tmp_path, reader)[1].failed == ["traffic"]


def test_wrong_weights_and_a_wrong_loss_are_found(tmp_path):
    problem, config = plain(update={"kind": "momentum"})
    reader = train(tmp_path, config, problem)
    recording = read_recording(tmp_path / NAME)
    number = min(recording.states)
    recording.states[number]["weights_after"][2, 1] += 1e-9
    write_recording(tmp_path / NAME, recording)
    result = load_result(tmp_path)
    dataclasses.replace(result, loss=result.loss * (1 + 1e-10)).save(tmp_path)
    assert kinds(tmp_path, reader)[1].failed == [f"exchange {number}", "loss"]


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_steps_that_are_no_sgd_are_refused_by_name(tmp_path, kind):
    problem, config = plain(update={"kind": kind})
    reader = train(tmp_path, config, problem)
    with pytest.raises(DataError, match=f"is of {kind}, and verify replays plain SGD"):
        certify(tmp_path, reader=reader)


OTHERS = [
    {"update": {"clip": "norm"}},
    {"update": {"kind": "momentum", "bits": 8}},
    {"update": {"centre": "classes"}},
    {"precision": {"residual": "fp16"}},
]


@pytest.mark.parametrize("sections", OTHERS, ids=str)
def test_runs_with_more_to_their_steps_are_not_recorded(tmp_path, sections):
    problem, config = plain(**sections)
    reader = train(tmp_path, config, problem)
    assert not (tmp_path / NAME).exists()
    with pytest.raises(DataError, match="by plain SGD|clipped its gradients"):
        certify(tmp_path, reader=reader)


def test_an_agreement_without_a_formula_is_said_to_be_uncounted(tmp_path, monkeypatch):
    from hpcsgd.agreements import AGREEMENTS, Average

    class Mine(Average):
        pass

    monkeypatch.setitem(AGREEMENTS, "mine", Mine)
    problem = make_problem("logistic")
    config = agreed(problem, 2, agreement={"kind": "mine"}, schedule={"period": 2})
    names, found = kinds(tmp_path, train(tmp_path, config, problem))
    assert names["traffic"] is None and not found.failed
    assert all(ok for name, ok in names.items() if name != "traffic")
