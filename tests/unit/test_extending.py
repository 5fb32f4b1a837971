"""A codec, agreements and a product of files outside of the package."""

import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcsgd import agreements
from hpcsgd.agreements import AGREEMENTS, Average, codecs
from hpcsgd.agreements.codecs import CODECS
from hpcsgd.agreements.codecs.base import Identity
from hpcsgd.backends.task import State
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, UpdateConfig
from hpcsgd.errors import ConfigError
from hpcsgd.products import PRODUCTS
from hpcsgd.runs.checks import check_configuration
from hpcsgd.runs.fall_back import next_fallback_level
from hpcsgd.studies.folder import expected_traffic
from tests.helpers.contracts.codec import BUCKET_LAWS, RUN_LAWS, Row, coded, on_all
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import (
    check_against_oracle,
    config_for,
    make_problem,
    train_on,
)
from tests.helpers.sparse import make_sparse

EXAMPLES = Path(__file__).parents[2] / "examples" / "extending"
LAWS = [*BUCKET_LAWS, *RUN_LAWS]
CLIP = {"clip": "norm", "clip_at": 1.0, "clip_over": "exchange"}


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A package with the two files, imported; the tables are left as they were."""
    package = tmp_path / "their_methods"
    package.mkdir()
    (package / "__init__.py").write_text("from their_methods import alternate, median")
    for name in ("alternate.py", "median.py"):
        shutil.copy(EXAMPLES / name, package)
    before = dict(CODECS), dict(AGREEMENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("their_methods")
    yield sys.modules["their_methods"]
    for table, known in zip((CODECS, AGREEMENTS), before, strict=True):
        table.clear()
        table.update(known)
    for name in [n for n in sys.modules if n.split(".")[0] == "their_methods"]:
        del sys.modules[name]


@pytest.mark.cases(12)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.cases(3)
def test_their_codec_keeps_every_law(theirs, law):
    row = Row(rate=0.25, broken={"feedback": "off"}, worse=100.0)
    with np.errstate(all="ignore"):
        law("alternate", row)


def test_their_codec_sends_half_and_goes_on_bit_for_bit(theirs, tmp_path):
    problem = make_problem("softmax")
    config = coded(problem, "alternate", 3)
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    in_folder(tmp_path / "parts", config, 3, problem, stop=4)
    again = in_folder(tmp_path / "parts", config, 3, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256
    sent = whole.ledger["agreement"]["bytes"] / whole.exchanges
    assert sent == 8 * 7 * 4 / 2 + 8 * (4 + 1)


def test_their_agreement_is_the_middle(theirs):
    """Of random states, word by word, on three replicas of two members."""
    drawn = np.random.default_rng(0).normal(size=(3, 2, 5, 2))

    def on_rank(world):
        grid = Grid(world, 3, 2)
        state = State(drawn[grid.replica, grid.member].copy(), None)
        theirs.median.Median(grid, 1 / 3, 1).agree(state, "agreement")
        return grid.member, state.weights, world.ledger.entries["agreement"].bytes

    for member, weights, sent in run_ranks(6, on_rank):
        np.testing.assert_array_equal(weights, np.median(drawn[:, member], axis=0))
        assert sent == 5 * 2 * 8


def test_their_agreement_trains_and_goes_on_bit_for_bit(theirs, tmp_path):
    problem = make_problem("logistic")
    config = agreed(
        problem,
        3,
        agreement={"kind": "median"},
        schedule={"steps": 2, "period": 2},
        problem={"intercept": True},
        update={"kind": "momentum", "momentum": 0.5},
    )
    results = on_all(3, config, problem)
    assert len({r.weights_sha256 for r in results}) == 1
    assert results[0].loss < results[0].history[0]["loss"]
    sent = results[0].ledger["agreement"]
    times = -(-results[0].exchanges // 2)
    assert (sent["calls"], sent["bytes"]) == (times, times * (7 + 1) * 2 * 8)
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    in_folder(tmp_path / "parts", config, 3, problem, stop=2)
    again = in_folder(tmp_path / "parts", config, 3, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256


def test_names_that_are_taken_and_names_that_are_not_known(theirs):
    codecs.register("alternate", theirs.alternate.Alternate)  # the same once more
    agreements.register("median", theirs.median.Median)
    with pytest.raises(ConfigError, match="a codec 'sign' already; take another"):
        codecs.register("sign", Identity)
    with pytest.raises(ConfigError, match="an agreement 'slowmo' already"):
        agreements.register("slowmo", Average)
    with pytest.raises(ConfigError, match="an agreement 'auto' already"):
        agreements.register("auto", theirs.median.Median)
    del CODECS["alternate"]
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match="unknown codec: 'alternate'; known:"):
        on_all(3, coded(problem, "alternate", 3), problem)


@pytest.fixture
def trimmed(monkeypatch):
    """The example with settings, imported as a plugin; the table is left as it was."""
    before = dict(AGREEMENTS)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield {"run": {"plugins": ["trimmed"]}}
    AGREEMENTS.clear()
    AGREEMENTS.update(before)
    sys.modules.pop("trimmed", None)


def with_trim(problem, replicas, plugins, **settings):
    return agreed(
        problem,
        replicas,
        **plugins,
        agreement={"kind": "trimmed", **settings},
        schedule={"steps": 2, "period": 3, "batch": 5},
        problem={"intercept": True},
    )


def test_an_agreement_of_yours_has_settings_from_toml(trimmed):
    text = '[run]\nplugins = ["trimmed"]\n[agreement]\nkind = "trimmed"\ntrim = 2\n'
    config = RunConfig.parse(tomllib.loads(text))
    assert config.agreement.trim == 2
    assert RunConfig.parse(tomllib.loads(config.toml())) == config
    assert config.tables()["agreement"]["trim"] == 2
    with pytest.raises(ConfigError, match="trim = -1 must be at least 0"):
        RunConfig.parse({**trimmed, "agreement": {"kind": "trimmed", "trim": -1}})
    with pytest.raises(ConfigError, match=r"unknown: \['trm'\].*did you mean trim"):
        RunConfig.parse({**trimmed, "agreement": {"kind": "trimmed", "trm": 1}})


def test_its_setting_is_refused_where_another_kind_agrees(trimmed):
    tables = {**trimmed, "agreement": {"kind": "average", "trim": 3}}
    with pytest.raises(ConfigError, match="trim = 3 is for .* kind = 'trimmed', and"):
        check_configuration(RunConfig.parse(tables))


def test_its_refusal_names_the_fact_and_the_remedy(trimmed):
    problem = make_problem("logistic")
    config = with_trim(problem, 2, trimmed)
    with pytest.raises(ConfigError, match="kind = 'trimmed' needs 3 .*use --grid 3x1"):
        on_all(2, config, problem)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_its_bytes_are_those_of_the_ledger(trimmed, momentum):
    problem = make_problem("softmax", n=31)
    config = with_trim(problem, 3, trimmed)
    if momentum:
        update = replace(config.update, kind="momentum", momentum=momentum)
        config = replace(config, update=update)
    results = on_all(3, config, problem)
    assert len({result.weights_sha256 for result in results}) == 1
    ledger = results[0].ledger
    sent = {
        key: ledger["agreement"][key] + ledger["products"][key]
        for key in ("calls", "words", "bytes")
    }
    assert results[0].exchanges % 3, "the last gather is one of its own"
    assert expected_traffic(results[0].as_dict()) == sent


def test_one_wild_replica_does_not_move_the_trimmed_mean(trimmed):
    RunConfig.parse(trimmed)
    kind = sys.modules["trimmed"].Trimmed

    def on_rank(world):
        grid = Grid(world, 5, 1)
        wild = 1e9 if grid.replica == 3 else float(grid.replica)
        state = State(np.full((4, 1), wild), None)
        made = kind(grid, 0.2, 1)
        made.trim = 1
        made.agree(state, "agreement")
        return state.weights

    for weights in run_ranks(5, on_rank):
        np.testing.assert_array_equal(weights, np.full((4, 1), (1 + 2 + 4) / 3))


@pytest.fixture
def on_numpy(monkeypatch):
    """Sections that train with the product of the example; its row leaves the table."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield {"run": {"plugins": ["numpy_exchange"]}, "products": {"kind": "numpy"}}
    PRODUCTS.pop("numpy", None)
    sys.modules.pop("numpy_exchange", None)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("recipe, tolerance", [("fp64", 1e-14), ("fp32", 1e-6)])
