"""`hpcsgd new`: the file says everything, and changes nothing."""

import tomllib
from dataclasses import asdict
from functools import cache

import pytest

from hpcsgd.agreements import AGREEMENTS
from hpcsgd.cli.parser import help_of
from hpcsgd.cli.template import settings_of, template
from hpcsgd.cli.train import configuration
from hpcsgd.config import METHODS, RunConfig, agreement_settings, read_toml
from hpcsgd.data.sampling import MODES
from hpcsgd.errors import ConfigError
from hpcsgd.glm import FAMILIES, UPDATES
from hpcsgd.glm.updates import RATES
from hpcsgd.precision import RECIPES
from hpcsgd.products import PRODUCTS
from tests.helpers.command_line import only_json, refuse


def test_the_unchanged_file_is_the_defaults(command, tmp_path):
    done = command("new", "run.toml")
    assert done.returncode == 0 and "run.toml" in done.stdout
    assert RunConfig.parse(read_toml(tmp_path / "run.toml")) == RunConfig()


def test_training_takes_it_as_the_defaults(tmp_path):
    from hpcsgd.cli.parser import make_parser

    (tmp_path / "run.toml").write_text(template())
    arguments = make_parser().parse_args(["train", str(tmp_path / "run.toml")])
    assert configuration(arguments) == RunConfig()


def read(path, *flags):
    from hpcsgd.cli.parser import make_parser

    return configuration(make_parser().parse_args(["train", str(path), *flags]))


NEEDED = {  # without which a method is refused
    "infinity": {"agreement": {"store": "states"}},
    "accordion-batch": {"agreement": {"accumulate": 4}},
    "hierarchical": {"schedule": {"period": 2}},
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", METHODS)
def test_its_defaults_are_in_the_way_of_no_method(tmp_path, name):
    """Named by a flag all of a method is set; named in the file what makes it one."""
    path = tmp_path / "run.toml"
    path.write_text(whole())
    tables = {section: dict(table) for section, table in NEEDED.get(name, {}).items()}
    flags = [
        word
        for section, table in tables.items()
        for key, value in table.items()
        for word in ("--set", f"{section}.{key}={value}")
    ]
    tables.setdefault("agreement", {})["method"] = name
    assert read(path, "--method", name, *flags) == RunConfig.parse(tables)
    path.write_text(template().replace('method = ""', f'method = "{name}"'))
    assert read(path, *flags).agreement.method == name


def test_what_differs_from_a_default_is_a_choice(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(template().replace("steps = 8", "steps = 4"))
    with pytest.raises(ConfigError, match="leave schedule.steps out"):
        read(path, "--method", "ddp")
    assert read(path, "--method", "local").schedule.steps == 4
    path.write_text("[schedule]\nperiod = 1\n")
    assert read(path, "--method", "local").schedule.period == 1, "said by hand"


def test_a_resolved_file_is_read_as_it_was(tmp_path):
    """A choice of a method's default may be the default of all."""
    path = tmp_path / "run.toml"
    tables = {"agreement": {"method": "local"}, "schedule": {"period": 1, "steps": 8}}
    config = RunConfig.parse(tables)
    path.write_text(config.toml())
    assert read(path) == config


def test_it_trains(command, susy):
    """A file that names every setting asks for SGD, as `--plain` does."""
    command("new", "run.toml")
    with_file = only_json(command("train", "run.toml", "--data", susy, "--json"))
    without = only_json(command("train", "--data", susy, "--plain", "--json"))
    assert with_file["weights_sha256"] == without["weights_sha256"]
    assert with_file["config"] == without["config"]


def test_every_key_is_there_and_optional_ones_are_commented_out():
    for section, table in usual().items():
        for key, value in table.items():
            start = f'\n# {key} = ""' if value is None else f"\n{key} = "
            assert start in body(section), (section, key)


def usual():
    """Section -> key -> default, with the settings of all kinds of agreement."""
    kinds = {key: settings() for key, (_, settings) in agreement_settings().items()}
    agreement = {key: getattr(kind, key) for key, kind in kinds.items()}
    return {**asdict(RunConfig()), "agreement": agreement}


@cache
def whole():
    """The file, made once for all who look into it."""
    return template()


def body(section):
    """A section of the file without its head and without the sections below it."""
    return "\n" + whole().split(f"\n[{section}]\n")[1].split("\n[")[0]


def test_optional_keys_can_be_switched_on():
    """Every commented key stands where taking the # away is right."""
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and ' = ""' in line else line
        for line in template().splitlines()
    ]
    tables = tomllib.loads("\n".join(lines))
    assert {k: set(v) for k, v in tables.items()} == {
        k: set(v) for k, v in usual().items()
    }
    RunConfig.parse(tables)


@pytest.mark.parametrize(
    "section, key, names",
    [
        ("problem", "family", FAMILIES),
        ("products", "kind", PRODUCTS),
        ("agreement", "kind", AGREEMENTS),
        ("update", "kind", UPDATES),
        ("rate", "kind", RATES),
        ("sampling", "mode", MODES),
        ("precision", "recipe", RECIPES),
    ],
)
def test_choices_are_listed(section, key, names):
    said = remarks(section, key)
    for name in names:
        assert name in said, (section, key, name)


def remarks(section, key):
    """The comments above a key and beside it."""
    lines = body(section).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
    above = place
    while above and lines[above - 1].startswith("#"):
        above -= 1
    return " ".join(lines[above : place + 1])


def test_comments_come_from_the_declarations():
    texts = settings_of(RunConfig)
    assert texts["sampling.block"].startswith("blocks: rows that are read")
    assert texts["sampling.window"].endswith("need more memory")
    text = template()
    assert "# The settings of a run's length" in text
    assert "storage of A" in text.split("[precision]")[1]
    assert all(len(line) <= 88 for line in text.splitlines())


def test_parsers_find_every_text_in_the_file():
    """Without its choices, which flags list or leave to `hpcsgd info`."""
    for setting, text in settings_of(RunConfig).items():
        assert help_of(setting) == text.partition("; one of ")[0], setting


def test_it_does_not_overwrite_unless_told(command, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("mine")
    refuse(command("new", "run.toml"), 2, "exists", "--force")
    assert file.read_text() == "mine"
    assert command("new", "run.toml", "--force").returncode == 0
    assert file.read_text() == template()


def test_places_that_cannot_be_written(command, tmp_path):
    (tmp_path / "folder").mkdir()
    refuse(command("new", "folder"), 2, "is a folder")
    refuse(command("new", "no/run.toml"), 2, "no/run.toml")
    refuse(command("new"), 2, "run.toml", "--help")
