"""PowerSGD: bases, shapes, start, memory; the laws of all codecs are elsewhere."""

import numpy as np
import pytest

from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import CODECS, CodecConfig
from hpcsgd.agreements.codecs.powersgd import PowerSgd, orthogonal, outer, shape_of
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import Alone, coded, exchange, moments, opened
from tests.helpers.harness import make_problem, train_on

EAGER = {"start": 0, "min_rate": 0}


def test_bases_are_orthonormal():
    """Nearly parallel columns, and sizes whose squares are no numbers."""
    rng = np.random.default_rng(1)
    near = rng.normal(size=(37, 1)) + 1e-9 * rng.normal(size=(37, 3))
    for columns in (near, 1e300 * near, 1e-300 * near, rng.normal(size=(5, 5))):
        basis = orthogonal(columns)
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), 0, 1e-14)
        kept = outer(basis, (columns.T / np.abs(columns).max()) @ basis)
        np.testing.assert_allclose(kept, columns / np.abs(columns).max(), 0, 1e-14)


def test_bases_have_the_same_bits_wherever_columns_lie():
    columns = np.random.default_rng(2).normal(size=(101, 3))
    whole = np.zeros(101 * 3 + 1)
    moved = whole[1:].reshape(101, 3)
    moved[...] = columns
    assert orthogonal(moved).tobytes() == orthogonal(columns).tobytes()


def test_columns_without_anything_stay_zero():
    columns = np.zeros((7, 3))
    columns[:, 1] = 2.0
    basis = orthogonal(columns)
    assert (basis[:, [0, 2]] == 0.0).all() and basis[0, 1] == pytest.approx(7**-0.5)


def test_shapes():
    """Scores as they are where that has ranks enough; vectors nearly square."""
    assert shape_of(101, 4, 1) == (101, 4)
    assert shape_of(101, 4, 4) == (21, 20)
    assert shape_of(101, 1, 1) == (11, 10)
    assert shape_of(1, 1, 1) == (1, 1)
    for words in range(1, 60):
        rows, columns = shape_of(words, 1, 1)
        assert rows * columns >= words > rows * (columns - 1)


def test_two_sums_of_thin_matrices():
    """Messages and bytes: r (n + m) words."""

    def on_rank(world):
        codec = opened("powersgd", {**EAGER, "rank": 2}, 101 * 4, 4, np.float32)
        part = np.ones(101 * 4, dtype=np.float32)
        told = codec.start(part, ReplicaChannel(world), moments(1)[0])()
        entry = world.ledger.entries["agreement"]
        return told.payload, entry.bytes, entry.calls

    for told, sent, calls in run_ranks(3, on_rank):
        assert told == sent == 4 * 2 * (101 + 4) and calls == 2


def test_it_is_linear():
    """What replicas get is what one replica would of the mean of their parts."""
    rng = np.random.default_rng(4)
    given = rng.normal(size=(6, 3, 101))

    def on_rank(world):
        codec = opened("powersgd", {**EAGER, "rank": 2}, 101)
        line = ReplicaChannel(world)
        return [
            codec.start(given[t, world.rank].copy(), line, at)().mean
            for t, at in enumerate(moments(6))
        ]

    alone = opened("powersgd", {**EAGER, "rank": 2}, 101)
    for t, at in enumerate(moments(6)):
        one = alone.start(given[t].mean(axis=0), Alone(), at)().mean
        for told in run_ranks(3, on_rank) if t == 5 else ():
            np.testing.assert_allclose(told[t], one, 0, 1e-11)


def test_it_begins_dense():
    """To the bit what the identity does with feedback; later it is not."""
    problem = make_problem("softmax")
    plain = coded(problem, "identity", 3, codec={"feedback": "on"})
    before = {**EAGER, "start": 1000}
    late = coded(problem, "powersgd", 3, codec=before)
    soon = coded(problem, "powersgd", 3, codec={**EAGER, "start": 2})
    weights = [train_on(3, config, problem).weights for config in (plain, late, soon)]
    assert weights[0].tobytes() == weights[1].tobytes()
    assert (weights[0] != weights[2]).any()


def test_bytes_before_and_after_the_start():
    settings = {"start": 1, "min_rate": 0}
    parts = np.ones((2, 101))
    first, second = moments(2)
    for at, words in ((first, 101), (second, 11 + 10)):
        for told, entry, codec in exchange(2, "powersgd", settings, parts, at):
            assert told.payload == entry.bytes == 8 * words
            assert codec.payload_bytes(2, 0) is None


