"""Settings that nobody reads are said; in a comparison each row has its own."""

from dataclasses import fields

import numpy as np
import pytest

from hpcsgd.agreement.line import ReplicaLine
from hpcsgd.assembly.unread import all_given, unread
from hpcsgd.codecs import CODECS, Bucket, Codec, CodecConfig, get_codec, make_codec
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.methods import METHODS
from hpcsgd.study import compare_methods
from hpcsgd.study.line_up import line_up
from hpcsgd.study.own import each_its_own
from tests.contracts.codec import ROWS, moments, parts_of
from tests.harness import config_for, make_problem, train_on

KEYS = {field.name for field in fields(CodecConfig)}
PROBLEM = make_problem("logistic", n=24, d=3)


class Listening(CodecConfig):
    """Notes what is read of it."""

    def __getattribute__(self, name):
        if name in KEYS:
            vars(type(self)).get("seen", set()).add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", [n for n in CODECS if n != "accordion"])
def test_codecs_read_what_they_say_and_nothing_else(name):
    """Exchanges of three replicas, with settings that lose something and usual ones."""

    class Own(Listening):
        pass

    configs = [Own(**{"adapt": 1, **asked}) for asked in (ROWS[name].rough, {})]
    Own.seen = set()  # what checks at birth have read does not count
    parts = parts_of(37, 3)

    def on_rank(world):
        bucket, line = Bucket(0, 37, 1, np.dtype(float)), ReplicaLine(world)
        for config in configs:
            codec = make_codec(name, bucket, config)
            for moment in moments(2):
                codec.start(parts[world.rank].copy(), line, moment)()

    run_ranks(3, on_rank)
    assert Own.seen == {"feedback", *get_codec(name).reads}


def asked(**tables):
    return RunConfig.parse(tables)


SLOW = {"kind": "slowmo", "fraction": 0.25}
UNREAD = [
    ({"agreement": {"method": "topk"}, "codec": {"rank": 4}}, {"codec.rank"}),
    ({"agreement": {"method": "topk"}, "codec": {"share": 0.1}}, set()),
    (
        {"agreement": {"method": "dgc"}, "codec": {"share": 0.1, "bits": 3}},
        {"codec.bits"},
    ),
    (
        {"agreement": {"method": "local"}, "codec": {"feedback": "on"}},
        {"codec.feedback"},
    ),
    ({"agreement": {"method": "ddp"}, "codec": {"feedback": "on"}}, set()),
    ({"codec": {"share": 0.5}}, {"codec.share"}),
    (
        {"agreement": {"method": "accordion"}, "codec": {"rank": 2, "bits": 3}},
        {"codec.bits"},
    ),
    (
        {
            "agreement": {"method": "accordion"},
            "accordion": {"codec": "qsgd", "eta": 0.5, "scale_rate": False},
            "codec": {"chunk": 8},
        },
        {"accordion.scale_rate"},
    ),
    (
        {
            "agreement": {"method": "accordion-batch"},
            "accordion": {"eta": 0, "low": "rank=3"},
        },
        {"accordion.low"},
    ),
    ({"agreement": {"method": "ddp", "slow_rate": 0.5}}, {"agreement.slow_rate"}),
    ({"agreement": SLOW}, {"agreement.fraction"}),
    ({"agreement": {**SLOW, "base": "fedavg"}}, set()),
    ({"agreement": {"method": "ddp", "momentum": "reset"}}, {"agreement.momentum"}),
    ({"grid": {"replicas": 2}, "agreement": {"momentum": "reset"}}, set()),
    ({"agreement": {"kind": "gradient", "mixing": 2}}, {"agreement.mixing"}),
    ({"agreement": {"method": "ddp"}, "mirror": {"kind": "eg"}}, {"mirror.kind"}),
    (
        {"agreement": {"method": "anybatch", "mixing": 2}, "mirror": {"kind": "eg"}},
        set(),
    ),
    ({"agreement": {"method": "ddp", "bucket": 1.0, "credit": 1.0}}, set()),  # of speed
]


@pytest.mark.parametrize("tables, names", UNREAD)
def test_what_nobody_reads(tables, names):
    assert set(unread(asked(**tables))) == names


@pytest.mark.parametrize("name", METHODS)
def test_methods_set_nothing_that_they_do_not_read(name):
    assert unread(asked(agreement={"method": name})) == {}


class Quiet(Codec):
    """Of somebody else, who says nothing of settings."""


def test_codecs_of_others_may_read_anything(monkeypatch):
    monkeypatch.setitem(CODECS, "quiet", f"{__name__}:Quiet")
    config = asked(agreement={"kind": "gradient", "codec": "quiet"}, codec={"rank": 3})
    assert unread(config) == {}


@pytest.mark.parametrize(
    "method, said",
    [
        ("topk", "codec.rank = 4 does nothing: codec topk does not read it"),
        ("local", "codec.rank = 4 does nothing: agreement average does not read it"),
        ("powersgd", ""),
    ],
)
def test_a_run_says_so(method, said, caplog):
    config = config_for(
        PROBLEM,
        agreement={"method": method},
        schedule={"steps": 1, "epochs": 1},
        products={"kind": "direct"},
        codec={"rank": 4},
        grid={"replicas": 2, "members": 1},
    )
    train_on(2, config, PROBLEM)
    assert said in caplog.text and ("does nothing" in caplog.text) == bool(said)


SHARED = {
    "agreement": {"mixing": 2, "slow_rate": 0.5},
    "codec": {"share": 0.5},
    "mirror": {"kind": "eg"},
    "schedule": {"batch": 8},
}


def test_rows_of_a_comparison_have_what_they_read():
    """And what no row reads stays, for a run to say or refuse."""
    rows = each_its_own(line_up("ddp,topk,qsgd,slowmo,anybatch", SHARED, 2))
    own = {
        "agreement.method",
        "agreement.kind",
        "agreement.codec",
        "agreement.accumulate",
    }
    found = {row.name: set(all_given(row.config)) - own for row in rows}
    assert found == {
        "ddp": set(),
        "topk": {"codec.share"},
        "qsgd": set(),
        "slowmo": {"agreement.slow_rate"},
        "anybatch": {"agreement.mixing", "mirror.kind"},
    }
    (alone,) = each_its_own(line_up("ddp", SHARED, 2))
    assert "agreement.mixing" in all_given(alone.config)


def test_a_setting_of_one_row_refuses_no_other(caplog):
    def on_rank(world):
        given = {"X": PROBLEM.X, "y": PROBLEM.y, "world": world, "repeats": 1}
        return compare_methods("ddp,topk,anybatch", SHARED, **given)

    found = run_ranks(2, on_rank)[0]
    assert [row.name for row in found.rows] == ["ddp", "topk", "anybatch"]
    assert "codec.share" not in caplog.text
    assert "agreement.slow_rate = 0.5 does nothing" in caplog.text  # of no row
