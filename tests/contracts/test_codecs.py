"""Every codec of the table, under every law."""

import numpy as np
import pytest

from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import CODECS, Bucket, CodecConfig, Feedback, Moment
from hpcsgd.agreements.codecs.base import COUNT_BYTES, GatheredCodec
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import (
    BUCKET_LAWS,
    NAMES,
    ROWS,
    RUN_LAWS,
    Row,
    coded,
    exchange,
    gives_all_replicas_the_same_bits,
    is_the_mean_where_nothing_is_lost,
    is_unbiased_where_it_says_so,
    keeps_what_it_has_not_sent,
    on_all,
    opened,
    sends_the_bytes_of_its_formula,
)
from tests.helpers.contracts.codec_runs import converges_and_its_twin_does_worse
from tests.helpers.harness import make_problem

LAWS = [
    law
    for law in (*BUCKET_LAWS, *RUN_LAWS)
    if law is not converges_and_its_twin_does_worse
]


def test_every_codec_says_how_it_is_tested():
    assert set(ROWS) == set(CODECS)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_forgotten_in_a_thousand_steps(name):
    with np.errstate(all="ignore"):
        keeps_what_it_has_not_sent(name, ROWS[name], steps=1000, ranks=4)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_law(name, law):
    with np.errstate(all="ignore"):
        law(name, ROWS[name])


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NAMES)
def test_it_converges_and_its_twin_does_worse(name):
    with np.errstate(all="ignore"):
        converges_and_its_twin_does_worse(name, ROWS[name])


def test_fp16_divides_before_it_adds():
    """4 x 20000 is beyond fp16; a mean of them is not."""
    parts = np.full((4, 5), 20000.0)
    for told, _, _ in exchange(4, "fp16", {}, parts):
        np.testing.assert_array_equal(told.mean, 20000.0)
    with np.errstate(over="ignore"):
        assert np.isinf(np.sum(parts.astype(np.float16), axis=0)).all()


class Coin(GatheredCodec):
    """A toy: each word is sent doubled, or not at all, by a coin of this replica."""

    unbiased = True
    wants_feedback = False
    factor = 2.0
    dice_of_all = False

    def encode(self, part, moment, replica):
        who = 0 if self.dice_of_all else 1 + replica
        heads = self.bucket.dice(moment, who).random(part.size) < 0.5
        return np.where(heads, self.factor * part, 0.0)

    def add_decoded(self, record, total, moment):
        total += record

    def payload_bytes(self, ranks, rank):
        return self.bucket.words * 8

    def variance(self, part):
        return part**2


class Biased(Coin):
    """Its broken twin."""

    factor = 2.1


class TooLong(Coin):
    """And one that says fewer bytes than it sends."""

    def payload_bytes(self, ranks, rank):
        return self.bucket.words * 8 - 1


def test_the_laws_can_fail(monkeypatch):
    """A codec of the table's other kind keeps them, its broken twins do not."""
    for kind in (Coin, Biased, TooLong):
        monkeypatch.setitem(CODECS, kind.__name__, f"{__name__}:{kind.__name__}")
    row = Row(exact=None)
    is_unbiased_where_it_says_so("Coin", row)
    gives_all_replicas_the_same_bits("Coin", row)
    with pytest.raises(AssertionError):
        is_unbiased_where_it_says_so("Biased", row)
    with pytest.raises(AssertionError):
        is_the_mean_where_nothing_is_lost("Coin", Row(exact={}))
    with pytest.raises(AssertionError):
        sends_the_bytes_of_its_formula("TooLong", row)
    monkeypatch.setattr(Feedback, "start", lambda self, *of: self.codec.start(*of))
    with pytest.raises(AssertionError):
        keeps_what_it_has_not_sent("Coin", row)


def test_dice_depend_on_everything_they_should():
    """Seed, member, bucket, exchange and replica; nothing else."""
    moment = Moment(3, 0, 0.1, 0.1)
    draws = {
        float(
            Bucket(number, 5, 1, np.dtype(float), seed, member).dice(when, who).random()
        )
        for number in (0, 1)
        for seed in (0, 1)
        for member in (0, 1)
        for when in (moment, Moment(4, 0, 0.1, 0.1))
        for who in (0, 1, 2)
    }
    assert len(draws) == 48
    first = Bucket(0, 5, 1, np.dtype(float)).dice(moment).random()
    assert first == Bucket(0, 5, 1, np.dtype(float)).dice(Moment(3, 9, 1, 1)).random()


def test_feedback_is_refused_where_a_codec_remembers_itself(monkeypatch):
    monkeypatch.setattr(Coin, "has_own_memory", True)
    monkeypatch.setitem(CODECS, "Coin", f"{__name__}:Coin")
    with pytest.raises(ConfigError, match="use feedback = 'auto'"):
        opened("Coin", {"feedback": "on"})
    with pytest.raises(ConfigError, match="must be one of auto, on, off"):
        CodecConfig(feedback="sometimes")


def test_one_bucket_has_several_records_of_any_length():
    """Records of unequal length: their numbers go ahead, eight bytes more."""

    def on_rank(world):
        line = ReplicaChannel(world)
        record = np.full(world.rank, world.rank, dtype=np.uint8)
        got = line.gather_unequal(record)
        return [r.tolist() for r in got], world.ledger.entries["agreement"].bytes

    for rank, (got, sent) in enumerate(run_ranks(3, on_rank)):
        assert got == [[], [1], [2, 2]]
        assert sent == COUNT_BYTES + rank


class Late(Coin):
    """A toy that says nothing in every other exchange, and all in the next."""

    unbiased = False
    wants_feedback = True

    def encode(self, part, moment, replica):
        return part * (moment.number % 2)


def test_what_was_lost_is_made_good_at_the_rate_of_its_step(monkeypatch):
    """Two full batches at w = 0: the second step is (η_0 + η_1) g, not 2 η_1 g."""
    monkeypatch.setitem(CODECS, "Late", f"{__name__}:Late")
    problem = make_problem("logistic", n=12)
    sections = {
        "schedule": {"batch": 6, "epochs": 2},
        "problem": {"l2": 0.0, "intercept": False},
        "rate": {"kind": "inverse", "value": 0.5, "decay": 9.0},
    }
    config = coded(problem, "Late", 2, **sections)
    result = on_all(2, config, problem)[0]
    gradient = problem.X.T @ (0.5 - problem.y) / 12
    expected = -(0.5 + 0.05) * gradient
    np.testing.assert_allclose(result.weights, expected, rtol=1e-12)
