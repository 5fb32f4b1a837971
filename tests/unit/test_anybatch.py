"""Any-batch rounds: against a plain restatement, their laws, their log, their edges."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from hpcsgd.agreement.anybatch_rounds import Timed
from hpcsgd.agreement.graphs import Graph, sigma_2
from hpcsgd.api import train
from hpcsgd.assembly.any_batches import terms_of
from hpcsgd.assembly.feed import Rounds
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.stream import Streamed
from hpcsgd.errors import HpcsgdError
from hpcsgd.products.any_batches import Stream
from tests.anybatch import MAPS, any_batch, on_all, restated, script
from tests.harness import make_problem, relative_error, train_on, union_oracle
from tests.sparse import make_sparse
from tests.unit.test_gradient import in_folder


def budgets(replicas, rounds, most=3, seed=0):
    """So many chunks in every round, 0 among them, 0 of all in one."""
    chunks = np.random.default_rng((seed, replicas)).integers(
        0, most + 1, size=(replicas, rounds)
    )
    chunks[:, 1] = 0
    chunks[0, 2] = most
    chunks[1:, 2] = 0
    return chunks


def scripted(folder, drawn, replicas, members=1, /, *, most=3, rounds=8, **sections):
    """A run of random budgets and its budgets."""
    chunks = budgets(replicas, rounds, most)
    told = {"accumulate": most, "replay": script(folder, chunks)}
    sections["agreement"] = {**told, **sections.get("agreement", {})}
    config = any_batch(drawn, replicas, members, **sections)
    each = -(-len(drawn.X) // replicas // (4 * most))
    epochs = {"epochs": max(rounds // max(each, 1), 1)}
    tables = config.tables()
    tables["schedule"] |= epochs
    return type(config).parse(tables), chunks


def check(folder, drawn, replicas, members=1, /, **sections):
    """Train by a script, and by its restatement in longdouble."""
    problem = drawn
    config, chunks = scripted(folder, problem, replicas, members, **sections)
    results = on_all(replicas * members, config, problem)
    assert {r.status.value for r in results} == {"completed"}
    assert len({r.weights_sha256 for r in results}) == 1
    done = chunks[:, : results[0].exchanges]
    told = results[0].report["agreement"]
    assert told["rounds"]["chunks"] == done.tolist()
    _, mean, bias = restated(config, problem, done)
    assert relative_error(results[0], (mean, bias)) <= 1e-12
    return results[0], done


# ------------------------------------------------------------------- restatements


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", MAPS)
def test_every_map_is_its_formula(name, weighted, tmp_path):
    """Random budgets, two iterations, an intercept; members who share columns."""
    problem = make_problem("softmax")
    for replicas, members, graph in ((3, 1, "ring"), (2, 2, "full"), (4, 1, "ring")):
        result, _ = check(
            tmp_path,
            problem,
            replicas,
            members,
            mirror=MAPS[name],
            problem={"intercept": True},
            agreement={"graph": graph, "mixing": 2, "weighted": weighted},
            rate={"kind": "inverse-sqrt", "decay": 0.5},
        )
        assert result.report["agreement"]["graph"] == graph


@pytest.mark.parametrize("graph", ["full", "ring", "rings", "matching", "edges"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_every_graph(graph, replicas, tmp_path):
    problem = make_problem("logistic")
    if graph == "edges":
        graph = ",".join(f"0-{r}" for r in range(1, replicas)) or "0-0"
    check(tmp_path, problem, replicas, agreement={"graph": graph, "mixing": 2})


@pytest.mark.parametrize("kind", ["gather", "gather-once"])
def test_members_that_hold_all_columns(kind, tmp_path):
    problem = make_problem("softmax")
    for name in ("entropy", "p-norm"):
        check(tmp_path, problem, 2, 2, mirror=MAPS[name], products={"kind": kind})


@pytest.mark.parametrize("sampling", ["reshuffle", "replacement"])
def test_streams_go_on_in_every_order_of_rows(sampling, tmp_path):
    problem = make_problem("logistic")
    check(tmp_path, problem, 3, sampling={"mode": sampling})


def test_a_ball_holds_the_weights(tmp_path):
    problem = make_problem("softmax")
    ball = {"radius": 0.05}
    result, _ = check(tmp_path, problem, 2, 2, mirror=ball, rate={"value": 2.0})
    assert np.linalg.norm(result.weights, axis=0).max() <= 0.05 * (1 + 1e-12)


def test_sparse_rows_learn_what_dense_ones_learn(tmp_path):
    stored, dense = make_sparse("logistic")
    for name in ("euclidean", "eg"):
        config, _ = scripted(tmp_path, dense, 2, 2, mirror=MAPS[name])
        found = [on_all(4, config, p)[0].weights for p in (stored, dense)]
        np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-14)


def test_one_column_and_float32(tmp_path):
    narrow = make_problem("gaussian", d=1)
    for name in MAPS:
        check(tmp_path, narrow, 2, mirror=MAPS[name])
        config, chunks = scripted(
            tmp_path,
            make_problem("softmax"),
            3,
            mirror=MAPS[name],
            precision={"recipe": "fp32"},
            agreement={"graph": "ring"},
        )
        problem = make_problem("softmax")
        result = train_on(3, config, problem)
        expected = restated(config, problem, chunks[:, : result.exchanges])[1:]
        assert relative_error(result, expected) < 1e-5


def test_a_replica_that_never_gets_to_a_row(tmp_path):
    """It mixes along; one row a replica is the least there is."""
    problem = make_problem("logistic", n=7)
    chunks = np.tile(np.array([[2], [0], [1], [0], [0], [2], [1]]), (1, 8))
    for graph in ("ring", "matching", "full"):
        config = any_batch(
            problem,
            7,
            schedule={"epochs": 8},
            agreement={
                "replay": script(tmp_path, chunks),
                "accumulate": 2,
                "graph": graph,
            },
        )
        result = train_on(7, config, problem)
        _, mean, bias = restated(config, problem, chunks[:, : result.exchanges])
        assert relative_error(result, (mean, bias)) <= 1e-12
        assert result.report["agreement"]["rows_by_replica"] == [16, 0, 8, 0, 0, 16, 8]
    with pytest.raises(HpcsgdError, match="replicas"):
        train_on(
            7,
            any_batch(make_problem("logistic", n=3), 7),
            make_problem("gaussian", n=3),
        )


# -------------------------------------------------------------------------- laws


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2)])
def test_equal_batches_on_a_full_graph_are_synchronous_sgd(ranks):
    """54 rows, of which all replicas have as many in every round."""
    replicas, members = ranks
    problem = make_problem("softmax", n=48)
    config = any_batch(problem, *ranks, problem={"intercept": True})
    for weighted in (True, False):
        tables = config.tables()
        tables["agreement"]["weighted"] = weighted
        result = train_on(replicas * members, type(config).parse(tables), problem)
        assert relative_error(result, union_oracle(config, problem)) <= 1e-12


def test_uneven_batches_are_that_too_where_replicas_count_by_rows(tmp_path):
    """Weighted, full: Σ b y / Σ b is the step on the union of all rows."""
    problem = make_problem("logistic")
    config, chunks = scripted(tmp_path, problem, 3, problem={"l2": 0.0})
    result = train_on(3, config, problem)
    weights = np.zeros((7, 1))
    from tests.anybatch import residuals, stream

    streams = [stream(config, 53, 3, r) for r in range(3)]
    for counts in chunks[:, : result.exchanges].T:
        rows = [
            row
            for taken, own in zip(counts, streams, strict=True)
            for _ in range(taken)
            for row in next(own)
        ]
        if rows:
            r = residuals(problem, problem.X[rows], np.array(rows), weights, 0.0)
            weights -= 0.2 * problem.X[rows].T @ r / len(rows)
    np.testing.assert_allclose(result.weights, weights[:, 0], rtol=1e-12)


def test_unweighted_is_a_mean_of_means_and_another_method(tmp_path):
    """The broken twin of the law above: one row counts as much as twelve."""
    problem = make_problem("logistic")
    found = []
    for weighted in (True, False):
        config, _ = scripted(tmp_path, problem, 3, agreement={"weighted": weighted})
        found.append(train_on(3, config, problem).weights)
    assert np.linalg.norm(found[0] - found[1]) > 1e-3 * np.linalg.norm(found[0])


def test_simplex_iterates_stay_on_it(tmp_path):
    problem = make_problem("softmax")
    config, _ = scripted(
        tmp_path, problem, 3, mirror=MAPS["entropy"], rate={"value": 50.0}
    )
    result = train_on(3, config, problem)
    assert result.weights.min() >= 0.0
    np.testing.assert_allclose(result.weights.sum(axis=0), 2.0, rtol=1e-12)
    config, _ = scripted(tmp_path, problem, 3, mirror=MAPS["eg"], rate={"value": 50.0})
    result = train_on(3, config, problem)
    assert np.abs(result.weights).sum(axis=0).max() <= 3.0 * (1 + 1e-12)


def sorted_problem():
    """Rows in the order of their margins: the worst of shards."""
    problem = make_problem("logistic", n=120, d=11, seed=3)
    order = np.argsort(problem.X @ np.random.default_rng(5).normal(size=11))
    return replace(problem, X=problem.X[order], y=problem.y[order])


def alike_shards():
    """Four replicas with the same thirty rows."""
    one = make_problem("logistic", n=30, d=11, seed=3)
    return replace(one, X=np.tile(one.X, (4, 1)), y=np.tile(one.y, 4))


def least(problem, l2=0.05):
    """The objective at its minimum."""
    X, y = problem.X, problem.y

    def loss(w):
        t = X @ w
        r = 1 / (1 + np.exp(-t)) - y
        value = np.mean(np.logaddexp(0, t) - y * t) + l2 / 2 * w @ w
        return value, X.T @ r / len(y) + l2 * w

    return minimize(loss, np.zeros(11), jac=True, method="BFGS", tol=1e-12).fun


def gaps(folder, problem, chunks, batch, sections, every=0, **agreement):
    """Relative, at every evaluation, and how far replicas are apart at the end."""
    most, rounds = int(chunks.max()), chunks.shape[1]
    each = -(-30 // (batch * most))
    config = any_batch(
        problem,
        4,
        schedule={"batch": batch, "epochs": rounds // each},
        run={"evaluate_every": every},
        agreement={
            "accumulate": most,
            "replay": script(folder, chunks),
            "graph": "ring",
            **agreement,
        },
        **sections,
    )
    result = train_on(4, config, problem)
    found = np.array([record["loss"] for record in result.history]) / least(problem)
    return found - 1, result.report["agreement"]["disagreement"]


DECAYING = {"rate": {"kind": "inverse-sqrt", "value": 2.0, "decay": 0.1}}


def test_random_batches_converge_and_mixing_brings_replicas_together(tmp_path):
    """Rows sorted by margin, 0 to 30 rows a round."""
    chunks = np.random.default_rng(7).integers(0, 4, size=(4, 400))
    apart = {}
    for weighted, bound in ((True, 2e-3), (False, 2e-4)):
        for mixing in (1, 4):
            gap, apart[weighted, mixing] = gaps(
                tmp_path,
                sorted_problem(),
                chunks,
                10,
                DECAYING,
                weighted=weighted,
                mixing=mixing,
            )
            assert 0 <= gap[-1] < bound, (weighted, mixing)
    assert apart[False, 4] < apart[False, 1] / 4
    assert apart[True, 4] < apart[True, 1] / 2


def test_average_regret_falls_on_a_fixed_target(tmp_path):
    """Of the consensus: the mean of F − F* over rounds, at twice as many each time."""
    chunks = np.random.default_rng(7).integers(0, 4, size=(4, 320))
    gap, _ = gaps(tmp_path, sorted_problem(), chunks, 10, DECAYING, every=1)
    average = np.cumsum(gap[1:]) / np.arange(1, len(gap))
    seen = [average[rounds - 1] for rounds in (40, 80, 160, 320)]
    assert all(later < 0.71 * earlier for earlier, later in pairwise(seen)), seen


def test_unweighted_gives_noise_equal_weight(tmp_path):
    """One replica has fifteen times the rows of a round: counting by rows pays."""
    chunks = np.tile(np.array([[1], [1], [1], [15]]), (1, 200))
    drawn = {"sampling": {"mode": "replacement"}, "rate": {"value": 1.0}}
    floor = {
        weighted: np.mean(
            gaps(tmp_path, alike_shards(), chunks, 2, drawn, 4, weighted=weighted)[0][
                -25:
            ]
        )
        for weighted in (True, False)
    }
    assert floor[False] > 1.5 * floor[True]


def test_rows_of_a_slow_replica_count_for_less_where_replicas_count_by_rows(tmp_path):
    """One at a third of the speed, on shards that differ: another optimum, said so."""
    chunks = np.tile(np.array([[1], [3], [3], [3]]), (1, 300))
    by_rows, alike = (
        gaps(tmp_path, sorted_problem(), chunks, 10, DECAYING, weighted=w)[0][-1]
        for w in (True, False)
    )
    assert alike < 1e-4 < 1e-3 < by_rows


# --------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("columns", [7, 12])
@pytest.mark.parametrize("name", MAPS)
def test_bytes_are_those_of_the_formula(name, columns, tmp_path):
    """k · deg · b (D + K [+ 1]) a round, and the mean at the end; a sum where full."""
    problem = make_problem("softmax", d=columns)
    travels = {"entropy": 4 * columns, "eg": 4 * (2 * columns + 1)}
    words = travels.get(name, 4 * columns)
    for graph, degree, weighted, mixing, size in (
        ("ring", 2, True, 1, 8),
        ("ring", 2, False, 3, 4),
        ("matching", 1, True, 2, 8),
        ("full", None, True, 5, 8),
    ):
        config = any_batch(
            problem,
            4,
            problem={"intercept": True},
            mirror=MAPS[name],
            precision={"recipe": "fp64" if size == 8 else "fp32"},
            agreement={"graph": graph, "weighted": weighted, "mixing": mixing},
        )
        result = train_on(4, config, problem)
        said, rounds = result.ledger["agreement"], result.exchanges
        a_word = words + 4 + weighted
        if graph == "full":
            logs = name in travels
            calls, end = rounds * (3 if logs else 1), 0
        else:
            calls, end = rounds * degree * mixing, 4 * columns + 4 + 1
        assert said["words"] == calls * a_word + end
        assert said["bytes"] == size * said["words"]
        assert said["calls"] == calls + (end > 0)


def test_members_share_the_words(tmp_path):
    """Each its own columns; the map's own sums are products of members."""
    problem = make_problem("logistic")
    config = any_batch(problem, 3, 2, agreement={"graph": "ring"})
    result = train_on(6, config, problem)
    assert result.ledger["agreement"]["words"] == result.exchanges * 2 * 5 + 5
    one, more = (
        train_on(2, any_batch(problem, 1, 2, mirror=MAPS[m]), problem)
        for m in ("euclidean", "entropy")
    )
    apart = [r.ledger["products"]["words"] for r in (one, more)]
    assert apart[1] - apart[0] == one.exchanges