def test_it_stays_dense_where_little_is_saved():
    """(n + m) r times min_rate has to be below the words."""
    for settings, words in (({}, 101 * 4), ({"min_rate": 4.0}, 101 * 4)):
        codec = opened("powersgd", {"start": 0, **settings}, words, 4)
        sent = (101 + 4) * 8 if not settings else words * 8
        assert codec.payload_bytes(2, 0) == sent


def test_no_gradient_at_all_does_not_lose_the_guess():
    codec = opened("powersgd", {**EAGER, "feedback": "off"}, 101)
    before = codec.kept["guess"].copy()
    _, second, third = moments(3)
    assert (codec.start(np.zeros(101), Alone(), second)().mean == 0.0).all()
    np.testing.assert_array_equal(codec.kept["guess"], before)
    assert (codec.start(np.ones(101), Alone(), third)().mean != 0.0).any()


def test_a_lost_rank_comes_back():
    """After a matrix of one word, a full one: nothing of it may be missing."""
    rng = np.random.default_rng(6)
    codec = opened("powersgd", {**EAGER, "rank": 5, "feedback": "off"}, 30)
    thin = np.zeros(30)
    thin[7] = 3.0
    full = rng.normal(size=30)
    for part, at in zip((thin, thin, full), moments(3), strict=True):
        told = codec.start(part.copy(), Alone(), at)()
        np.testing.assert_allclose(told.mean, part, 0, 1e-11)


def test_lost_columns_begin_by_other_dice_every_time():
    """By those of one exchange they could be lost for the same reason again."""
    codec = opened("powersgd", {**EAGER, "rank": 3, "feedback": "off"}, 30)
    thin, seen = np.zeros(30), [codec.kept["guess"].copy()]
    thin[7] = 3.0
    for moment in moments(3):
        codec.start(thin.copy(), Alone(), moment)()
        seen.append(codec.kept["guess"].copy())
    for one, other in zip(seen, seen[1:], strict=False):
        assert np.abs(one[:, 1:] - other[:, 1:]).max() > 1e-3


# ------------------------------------------------------------------ broken twins


class Global(PowerSgd):
    """Subtracts what all said instead of what this replica did."""

    def _finish(self, matrix, seen, line, moment):
        told = super()._finish(matrix, seen, line, moment)
        told.own[...] = told.mean
        return told


class Forgetful(PowerSgd):
    """Begins anew in every exchange."""

    def _remember(self, mean, moment):
        fresh = self.bucket.dice(moment).normal(size=self.kept["guess"].shape)
        self.kept["guess"][...] = fresh


@pytest.fixture
def twin(monkeypatch):
    def put(kind):
        monkeypatch.setitem(CODECS, kind.__name__, f"{__name__}:{kind.__name__}")
        return kind.__name__

    return put


def largest_error(name, steps):
    """Of replicas whose parts differ for ever and cancel in the mean."""
    rng = np.random.default_rng(8)
    shift = rng.normal(size=25)

    def on_rank(world):
        codec = opened(name, EAGER, 25)
        line, rng = ReplicaChannel(world), np.random.default_rng(9)
        sign = 1 - 2 * world.rank
        for at in moments(steps):
            codec.start(rng.normal(size=25) + sign * shift, line, at)()
        return np.abs(codec.error).max()

    return max(run_ranks(2, on_rank))


def test_errors_of_single_replicas_do_not_grow(twin):
    """With the local product they stay; with the mean they grow with the steps."""
    name = twin(Global)
    assert largest_error("powersgd", 400) < 2.0 * largest_error("powersgd", 100)
    assert largest_error(name, 400) > 3.0 * largest_error(name, 100)


def test_a_warm_start_is_better(twin):
    """A matrix that stays: the power method goes on where it was."""
    rng = np.random.default_rng(10)
    left, right = (np.linalg.qr(rng.normal(size=(20, 20)))[0] for _ in range(2))
    matrix = left * 0.7 ** np.arange(20) @ right.T
    lost = {}
    for name in ("powersgd", twin(Forgetful)):
        codec = opened(name, {**EAGER, "feedback": "off"}, 400)
        for at in moments(20):
            told = codec.start(matrix.reshape(-1).copy(), Alone(), at)()
        lost[name] = np.linalg.norm(told.mean - matrix.reshape(-1))
    best = np.linalg.norm(0.7 ** np.arange(1, 20))
    assert lost["powersgd"] == pytest.approx(best, rel=1e-4)
    assert lost["Forgetful"] > 1.02 * best


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"start": -1}, {"min_rate": -1.0}])
def test_settings_are_checked_at_birth(wrong):
    with pytest.raises(ConfigError, match="must be at least"):
        CodecConfig(**wrong)


