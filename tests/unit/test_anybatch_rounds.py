"""Any-batch rounds: what they say, their clock and log, how they end, refusals."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.agreements.more.anybatch import (
    MixingTime,
    TimedRounds,
    read_iterations,
)
from hpcsgd.api import train
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.stream import StreamedMatrix
from hpcsgd.data.synthetic import Knobs, plant
from hpcsgd.errors import HpcsgdError
from hpcsgd.products.direct import Stream
from hpcsgd.runs.advice import advise_fewer_messages
from hpcsgd.runs.agreements import terms_of
from hpcsgd.runs.feed import RoundFeed
from tests.helpers.anybatch import (
    MAPS,
    any_batch,
    on_all,
    restated,
    script,
    scripted,
)
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, relative_error, train_on
from tests.helpers.sparse import make_sparse

# --------------------------------------------------------------------------- bytes


@pytest.mark.cases(3)
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
    made = TimedRounds.__init__

    def init(self, grid, most, deadline):
        made(self, grid, most, deadline, Ticks(speeds[grid.replica]))

    monkeypatch.setattr(TimedRounds, "__init__", init)


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
        pace = TimedRounds(grid, 6, 4.5, Ticks([1.0, 1e-9][grid.member]))
        pace.begin(0)
        taken = 0
        while pace.has_next_chunk(taken):
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


def test_iterations_fit_into_a_fixed_time():
    """The median rank counts; there is one at least, and the first round measures."""

    def on_rank(world):
        time = MixingTime(world, 1.0)
        fitting = [
            time.fitting([s * (1, 3, 9)[world.rank]]) for s in (0.1, 0.001, 2.0, 0.0)
        ]
        counts = []
        for count in (4, 3, 3):
            counts.append(time.next_count(usual=4 if not counts else 3))
            time.counts.append(count)
        return fitting, counts

    assert run_ranks(3, on_rank) == [([3, 333, 1, 1000], [4, 3, 3])] * 3


@pytest.mark.parametrize("graph, members", [("ring", 1), ("matching", 2)])
def test_rounds_of_other_numbers_of_iterations_are_their_formula(
    graph, members, tmp_path
):
    """By a log: the graph goes on from where the round before has left it."""
    problem = make_problem("softmax")
    config, chunks = scripted(tmp_path, problem, 4, members)
    iterations = [2, 5, 1, 1, 4, 3, 1, 2]
    tables = config.tables()
    tables["agreement"] |= {
        "graph": graph,
        "mixing": 2,
        "mixing_seconds": 1.0,
        "replay": script(tmp_path, chunks, iterations),
    }
    config = type(config).parse(tables)
    result = on_all(4 * members, config, problem)[0]
    told = result.report["agreement"]["rounds"]
    done = told["chunks"][0]
    assert told["iterations"] == iterations[: len(done)]
    done = chunks[:, : len(done)]
    _, *mean = restated(config, problem, done, iterations)
    assert relative_error(result, mean) <= 1e-12
    _, *usual = restated(config, problem, done)
    assert relative_error(result, usual) > 1e-6


def test_a_fixed_time_of_mixing_is_kept_and_replayed(tmp_path):
    """Rounds after the first have one number; the log of them is the same run."""
    problem = make_problem("softmax")
    asked = {"graph": "ring", "mixing": 2, "mixing_seconds": 0.003}
    config = any_batch(problem, 3, agreement=asked)
    first = in_folder(tmp_path / "first", config, 3, problem)[0]
    told = first.report["agreement"]["rounds"]["iterations"]
    assert told[0] == 2 and len(set(told[1:])) == 1 and told[1] >= 1
    words = 4 * 7 + 1
    sent = first.ledger["agreement"]
    assert sent["calls"] == 2 * sum(told) + 1
    assert sent["words"] == 2 * sum(told) * words + words
    config = any_batch(
        problem, 3, agreement={**asked, "replay": str(tmp_path / "first")}
    )
    again = in_folder(tmp_path / "again", config, 3, problem)[0]
    assert again.weights_sha256 == first.weights_sha256
    in_folder(tmp_path / "parts", config, 3, problem, stop=4)
    parts = in_folder(tmp_path / "parts", config, 3, problem)[0]
    assert parts.weights_sha256 == first.weights_sha256
    assert parts.report["agreement"]["rounds"]["iterations"] == told


def regret_of(config, problem, done):
    """Static and dynamic regret of squared errors: the minima by normal equations."""
    plays = []
    restated(config, problem, done, plays=plays)
    l2, intercept = config.problem.l2, config.problem.intercept
    X = np.hstack([problem.X, np.ones((len(problem.X), 1)) * intercept])

    def least(rows):
        if not len(rows):
            return 0.0
        penalty = len(rows) * l2 * np.eye(X.shape[1])
        penalty[-1, -1] = 0.0 if intercept else 1.0
        A, y = X[rows], problem.y[rows]
        x = np.linalg.solve(A.T @ A + penalty, A.T @ y)
        return np.square(A @ x - y).sum() / 2 + x @ penalty @ x / 2

    cost = 0.0
    for rounds in plays:
        for rows, w, b in rounds:
            error = problem.X[rows] @ w[:, 0] + b[0] - problem.y[rows]
            cost += np.square(error).sum() / 2 + len(rows) * l2 * (w**2).sum() / 2
    taken = [np.concatenate([rows for rows, _, _ in rounds]) for rounds in plays]
    static = cost - least(np.concatenate(taken))
    return float(static), float(cost - sum(least(rows) for rows in taken))


@pytest.mark.parametrize("replicas, graph", [(1, "full"), (3, "ring"), (4, "matching")])
def test_regret_is_against_the_best_points(replicas, graph, tmp_path):
    """Static and dynamic, of uneven rounds, and those before a kill count."""
    problem = make_problem("gaussian")
    config, chunks = scripted(
        tmp_path,
        problem,
        replicas,
        problem={"intercept": True},
        agreement={"graph": graph, "regret": True},
    )
    whole = on_all(replicas, config, problem)
    done = chunks[:, : whole[0].exchanges]
    static, dynamic = regret_of(config, problem, done)
    told = [r.report["agreement"]["regret"] for r in whole]
    assert told[0]["static"] == pytest.approx(static, rel=1e-8)
    assert told[0]["dynamic"] == pytest.approx(dynamic, rel=1e-8)
    assert told[0]["dynamic"] > told[0]["static"] > 0 and told == [told[0]] * replicas
    in_folder(tmp_path / "parts", config, replicas, problem, stop=3)
    again = in_folder(tmp_path / "parts", config, replicas, problem)[0]
    assert again.report["agreement"]["regret"] == told[0]
    plain = config.tables()
    plain["agreement"].pop("regret")
    result = on_all(replicas, type(config).parse(plain), problem)[0]
    assert result.weights_sha256 == whole[0].weights_sha256
    assert "regret" not in result.report["agreement"]


def test_the_mean_static_regret_falls():
    """On rows that are drawn from one law: of few classes, sparse or not."""
    stored, dense = make_sparse("softmax")
    found = []
    for epochs in (2, 30):
        config = any_batch(
            dense,
            2,
            schedule={"epochs": epochs},
            problem={"intercept": True},
            agreement={"regret": True},
        )
        told = [
            on_all(2, config, rows)[0].report["agreement"]["regret"]
            for rows in (stored, dense)
        ]
        for name in ("loss", "static", "dynamic"):
            assert told[0][name] == pytest.approx(told[1][name], rel=1e-9)
        found.append(told[0]["static"] / told[0]["rows"])
    assert 0 < found[1] < 0.6 * found[0]


def test_streams_that_drift_have_a_best_point_that_moves():
    """A whole turn of the truth, alike on both replicas: no fixed point is good."""
    rows, found = 2048, {}
    for name, period in (("still", 0.0), ("drifts", rows / 2)):
        X, y = plant("synth", 5, 0, Knobs(period=period)).block(0)
        drawn = make_problem("logistic", n=rows, d=5)
        problem = replace(drawn, X=X.astype(np.float64), y=y)
        config = any_batch(
            problem,
            2,
            schedule={"batch": 64, "epochs": 1},
            problem={"l2": 1e-3},
            sampling={"mode": "in-order"},
            rate={"value": 0.2},
            agreement={"graph": "ring", "regret": True},
        )
        told = on_all(2, config, problem)[0].report["agreement"]["regret"]
        found[name] = {key: told[key] / told["rows"] for key in ("static", "dynamic")}
    still, drifts = found["still"], found["drifts"]
    assert 0 < still["static"] < still["dynamic"]
    assert drifts["dynamic"] - drifts["static"] > 4 * (
        still["dynamic"] - still["static"]
    )


def test_what_to_do_where_agreeing_takes_the_time():
    """A longer deadline; larger batches where none was set or found."""
    problem = make_problem("logistic")
    result = train_on(2, any_batch(problem, 2), problem)
    rounds = result.report["agreement"]
    for deadline, said in ((0.25, "agreement.deadline=0.5 "), (None, "accumulate=")):
        rounds["deadline_seconds"] = deadline
        assert said in advise_fewer_messages(result)


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


@pytest.mark.cases(2)
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


@pytest.mark.cases(4)
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
    ({"agreement": {"codec": "bf16"}}, "supports no codecs.*leave agreement.codec"),
    ({"update": {"kind": "momentum"}}, "use --update sgd"),
    ({"update": {"kind": "adam"}}, "use --update sgd"),
    ({"average": {"kind": "tail"}}, "average.kind = 'none'"),
    ({"update": {"clip": "norm"}}, "supports no clipping"),
    ({"update": {"normalise": True}}, "supports no change of a mean gradient"),
    ({"precision": {"residual": "fp16"}}, "precision.residual=fp32"),
    ({"rate": {"per_batch": 8}}, "is for a known one"),
    ({"schedule": {"steps": 2}}, "use --steps 1"),
    ({"agreement": {"graph": "star"}}, "known: .*ring"),
    ({"agreement": {"graph": "0-3"}}, "unknown graph"),
    ({"agreement": {"graph": "0-1"}}, "add an edge"),
    ({"agreement": {"mixing": 0}}, "mixing = 0 must be"),
    ({"agreement": {"mixing_seconds": 1.0}}, "use another agreement.graph"),
    ({"agreement": {"regret": True}, "problem": {"l2": 0.0}}, "use --l2"),
    (
        {"agreement": {"regret": True}, "mirror": {"kind": "eg"}},
        "another mirror.kind",
    ),
    (
        {"agreement": {"regret": True}, "grid": {"replicas": 1, "members": 3}},
        "use one member",
    ),
    ({"agreement": {"rounds": "never"}}, "one of clock, full"),
    ({"agreement": {"deadline": -1.0}}, "deadline = -1.0"),
    ({"agreement": {"replay": "/nowhere"}}, "give the rounds.csv"),
    ({"mirror": {"kind": "kl"}}, "must be one of .*entropy"),
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
    shard = SimpleNamespace(matrix=object.__new__(StreamedMatrix))
    feed = RoundFeed(None, None, [], 1, 1, stream=Stream(None, None, []))
    with pytest.raises(HpcsgdError, match="more ranks or a larger run.memory"):
        terms_of(None, None, SimpleNamespace(shard=shard), feed, None)


def test_a_log_without_iterations_fixes_no_time(tmp_path):
    with pytest.raises(HpcsgdError, match="no numbers of consensus iterations"):
        read_iterations(script(tmp_path, np.ones((2, 3), dtype=int)))


@pytest.mark.parametrize(
    "text, remedy",
    [
        ("round,chunks_0,rows_0\n0,1,1\n", "the rounds of 1 replicas"),
        ("round,chunks_0,chunks_1\n0,1,1\n", "1 rounds and this run needs"),
        ("round,chunks_0,chunks_1\n" + "0,9,1\n" * 40, "up to 9 chunks"),
        ("round,chunks_0,chunks_1\n0,x,1\n", "not a log of rounds"),
        ("", "the rounds of 0 replicas"),
    ],
)
def test_scripts_that_do_not_fit(text, remedy, tmp_path):
    problem = make_problem("logistic")
    (tmp_path / "rounds.csv").write_text(text)
    config = any_batch(problem, 2, agreement={"replay": str(tmp_path)})
    with pytest.raises(HpcsgdError, match=remedy):
        on_all(2, config, problem)
