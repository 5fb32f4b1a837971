"""Sparse codecs: records, the switch to all words, and what is their own."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.agreements import Gradient
from hpcsgd.agreements.base import StateShape
from hpcsgd.agreements.codecs import AccordionConfig, Bucket, CodecConfig, kept_bytes
from hpcsgd.agreements.codecs.sparse import (
    EVERY,
    Wangni,
    add_record,
    index_bytes,
    largest,
    magnitude_of_budget,
    magnitude_of_share,
    pack,
    pack_indices,
    record_bytes,
    unpack_indices,
)
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import (
    ROWS,
    Alone,
    coded,
    exchange,
    is_unbiased_where_it_says_so,
    moments,
    on_all,
    opened,
    parts_of,
    sections_of,
)
from tests.helpers.harness import make_problem

NEVER = {"dense": "never"}


@pytest.mark.parametrize("words, count", [(1, 0), (1, 1), (37, 2), (37, 9), (37, 37)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_records_are_as_long_as_they_say(words, count, dtype):
    rng = np.random.default_rng(words)
    part = rng.normal(size=words).astype(dtype)
    chosen = np.sort(rng.permutation(words)[:count])
    record = pack(part, chosen)
    assert record.nbytes == record_bytes(count, words, part.itemsize)
    wanted, total = np.ones(words, dtype), np.ones(words, dtype)
    wanted[chosen] += part[chosen]
    add_record(record, count, total)
    np.testing.assert_array_equal(total, wanted)


@pytest.mark.parametrize("words", [2**16, 2**16 + 1])
def test_indices_are_as_narrow_as_can_be(words):
    """16 bits up to 65 536 words; a map of bits where that is shorter."""
    wide = 2 if words == 2**16 else 4
    few, many = np.array([0, words - 1]), np.arange(0, words, 7)
    assert index_bytes(2, words) == 2 * wide
    assert index_bytes(many.size, words) == -(-words // 8) < wide * many.size
    for indices in (few, many):
        packed = pack_indices(indices, words)
        assert packed.nbytes == index_bytes(indices.size, words)
        got = unpack_indices(packed, indices.size, words)
        np.testing.assert_array_equal(got, indices)


def test_settings_are_checked_at_birth():
    for key, value in (
        ("share", -0.1),
        ("share", 1.5),
        ("warm_up", -1),
        ("threshold", -1.0),
        ("budget", float("inf")),
        ("momentum", 1.0),
        ("clip", -1.0),
        ("dense", "no"),
    ):
        with pytest.raises(ConfigError, match=rf"\[codec\] {key} = "):
            CodecConfig(**{key: value})


@pytest.mark.parametrize("words, count", [(5, 5), (37, 16), (300, 16), (5000, 50)])
def test_a_share_that_nobody_chose_is_useful(words, count):
    """1 % of the words, at least 16 or all of a bucket; a share that is given holds."""
    for name in ("topk", "dgc", "randomk"):
        assert opened(name, {}, words).config.share == 0.0
        codec = getattr(opened(name, {}, words), "codec", opened(name, {}, words))
        assert codec.count(moments(1)[0]) == count
    given = opened("topk", {"share": 0.01, "feedback": "off"}, 300)
    assert given.count(moments(1)[0]) == 3


# ---------------------------------------------------------------------- top-k


def test_the_largest_words_are_chosen_and_no_number_is_largest():
    part = np.array([0.5, -3.0, 0.0, 2.0, -0.1])
    assert largest(part, 2).tolist() == [1, 3]
    part[2] = np.nan
    assert largest(part, 2).tolist() == [1, 2]
    assert largest(part, 5).tolist() == [0, 1, 2, 3, 4]


def test_top_k_contracts():
    """|a − C(a)|² ≤ (1 − k/D) |a|², and equal where all words are."""
    codec = opened("topk", {"share": 0.1, "feedback": "off"}, 100)
    for step in range(20):
        part = parts_of(100, 1, step)[0]
        said = codec.start(part.copy(), Alone(), moments(1)[0])().mean
        assert ((part - said) ** 2).sum() <= 0.9 * (part**2).sum()
    said = codec.start(np.ones(100), Alone(), moments(1)[0])().mean
    assert ((1 - said) ** 2).sum() == pytest.approx(90)


@pytest.mark.cases(2)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_words_travel_where_records_are_larger(ranks):
    """Σ of record bytes ≥ 2 N: the switch is at that k, not one before or after."""
    words = 40
    parts = parts_of(words, ranks)
    seen = set()
    for count in range(1, words + 1):
        settings = {"share": count / words, "feedback": "off"}
        record = record_bytes(count, words, 8)
        is_dense = ranks * record >= 2 * words * 8
        seen.add(is_dense)
        for told, entry, codec in exchange(ranks, "topk", settings, parts):
            assert codec.dense_exchanges == int(is_dense), count
            assert entry.bytes == (words * 8 if is_dense else record)
            if is_dense:
                np.testing.assert_allclose(told.mean, parts.mean(axis=0), 1e-12)
        never = exchange(ranks, "topk", {**settings, **NEVER}, parts)
        assert {c.dense_exchanges for _, _, c in never} == {0}
        assert {e.bytes for _, e, _ in never} == {record}
    assert seen == {False, True}


def test_a_run_says_how_many_buckets_went_whole():
    problem = make_problem("softmax")
    for settings, share in (({"share": 1.0}, 1.0), ({"share": 0.1}, 0.0)):
        result = on_all(3, coded(problem, "topk", 3, codec=settings), problem)[0]
        said = result.report["agreement"]
        whole = said["buckets"] * result.exchanges
        assert said["dense_buckets"] == share * whole


@pytest.mark.parametrize("name", ["topk", "randomk", "threshold", "dgc"])
def test_the_share_warms_up(name):
    """share^((e + 1) / (W + 1)) in epoch e of W; ten exchanges an epoch."""
    words, share = 1000, 0.001
    settings = {"share": share, "warm_up": 2, **NEVER}
    settings["feedback"] = "auto" if name == "dgc" else "off"
    codec, dice = opened(name, settings, words), np.random.default_rng(1)
    assert codec.payload_bytes(2, 0) is None
    counts = []
    for moment in moments(40):
        part = dice.normal(size=words)
        counts.append((codec.start(part, Alone(), moment)().mean != 0).sum())
    assert counts == [100] * 10 + [10] * 10 + [1] * 20


# ---------------------------------------------------------------------- random k


@pytest.mark.parametrize("feedback", ["auto", "off"])
def test_all_replicas_draw_the_same_words(feedback):
    """k words of the mean, times D/k where nothing is kept; other ones next time."""
    words, count = 40, 8
    parts = parts_of(words, 3) + 1.0
    settings = {"share": count / words, "feedback": feedback}
    factor = words / count if feedback == "off" else 1.0
    drawn = set()
    for moment in moments(3):
        told, entry, _ = exchange(3, "randomk", settings, parts, moment)[0]
        there = np.flatnonzero(told.mean)
        assert there.size == count and entry.bytes == 8 * count
        mean = factor * parts.mean(axis=0)[there]
        np.testing.assert_allclose(told.mean[there], mean, 1e-12)
        drawn.add(tuple(there))
    assert len(drawn) == 3


def test_random_words_with_feedback_must_not_be_rescaled():
    """a (1 − D/k) is left where they were drawn: it grows without end."""
    bent = np.linspace(0.1, 1.0, 50)

    def ends_at(rescales):
        codec, weights = opened("randomk", {"share": 0.1}, 50), np.ones(50)
        codec.codec.unbiased = rescales
        for moment in moments(2000):
            step = 0.2 * bent * weights
            weights -= codec.start(step, Alone(), moment)().mean
        return np.abs(weights).max()

    assert ends_at(rescales=False) < 1e-9
    with np.errstate(all="ignore"):
        assert not ends_at(rescales=True) < 1e9


# ---------------------------------------------------------------------- threshold


def test_words_of_a_size_are_sent_however_many():
    """None, some and all; one that is no number is sent, zeros are not."""
    parts = np.zeros((3, 40))
    parts[0, :5], parts[1, 7], parts[2, :] = 1.0, np.nan, 0.5
    parts[2, 39] = -2.0
    settings = {"threshold": 1.0, "feedback": "off"}
    sent = [5, 1, 1]
    for rank, (told, entry, codec) in enumerate(
        exchange(3, "threshold", settings, parts)
    ):
        assert entry.bytes == 8 + record_bytes(sent[rank], 40, 8) == told.payload
        assert codec.dense_exchanges == 0
        assert np.isnan(told.mean[7]) and told.mean[39] == -2.0 / 3
        assert told.mean[:5].tolist() == [1 / 3] * 5 and (told.mean[8:39] == 0).all()


def test_words_that_are_zero_are_not_sent():
    """As of a sparse gradient: fewer than the share are there, and τ is 0."""
    parts = np.zeros((2, 40))
    parts[0, 3], parts[1, :2] = 1.0, -2.0
    settings = {"share": 0.5, "feedback": "off"}
    found = exchange(2, "threshold", settings, parts)
    for (told, entry, _), sent in zip(found, (1, 2), strict=True):
        assert entry.bytes == 8 + record_bytes(sent, 40, 8)
        assert told.mean.tolist() == parts.mean(axis=0).tolist()


def test_many_words_of_one_replica_make_all_of_them_send_all():
    """The sum of all records decides, not the own one."""
    parts = np.zeros((2, 40))
    parts[0, 0] = 1.0
    for many, is_dense in ((20, False), (40, False)):
        parts[1, :many] = 1.0
        found = exchange(2, "threshold", {"threshold": 1.0}, parts)
        assert {c.dense_exchanges for _, _, c in found} == {int(is_dense)}
    parts[0] = 1.0
    for told, entry, codec in exchange(2, "threshold", {"threshold": 1.0}, parts):
        assert codec.dense_exchanges == 1 and entry.bytes == 8 + 40 * 8
        assert (told.mean == 1.0).all() and told.own is None


def test_the_size_is_found_from_a_sample():
    """About the share of the words, where only 4096 of 100 000 were looked at."""
    codec = opened("threshold", {"share": 0.05}, 100_000)
    sent = []
    for moment in moments(5):
        part = parts_of(100_000, 1)[0]
        part[::5] = 1e-3
        codec.error[...] = 0.0
        sent.append(int((codec.start(part, Alone(), moment)().mean != 0).sum()))
    assert all(4000 < count < 6000 for count in sent) and len(set(sent)) > 1


# ---------------------------------------------------------------------- wangni


def by_rounds(sizes, count):
    """The greedy rounds: p of sure words is 1, those of others grow to what is left."""
    chance = np.minimum(count * sizes / sizes.sum(), 1.0)
    for _ in range(100):
        rest = chance < 1.0
        grow = (count - (~rest).sum()) / chance[rest].sum()
        if grow <= 1.0 + 1e-13:
            break
        chance[rest] = np.minimum(grow * chance[rest], 1.0)
    return chance


@pytest.mark.parametrize("count", [1, 40, 300])
def test_chances_are_those_of_the_greedy_rounds(count):
    part = parts_of(400, 1)[0]
    sizes = np.abs(part)
    least = magnitude_of_share(sizes, count)
    chance = np.minimum(sizes / least, 1.0)
    np.testing.assert_allclose(chance, by_rounds(sizes, count), 1e-9)
    assert chance.sum() == pytest.approx(count)


@pytest.mark.parametrize("budget", [0.1, 1.0, 30.0])
def test_the_budget_of_variance_is_spent(budget):
    """Σ a² / p = (1 + budget) Σ a², and a larger m would be beyond it."""
    sizes = np.abs(parts_of(400, 1)[0])
    sizes = sizes[sizes > 0]
    chance = np.minimum(sizes / magnitude_of_budget(sizes, budget), 1.0)
    square = (sizes**2).sum()
    assert (sizes**2 / chance).sum() == pytest.approx((1 + budget) * square, 1e-12)


def test_sampling_large_words_varies_less_than_random_words():
    """At as many words on average: the reason to send indices at all."""
    part = parts_of(400, 1)[0]
    settings = {"share": 0.1, "feedback": "off"}
    sums = [
        opened(n, settings, 400).variance(part).sum() for n in ("wangni", "randomk")
    ]
    assert 0 < sums[0] < 0.5 * sums[1]


def test_words_of_one_magnitude_take_an_index_and_a_bit():
    """24 + 8 (kA + 1) + indices + ⌈kB / 8⌉ bytes; ± m for the others."""
    part = parts_of(400, 1)[0]
    codec = opened("wangni", {"share": 0.1}, 400)
    size = magnitude_of_share(np.abs(part), 40)
    told = codec.start(part.copy(), Alone(), moments(1)[0])()
    sure, there = np.abs(part) >= size, told.mean != 0.0
    drawn = there & ~sure
    np.testing.assert_array_equal(told.mean[sure], part[sure])
    np.testing.assert_allclose(told.mean[drawn], size * np.sign(part[drawn]))
    many, others = int(sure.sum()), int(drawn.sum())
    assert many > 0 and others > 8
    indices = min(2 * many, 50) + min(2 * others, 50)
    assert told.payload == 24 + 8 * (many + 1) + indices + -(-others // 8)


def test_another_magnitude_is_not_right_on_average(monkeypatch):
    row = ROWS["wangni"]
    add = Wangni.add

    def smaller(self, record, head, total):
        bent = record.copy()
        words = bent[: (int(head[1]) + 1) * total.itemsize].view(total.dtype)
        words[-1] *= 0.9
        add(self, bent, head, total)

    monkeypatch.setattr(Wangni, "add", smaller)
    with pytest.raises(AssertionError):
        is_unbiased_where_it_says_so("wangni", row)


def test_dice_do_not_decide_about_the_switch():
    """Lengths to be expected do: where many words happen to be drawn, it would bias."""
    words, sure = 4096, 1902
    for drawn, is_dense in ((1088, True), (1080, False)):
        # 8 (kA + 1) + 2 · 512 + kB / 8 bytes of each of 4: 2 N exactly, or just less.
        parts = np.ones((4, words))
        parts[:, :sure] = 1e6
        settings = {"share": (sure + drawn) / words}
        for moment in moments(10):
            for told, entry, codec in exchange(4, "wangni", settings, parts, moment):
                assert codec.dense_exchanges == int(is_dense)
                assert entry.bytes == told.payload
                assert not is_dense or (told.mean == parts[0]).all()


def test_feedback_needs_a_budget_below_one():
    with pytest.raises(ConfigError, match="use a budget above 0 and below 1"):
        opened("wangni", {"feedback": "on", "budget": 1.0})
    opened("wangni", {"feedback": "on", "budget": 0.5})


# ----------------------------------------------------------------- selection


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("words", [2**17, 2**17 + 37])
def test_what_a_sample_says_is_repaired(words, dtype):
    """The k largest, whatever the sample saw; what is no number is among them."""
    rng = np.random.default_rng(words)
    part = (rng.normal(size=words) * np.exp(rng.normal(size=words))).astype(dtype)
    periodic = part.copy()
    periodic[::EVERY] *= 100  # the sample sees only these
    hidden = part.copy()
    hidden[::EVERY] = 0.0
    few = np.where(np.arange(words) % 1000 == 7, part, 0)
    bad = part.copy()
    bad[[3, 77]] = np.nan, -np.inf
    for given in (part, periodic, hidden, few, bad, np.ones(words, dtype)):
        for count in (1, 5, words // 1000, words // 100, words // 10, words // 2):
            found = largest(given, count)
            assert found.size == count and (np.diff(found) > 0).all()
            sizes = np.nan_to_num(np.abs(given), nan=np.inf, posinf=1e30)
            left = np.delete(sizes, found)
            assert sizes[found].min() >= left.max(initial=0.0)


# -------------------------------------------------------------------- memory

KEPT = {
    "identity": {},
    "topk": {},
    "randomk": {"feedback": "off"},
    "dgc": {},
    "qsgd": {},
    "alq": {"feedback": "on", "bits": 7},
    "powersgd": {"rank": 3},
    "accordion": {},
    "accordion of dgc": {"accordion": {"codec": "dgc"}},
    "accordion of alq": {
        "accordion": {"codec": "alq", "low": "bits=8", "high": "bits=3"}
    },
    "bytegrad": {},
}


@pytest.mark.parametrize("row", KEPT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_codecs_keep_is_known_before_they_are_made(row, dtype):
    """As checkpoints have it, and as it is measured."""
    name, settings, words = row.split()[0], KEPT[row], 200_003
    tables = sections_of(settings)
    bucket = Bucket(0, words, 1, np.dtype(dtype))
    said = kept_bytes(
        name,
        bucket,
        CodecConfig(**tables["codec"]),
        AccordionConfig(**tables["accordion"]),
    )
    opened(name, settings)  # what is imported only now
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    codec = opened(name, settings, words, dtype=dtype)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert codec is not None
    assert said <= taken <= said + 20_000


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["topk", "dgc", "alq", "powersgd", "accordion"])
def test_memory_counts_the_arrays_of_a_run(name, monkeypatch):
    """All buckets of a rank, to the byte."""
    problem = make_problem("logistic", d=101)
    rough = ROWS[name].rough | ({"chunk": 8} if name == "alq" else {})
    config = coded(problem, name, 3, codec=rough, run={"fall_back": False})
    held = []
    prepare = Gradient.prepare

    def known(self, state):
        prepare(self, state)
        arrays = {**state.memory, **state.rank_arrays}
        held.append(sum(a.nbytes for k, a in arrays.items() if k.startswith("codec_")))

    monkeypatch.setattr(Gradient, "prepare", known)
    on_all(3, config, problem)
    shape = StateShape(config, config.precision.resolve(), columns=101)
    said = dict(Gradient.holds(shape))
    assert set(held) == {said["codecs"] // 2} and said["codecs"] > 0
    alone = replace(config, grid=replace(config.grid, replicas=1))
    assert "codecs" not in dict(Gradient.holds(replace(shape, config=alone)))
