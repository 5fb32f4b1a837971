"""Deep gradient compression: momentum, masking, clipping, what waits."""

import numpy as np
import pytest

from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs.sparse import Dgc
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import (
    coded,
    exchange,
    gap_of,
    moments,
    on_all,
    opened,
    parts_of,
)
from tests.helpers.harness import make_problem


def run_of(settings, ranks=3, words=37, steps=30):
    """[(means of all steps, u and v after each of them)] of all replicas."""
    given = [parts_of(words, ranks, step) for step in range(steps)]

    def on_rank(world):
        line, codec = ReplicaChannel(world), opened("dgc", settings, words)
        seen = []
        for moment in moments(steps):
            part = given[moment.number][world.rank].copy()
            mean = codec.start(part, line, moment)().mean.copy()
            seen.append((mean, codec.momentum.copy(), codec.velocity.copy()))
        return seen

    return given, run_ranks(ranks, on_rank)


@pytest.mark.parametrize("dense", ["auto", "never"])
@pytest.mark.parametrize("masking", [False, True])
def test_all_words_are_sgd_with_momentum(masking, dense):
    """k = D bypasses masking, by records and by a sum."""
    settings = {"share": 1.0, "masking": masking, "dense": dense}
    given, seen = run_of(settings)
    momentum = np.zeros(37)
    for parts, (mean, _, waits) in zip(given, seen[0], strict=True):
        momentum = 0.9 * momentum + 0.1 * parts.mean(axis=0)
        np.testing.assert_allclose(mean, momentum, 0, 1e-13 * np.abs(parts).max())
        assert (waits == 0.0).all()


def test_what_is_not_sent_yet_waits():
    """Σ sent + mean v = Σ mean u, without masking; with it words are lost."""
    for masking in (False, True):
        given, seen = run_of({"share": 0.1, "masking": masking})
        asked, momentum = np.zeros(37), np.zeros(37)
        for parts in given:
            momentum = 0.9 * momentum + 0.1 * parts.mean(axis=0)
            asked += momentum
        sent = np.sum([mean for mean, _, _ in seen[0]], axis=0)
        waits = np.mean([steps[-1][2] for steps in seen], axis=0)
        lost = np.abs(sent + waits - asked).max() / np.abs(asked).max()
        assert (lost > 1e-3) if masking else (lost < 1e-13)
        assert np.abs(waits).max() > 1e-3 * np.abs(asked).max()


def test_words_that_were_sent_are_masked():
    """u and v are zero there, and only there."""
    for masking in (False, True):
        _, seen = run_of({"share": 0.1, "masking": masking}, words=36, steps=1)
        for _, momentum, waits in [steps[0] for steps in seen]:
            part_is_there = np.arange(36) % 5 != 0
            sent = part_is_there & (waits == 0.0)
            assert sent.sum() == 4
            assert ((momentum == 0.0) == (sent & masking | ~part_is_there)).all()


def test_parts_are_clipped_to_their_share_of_the_norm():
    """clip / √R, before momentum sees them; shorter ones stay."""
    parts = parts_of(37, 4)
    parts[0] *= 1e-6
    settings = {"share": 1.0, "clip": 2.0, "momentum": 0.0}
    norms = np.linalg.norm(parts, axis=1, keepdims=True)
    wanted = (parts * np.minimum(1.0, 1.0 / norms)).mean(axis=0)
    for told, _, _ in exchange(4, "dgc", settings, parts):
        np.testing.assert_allclose(told.mean, wanted, 1e-12, 1e-15)


def test_what_waits_must_be_kept(monkeypatch):
    """The twin without accumulation: another optimum."""
    settings = {"share": 0.2}
    start = Dgc.start

    def forgetful(self, part, line, moment):
        self.velocity[...] = 0.0
        return start(self, part, line, moment)

    kept = gap_of("dgc", settings, 0.25, 150)
    monkeypatch.setattr(Dgc, "start", forgetful)
    assert gap_of("dgc", settings, 0.25, 150) > 20 * kept


def test_nesterov_is_a_step_along_the_next_momentum():
    """All words: SGD with Nesterov's momentum at rate (1 − m) η; else it is not."""
    problem = make_problem("softmax")
    told = {"share": 1.0, "dense": "never", "nesterov": True, "momentum": 0.8}

    def trained(name, rate, **sections):
        config = coded(
            problem,
            name,
            3,
            problem={"l2": 0.0, "intercept": False},
            rate={"value": rate},
            **sections,
        )
        return on_all(3, config, problem)[0].weights

    nesterov = {"kind": "nesterov", "momentum": 0.8}
    plain = trained("identity", 0.2 * 0.1, update=nesterov)
    found = trained("dgc", 0.1, codec=told)
    np.testing.assert_allclose(found, plain, 0, 1e-13)
    heavy = trained("dgc", 0.1, codec={**told, "nesterov": False})
    assert np.abs(heavy - plain).max() > 1e-4 * np.abs(plain).max()


