"""Settings that nobody would read are refused where somebody gave them."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from hpcsgd import fit
from hpcsgd.agreements import AGREEMENTS, GradientSettings, get_agreement, settings_of
from hpcsgd.agreements.codecs import (
    CODECS,
    AccordionConfig,
    Bucket,
    CodecConfig,
    get_codec,
)
from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.cli.compare import plan_comparison
from hpcsgd.cli.parser import make_parser
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import (
    METHODS,
    USUAL,
    RunConfig,
    check_read,
    is_conditional,
    is_read,
    shipped_defaults,
    unread_settings,
    value_of,
)
from hpcsgd.errors import ConfigError
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.checks import check_configuration
from hpcsgd.settings import declarations, setting
from hpcsgd.studies.compare import compare_methods
from hpcsgd.studies.plan import get_method, make_setting
from tests.helpers.contracts.codec_bucket import Alone
from tests.helpers.harness import config_for, train_on
from tests.helpers.problems import make_problem

PROBLEM = make_problem("logistic", n=12, d=3)
SECTIONS = (
    *("update", "coordinate", "sampling", "stop", "polish", "average", "mirror"),
    *("accordion", "codec", "agreement", "privacy"),
)
# Read by all, or refused by those who do not in sentences of their own.
ELSEWHERE = {
    *("update.kind", "update.clip", "update.centre", "update.normalise"),
    *("update.noise", "sampling.mode", "sampling.seed", "sampling.hold_out"),
    *("stop.on", "polish.kind", "average.kind", "agreement.method", "agreement.kind"),
    *("agreement.codec", "agreement.accumulate", "agreement.hierarchical"),
    "privacy.kind",
}


def parsed(**sections):
    return RunConfig.parse(sections)


def test_every_setting_of_a_method_is_in_the_table_or_is_known_not_to_be():
    """Whoever adds a setting says who reads it."""
    names = {
        f"{section}.{key}"
        for section in SECTIONS
        for key in shipped_defaults()[section]
    }
    assert {n for n in names if not is_conditional(n)} == ELSEWHERE


def test_conditions_name_what_there_is():
    """A condition is on a setting, and on values that it takes."""
    for section in fields(USUAL):
        for declared in declarations(type(getattr(USUAL, section.name))).values():
            for of, values in [pair for c in declared.read_if for pair in c.items()]:
                if of == "agreement.codec":
                    assert set(values) <= set(CODECS)
                elif of == "agreement.reads":
                    kinds = map(settings_of, AGREEMENTS)
                    assert set(values) & set().union(*(k.reads for k in kinds))
                else:
                    value_of(of, USUAL)


class Noted(CodecConfig):
    """Settings that remember who was asked for."""

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if not name.startswith("_"):
            object.__getattribute__(self, "__dict__").setdefault("_seen", set())
            object.__getattribute__(self, "__dict__")["_seen"].add(name)
        return found


class Rounded(Alone):
    """The same to codecs that have their words rounded on the wire."""

    def start_sum(self, array, form=""):
        return lambda: array.astype(np.float32)


def asked_of(codec, **settings):
    """The names of settings that a codec asks for in a few exchanges."""
    config = Noted(**settings)
    object.__getattribute__(config, "__dict__")["_seen"] = set()
    bucket = Bucket(0, 30, 4, np.dtype(np.float32))
    made = get_codec(codec).of(bucket, config, AccordionConfig())
    made.needs_own = True
    rng = np.random.default_rng(3)
    for number in range(12):
        part = rng.normal(size=bucket.words).astype(np.float32)
        made.start(part, Rounded(), Moment(number, number // 4, 0.1, 0.1))()
    return object.__getattribute__(config, "__dict__")["_seen"]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "accordion"])
def test_a_codec_reads_what_the_table_says(codec):
    """Nothing beside it, and each of it in some run."""
    seen = asked_of(codec) | asked_of(codec, clip=1.0, nesterov=True, start=0)
    seen |= asked_of(codec, dense="never") | {"feedback"}
    seen |= {"shares"} if "share" in seen else set()  # what makes codecs reads it
    if codec in ("threshold", "wangni"):
        seen |= asked_of(codec, threshold=0.5, budget=0.5)
    config = parsed(agreement={"kind": "gradient", "codec": codec})
    known = {f.name for f in fields(CodecConfig)}
    assert seen & known == {key for key in known if is_read(f"codec.{key}", config)}


@pytest.mark.parametrize(
    "sections, said",
    [
        (
            {"agreement": {"method": "sign"}, "codec": {"share": 0.1}},
            r"\[codec\] share = 0.1 is for \[agreement\] codec = .topk., .* and codec ="
            r" 'sign' does not read it; use --method topk, or leave codec.share out",
        ),
        (
            {"update": {"beta1": 0.5}},
            r"\[update\] beta1 = 0.5 .*kind = 'adam'.*use --update adam, or leave",
        ),
        (
            {"update": {"momentum": 0.5}},
            r"\[update\] momentum = 0.5 .*'sgd' does not read it.*--update momentum",
        ),
        (
            {"agreement": {"kind": "gradient", "stage": 2}},
            "stage = 2.*kind = 'gradient' does not.*use --method zero2",
        ),
        (
            {"agreement": {"kind": "average", "delay_after": 3}},
            "delay_after = 3.*--method offload",
        ),
        ({"mirror": {"kind": "entropy"}}, r"\[mirror\] kind.*--method anybatch"),
        ({"average": {"share": 0.25}}, "share.*--set average.kind=tail"),
        ({"stop": {"tol": 1e-3}}, "tol.*--set stop.on=gap"),
        (
            {
                "agreement": {"method": "topk"},
                "accordion": {"codec": "qsgd"},
            },
            r"\[accordion\] codec.*--method accordion",
        ),
        (
            {
                "agreement": {"kind": "gradient", "codec": "threshold"},
                "codec": {"threshold": 0.5, "share": 0.5},
            },
            "share = 0.5.*threshold = 0.5 does not read it",
        ),
        (
            {
                "agreement": {"method": "accordion"},
                "accordion": {"codec": "topk"},
                "codec": {"share": 0.5},
            },
            "share = 0.5 is replaced by accordion, which switches between 0.99 and 0.1",
        ),
        (
            {"agreement": {"kind": "average", "momentum": "keep"}},
            "momentum = 'keep'.*--update momentum",
        ),
        (
            {"agreement": {"kind": "slowmo", "fraction": 0.25}},
            "fraction = 0.25 is for .*base = 'fedavg', .*--set agreement.base=fedavg",
        ),
    ],
)
def test_what_nobody_reads_is_refused_with_its_remedy(sections, said):
    with pytest.raises(ConfigError, match=said):
        check_read(parsed(**sections))


@pytest.mark.parametrize(
    "sections",
    [
        {"agreement": {"method": "topk"}, "codec": {"share": 0.1}},
        {"agreement": {"kind": "slowmo", "base": "fedavg", "fraction": 0.25}},
        {"agreement": {"method": "accordion-batch"}, "accordion": {"eta": 0.5}},
        {
            "agreement": {"method": "accordion"},
            "accordion": {"codec": "topk"},
            "codec": {"dense": "never"},
        },
        {"agreement": {"momentum": "keep"}, "update": {"kind": "momentum"}},
        # What the method has set is nobody's mistake.
        {"agreement": {"method": "anybatch"}, "rate": {"kind": "constant"}},
        {"update": {"beta1": 0.9}},  # the default
        {"update": {"momentum": 0.0}},  # which is what sgd has
    ],
)
def test_what_is_read_is_let_pass(sections):
    assert unread_settings(parsed(**sections)) == {}


@pytest.mark.parametrize("method", METHODS)
def test_no_method_sets_what_it_does_not_read(method):
    assert unread_settings(parsed(agreement={"method": method})) == {}
    plain = parsed(agreement={"method": method})
    anonymous = replace(plain, agreement=replace(plain.agreement, method=""))
    assert unread_settings(anonymous) == {}


def test_codecs_of_yours_read_anything_and_agreements_what_they_declare(
    monkeypatch,
):
    @dataclass(frozen=True)
    class YourSettings(GradientSettings):
        """One setting of its own."""

        fraction: float = setting(0.5, "share of something else")

    class Yours(get_agreement("gradient")):
        settings = YourSettings

    monkeypatch.setitem(AGREEMENTS, "yours", Yours)
    monkeypatch.setitem(CODECS, "yours", f"{__name__}:Yours")
    asked = {"kind": "yours", "codec": "yours", "fraction": 0.25, "bucket": 1.0}
    assert (
        unread_settings(parsed(agreement=asked, codec={"share": 0.5, "rank": 3})) == {}
    )
    told = unread_settings(parsed(agreement={**asked, "stage": 3}))
    assert list(told) == ["agreement.stage"]
    assert "kind = 'yours' does not read it" in told["agreement.stage"]


def test_a_run_says_so_before_it_begins():
    config = config_for(PROBLEM, codec={"share": 0.5})
    with pytest.raises(ConfigError, match="share"):
        train_on(1, config, PROBLEM)


def test_a_fit_answers_for_what_its_caller_wrote_alone():
    """Its own settings of what the caller turned off are no mistake of theirs."""
    X, y = PROBLEM.X, PROBLEM.y
    fit(X, "logistic", y, alpha=0.1, config={"polish": {"kind": "none"}})
    fit(X, "logistic", y, alpha=0.1, config={"stop": {"on": "none"}}, tol=1e-2)
    with pytest.raises(ConfigError, match=r"\[codec\] share"):
        fit(X, "logistic", y, config={"codec": {"share": 0.5}})
    with pytest.raises(ConfigError, match=r"\[update\] momentum = 0.5"):
        fit(X, "logistic", y, momentum=0.5)


SHARED = {
    "codec": {"share": 0.5, "bits": 6},
    "agreement": {"bucket": 0.5},
    "schedule": {"epochs": 1, "batch": 4},
}


def test_what_methods_share_is_for_those_that_read_it():
    found = compare_on_two("sgd,topk,qsgd,local", SHARED)
    share, bits, bucket = (
        [value_of(name, one.setting.config) for one in found.rows]
        for name in ("codec.share", "codec.bits", "agreement.bucket")
    )
    assert [row.name for row in found.rows] == ["sgd", "topk", "qsgd", "local"]
    assert share == [0.0, 0.5, 0.0, 0.0]
    assert bits == [4, 4, 6, 4]
    assert bucket == [4.0, 0.5, 0.5, 4.0]


def test_what_none_of_them_reads_is_refused():
    with pytest.raises(ConfigError, match="share = 0.5 is read by none of the runs"):
        compare_on_two("sgd,qsgd", {"codec": {"share": 0.5}})


def compare_on_two(methods, config):
    def on_rank(world):
        asked = {"X": PROBLEM.X, "y": PROBLEM.y, "repeats": 1, "world": world}
        return compare_methods(methods, config, **asked)

    return run_ranks(2, on_rank)[0]


def test_a_setting_that_says_it_itself_is_told():
    base = {"codec": {"share": 0.5}}
    own = {"agreement": {"method": "sign"}}
    assert make_setting("a", base, own).config.codec.share == 0.0
    with pytest.raises(ConfigError, match="setting 'a': .*share = 0.5"):
        make_setting("a", base, {**own, **base})


def test_compare_on_the_command_line():
    def asked(*words):
        line = ["compare", "--data", "x.h5", "--set", "codec.share=0.5", *words]
        return plan_comparison(make_parser().parse_args(line))

    rows = ["--setting", "a: method=sign", "--setting", "b: method=topk"]
    _, found = asked(*rows)
    assert [one.config.codec.share for one in found] == [0.0, 0.5]
    with pytest.raises(ConfigError, match="read by none"):
        asked(*rows[:2])


def test_studies_share_in_the_same_way():
    shared, own = {"codec": {"share": 0.5}}, {"schedule": {"batch": 4}}
    assert get_method("topk").tables(shared, own)["codec"] == {"share": 0.5}
    assert "codec" not in get_method("sign").tables(shared, own)


def test_a_run_of_an_earlier_version_goes_on(tmp_path):
    """Which let a value pass that decides nothing; today it is left out."""
    asked = {"run": {"out": str(tmp_path)}, "checkpoint": {"every": 1}}
    first = config_for(PROBLEM, **asked)
    train_on(1, first, PROBLEM)
    store = CheckpointStore(tmp_path, 1)
    _, known = store.newest()
    known.document["config"]["codec"]["share"] = 0.5
    store.write(known)
    again = config_for(
        PROBLEM,
        run={"out": str(tmp_path), "resume": "auto"},
        schedule={"epochs": 3},
        checkpoint={"every": 1},
    )
    assert train_on(1, again, PROBLEM).report["resumes"] == 1


@pytest.mark.parametrize("feedback", ["on", "off"])
@pytest.mark.parametrize(
    "kind", ["async-average", "average", "slowmo", "fedavg", "postlocal", "auto"]
)
def test_weights_have_no_error_feedback(kind, feedback):
    """Of what averages send uncompressed nothing is left out."""
    config = parsed(agreement={"kind": kind}, codec={"feedback": feedback})
    said = f"no error is left, and .*feedback = '{feedback}' was given; name a codec"
    with pytest.raises(ConfigError, match=said):
        check_configuration(config)