@pytest.mark.parametrize("l2, intercept", [(0.0, False), (0.05, False), (0.05, True)])
@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson"])
def test_a_product_on_numpy_equals_sgd(
    on_numpy, family, l2, intercept, recipe, tolerance, ranks
):
    problem = make_problem(family)
    config = config_for(
        problem,
        **on_numpy,
        problem={"l2": l2, "intercept": intercept},
        precision={"recipe": recipe},
    )
    check_against_oracle(ranks, config, problem, tolerance)


def test_a_product_on_numpy_sends_the_messages_of_gram(on_numpy):
    problem = make_problem("logistic")
    result = train_on(2, config_for(problem, **on_numpy), problem)
    gram = train_on(2, config_for(problem), problem)
    parts = [
        {key: one.ledger["products"][key] for key in ("calls", "words", "bytes")}
        for one in (result, gram)
    ]
    assert parts[0] == parts[1] == expected_traffic(result.as_dict())


@pytest.mark.parametrize(
    "family, sections, data",
    [
        ("softmax", {}, {}),
        ("logistic", {"update": {"kind": "momentum", "momentum": 0.5}}, {}),
        ("logistic", {"precision": {"recipe": "c"}}, {}),
        ("logistic", {"update": CLIP}, {}),
        ("logistic", {}, {"weights": True}),
        ("logistic", {}, {"offset": True}),
    ],
)
def test_what_the_product_on_numpy_lacks_is_refused(on_numpy, family, sections, data):
    problem = make_problem(family)
    config = config_for(problem, **on_numpy, **sections)
    with pytest.raises(ConfigError, match="takes plain SGD, .*; use kind = 'gram'"):
        train_on(2, config, problem, **data)