@pytest.mark.parametrize("nesterov", [False, True])
def test_nesterov_leaves_the_optimum_where_it_is(nesterov):
    assert gap_of("dgc", {"share": 0.2, "nesterov": nesterov}, 0.25) < 1e-3


@pytest.mark.parametrize("kind", ["momentum", "nesterov", "nesterov-classic", "adam"])
@pytest.mark.parametrize("codec", ["dgc", "accordion"])
def test_momentum_of_momentum_is_refused(kind, codec):
    problem = make_problem("logistic")
    settings = {"accordion": {"codec": "dgc"}} if codec == "accordion" else {}
    config = coded(problem, codec, 2, codec=settings, update={"kind": kind})
    with pytest.raises(ConfigError, match="use --update sgd, or codec.momentum = 0"):
        on_all(2, config, problem)
    settings = {**settings, "momentum": 0.0}
    config = coded(problem, codec, 2, codec=settings, update={"kind": kind})
    assert on_all(2, config, problem)[0].status.value == "completed"


def clipped_run(replicas, members, bucket, /, **sections):
    """Weights of a run that sends all words and clips, on this grid."""
    problem = make_problem("softmax")
    agreement = {"bucket": bucket, **sections.pop("agreement", {})}
    config = coded(
        problem,
        "dgc",
        replicas,
        members,
        codec={
            "share": 1.0,
            "clip": 0.02,
            "momentum": 0.5,
            **sections.pop("codec", {}),
        },
        agreement=agreement,
        rate={"value": 0.5},
        **sections,
    )
    return on_all(replicas * members, config, problem)


WIDE, NARROW = 25.0, 8 * 5 * 2.0**-20
WAYS = {
    "several buckets": {},
    "scheduled": {"agreement": {"kind": "scheduled"}},
    "one by one": {"agreement": {"kind": "scheduled", "credit": 1e-6}},
    "growing": {"agreement": {"kind": "growing", "accumulate": 2}},
    "accumulated": {"agreement": {"accumulate": 2}},
    "turned by accordion": {
        "agreement": {"codec": "accordion"},
        "codec": {"accordion": {"codec": "dgc", "low": "share=1.0", "eta": 0.0}},
    },
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_replica_is_clipped_as_a_whole_on_every_grid(way):
    """By the norm of all its columns, whoever holds them in however many buckets."""
    sections = WAYS[way]
    one = clipped_run(2, 1, WIDE, **sections)[0]
    never = {**sections, "codec": {**sections.get("codec", {}), "clip": 0.0}}
    free = clipped_run(2, 1, WIDE, **never)[0].weights
    assert np.abs(one.weights - free).max() > 0.1 * np.abs(free).max()
    for members, bucket in ((1, NARROW), (2, WIDE), (2, NARROW), (3, NARROW)):
        other = clipped_run(2, members, bucket, **sections)[0].weights
        np.testing.assert_allclose(other, one.weights, 0, 1e-12 * np.abs(free).max())


def test_clipping_is_of_the_whole_gradient_times_its_share():
    """Against a run of SGD written out: g min(1, clip / (√R ‖g‖)) of every replica."""
    problem, clip, rate, replicas = make_problem("gaussian"), 0.05, 0.3, 2
    config = coded(
        problem,
        "dgc",
        replicas,
        2,
        codec={"share": 1.0, "clip": clip, "momentum": 0.0},
        problem={"intercept": False, "l2": 0.0},
        rate={"value": rate},
        schedule={"batch": 100, "epochs": 3},
    )
    X, y = np.asarray(problem.X, dtype=np.float64), problem.y.reshape(-1)
    shares = np.array_split(np.arange(len(X)), replicas)
    weights = np.zeros(X.shape[1])
    for _ in range(3):
        parts = []
        for rows in shares:
            sums = X[rows].T @ (X[rows] @ weights - y[rows])
            part = replicas * sums / len(X)
            most = clip / replicas**0.5
            parts.append(part * min(1.0, most / np.linalg.norm(part)))
        weights -= rate * np.mean(parts, axis=0)
    found = on_all(4, config, problem)[0].weights.reshape(-1)
    np.testing.assert_allclose(found, weights, 0, 1e-12)


def test_groups_are_clipped_by_their_leaders():
    """With hierarchical = 2 the parts of four replicas are two; they are clipped."""
    of = {"agreement": {"hierarchical": "2"}}
    one = clipped_run(4, 1, WIDE, **of)[0].weights
    for members, bucket in ((1, NARROW), (2, NARROW)):
        other = clipped_run(4, members, bucket, **of)[0].weights
        np.testing.assert_allclose(other, one, 0, 1e-12)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_the_norm_of_all_members_is_one_word_more(members):
    """Eight bytes a step where several members hold the columns, else none."""
    clips, never = (
        clipped_run(2, members, WIDE, codec={"clip": clip}) for clip in (0.02, 0.0)
    )
    for one, other in zip(clips, never, strict=True):
        said = [r.ledger["agreement"] for r in (one, other)]
        more = one.exchanges * (members > 1)
        assert said[0]["bytes"] - said[1]["bytes"] == 8 * more
        assert said[0]["calls"] - said[1]["calls"] == more