def test_it_goes_to_the_optimum():
    """Least squares whose gradient is all there is to send, shards that differ."""
    rng = np.random.default_rng(11)
    bend = rng.uniform(0.5, 1.0, size=25)
    goals = rng.normal(size=(2, 25))

    def on_rank(world):
        codec, line = opened("powersgd", EAGER, 25), ReplicaChannel(world)
        weights = np.zeros(25)
        for at in moments(1500):
            part = 0.1 * bend * (weights - goals[world.rank])
            weights -= codec.start(part, line, at)().mean
        return np.linalg.norm(bend * (weights - goals.mean(axis=0)))

    assert max(run_ranks(2, on_rank)) < 1e-12


# -------------------------------------------------------- iterations, warm start


def power_method(parts, rank, rows, first, iterations):
    """P and Q of algorithm 1 of the paper, repeated, by QR of NumPy: the mean."""
    count, words = parts.shape
    whole = np.zeros((count, rows, -(-words // rows)))
    whole.reshape(count, -1)[:, :words] = parts
    right = first
    for _ in range(iterations):
        left = np.linalg.qr(sum(M @ right for M in whole))[0]
        right = sum(M.T @ left for M in whole) / count
    return (left @ right.T).reshape(-1)[:words]


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("rank", [1, 3])
def test_iterations_are_those_of_the_paper(iterations, rank):
    """Three replicas, one exchange, and the bytes of two sums an iteration."""
    rng = np.random.default_rng(7)
    parts = rng.normal(size=(3, 101)) * np.exp(rng.normal(size=101))
    settings = {**EAGER, "rank": rank, "iterations": iterations, "feedback": "off"}
    first = opened("powersgd", settings, 101).kept["guess"].copy()
    rows = shape_of(101, 1, rank)[0]
    wanted = power_method(parts, rank, rows, first, iterations)
    for told, entry, codec in exchange(3, "powersgd", settings, parts):
        np.testing.assert_allclose(told.mean, wanted, 0, 1e-11)
        sent = 8 * iterations * rank * sum(codec.shape)
        assert told.payload == entry.bytes == codec.payload_bytes(3, 0) == sent
        assert entry.calls == 2 * iterations


def test_many_iterations_give_the_best_matrix_of_the_rank():
    """Of one replica: the truncated singular values of M."""
    M = np.random.default_rng(8).normal(size=(11, 10))
    settings = {**EAGER, "rank": 2, "iterations": 400, "feedback": "off"}
    codec = opened("powersgd", settings, 110)
    found = codec.start(M.reshape(-1).copy(), Alone(), moments(1)[0])().mean
    left, sizes, right = np.linalg.svd(M)
    best = (left[:, :2] * sizes[:2]) @ right[:2]
    np.testing.assert_allclose(found.reshape(11, 10), best, 0, 1e-10)


def test_without_a_warm_start_nothing_is_kept_and_dice_are_thrown_anew():
    settings = {**EAGER, "warm_start": False, "feedback": "off"}
    parts = np.random.default_rng(9).normal(size=(2, 101))
    found = [exchange(2, "powersgd", settings, parts, at) for at in moments(2)]
    for (told, _, codec), (other, _, _) in zip(*found, strict=True):
        assert codec.kept == {}
        assert PowerSgd.table_bytes(codec.bucket, codec.config) == 0
        assert (told.mean != other.mean).any()
    again = exchange(2, "powersgd", settings, parts, moments(2)[1])[0][0]
    np.testing.assert_array_equal(again.mean, found[1][0][0].mean)


def test_a_warm_start_comes_nearer():
    """The same matrix again and again: Q follows it, random columns do not."""
    M = np.random.default_rng(10).normal(size=101)
    left = {}
    for warm in (True, False):
        settings = {**EAGER, "warm_start": warm, "feedback": "off"}
        codec = opened("powersgd", settings, 101)
        for at in moments(30):
            told = codec.start(M.copy(), Alone(), at)()
        left[warm] = np.abs(told.mean - M).sum()
    assert left[True] < left[False]
