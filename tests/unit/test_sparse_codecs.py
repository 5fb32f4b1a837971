"""Sparse codecs: records, the switch to all words, and what is their own."""

import tracemalloc
from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements import Gradient
from hpcsgd.agreements.base import DataSize, GridSize, RunShape, StateShape
from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import AccordionConfig, Bucket, CodecConfig, kept_bytes
from hpcsgd.agreements.codecs.levels import Qsgd
from hpcsgd.agreements.codecs.sparse import (
    EVERY,
    Wangni,
    index_bytes,
    largest,
    magnitude_of_budget,
    magnitude_of_share,
    pack_indices,
    unpack_indices,
)
from hpcsgd.agreements.gradient import sent_for_gradient
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, is_read
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError
from tests.helpers.codec_formulas import record as record_bytes
from tests.helpers.contracts.codec import (
    BUCKET_LAWS,
    ROWS,
    RUN_LAWS,
    Alone,
    Row,
    coded,
    exchange,
    is_unbiased_where_it_says_so,
    moments,
    on_all,
    opened,
    parts_of,
    sections_of,
)
from tests.helpers.harness import config_for, make_problem, train_on

NEVER = {"dense": "never"}


@pytest.mark.parametrize("words, count", [(1, 0), (1, 1), (37, 2), (37, 9), (37, 37)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_records_are_as_long_as_they_say(words, count, dtype):
    rng = np.random.default_rng(words)
    part = rng.normal(size=words).astype(dtype)
    chosen = np.sort(rng.permutation(words)[:count])
    codec = opened("topk", {"feedback": "off"}, words, dtype=dtype)
    record = codec.pack(part, chosen, moments(1)[0], 0)
    assert record.nbytes == record_bytes(count, words, part.itemsize)
    wanted, total = np.ones(words, dtype), np.ones(words, dtype)
    wanted[chosen] += part[chosen]
    codec.add(record, np.array([count]), total)
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
    assert largest(np.abs(part), 2).tolist() == [1, 3]
    part[2] = np.nan
    assert largest(np.abs(part), 2).tolist() == [1, 2]
    assert largest(np.abs(part), 5).tolist() == [0, 1, 2, 3, 4]


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
        codec.codec.rescales = rescales
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


# -------------------------------------------------------------- shares of buckets

SHARES = [0.25, 0.5, 1.0]  # of the buckets of 3, 2 and 2 columns with 4 scores


def with_shares(shares, **settings):
    """A run of softmax in three buckets, whose first exchange moves what was sent."""
    problem = make_problem("softmax")
    sections = {
        "agreement": {"bucket": 8 * 12 * 2.0**-20},
        "schedule": {"batch": 200, "epochs": 1},
        "problem": {"l2": 0.0, "intercept": False},
    }
    codec = {"dense": "never", "shares": shares, "feedback": "off", **settings}
    return problem, coded(problem, "topk", 2, codec=codec, **sections)


def shape_of(config):
    """What the plan of such a run is made from."""
    data, grid = DataSize(40, 7), GridSize(2)
    return RunShape(config, config.precision.resolve(), data, grid, 4, 1)


def test_each_bucket_has_its_share():
    """In the order of columns: the bytes, and the words that have moved."""
    problem, config = with_shares(SHARES)
    result = on_all(2, config, problem)[0]
    heights = [split_range(7, 3, k) for k in range(3)]
    words = [4 * (height.stop - height.start) for height in heights]
    assert len(set(words)) > 1 and result.exchanges == 1
    counts = [round(share * D) for share, D in zip(SHARES, words, strict=True)]
    sent = [record_bytes(k, D, 8) for k, D in zip(counts, words, strict=True)]
    assert result.ledger["agreement"]["bytes"] == sum(sent) + 8
    plan = sent_for_gradient(shape_of(config), True)
    assert sum(message.bytes for message in plan) == sum(sent) + 8
    weights = np.asarray(result.weights)
    for count, height in zip(counts, heights, strict=True):
        moved = np.count_nonzero(weights[height])
        assert count <= moved <= 2 * count  # of two replicas


def test_a_share_for_each_bucket_or_none():
    problem, config = with_shares(SHARES[:2])
    said = "shares has 2 values, and the number of buckets is 3; give one share"
    with pytest.raises(ConfigError, match=said):
        on_all(2, config, problem)
    with pytest.raises(ConfigError, match=said):
        sent_for_gradient(shape_of(config), True)
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="every share must be above 0"):
            CodecConfig(shares=(0.5, share))
    average = {"kind": "average", "codec": "topk"}
    sections = {"grid": {"replicas": 2}, "schedule": {"period": 2, "epochs": 1}}
    codec = {"shares": [0.5, 0.5]}
    config = config_for(problem, agreement=average, codec=codec, **sections)
    with pytest.raises(ConfigError, match="the number of buckets is 1"):
        on_all(2, config, problem)


def test_accordion_does_not_switch_shares_of_buckets():
    turned = {"codec": "topk", "low": "share=0.5", "high": "share=0.2"}
    with pytest.raises(ConfigError, match="leave codec.shares out"):
        opened("accordion", {"shares": (0.5,), "accordion": turned})
    turned = {"codec": "topk", "low": "values=full", "high": "values=sign"}
    opened("accordion", {"shares": (0.5,), "accordion": turned})


# ------------------------------------------------------- blocks, rows and columns

HEIGHT, WIDTH = 9, 4  # of a bucket; its words are row by row
NUMBERS = np.arange(HEIGHT * WIDTH)
MISSING = -1  # a word of a block that is no word of the bucket
UNITS = {
    "rows": NUMBERS.reshape(HEIGHT, WIDTH),
    "columns": NUMBERS.reshape(HEIGHT, WIDTH).T,
    "5": np.append(NUMBERS, [MISSING] * 4).reshape(8, 5),
    "6": NUMBERS.reshape(6, 6),
}


def sent_units(codec, parts, settings):
    """Each replica's result, ledger entry and codec of one exchange of the bucket."""

    def on_rank(world):
        made = opened(codec, settings, HEIGHT * WIDTH, WIDTH)
        part = parts[world.rank].copy()
        told = made.start(part, ReplicaChannel(world), moments(1)[0])()
        return told, world.ledger.entries["agreement"], made

    return run_ranks(len(parts), on_rank)


@pytest.mark.parametrize("select", UNITS)
@pytest.mark.parametrize("name", ["topk", "threshold", "randomk"])
def test_whole_units_are_sent_by_their_norm(name, select):
    """Of k units of L words 8 k L bytes and their indices; the words of no other."""
    parts, units = parts_of(HEIGHT * WIDTH, 3), UNITS[select]
    parts[parts == 0.0] = 0.01  # a unit of zeros could not be seen
    settings = {"share": 0.3, "select": select, **NEVER}
    settings |= {"threshold": 4.0} if name == "threshold" else {}
    total = np.zeros(HEIGHT * WIDTH)
    found = sent_units(name, parts, settings)
    for part, (told, entry, _) in zip(parts, found, strict=True):
        norms = np.linalg.norm(np.append(part, 0.0)[units], axis=1)
        count = max(round(0.3 * len(units)), 1)
        if name == "threshold":
            chosen = np.flatnonzero(norms >= 4.0)
        elif name == "topk":
            chosen = np.argsort(-norms)[:count]
        else:
            chosen = [i for i, unit in enumerate(units) if told.own[unit].any()]
            assert len(chosen) == count
        indices = min(2 * len(chosen), ceil(len(units) / 8))
        sent = 8 * len(chosen) * units.shape[1] + indices * (name != "randomk")
        assert entry.bytes == told.payload == sent + 8 * (name == "threshold")
        words = np.setdiff1d(units[chosen], [MISSING])
        wanted = np.zeros(HEIGHT * WIDTH)
        wanted[words] = part[words]
        np.testing.assert_array_equal(told.own, wanted)
        total += wanted
    np.testing.assert_allclose(found[0][0].mean, total / 3, 1e-12)


def test_units_contract():
    """|a − C(a)|² ≤ (1 − k/U) |a|² for k of U blocks, and equal where all are alike."""
    settings = {"share": 0.2, "feedback": "off", "select": "10"}
    codec = opened("topk", settings, 100)
    for step in range(20):
        part = parts_of(100, 1, step)[0]
        told = codec.start(part.copy(), Alone(), moments(1)[0])().mean
        assert ((part - told) ** 2).sum() <= 0.8 * (part**2).sum()
    told = codec.start(np.ones(100), Alone(), moments(1)[0])().mean
    assert ((1 - told) ** 2).sum() == pytest.approx(80)


@pytest.mark.parametrize("law", BUCKET_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("values", ["full", "sign"])
@pytest.mark.parametrize("name", ["topk", "randomk", "threshold", "dgc"])
def test_laws_hold_for_blocks(name, values, law):
    """37 and 101 words do not fill their last block of 4."""
    settings = {"select": "4", "values": values}
    exact = {"select": "4", "share": 1.0, **({} if name == "randomk" else NEVER)}
    exact |= {"momentum": 0.0} if name == "dgc" else {}
    row = Row(
        rough={**settings, "share": 0.2},
        exact=exact if values == "full" else None,
        fair={"feedback": "off"} if name == "randomk" else {},
        spreads=values == "sign",
    )
    with np.errstate(all="ignore"):
        law(name, row)


@pytest.mark.cases(2)
@pytest.mark.parametrize("law", RUN_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name, select", [("topk", "rows"), ("dgc", "columns")])
def test_laws_of_runs_hold_for_rows_and_columns(name, select, law):
    """Softmax has 4 scores; with one score rows are words, and a column is all."""
    row = Row(
        rough={"select": select, "share": 0.3},
        exact={**ROWS[name].exact, "select": select},
        good={"select": select, "share": 0.2},
        rate=0.25,
    )
    with np.errstate(all="ignore"):
        law(name, row)


def test_what_is_selected_has_a_name_or_a_number():
    agreement = {"kind": "gradient", "codec": "topk"}
    for select in ("columns", 16, "16"):
        config = RunConfig.parse({"agreement": agreement, "codec": {"select": select}})
        assert config.codec.select == str(select)
    for select in ("row", "0", "-4", "2.5"):
        with pytest.raises(ConfigError, match="must be one of words, rows, columns,"):
            CodecConfig(select=select)


# -------------------------------------------------------------- rounded values

ROUNDED = ("fp16", "bf16", "byte", "qsgd", "sign")
CHUNK = 4


def bytes_of_values(values, count, bits=4):
    """As the page of codecs has them, of `count` values; none take none."""
    chunks = ceil(count / CHUNK)
    return (count > 0) * {
        "fp16": 2 * (count + 1),
        "bf16": 2 * count,
        "byte": count + 8 * chunks,
        "qsgd": ceil(count * bits / 8) + 4 * chunks,
        "sign": ceil(count / 8) + 4,
    }[values]


def rounding(values, **settings):
    """Settings of rounded values, whose scales are those of few words."""
    chunk = {"chunk": CHUNK} if values in ("byte", "qsgd") else {}
    return {"values": values, **chunk, **settings}


@pytest.mark.parametrize("law", BUCKET_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(
    "name, values",
    [
        *(("topk", values) for values in ROUNDED),
        *(("randomk", "sign"), ("randomk", "qsgd")),
        *(("threshold", "byte"), ("threshold", "fp16"), ("dgc", "qsgd")),
    ],
)
def test_laws_hold_for_rounded_values(name, values, law):
    """All of them: what was lost by both is kept, and the bytes are exact."""
    spreads = values == "sign"  # of two words that are sent, one of which is zero
    with np.errstate(all="ignore"):
        law(name, Row(rough=rounding(values, share=0.2), spreads=spreads))


@pytest.mark.cases(2)
@pytest.mark.parametrize("law", RUN_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(
    "name, values", [("topk", "qsgd"), ("randomk", "sign"), ("threshold", "fp16")]
)
def test_laws_of_runs_hold_for_rounded_values(name, values, law):
    """Qsparse-local-SGD's operators; without feedback the gap is far larger."""
    good = rounding(values, share=0.4)
    row = Row(
        rough=rounding(values, share=0.2),
        good=good,
        rate=0.25,
        gap=3e-3 if values == "sign" else 1e-3,
        broken={**good, "feedback": "off"},
        worse=10.0,
    )
    with np.errstate(all="ignore"):
        law(name, row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", ROUNDED)
def test_bytes_of_rounded_values_are_those_of_the_page(values, dtype):
    words, count, size = 101, 10, np.dtype(dtype).itemsize
    for ranks in (2, 3):
        parts = parts_of(words, ranks, dtype=dtype)
        settings = rounding(values, share=0.1)
        each = bytes_of_values(values, count)
        for name, ahead in (("topk", 13), ("dgc", 13), ("randomk", 0)):
            for _, entry, _ in exchange(ranks, name, settings, parts, dtype=dtype):
                assert entry.bytes == each + ahead and entry.calls == 1
        settings = rounding(values, threshold=2.0)
        found = exchange(ranks, "threshold", settings, parts, dtype=dtype)
        for part, (_, entry, _) in zip(parts, found, strict=True):
            count_of = int((np.abs(part) >= 2.0).sum())
            sent = bytes_of_values(values, count_of) + min(2 * count_of, 13)
            assert entry.bytes == 8 + sent < 8 + words * size


def by_hand(values, part, codec):
    """What rounding makes of words, written as their definitions say."""
    if values == "sign":
        return np.abs(part).mean() * np.where(part < 0, -1.0, 1.0)
    if values == "bf16":
        bits = part.astype(np.float32).view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)
        return (rounded & 0xFFFF0000).view(np.float32)
    if values == "fp16":
        power = 2.0 ** (np.ceil(np.log2(np.abs(part).max())) - 15)
        return (part / power).astype(np.float16).astype(float) * power
    return None


@pytest.mark.parametrize("values", ["fp16", "bf16", "sign"])
def test_words_are_rounded_after_they_are_selected(values):
    part = parts_of(101, 1)[0].astype(np.float32).astype(float)
    settings = rounding(values, share=0.1, feedback="off")
    codec = opened("topk", settings, 101)
    told = codec.start(part.copy(), Alone(), moments(1)[0])().mean
    chosen = np.sort(np.argsort(-np.abs(part))[:10])
    wanted = np.zeros(101)
    wanted[chosen] = by_hand(values, part[chosen], codec)
    np.testing.assert_allclose(told, wanted, 2.0**-20)


def levels(**settings):
    """Settings of random levels for half of 200 words, or all of 64."""
    return {"values": "qsgd", "dense": "never", **settings}


@pytest.mark.parametrize("bits, chunk", [(2, 64), (3, 64), (4, 1024), (4, 16)])
def test_random_levels_contract_with_what_is_selected(bits, chunk):
    """E|a − C(a)|² ≤ (1 − k / (D (1 + β))) |a|², also where words are all alike."""
    words, count, steps = 200, 100, 2 ** (bits - 1) - 1
    size = min(chunk, count)
    beta = min(size / steps**2, size**0.5 / steps)
    settings = levels(share=0.5, norm="l2", bits=bits, chunk=chunk)
    codec = opened("topk", settings, words)
    for part in (np.ones(words), parts_of(words, 1)[0]):
        lost = []
        for moment in moments(200):
            codec.error[...] = 0.0
            told = codec.start(part.copy(), Alone(), moment)().mean
            lost.append(((part - told) ** 2).sum() / (part**2).sum())
        bound = 1 - count / words / (1 + beta)
        assert np.mean(lost) <= bound + 4 * np.std(lost) / 200**0.5


def error_after(steps, monkeypatch=None, **settings):
    """The largest error that is fed back after so many like gradients."""
    if monkeypatch is not None:
        monkeypatch.setattr(Qsgd, "shrinkage", 1.0)
    codec, part = opened("topk", levels(share=1.0, **settings), 64), parts_of(64, 1)[0]
    with np.errstate(all="ignore"):
        for moment in moments(steps):
            codec.start(part.copy(), Alone(), moment)()
    return np.abs(codec.error).max() / np.abs(part).max()


def test_errors_of_levels_stay_bounded(monkeypatch):
    """With the norm max as they are; with l2 divided by 1 + β = 3.7, or they grow."""
    for bits in (3, 4):
        steps = 2 ** (bits - 1) - 1
        assert error_after(1000, norm="max", bits=bits) <= 1 / (steps - 1)
    assert error_after(1000, norm="l2", bits=3) < 10
    assert not error_after(1000, monkeypatch, norm="l2", bits=3) < 1e6


def test_each_replica_draws_anew_in_each_exchange():
    parts = np.full((3, 500), 0.5)
    parts[:, 0] = 1.0
    seen = set()
    for moment in moments(2):
        found = exchange(3, "topk", levels(share=1.0, bits=2), parts, moment)
        seen |= {told.own.tobytes() for told, _, _ in found}
    assert len(seen) == 6


def test_qsparse_local_sgd_sends_rounded_changes():
    """Changes of weights by Q ∘ Top_k with feedback, which end near the optimum."""
    problem = make_problem("logistic")
    agreement = {"kind": "average", "codec": "topk"}
    codec = rounding("qsgd", share=0.5, dense="never")
    schedule = {"batch": 4, "epochs": 30, "period": 2}
    sections = {"agreement": agreement, "codec": codec, "schedule": schedule}
    ends = []
    for share in (0.5, 1.0):
        sections["codec"] = {**codec, "share": share} if share < 1 else {}
        sections["agreement"] = {**agreement, "codec": "topk" if share < 1 else ""}
        if share == 1:
            sections["agreement"] = {"kind": "average"}
        config = config_for(problem, grid={"replicas": 2}, **sections)
        ends.append(train_on(2, config, problem))
    assert ends[0].loss < 1.05 * ends[1].loss
    assert ends[0].weights_sha256 != ends[1].weights_sha256


def test_a_sparse_codec_reads_what_its_values_need():
    read = {}
    for values in ("full", "byte", "qsgd"):
        agreement = {"kind": "gradient", "codec": "topk"}
        config = RunConfig.parse({"agreement": agreement, "codec": {"values": values}})
        names = ("bits", "norm", "chunk", "entropy")
        read[values] = [n for n in names if is_read(f"codec.{n}", config)]
    assert read == {"full": [], "byte": ["chunk"], "qsgd": ["bits", "norm", "chunk"]}
    agreement = {"kind": "gradient", "codec": "wangni"}
    config = RunConfig.parse({"agreement": agreement})
    assert not is_read("codec.values", config)


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
            found = largest(np.abs(given), count)
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
    "accordion by loss": {"accordion": {"by": "loss"}},
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
