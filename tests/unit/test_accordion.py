"""Accordion: when it turns, that all turn together, what that costs and keeps."""

from functools import cache
from math import ceil, inf, nan

import numpy as np
import pytest

from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import AccordionConfig, Feedback, Moment, accordion
from hpcsgd.agreements.codecs.accordion import Accordion
from hpcsgd.agreements.codecs.base import Regime, Stopwatch
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.glm.updates import DROPPING, RATES
from tests.helpers.contracts.codec import (
    Alone,
    coded,
    gap_of,
    moments,
    on_all,
    opened,
    parts_of,
)
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, train_on, what_is_read

RANKS = {"start": 0, "min_rate": 0}
TURNS = {"codec": "topk", "low": "share=0.5", "high": "share=0.2", "interval": 1}


def modes_of(norms, eta, interval=1, milestones=()):
    """'l' or 'h' of every epoch, where the gradient of epoch e sums up to norms[e]."""
    total = np.zeros(4)
    regime, seen = Regime(total, eta, interval), ""
    for epoch, norm in enumerate(norms):
        for exchange in range(3):
            number, drops = 3 * epoch + exchange, sum(m <= epoch for m in milestones)
            moment = Moment(number, epoch, 0.1**drops / (1 + number), 0.0, drops)
            if regime.is_due(moment):
                square = regime.take_square()
                regime.turn(regime.verdict(moment, square), moment, square)
            regime.note_drop(moment)
            if regime.watches(moment):
                total += norm / 3 / 2
            regime.count(moment)
            if exchange == 0:
                seen += "l" if regime.is_low else "h"
            assert seen[-1] == ("l" if regime.is_low else "h"), "amid an epoch"
    return seen


STEADY = [0.36, 0.20, 0.12, 0.081, 0.057, 0.041]  # ρ from 0.44 down to 0.28
SCRIPTS = [
    # the first epoch, and what comes before a second one was seen
    (STEADY, {"eta": 0.5}, "llhhhh"),
    (STEADY, {"eta": 0.35}, "lll" + "lhh"),  # ρ = .44, .4, .325, .296
    (STEADY, {"eta": 0.0}, "llllll"),
    (STEADY, {"eta": inf}, "llhhhh"),
    ([1, 1.1, 1, 2, 2, 2], {"eta": 0.25}, "llhhlh"),  # growing is changing, too
    ([0, 1, 1, 1, 1, 1], {"eta": 0.25}, "lllhhh"),  # nothing to compare with
    ([1, nan, 1, 1, 1, 1], {"eta": inf}, "llllhh"),
    ([1, 1, 1, 1, 1], {"eta": 0.25, "milestones": [3]}, "llhlh"),
    ([1, 1, 1, 1, 1, 1], {"eta": inf, "milestones": [3, 4]}, "llhllh"),
    ([1, 9, 9, 1, 9, 9, 1, 1], {"eta": 0.25, "interval": 3}, "llllhhhh"),
    ([1, 1, 1, 2, 1, 1, 2, 1], {"eta": 0.25, "interval": 3}, "lllllll" + "h"),
    # it fell between two looks: at once, and until a look that saw no drop
    (
        [1] * 12,
        {"eta": 0.25, "interval": 3, "milestones": [5]},
        "llll" + "hlllll" + "hh",
    ),
]


@pytest.mark.parametrize("norms, how, modes", SCRIPTS)
def test_norms_and_rates_say_the_modes(norms, how, modes):
    assert modes_of(norms, **how) == modes


def run(problem, replicas, codec="accordion", /, accordion=None, **sections):
    settings = {**RANKS, **({"accordion": accordion} if accordion else {})}
    settings |= sections.pop("codec", {})
    schedule = {"batch": 4, "steps": 1, "epochs": 5}
    config = coded(problem, codec, replicas, codec=settings, schedule=schedule)
    return RunConfig.parse(what_is_read({**config.tables(), **sections}, "codec"))


def test_nothing_is_stable_enough_for_eta_zero():
    """Always low: the codec with those settings, to the bit."""
    problem = make_problem("softmax")
    turned = run(problem, 3, accordion={"eta": 0.0, "interval": 1})
    always = run(problem, 3, "powersgd", codec={**RANKS, "rank": 2})
    found = [train_on(3, config, problem) for config in (turned, always)]
    assert len({r.weights_sha256 for r in found}) == 1
    assert found[0].report["agreement"]["high_buckets"] == 0


