"""Laws of agreed gradients that hold for whole runs, whatever is sent and by whom."""

import numpy as np
import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.runs.feed import Feed
from tests.helpers import oracle
from tests.helpers.contracts.codec import NAMES, ROWS, coded, on_all
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import (
    make_problem,
    relative_error,
    replica_batches,
    train_on,
)

REPLICAS = (1, 2, 3, 4, 7)


def whole(problem, replicas, epochs=12, **sections):
    """Every exchange is one step on all rows."""
    schedule = {"batch": len(problem.X), "epochs": epochs}
    more = {"schedule": schedule, "problem": {"intercept": True}, **sections}
    return agreed(problem, replicas, **more)


@pytest.mark.parametrize("family", ["gaussian", "softmax"])
def test_any_number_of_replicas_takes_the_same_steps(family):
    """Full batches of 53 rows, however they are dealt: a few ulp apart."""
    problem = make_problem(family)
    config = whole(problem, 1)
    wanted = oracle.sgd(
        *(problem.X, problem.y, [np.arange(53)] * 12, [problem.rate] * 12),
        family=family,
        l2=config.problem.l2,
        intercept=True,
        classes=problem.classes,
    )
    found = [train_on(r, whole(problem, r), problem) for r in REPLICAS]
    for result in found:
        assert relative_error(result, wanted) <= 1e-14
    apart = [np.abs(r.weights - found[0].weights).max() for r in found]
    assert max(apart) <= 8 * np.spacing(np.abs(found[0].weights).max())


def batches_that_are_there(config, problem, counts):
    """Per exchange, the rows of the replicas that have not used up theirs."""
    n, replicas, epochs = len(problem.X), len(counts), config.schedule.epochs
    own = [replica_batches(config, n, replicas, replica) for replica in range(replicas)]
    found = []
    for epoch in range(epochs):
        for k in range(max(counts)):
            there = [p for p in range(replicas) if k < counts[p]]
            each = [len(own[p]) // epochs for p in there]
            batches = [own[p][epoch * e + k] for p, e in zip(there, each, strict=True)]
            found.append(np.concatenate(batches))
    return found


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_replicas_with_eight_five_and_three_batches_finish(name, monkeypatch):
    """No hang, one model; of what is not encoded exactly that of the rows there."""
    problem, counts = make_problem("logistic", n=72), (8, 5, 3)
    groups = Feed.groups

    def runs_out(self, done=0):
        most = counts[self.sampler.replica]
        for number, group in enumerate(groups(self, done), start=done):
            yield group if number % self.exchanges_per_epoch < most else None

    monkeypatch.setattr(Feed, "groups", runs_out)
    schedule = {"batch": 3, "epochs": 2}
    config = coded(problem, name, 3, codec=ROWS[name].rough, schedule=schedule)
    results = on_all(3, config, problem)
    assert len({r.weights_sha256 for r in results}) == 1
    assert {r.status.value for r in results} == {"completed"}
    assert {r.exchanges for r in results} == {2 * 8}
    if name == "identity":
        batches = batches_that_are_there(config, problem, counts)
        rates = [config.rate.value] * len(batches)
        wanted = oracle.sgd(
            *(problem.X, problem.y, batches, rates),
            family="logistic",
            l2=config.problem.l2,
            intercept=True,
        )
        assert relative_error(results[0], wanted) <= 1e-12


def test_another_number_of_replicas_goes_on_with_the_same_steps(tmp_path):
    """Begun by three, gone on with by two, by four and by one: 1e-10 of the whole."""
    problem = make_problem("softmax")
    momentum = {"update": {"kind": "momentum", "momentum": 0.5}}
    alone = train_on(1, whole(problem, 1, **momentum), problem)
    for others in (2, 4, 1):
        folder = tmp_path / str(others)
        begun = in_folder(folder, whole(problem, 3, **momentum), 3, problem, stop=5)[0]
        assert begun.exchanges == 5
        config = whole(problem, others, **momentum)
        result = in_folder(folder, config, others, problem)[0]
        assert result.exchanges == 12 and result.report["resumes"] == 1
        np.testing.assert_allclose(result.weights, alone.weights, rtol=1e-10)


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", NAMES)
def test_one_column_and_as_many_replicas_as_rows(name):
    """d = 1 is one bucket of one word; a batch is one row."""
    for family, replicas in (("logistic", 7), ("softmax", 3)):
        problem = make_problem(family, n=7, d=1)
        config = coded(problem, name, replicas, codec=ROWS[name].rough)
        results = on_all(replicas, config, problem)
        assert len({r.weights_sha256 for r in results}) == 1
        assert np.isfinite(results[0].loss)
        assert results[0].report["agreement"]["buckets"] == 1


@pytest.mark.parametrize("kind", ["gradient", "average"])
def test_more_replicas_than_rows_are_refused(kind):
    """In one sentence on all ranks, however little room would have to be predicted."""
    problem = make_problem("logistic", n=5)
    config = agreed(problem, 7, agreement={"kind": kind})
    with pytest.raises(ConfigError, match="7 replicas cannot share 5 rows; use at mo"):
        on_all(7, config, problem)


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_zeros_stays_where_it_began(name):
    """As absent features do: no code moves what has no gradient."""
    drawn = make_problem("logistic")
    X = drawn.X.copy()
    X[:, 2] = 0.0
    problem = type(drawn)(**{**vars(drawn), "X": X})
    config = coded(problem, name, 3, codec=ROWS[name].rough)
    result = on_all(3, config, problem)[0]
    # Low rank and one scale for all signs mix columns, and amq has no level at zero;
    # they end near it.
    moves = ("powersgd", "sign", "accordion", "amq")
    allowed = 0.2 if name in moves else 0.0
    assert abs(result.weights[2]) <= allowed