# ------------------------------------------------------------------- log and replay


class Ticks:
    """A clock that every look moves on by what its replica takes for a chunk."""

    def __init__(self, each):
        self.now, self.each = 0.0, each

    def __call__(self):
        self.now += self.each
        return self.now


def clocked(monkeypatch, speeds):
    """Replica r takes speeds[r] seconds for a chunk."""
    made = Timed.__init__

    def init(self, grid, most, deadline):
        made(self, grid, most, deadline, Ticks(speeds[grid.replica]))

    monkeypatch.setattr(Timed, "__init__", init)


def test_a_deadline_ends_rounds(monkeypatch):
    """A look before every chunk, so that 1, 2, 5 s leave 5, 3, 1 chunks of 4.5 s."""
    clocked(monkeypatch, [1.0, 2.0, 5.0, 0.1])
    problem = make_problem("logistic", n=120)
    config = any_batch(
        problem,
        4,
        2,
        agreement={"rounds": "clock", "deadline": 4.5, "accumulate": 6},
    )
    result = train_on(8, config, problem)
    chunks = np.array(result.report["agreement"]["rounds"]["chunks"])
    # Begin looks once; look n + 1 is (n + 1) · each later.
    assert chunks[:, 0].tolist() == [4, 2, 0, 6]
    assert (chunks == chunks[:, :1]).all()
    assert result.report["agreement"]["deadline_seconds"] == 4.5