def test_everything_is_for_eta_infinite():
    """High after the look at the second epoch; that is not either of the two."""
    problem = make_problem("softmax")
    config = run(problem, 3, accordion={"eta": inf, "interval": 1})
    result = train_on(3, config, problem)
    said, each = result.report["agreement"], result.exchanges // 5
    assert said["low_buckets"] == 2 * each * said["buckets"]
    assert said["high_buckets"] == 3 * each * said["buckets"]
    for rank in (1, 2):
        alone = run(problem, 3, "powersgd", codec={**RANKS, "rank": rank})
        assert train_on(3, alone, problem).weights_sha256 != result.weights_sha256


SMOOTH = {
    "constant": {},
    "inverse": {"decay": 0.5},
    "steeply inverse": {"kind": "inverse", "decay": 1000.0},
    "inverse-sqrt": {"decay": 2.0},
    "cosine": {},
    "cosine after a warm-up": {"kind": "cosine", "warmup": 10},
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("interval", [1, 3])
def test_smooth_schedules_compress_once_gradients_have_settled(name, interval):
    """Whatever their fall from look to look; eta inf takes all norms for settled."""
    problem, rate = (
        make_problem("softmax"),
        {"kind": name, "value": 0.1, **SMOOTH[name]},
    )
    turned = {"eta": inf, "interval": interval}
    result = train_on(2, run(problem, 2, accordion=turned, rate=rate), problem)
    said, each = result.report["agreement"], result.exchanges // 5
    assert said["low_buckets"] == (1 + interval) * each * said["buckets"]
    assert said["high_buckets"] == (4 - interval) * each * said["buckets"]


def test_all_schedules_but_milestones_are_smooth():
    kinds = {SMOOTH[name].get("kind", name) for name in SMOOTH}
    assert kinds | {*DROPPING} == {*RATES}


# milestones -> exchanges in low compression, of five epochs of seven and a look each;
# two epochs are low in any case.
DROPS = {
    (2,): 3 * 7,
    (4,): 3 * 7,
    (2.5,): 2 * 7 + 3 + 7,  # amid an epoch, at once, and after the look that saw it
    (2, 3, 4): 5 * 7,
    (9,): 2 * 7,
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("milestones", DROPS)
def test_compression_is_low_from_a_milestone_to_the_next_look(milestones, members):
    problem = make_problem("softmax")
    rate = {"kind": "milestones", "milestones": milestones, "value": 0.1}
    config = run(problem, 2, accordion={"eta": inf, "interval": 1}, rate=rate)
    tables = {**config.tables(), "grid": {"replicas": 2, "members": members}}
    for result in on_all(2 * members, RunConfig.parse(tables), problem):
        said = result.report["agreement"]
        assert result.exchanges == 35
        assert said["low_buckets"] == DROPS[milestones] * said["buckets"]
        assert said["high_buckets"] == (35 - DROPS[milestones]) * said["buckets"]


@pytest.mark.parametrize("codec", ["powersgd", "topk"])
def test_it_goes_on_between_a_milestone_and_the_look(codec, tmp_path):
    """The mode that the drop turned, and that it is still to be looked at."""
    problem = make_problem("softmax")
    rate = {"kind": "milestones", "milestones": [2.5], "value": 0.1}
    turned = {"codec": codec, "interval": 1, "eta": inf}
    config = run(problem, 3, accordion=turned, rate=rate)
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    stop = int(whole.exchanges * 0.56)  # after 2.8 epochs
    first = in_folder(tmp_path / "again", config, 3, problem, stop=stop)
    assert {r.status.value for r in first} == {"preempted"}
    again = in_folder(tmp_path / "again", config, 3, problem)
    assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
    lows = [r.report["agreement"]["low_buckets"] for r in (whole, again[0])]
    assert lows[0] == lows[1] > 2 * whole.exchanges // 5


def test_settings_are_those_of_the_authors():
    assert (AccordionConfig().eta, AccordionConfig().interval) == (0.5, 10)


@cache
def bytes_of_rank(family, replicas, rank):
    """An exchange of powersgd alone, on every replica, and how many there are."""
    problem = make_problem(family)
    alone = run(problem, replicas, "powersgd", codec={**RANKS, "rank": rank})
    results = on_all(replicas, alone, problem)
    done = results[0].exchanges
    return [r.ledger["agreement"]["bytes"] // done for r in results], done


@pytest.mark.cases(2)
@pytest.mark.parametrize("replicas", [2, 3, 7])
@pytest.mark.parametrize("interval", [1, 2])
def test_bytes_are_the_mixture(replicas, interval):
    """Share of each mode times its bytes, the tail, and 4 bytes a bucket and look."""
    for family in ("softmax", "logistic"):
        problem = make_problem(family)
        config = run(problem, replicas, accordion={"eta": inf, "interval": interval})
        each = {}
        for rank in (1, 2):
            each[rank], done = bytes_of_rank(family, replicas, rank)
        results = on_all(replicas, config, problem)
        low = (1 + interval) * done // 5
        for rank, result in enumerate(results):
            buckets = result.report["agreement"]["buckets"]
            looks = 4 * buckets * ceil((5 - 1) / interval)
            mixed = low * each[2][rank] + (done - low) * each[1][rank]
            assert result.ledger["agreement"]["bytes"] == mixed + looks
            assert each[1] != each[2]


def modes_on(world, parts, norms):
    """What every replica has in force, when the first is told other norms."""
    codec = opened("accordion", {**RANKS, "accordion": {"interval": 1, "eta": 0.25}})
    inner, line, seen = codec.codec, ReplicaChannel(world), []
    for number, norm in enumerate(norms):
        inner.regime.total[...] = 0
        inner.regime.total[0] = norm[min(world.rank, 1)]
        codec.start(parts[world.rank].copy(), line, Moment(number, number, 1, 1))()
        seen.append(inner.regime.is_low)
    return seen


def test_all_replicas_do_what_the_first_one_says(monkeypatch):
    """Whatever their own sums are; without being told they would part."""
    norms = [(1, 1), (1, 1), (1, 2), (1, 1), (2, 1), (2, 2)]
    parts = parts_of(37, 3)
    said = run_ranks(3, lambda world: modes_on(world, parts, norms))
    assert said[0] == said[1] == said[2]
    assert said[0] == [True, True, False, False, True, False]
    alone = [modes_of_words(norms, who) for who in (0, 1)]
    assert alone[0] == said[0] != alone[1]


def modes_of_words(norms, who):
    """What a replica would have concluded from its own."""
    regime, seen = Regime(np.zeros(1), 0.25, 1), []
    for number, norm in enumerate(norms):
        moment = Moment(number, number, 1, 1)
        regime.total[0] = norm[who]
        if regime.is_due(moment):
            square = regime.take_square()
            regime.turn(regime.verdict(moment, square), moment, square)
        regime.count(moment)
        seen.append(regime.is_low)
    return seen


def modes_in_a_run(epochs=8):
    """Of a replica that is given one gradient for ever."""
    turned = {"codec": "topk", "low": "share=1.0", "high": "share=0.05"}
    settings = {"dense": "never", "accordion": {**turned, "interval": 1}}

    def on_rank(world):
        line, codec, seen = ReplicaChannel(world), opened("accordion", settings), ""
        for moment in moments(epochs * 10):
            codec.start(np.ones(37), line, moment)()
            if moment.number % 10 == 9:
                seen += "l" if codec.codec.regime.is_low else "h"
        return seen

    return run_ranks(2, on_rank)[0]


def test_a_turn_is_no_change_of_gradients(monkeypatch):
    """The twin that looks at what came of them turns because it turned."""
    assert modes_in_a_run() == "llhhhhhh"
    start = Accordion.start

    def heard(self, part, line, moment):
        finish = start(self, part, line, moment)
        if moment.number % 10 == 0:
            self.heard = np.zeros(37)

        def note():
            told = finish()
            self.heard += told.mean
            self.regime.total[...] = self.heard
            return told

        return note

    monkeypatch.setattr(Accordion, "start", heard)
    assert "hl" in modes_in_a_run()


@pytest.mark.cases(2)
@pytest.mark.parametrize("codec", ["powersgd", "topk", "dgc", "qsgd", "threshold"])
def test_it_goes_on_amid_an_interval(codec, tmp_path):
    """Mode, norm, what was summed, and what both modes keep; bit for bit."""
    problem = make_problem("softmax")
    turned = {"codec": codec, "interval": 2, "eta": 0.3}
    config = run(problem, 3, accordion=turned)
    each = 5
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    assert whole.exchanges == 5 * each
    for stop in (2, 3 * each + 2):
        first = in_folder(tmp_path / str(stop), config, 3, problem, stop=stop)
        assert {r.status.value for r in first} == {"preempted"}
        again = in_folder(tmp_path / str(stop), config, 3, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
        said = [r.report["agreement"]["low_buckets"] for r in (whole, again[0])]
        assert said[0] == said[1]


@pytest.mark.full
def test_what_was_lost_outlives_a_change(monkeypatch):
    """The broken twin forgets it, at every change: the optimum is not reached."""
    monkeypatch.setattr(
        Regime, "verdict", lambda self, moment, square: bool(moment.number % 2)
    )
    settings = {"dense": "never", "accordion": TURNS}
    gap = gap_of("accordion", settings, 0.25)
    turn, begin, feedbacks = Regime.turn, Feedback.__init__, []

    def noted(self, codec):
        begin(self, codec)
        feedbacks.append(self)

    def forgetful(self, *given):
        for feedback in feedbacks:
            if feedback.codec.regime is self:
                feedback.error[...] = 0.0
        turn(self, *given)

    monkeypatch.setattr(Feedback, "__init__", noted)
    monkeypatch.setattr(Regime, "turn", forgetful)
    twin = gap_of("accordion", settings, 0.25)
    assert gap < 1e-3 and twin > 10 * gap, f"{gap:.1e}, {twin:.1e}"


def test_columns_of_q_are_taken_along():
    """From rank 2 to 1 and back: what power steps have found is not lost."""
    codec = opened("accordion", {**RANKS, "accordion": {"interval": 1}}, 40, 5).codec
    low, high = codec.low.kept["guess"], codec.high.kept["guess"]
    low[...] = np.arange(low.size).reshape(low.shape)
    codec.high.take_over(codec.low)
    np.testing.assert_array_equal(high, low[:, :1])
    codec.low.take_over(opened("powersgd", {**RANKS, "rank": 3}, 37).codec)
    np.testing.assert_array_equal(high, low[:, :1])  # another shape: as it was


def test_a_turn_takes_them_along():
    """The first exchange of the other mode begins where the last one ended."""
    settings = {**RANKS, "feedback": "off", "accordion": {"interval": 1, "eta": inf}}

    def on_rank(world):
        line, codec = ReplicaChannel(world), opened("accordion", settings)
        part, lost = parts_of(37, 1)[0], []
        for moment in moments(21):
            mean = codec.start(part.copy(), line, moment)().mean
            lost.append(np.linalg.norm(part - mean))
        return codec.low.kept["guess"], codec.high.kept["guess"], lost

    low, high, lost = run_ranks(2, on_rank)[0]
    alone = opened("powersgd", {**RANKS, "rank": 1, "feedback": "off"})
    begins = alone.start(parts_of(37, 1)[0], Alone(), moments(1)[0])().mean
    # Rank 1 from a guess that twenty steps have made, not from that of dice.
    assert lost[20] < 0.999 * np.linalg.norm(parts_of(37, 1)[0] - begins)
    assert (low != 0).any() and high.shape[1] == 1


def test_gradients_are_watched_in_their_own_units():
    """A rate that grows is no change of gradients, though it is in what is sent."""

    def on_rank(world):
        settings = {**RANKS, "accordion": {"interval": 1, "eta": 0.25}}
        codec, line, seen = opened("accordion", settings), ReplicaChannel(world), ""
        for epoch in range(5):
            rate = 2.0**epoch
            part = rate * parts_of(37, 1)[0]
            codec.start(part, line, Moment(epoch, epoch, rate, rate))()
            seen += "l" if codec.codec.regime.is_low else "h"
        return seen

    assert run_ranks(2, on_rank) == ["llhhh"] * 2


def test_looks_are_in_what_it_says_it_sent():
    """The ledger and the sum of all payloads, four bytes a look among them."""

    def on_rank(world):
        settings = {**RANKS, "accordion": {"interval": 1}}
        codec, line, said = opened("accordion", settings), ReplicaChannel(world), 0
        for moment in moments(30):
            part = parts_of(37, 3, moment.number)[world.rank]
            said += codec.start(part, line, moment)().payload
        return said, world.ledger.entries["agreement"].bytes

    for said, sent in run_ranks(3, on_rank):
        assert said == sent


REFUSED = [
    ({"codec": "sign"}, "set accordion.low and accordion.high"),
    ({"codec": "zip"}, "unknown codec: 'zip'"),
    ({"low": "rank"}, "must be settings of .codec., as 'rank=2, start=0'"),
    ({"low": "feedback=off"}, "must be settings of .codec."),
    ({"low": "rank=two"}, "'rank=two' must be a whole number"),
    ({"low": "share=much"}, "'share=much' must be a number"),
    ({"high": "masking=1"}, "'masking=1' must be true or false"),
    ({"low": "rank=0"}, "rank = 0 must be at least 1"),
    ({"low": "rank=3", "high": "rank=3"}, "the same settings"),
]


@pytest.mark.parametrize("settings, remedy", REFUSED, ids=lambda x: str(x)[:30])
def test_what_it_cannot_turn_is_said_with_the_remedy(settings, remedy):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=remedy):
        on_all(2, run(problem, 2, accordion=settings), problem)


@pytest.mark.parametrize(
    "key, value", [("codec", "accordion"), ("eta", -1.0), ("interval", 0)]
)
def test_settings_are_checked_at_birth(key, value):
    with pytest.raises(ConfigError, match=rf"\[accordion\] {key}"):
        RunConfig.parse({"accordion": {key: value}})


def test_settings_say_several_things_at_once():
    made = opened("accordion", {"accordion": {"low": " rank=3 ,start=0", "high": ""}})
    assert (made.codec.low.config.rank, made.codec.low.config.start) == (3, 0)
    assert (made.codec.high.config.rank, made.codec.high.config.start) == (1, 10)


# ---------------------------------------------------------------------- by time

BY_TIME = {
    "dense": "never",
    "accordion": {
        "codec": "topk",
        "low": "share=0.5",
        "high": "share=0.1",
        "interval": 1,
        "by": "time",
    },
}
RECORD = 8 * 50 + 13  # bytes of half of 100 words


class Network(Alone):
    """A line on which bytes take time, by a clock that only it and the test move."""

    def __init__(self, monkeypatch):
        self.now, self.bandwidth = 1.0, inf
        monkeypatch.setattr(accordion, "perf_counter", lambda: self.now)

    def start_gather(self, record, lengths=None):
        self.now += record.nbytes / self.bandwidth
        return lambda: [record]


def modes_by_time(network, bandwidths, **bucket):
    """The mode at the end of each epoch, of ten exchanges a second apart."""
    codec, seen = opened("accordion", BY_TIME, 100, **bucket), ""
    for moment in moments(10 * len(bandwidths)):
        network.bandwidth = bandwidths[moment.epoch]
        network.now += 1.0
        codec.start(parts_of(100, 1, moment.number)[0], network, moment)()
        if moment.number % 10 == 9:
            seen += "l" if codec.codec.regime.is_low else "h"
    return seen


def test_compression_is_low_where_an_exchange_takes_no_longer_than_computation(
    monkeypatch,
):
    """Half of the words in a second; the first epoch is low, there was no check yet."""
    network = Network(monkeypatch)
    fast, slow = RECORD * 1.01, RECORD * 0.99
    assert modes_by_time(network, [slow] * 3) == "lhh"
    assert modes_by_time(network, [fast] * 3) == "lll"
    assert modes_by_time(network, [slow, slow, fast, fast, slow]) == "lhllh"
    # Of a quarter of the gradient a quarter of the second.
    assert modes_by_time(network, [fast] * 3, part=0.25) == "lhh"
    assert modes_by_time(network, [4 * fast] * 3, part=0.25) == "lll"


def test_seconds_of_other_buckets_are_no_computation(monkeypatch):
    """Two buckets whose exchanges take 0.6 s each, beside half of a second each."""
    network, watch = Network(monkeypatch), Stopwatch()
    network.bandwidth = RECORD / 0.6
    bucket = {"part": 0.5, "exchanging": watch}
    pair = [opened("accordion", BY_TIME, 100, number=k, **bucket) for k in (0, 1)]
    for moment in moments(20):
        network.now += 1.0
        for codec in pair:
            codec.start(parts_of(100, 1)[0], network, moment)()
    assert not any(codec.codec.regime.is_low for codec in pair)


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_decide_alike_and_count_the_bytes_of_checks(replicas):
    """Whatever their clocks say: 12 bytes a check, and what each mode sends."""
    problem = make_problem("softmax")
    agreement = {"kind": "gradient", "codec": "accordion", "bucket": 4.0}
    config = run(problem, replicas, codec=BY_TIME, agreement=agreement)
    results = on_all(replicas, config, problem)
    assert len({r.weights_sha256 for r in results}) == 1
    for result in results:
        facts, words = result.report["agreement"], 7 * 4
        assert facts["buckets"] == 1
        counts = facts["low_buckets"], facts["high_buckets"]
        assert sum(counts) == result.exchanges
        assert facts["low_buckets"] >= result.exchanges // 5 + 4
        each = [8 * k + min(2 * k, ceil(words / 8)) for k in (14, 3)]
        sent = sum(k * size for k, size in zip(counts, each, strict=True))
        tail = 8 * (4 + 1) * result.exchanges
        assert result.ledger["agreement"]["bytes"] == sent + tail + 4 * 12


# ---------------------------------------------------------------------- by loss

BY_LOSS = {"codec": "topk", "by": "loss", "tol": 0.2, "patience": 2}


def first_plateau(losses, patience, tol):
    """The number of evaluations after which none of the last ones was better."""
    for count in range(patience + 1, len(losses) + 1):
        best = min(losses[: count - patience])
        if min(losses[count - patience : count]) >= best - tol * abs(best):
            return count
    return None


@pytest.mark.parametrize("hold_out", [0.0, 0.25])
def test_compression_is_low_once_the_loss_has_stopped_falling(hold_out):
    """From the exchange after that evaluation on, for good; nothing more is sent."""
    problem = make_problem("softmax")
    sections = {"run": {"evaluate_every": 1}, "sampling": {"hold_out": hold_out}}
    config = run(problem, 2, accordion=BY_LOSS, **sections)
    result = on_all(2, config, problem)[0]
    name = "held" if hold_out else "loss"
    losses = [record[name] for record in result.history]
    count = first_plateau(losses, patience=2, tol=0.2)
    assert count is not None and count < len(losses)
    since = result.history[count - 1]["exchanges"]
    facts = result.report["agreement"]
    assert facts["high_buckets"] == since * facts["buckets"]
    assert facts["low_buckets"] == (result.exchanges - since) * facts["buckets"]


def test_a_plateau_that_was_left_counts_after_a_resume(tmp_path):
    problem = make_problem("softmax")
    evaluated = {"evaluate_every": 1}
    config = run(problem, 3, accordion=BY_LOSS, run=evaluated)
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    stop = int(whole.exchanges * 0.9)
    first = in_folder(tmp_path / "again", config, 3, problem, stop=stop)
    assert {r.status.value for r in first} == {"preempted"}
    again = in_folder(tmp_path / "again", config, 3, problem)
    assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
    lows = [r.report["agreement"]["low_buckets"] for r in (whole, again[0])]
    assert 0 < lows[0] == lows[1]


@pytest.mark.parametrize(
    "accordion, section, said",
    [
        (BY_LOSS, {"evaluate_every": 0}, "evaluate_every = 0 makes none; use"),
        (BY_TIME["accordion"], {"reproducible": True}, "as clocks decide, and"),
    ],
)
def test_rules_that_a_run_cannot_follow_are_refused(accordion, section, said):
    problem = make_problem("logistic")
    config = run(problem, 2, accordion=accordion, run=section)
    with pytest.raises(ConfigError, match=said):
        on_all(2, config, problem)
