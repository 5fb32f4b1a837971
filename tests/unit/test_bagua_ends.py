"""How the rows of Bagua go on, and what they refuse."""

import pytest

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.runs.result import Status
from tests.helpers.bagua import MOMENTUM, ROWS, config_of
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, train_on

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
            update = {} if row == "qadam" else {"update": MOMENTUM}
            kind = {"products": {"kind": "gather"}} if row == "async" else {}
            config = config_of(problem, row, replicas, members, **update, **kind)
        ranks, place = replicas * members, tmp_path / f"{replicas}"
        whole = in_folder(place / "whole", config, ranks, problem)[0]
        stops = (3, 4, 5, 6) if row == "async" else (4, 6)
        for stop in stops:
            parts = place / f"parts{stop}"
            first = in_folder(parts, config, ranks, problem, stop=stop)
            assert {r.status.value for r in first} == {"preempted"}
            again = in_folder(parts, config, ranks, problem)
            assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
            assert again[0].iterations == whole.iterations


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
    [("peers", "some"), ("resync", -1), ("delay", -1), ("warmup_steps", 0)],
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