def test_members_take_what_their_first_says():
    """Whose clock it is: that of another member is never at the deadline."""

    def on_rank(world):
        grid = Grid(world, 1, 2)
        pace = Timed(grid, 6, 4.5, Ticks([1.0, 1e-9][grid.member]))
        pace.begin(0)
        taken = 0
        while pace.goes_on(taken):
            taken += 1
        grid.close()
        return taken

    assert run_ranks(2, on_rank) == [4, 4]


def test_the_first_round_finds_a_deadline(monkeypatch):
    """Half of eight chunks at the median of 1, 1.5 and 4 seconds: 6 seconds."""
    clocked(monkeypatch, [1.0, 1.5, 4.0])
    problem = make_problem("logistic", n=150)
    config = any_batch(problem, 3, agreement={"rounds": "clock", "accumulate": 8})
    result = train_on(3, config, problem)
    said = result.report["agreement"]
    assert said["deadline_seconds"] == pytest.approx(6.0)
    chunks = np.array(said["rounds"]["chunks"])
    assert chunks[:, 0].tolist() == [4, 4, 4]
    assert chunks[:, 1].tolist() == [5, 3, 1]


def test_a_log_is_the_same_run_again(tmp_path, monkeypatch):
    """rounds.csv of a run by the clock, as a script: bit for bit, and the same log."""
    clocked(monkeypatch, [1.0, 1.6, 3.1])
    problem = make_problem("softmax", n=90)
    told = {"rounds": "clock", "accumulate": 6, "graph": "ring"}
    config = any_batch(problem, 3, agreement=told)
    first = in_folder(tmp_path / "first", config, 3, problem)[0]
    log = tmp_path / "first" / "rounds.csv"
    for name, replay in (("file", log), ("folder", log.parent)):
        told["replay"] = str(replay)
        config = any_batch(problem, 3, agreement=told)
        again = in_folder(tmp_path / name, config, 3, problem)[0]
        assert again.weights_sha256 == first.weights_sha256
        assert (tmp_path / name / "rounds.csv").read_text() == log.read_text()
    saved = json.loads((tmp_path / "first" / "result.json").read_text())
    rounds = saved["agreement"]["rounds"]
    assert (
        np.sum(rounds["rows"], axis=1).tolist() == saved["agreement"]["rows_by_replica"]
    )


