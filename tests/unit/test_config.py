"""Settings are checked where they are born, and the file says what was meant."""

import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsgd.config import METHODS, USUAL, RunConfig, apply_settings, read_toml
from hpcsgd.errors import ConfigError
from hpcsgd.settings import MOST_REMEMBERED, declarations, remembered


def test_toml_round_trip(tmp_path):
    config = RunConfig.parse(
        {
            "schedule": {"batch": 7, "steps": 3},
            "precision": {"recipe": "c", "gram_wire": "fp64"},
            "data": {"path": 'a "quoted"\\name.h5'},
            "problem": {"l2": 1e-4},
        }
    )
    file = tmp_path / "run.toml"
    file.write_text(config.toml())
    assert RunConfig.parse(read_toml(file)) == config


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back_from_the_file(text):
    """Quotes, control characters, what looks like more settings: text stays text."""
    config = RunConfig.parse({"data": {"path": text}})
    assert RunConfig.parse(tomllib.loads(config.toml())) == config


@pytest.mark.parametrize(
    "tables, sentence",
    [
        (
            {"schedule": {"step": 4}},
            r"\[schedule\] unknown: \[.step.\] \(did you mean steps\?\); known: ",
        ),
        (
            {"shedule": {}},
            r"sections unknown: \['shedule'\] \(did you mean schedule\?\); known: \[",
        ),
        ({"schedule": {"batch": 0}}, "batch = 0 must be a whole number of at least 1"),
        ({"schedule": {"steps": -1}}, "steps = -1 must be a whole number"),
        ({"schedule": {"batch": 2.5}}, "must be of type int"),
        ({"schedule": {"batch": True}}, "must be of type int"),
        ({"problem": {"l2": -1.0}}, "l2 = -1.0 must be at least 0"),
        ({"problem": 3}, "stands outside a section"),
        ({"products": {"look_ahead": "maybe"}}, "must be one of on, off, auto"),
    ],
)
def test_wrong_settings_are_one_sentence(tables, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig.parse(tables)


def test_a_whole_number_may_stand_for_a_real_one():
    assert RunConfig.parse({"problem": {"l2": 1}}).problem.l2 == 1.0


@pytest.mark.parametrize("key", ["hierarchical", "groups", "periods"])
def test_a_number_may_stand_for_a_text_that_counts(key):
    kind = "gradient" if key == "hierarchical" else "hierarchical"
    tables = {"agreement": {"kind": kind}}
    tables = apply_settings(tables, [f"agreement.{key}=2"])
    assert getattr(RunConfig.parse(tables).agreement, key) == "2"
    for wrong in (True, 2.0, [2]):
        with pytest.raises(ConfigError, match=f"{key} = .* must be of type str"):
            RunConfig.parse({"agreement": {key: wrong}})
    with pytest.raises(ConfigError, match="kind = 2 must be of type str"):
        RunConfig.parse({"agreement": {"kind": 2}})


def test_settings_lie_over_the_file():
    tables = apply_settings(
        {"schedule": {"batch": 4}},
        ["schedule.steps=16", "problem.family=poisson", "run.reproducible=true"],
    )
    config = RunConfig.parse(tables)
    assert (config.schedule.batch, config.schedule.steps) == (4, 16)
    assert config.problem.family == "poisson"
    assert config.run.reproducible is True


@pytest.mark.parametrize("setting", ["steps=3", "schedule.steps", "=3", ".x=1"])
def test_a_malformed_setting_shows_the_form(setting):
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        apply_settings({}, [setting])


def test_a_file_that_is_not_toml_or_not_there(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("[schedule\nbatch = 3")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_toml(bad)
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        ({"recipe": "z"}, r"unknown recipe: 'z'; known: \['bf16', 'c', 'd',"),
        ({"inner": "bf15"}, "inner = 'bf15' must be one of fp64, fp32"),
        ({"matrix": "int3"}, "matrix = 'int3' must be one of fp64.* int8"),
    ],
)
def test_precision_names_what_it_knows(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig.parse({"precision": overrides}).precision.resolve()


def test_all_that_is_wrong_with_a_section_is_refused_at_once():
    tables = {"run": {"threads": 0, "device": "gpu", "timeout": float("nan")}}
    with pytest.raises(ConfigError) as raised:
        RunConfig.parse(tables)
    first, *others = str(raised.value).splitlines()
    assert first == "3 settings cannot work:"
    assert sorted(others) == [
        "  - [run] device = 'gpu' must be one of cpu, cuda (did you mean cpu?)",
        "  - [run] threads = 0 must be at least 1; 1 is one core a rank",
        "  - [run] timeout = nan must be at least 0 and finite; 0 waits for ever",
    ]
    with pytest.raises(ConfigError, match="2 settings cannot work"):
        RunConfig.parse({"schedule": {"batch": "3", "steps": 0}})


def test_auto_is_no_number_in_a_file():
    tables = {"schedule": {"steps": "auto"}, "rate": {"value": "auto"}}
    config = RunConfig.parse(tables)
    assert (config.schedule.steps, config.rate.value) == (0, 0.0)
    written = config.tables()
    assert (written["schedule"]["steps"], written["rate"]["value"]) == ("auto", "auto")
    for section, key in (("schedule", "steps"), ("rate", "value")):
        with pytest.raises(ConfigError, match=f'{key} = 0 must be .*, or "auto"'):
            RunConfig.parse({section: {key: 0}})


def test_other_values_are_those_of_a_file_with_them():
    tables = {"schedule": {"batch": 4}, "problem": {"l2": 0.5}, "run": {"out": "a"}}
    config = RunConfig.parse(tables | {"agreement": {"kind": "gradient"}})
    other = config.with_values(
        {
            "schedule.steps": "auto",
            "rate.milestones": [0.5],
            "problem.l2": 1,
            "run.out": None,
            "agreement.bucket": 2.0,
        }
    )
    tables = {
        "schedule": {"batch": 4, "steps": "auto"},
        "rate": {"milestones": [0.5]},
        "problem": {"l2": 1.0},
        "agreement": {"kind": "gradient", "bucket": 2.0},
    }
    assert other == RunConfig.parse(tables)
    assert type(other.problem.l2) is float
    assert config.problem.l2 == 0.5, "the settings themselves stay as they were"


def test_another_kind_of_agreement_has_its_own_settings():
    tables = {"kind": "average", "bucket": 2.0, "stage": 3}
    config = RunConfig.parse({"agreement": tables})
    other = config.with_values({"agreement.kind": "sharded"})
    assert other == RunConfig.parse({"agreement": tables | {"kind": "sharded"}})
    assert other.agreement.zero_stage == 3


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"shedule.batch": 4}, r"sections unknown: .*did you mean schedule"),
        ({"schedule.step": 4}, r"\[schedule\] unknown: .*did you mean steps"),
        ({"schedule": 4}, r"\[schedule\] unknown: \[''\]"),
        ({"schedule.steps": 0}, 'steps = 0 must be .*, or "auto"'),
        ({"schedule.batch": "4"}, "batch = .* must be of type int"),
        ({"schedule.batch": 0, "schedule.epochs": -2}, "2 settings cannot work"),
        ({"schedule.batch": 0, "run.threads": 0}, "2 settings cannot work"),
        ({"agreement.method": "ddp"}, "give it to RunConfig.parse"),
        ({"agreement.foreign": ()}, r"\[agreement\] unknown"),
    ],
)
def test_other_values_are_checked_as_those_of_a_file(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        USUAL.with_values(values)


@pytest.mark.parametrize("section", get_type_hints(RunConfig))
def test_defaults_are_among_the_values_that_a_setting_takes(section):
    for key, declared in declarations(get_type_hints(RunConfig)[section]).items():
        if declared.default is not None:
            assert declared.takes(declared.default), key
            assert not declared.known or declared.default in (*declared.known, ""), key


GOLDEN = Path(__file__).parents[1] / "golden" / "before" / "run" / "resolved.toml"


def test_a_file_of_an_earlier_version_keeps_its_settings():
    """A new version writes each key of it with the same value, and reads that again."""
    tables = read_toml(GOLDEN)
    config = RunConfig.parse(tables)
    written = tomllib.loads(config.toml())
    for section, table in tables.items():
        assert table == {key: written[section][key] for key in table}
    assert RunConfig.parse(written) == config


@pytest.mark.parametrize("method", METHODS)
def test_the_settings_of_a_method_are_written_and_read(method):
    config = RunConfig.parse({"agreement": {"method": method}})
    assert RunConfig.parse(tomllib.loads(config.toml())) == config
    assert config.tables().keys() == USUAL.tables().keys()
    assert config.tables()["agreement"].keys() == USUAL.tables()["agreement"].keys()


def test_tables_are_copies():
    """Whoever changes what `tables` returned changes no settings of a later call."""
    config = RunConfig.parse({"sweep": {"l2": [0.1, 0.2]}})
    first = config.tables()
    first["sweep"]["l2"].append(0.3)
    first["schedule"]["batch"] = 0
    del first["problem"]
    assert config.tables()["sweep"]["l2"] == [0.1, 0.2]
    assert config.tables()["schedule"]["batch"] == config.schedule.batch
    assert RunConfig.parse(config.tables()) == config


def test_no_values_leave_the_same_settings():
    config = RunConfig()
    assert config.with_values({}) is config


def test_remembered_results_are_those_of_the_same_object():
    """Equal settings may differ in type, as 1 and 1.0: only identity counts."""
    calls = []

    @remembered
    def name(config, *more):
        calls.append(config)
        return f"{config.problem.l2} {more}"

    real, whole = (RunConfig.parse({"problem": {"l2": 1.0}}) for _ in range(2))
    object.__setattr__(whole.problem, "l2", 1)
    assert real == whole
    assert [name(c) for c in (real, whole, real, whole)] == ["1.0 ()", "1 ()"] * 2
    assert calls == [real, whole]
    assert name(real, 2) == "1.0 (2,)"
    assert name(real, [3]) == name(real, [3]) == "1.0 ([3],)"  # a list has no hash
    assert len(calls) == 5


def test_errors_are_not_remembered():
    """A name that is registered after a refusal is known then."""
    calls = []

    @remembered
    def refuse(config):
        calls.append(config)
        raise ConfigError("refused")

    config = RunConfig()
    for _ in range(2):
        with pytest.raises(ConfigError):
            refuse(config)
    assert len(calls) == 2


def test_few_results_are_remembered():
    calls = []

    @remembered
    def number(config):
        calls.append(config)
        return len(calls)

    configs = [RunConfig() for _ in range(MOST_REMEMBERED + 1)]
    results = [number(config) for config in configs]
    assert results == list(range(1, len(configs) + 1))
    assert number(configs[-1]) == len(configs)
    assert number(configs[0]) == len(configs) + 1  # forgotten, and made again