def test_the_product_on_numpy_refuses_sparse_rows(on_numpy):
    problem, _ = make_sparse("logistic")
    with pytest.raises(ConfigError, match="and dense rows .*; use kind = 'gram'"):
        train_on(1, config_for(problem, **on_numpy), problem)


def test_open_steps_of_a_product_need_a_formula_of_its_time(on_numpy):
    problem = make_problem("logistic")
    config = config_for(problem, **on_numpy, schedule={"steps": "auto"})
    with pytest.raises(ConfigError, match="'numpy' has no formula.*use --steps 8"):
        train_on(1, config, problem)


def test_facts_of_the_product_on_numpy_are_read_from_its_class(on_numpy):
    """A recurrence of no use takes fewer steps, and no step of it is clipped alone."""
    problem = make_problem("logistic")
    config = config_for(problem, **on_numpy, schedule={"steps": 4})
    level = next_fallback_level(config, "numpy")
    assert level is not None and level.key == "schedule.steps" and level.after == 2
    clipped = replace(config, update=UpdateConfig(clip="norm"))
    with pytest.raises(ConfigError, match="needs the gradient of every step"):
        train_on(1, clipped, problem)
    watched = replace(config, run=replace(config.run, gap_every=1))
    assert train_on(2, watched, problem).report["gap_looks"] == 0


def test_a_plugin_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="plugins names 'no_such'.*add its folder to"):
        RunConfig.parse({"run": {"plugins": ["no_such"]}})
    with pytest.raises(ConfigError, match="must be a list of names"):
        RunConfig.parse({"run": {"plugins": "trimmed"}})