@pytest.mark.parametrize("name", MAPS)
def test_a_run_goes_on_bit_for_bit(name, tmp_path):
    """In mid-run, where replicas differ: streams, maps, log and all."""
    problem = make_problem("softmax", n=90)
    for replicas, members in ((3, 1), (2, 2)):
        place = tmp_path / f"{replicas}"
        place.mkdir()
        config, _ = scripted(
            place,
            problem,
            replicas,
            members,
            mirror=MAPS[name],
            problem={"intercept": True},
            agreement={"graph": "ring"},
        )
        ranks = replicas * members
        whole = in_folder(place / "whole", config, ranks, problem)[0]
        first = in_folder(place / "parts", config, ranks, problem, stop=4)
        assert {r.status.value for r in first} == {"preempted"}
        again = in_folder(place / "parts", config, ranks, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
        assert again[0].iterations == whole.iterations
        logs = [(place / n / "rounds.csv").read_text() for n in ("whole", "parts")]
        assert logs[0] == logs[1]
        assert (
            again[0].report["agreement"]["rounds"]
            == (whole.report["agreement"]["rounds"])
        )


@pytest.mark.parametrize("name", MAPS)
def test_another_number_of_replicas_goes_on_from_the_mean(name, tmp_path):
    problem = make_problem("softmax", n=90)
    told = {"mirror": MAPS[name], "agreement": {"graph": "ring", "accumulate": 2}}
    first = in_folder(tmp_path, any_batch(problem, 3, **told), 3, problem, stop=4)[0]
    config = any_batch(problem, 2, **told)
    assert in_folder(tmp_path, config, 2, problem, stop=8)[0].exchanges == 8
    again = in_folder(tmp_path, config, 2, problem)
    assert again[0].status.value == "completed"
    assert again[0].loss < first.history[0]["loss"]
    rounds = again[0].report["agreement"]["rounds"]
    before = rounds["chunks"][0].index(2)  # rounds of other replicas are not theirs
    sizes = np.array([4] * 11 + [1])  # 45 rows
    taken = np.arange(2 * before, 2 * len(rounds["chunks"][0])).reshape(-1, 2)
    assert before and rounds["rows"][0][before:] == sizes[taken % 12].sum(1).tolist()
    if name == "entropy":
        np.testing.assert_allclose(again[0].weights.sum(axis=0), 2.0, rtol=1e-12)


def test_another_grid_goes_on_twice_bit_for_bit(tmp_path):
    """By two of what three began: their streams did not begin at the first chunk."""
    problem, found = make_problem("softmax", n=90), []
    told = {
        "agreement": {"graph": "ring", "accumulate": 2},
        "sampling": {"mode": "reshuffle"},
    }
    config = any_batch(problem, 2, **told)
    for stop in (None, 8, 11):
        place = tmp_path / str(stop)
        in_folder(place, any_batch(problem, 3, **told), 3, problem, stop=4)
        if stop:
            assert in_folder(place, config, 2, problem, stop=stop)[0].exchanges == stop
        found.append(in_folder(place, config, 2, problem)[0])
    assert len({result.weights_sha256 for result in found}) == 1
    assert len({str(r.report["agreement"]["rounds"]) for r in found}) == 1


def test_streams_of_another_grid_begin_where_full_rounds_would_have_ended(tmp_path):
    """Full rounds of two chunks, four of them: the ninth chunk is the next."""
    problem, seen = make_problem("logistic", n=90), []
    told = {"agreement": {"graph": "ring", "accumulate": 2}}
    first = any_batch(problem, 3, **told)
    done = in_folder(tmp_path, first, 3, problem, stop=2)[0].exchanges
    take = Stream.next

    def noted(self):
        seen.append(self.taken)
        return take(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "next", noted)
        in_folder(tmp_path, any_batch(problem, 2, **told), 2, problem)
    # The round that was under way when the checkpoint was read is counted in full.
    assert done == 2 and min(seen) % 2 == 0 and min(seen) >= 2 * done


# --------------------------------------------------------------------------- edges


def test_weights_that_are_no_numbers_end_the_run(tmp_path):
    problem = make_problem("gaussian")
    for name in ("euclidean", "p-norm"):
        config, _ = scripted(
            tmp_path,
            problem,
            3,
            rounds=40,
            mirror=MAPS[name],
            agreement={"graph": "ring"},
            rate={"value": 1e300},
        )
        results = on_all(3, config, problem)
        assert {r.status.value for r in results} == {"diverged"}


REFUSED = [
    ({"agreement": {"codec": "bf16"}}, "leave the codec out"),
    ({"update": {"kind": "momentum"}}, "use --update sgd"),
    ({"update": {"kind": "adam"}}, "use --update sgd"),
    ({"average": {"kind": "tail"}}, "average.kind = 'none'"),
    ({"update": {"clip": "norm"}}, "update.clip=none"),
    ({"update": {"normalise": True}}, "those that they agree on"),
    ({"precision": {"residual": "fp16"}}, "precision.residual=fp32"),
    ({"rate": {"per_batch": 8}}, "is for a known one"),
    ({"schedule": {"steps": 2}}, "use --steps 1"),
    ({"agreement": {"graph": "star"}}, "known: .*ring"),
    ({"agreement": {"graph": "0-3"}}, "unknown graph"),
    ({"agreement": {"graph": "0-1"}}, "add an edge"),
    ({"agreement": {"mixing": 0}}, "mixing = 0 must be"),
    ({"agreement": {"rounds": "never"}}, "one of clock, full"),
    ({"agreement": {"deadline": -1.0}}, "deadline = -1.0"),
    ({"agreement": {"replay": "/nowhere"}}, "give the rounds.csv"),
    ({"mirror": {"kind": "kl"}}, "known: .*entropy"),
    ({"mirror": {"radius": -1.0}}, "radius = -1.0"),
    ({"mirror": {"kind": "diagonal", "radius": 1.0}}, "has no radius"),
    ({"mirror": {"p": 1.5}}, "is for kind = 'p-norm'"),
    ({"mirror": {"kind": "p-norm", "p": 1.0}}, "above 1"),
    ({"mirror": {"epsilon": 0.0}}, "epsilon"),
    ({"agreement": {"kind": "gradient"}, "mirror": {"kind": "eg"}}, "--method anyb"),
    ({"agreement": {"kind": "average", "replay": "x"}}, "--method anybatch"),
]


@pytest.mark.parametrize("sections, remedy", REFUSED, ids=lambda x: str(x)[:50])
def test_what_it_cannot_do_is_said_with_the_remedy(sections, remedy):
    problem = make_problem("logistic")
    with pytest.raises(HpcsgdError, match=remedy):
        on_all(3, any_batch(problem, 3, **sections), problem)


@pytest.mark.parametrize(
    "section, key, values",
    [
        ("agreement", "graph", ("ring", "matching")),
        ("agreement", "weighted", (True, False)),
        ("mirror", "kind", ("euclidean", "diagonal")),
    ],
)
def test_replicas_that_planned_unlike_are_refused_together(section, key, values):
    problem = make_problem("logistic")

    def on_rank(world):
        asked = {section: {key: values[world.rank > 0]}}
        return train(
            any_batch(problem, 3, **asked), X=problem.X, y=problem.y, world=world
        )

    with pytest.raises(HpcsgdError, match="rank|replica"):
        run_ranks(3, on_rank)


def test_rows_that_are_read_ahead_are_refused():
    """They come by plan, and a round does not know how far it gets."""
    shard = SimpleNamespace(matrix=object.__new__(Streamed))
    feed = Rounds(None, None, [], 1, 1, stream=Stream(None, None, []))
    with pytest.raises(HpcsgdError, match="more ranks or a larger run.memory"):
        terms_of(None, None, SimpleNamespace(shard=shard), feed)


@pytest.mark.parametrize(
    "text, remedy",
    [
        ("round,chunks_0,rows_0\n0,1,1\n", "has rounds of 1 replicas"),
        ("round,chunks_0,chunks_1\n0,1,1\n", "1 rounds and the run takes"),
        ("round,chunks_0,chunks_1\n" + "0,9,1\n" * 40, "up to 9 chunks"),
        ("round,chunks_0,chunks_1\n0,x,1\n", "not a log of rounds"),
        ("", "has rounds of 0 replicas"),
    ],
)
def test_scripts_that_do_not_fit(text, remedy, tmp_path):
    problem = make_problem("logistic")
    (tmp_path / "rounds.csv").write_text(text)
    config = any_batch(problem, 2, agreement={"replay": str(tmp_path)})
    with pytest.raises(HpcsgdError, match=remedy):
        on_all(2, config, problem)


# -------------------------------------------------------------------------- graphs


GRAPHS = [
    (kind, size)
    for kind in ("full", "ring", "rings", "matching")
    for size in (1, 2, 3, 4, 7)
] + [("0-1,1-2,2-3,1-3", 4), ("0-1,0-2,0-3,0-4,0-5,0-6", 7)]


@pytest.mark.parametrize("kind, size", GRAPHS)
def test_graphs_keep_sums_and_bring_together(kind, size):
    """Doubly stochastic; what differs shrinks by σ₂ at least."""
    graph, rng = Graph(kind, size, seed=3), np.random.default_rng(0)
    y = rng.normal(size=(size, 5))
    for time in range(6):
        W = graph.at(time)
        assert W.min() >= 0 and np.allclose(W, W.T)
        np.testing.assert_allclose([W.sum(axis=0), W.sum(axis=1)], 1.0, atol=1e-15)
        after = W @ y
        np.testing.assert_allclose(after.sum(axis=0), y.sum(axis=0), atol=1e-12)
        apart = [np.linalg.norm(v - v.mean(axis=0)) for v in (y, after)]
        assert apart[1] <= sigma_2(W) * apart[0] + 1e-14
        for rank in range(size):
            row = graph.row(rank, time)
            assert list(row) == sorted(row) or rank in row
            assert row[rank] == W[rank, rank] and sum(row.values()) == pytest.approx(1)
        y = after
    if kind in ("ring", "rings") and size > 3:
        assert 0 < sigma_2(graph.at(0)) < 1


def test_graphs_over_time_join_all():
    for kind in ("rings", "matching"):
        for size in (2, 3, 4, 7):
            whole = np.eye(size)
            for time in range(60):
                whole = Graph(kind, size).at(time) @ whole
            np.testing.assert_allclose(whole, 1 / size, atol=1e-3)


def test_rows_alone_that_sum_to_one_bias_the_mean():
    """The broken twin: a star whose centre listens to all alike, and they to it."""
    W = np.array([[0.25] * 4, [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]])
    y = np.arange(4.0)
    assert np.allclose(W.sum(axis=1), 1.0)
    end = np.linalg.matrix_power(W, 200) @ y
    assert np.ptp(end) < 1e-12 and abs(end[0] - y.mean()) > 0.1
    from hpcsgd.agreement.graphs import check_doubly_stochastic
    from hpcsgd.errors import ConfigError

    with pytest.raises(ConfigError, match="Metropolis"):
        check_doubly_stochastic(W)


def test_iterations_of_a_run_shrink_disagreement_by_sigma_2():
    """On ranks: parts in rank order, the sum of all kept to 1e-12."""
    from hpcsgd.agreement.anybatch_mixing import Mixer

    start = np.random.default_rng(1).normal(size=(7, 6))

    def on_rank(world):
        mixer, words = Mixer(world, Graph("ring", 7), 1, False), start[world.rank]
        seen = [words.copy()]
        for number in range(9):
            mixer.mix(words, 0, number)
            seen.append(words.copy())
        return seen

    seen = np.array(run_ranks(7, on_rank))  # (R, iterations, words)
    apart = np.linalg.norm(seen - seen.mean(axis=0), axis=(0, 2))
    factor = sigma_2(Graph("ring", 7).at(0))
    assert all(b <= factor * a * (1 + 1e-12) for a, b in pairwise(apart))
    sums = seen.sum(axis=0)
    np.testing.assert_allclose(sums, np.broadcast_to(sums[0], sums.shape), atol=1e-12)
