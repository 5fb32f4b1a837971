"""How the rows of Bagua go on, and what they refuse."""

import pytest

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.runs.result import Status
from hpcsgd.studies.verify import certify
from tests.helpers.bagua import ROWS, Clocked, clocked, config_of, update_of
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, relative_error, train_on
from tests.helpers.verify import reader_of

# --------------------------------------------------------------------- endings


@pytest.mark.cases(1)
@pytest.mark.parametrize("row", [*ROWS, "leaders"])
def test_a_run_goes_on_bit_for_bit(row, tmp_path):
    """Between any two exchanges, on replicas of members; what travels is saved."""
    problem = make_problem("softmax", n=58)
    for replicas, members in ((4, 1), (2, 2)):
        if row == "leaders":
            own = {"hierarchical": "2", "codec": "bytegrad"}
            config = agreed(problem, replicas, members, agreement=own)
        else:
            update = {"update": update_of(row)}
            kind = {"products": {"kind": "gather"}} if "async" in row else {}
            config = config_of(problem, row, replicas, members, **update, **kind)
        ranks, place = replicas * members, tmp_path / f"{replicas}"
        whole = in_folder(place / "whole", config, ranks, problem)[0]
        stops = (3, 4, 5, 6) if "async" in row else (4, 6)
        for stop in stops:
            parts = place / f"parts{stop}"
            first = in_folder(parts, config, ranks, problem, stop=stop)
            assert {r.status.value for r in first} == {"preempted"}
            again = in_folder(parts, config, ranks, problem)
            assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
            assert again[0].iterations == whole.iterations


@pytest.mark.parametrize("replicas, members", [(3, 1), (2, 2)])
def test_averages_by_clocks_go_on_from_what_was_under_way(replicas, members, tmp_path):
    """The log of both parts gives the weights; replicas have started as many."""
    problem = make_problem("logistic", n=90)
    config = clocked(problem, replicas, members)
    for stop in (2, 3, 6):
        place, ranks = tmp_path / f"{stop}", replicas * members
        first = in_folder(place, config, ranks, problem, stop=stop)[0]
        assert first.status.value == "preempted"
        again = in_folder(place, config, ranks, problem)[0]
        averages = again.report["agreement"]["averages"]
        told = Clocked(config, problem, averages).run()
        assert relative_error(again, told) < 1e-11
        assert len({len(row) for row in averages["started"]}) == 1


def test_a_certificate_repeats_steps_and_counts_no_averages_of_clocks(tmp_path):
    problem = make_problem("logistic", n=90)
    out = {"run": {"out": str(tmp_path), "record": 4}, "products": {"kind": "gram"}}
    train_on(2, clocked(problem, 2, **out), problem)
    found = certify(tmp_path, exchanges=4, reader=reader_of(problem, data=False))
    checks = {check.name: check for check in found.checks}
    assert sum(name.startswith("exchange") for name in checks) == 4
    unknown = checks.pop("traffic of agreement")
    assert unknown.ok is None and all(check.ok for check in checks.values())


@pytest.mark.parametrize("row", ROWS)
def test_another_number_of_replicas_goes_on_from_the_mean(row, tmp_path):
    problem = make_problem("logistic", n=60)
    first = in_folder(tmp_path, config_of(problem, row), 4, problem, stop=4)[0]
    result = in_folder(tmp_path, config_of(problem, row, 2), 2, problem)[0]
    assert result.status is Status.COMPLETED and result.loss < first.loss


# -------------------------------------------------------------------- refusals

REFUSED = [
    ("all", 4, {"schedule": {"steps": 4}}, "use --steps 1"),
    ("all", 4, {"agreement": {"codec": "bf16"}}, "no codecs.*leave agreement.codec"),
    ("low", 4, {"codec": {"feedback": "on"}}, "feedback = 'on' is for"),
    ("pairs", 3, {}, "3 replicas leave one over; use an even number"),
    ("pairs", 6, {"agreement": {"hierarchical": "2"}}, "3 groups of.*leave one over"),
    ("all", 4, {"agreement": {"hierarchical": "nodes"}}, "off, node, rack, or how"),
    ("qadam", 4, {"update": {"kind": "sgd"}}, "use --update adam"),
    ("async", 4, {"agreement": {"delay": 4}}, "must be at most.*period = 3"),
    (
        *("async", 4),
        {
            "agreement": {"sync_interval_ms": 5, "delay": 1},
            "run": {"reproducible": True},
        },
        "starts averages by clocks.*leave one of the two out",
    ),
    ("async", 4, {"agreement": {"sync_interval_ms": 5}}, "delay = 2"),
    ("async pairs", 3, {}, "3 replicas leave one over"),
    (
        *("async pairs", 4),
        {"agreement": {"sync_interval_ms": 5, "delay": 1}},
        "leave one of peers and sync_interval_ms out",
    ),
    ("async", 4, {"update": {"kind": "svrg"}}, "use --agreement average"),
    ("async", 4, {"agreement": {"hierarchical": "2"}}, "use --agreement gradient"),
    ("async", 4, {"average": {"kind": "tail"}}, "set average.kind = 'none'"),
    ("low", 4, {"average": {"kind": "tail"}}, "set average.kind = 'none'"),
    ("all", 4, {"update": {"clip": "norm"}}, "supports no clipping"),
    ("qadam", 4, {"update": {"bits": 8}}, "supports no optimizer state in 8 bits"),
    ("low", 4, {"precision": {"residual": "fp16"}}, "precision.residual=fp32"),
]


@pytest.mark.parametrize(
    "row, replicas, sections, remedy", REFUSED, ids=lambda x: str(x)[:40]
)
def test_what_cannot_work_is_said_with_the_remedy(row, replicas, sections, remedy):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=remedy):
        train_on(replicas, config_of(problem, row, replicas, **sections), problem)


@pytest.mark.parametrize(
    "key, value",
    [
        ("peers", "some"),
        ("resync", -1),
        ("delay", -1),
        ("sync_interval_ms", -1),
        ("warmup_steps", 0),
    ],
)
def test_settings_are_checked_at_birth(key, value):
    with pytest.raises(ConfigError, match=key):
        RunConfig.parse({"agreement": {key: value}})


@pytest.mark.parametrize("of", ["nodes", "0", "-2", 0, -2])
def test_groups_of_leaders_are_named(of):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match="off, node, rack, or how many"):
        train_on(2, agreed(problem, 2, agreement={"hierarchical": of}), problem)


def test_one_of_many_is_timed_where_it_has_no_group_of_its_own():
    """--emulate-members: what neighbours would say is what was told them."""
    problem = make_problem("logistic")
    for row in ("all", "pairs", "low"):
        config = config_of(problem, row, 4, run={"emulate_members": 4})
        assert train_on(1, config, problem).ledger["agreement"]["calls"]
    config = config_of(problem, "async", 4, run={"emulate_members": 4})
    with pytest.raises(ConfigError, match="supports no emulated members"):
        train_on(1, config, problem)
    own = {"agreement": {"hierarchical": "2"}, "run": {"emulate_members": 4}}
    with pytest.raises(ConfigError, match="--emulate-members does not know"):
        train_on(1, agreed(problem, 4, **own), problem)
