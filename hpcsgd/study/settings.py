"""Settings to compare: named configurations, and whether a comparison is fair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from hpcsgd.agreement.kinds import batches_together
from hpcsgd.assembly.notices import settle_grid
from hpcsgd.comm.grid import parse_grid
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.study.own_rates import with_own_rate
from hpcsgd.toml_text import toml_value
from hpcsgd.unread import NEEDS, USUAL, check_read, value_of, without_unread

# What all settings of a comparison share, or it would compare something else.
SHARED = (("data", "path"), ("run", "out"), ("run", "comm"))
Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Setting:
    """A name in the table, and what is trained under it."""

    name: str
    config: RunConfig
    is_method: bool = False  # by its method's name: refused where it cannot run

    @property
    def global_batch(self) -> int:
        """Rows that all replicas together take in one step."""
        config = self.config
        together = config.grid.replicas * batches_together(config.agreement)
        return config.schedule.batch * together


@dataclass(frozen=True)
class Refusal:
    """A method that cannot run as asked, and the sentence that says why."""

    name: str
    why: str


Entry = Setting | Refusal


def make_setting(name: str, base: Tables, over: Tables) -> Setting:
    """The tables of `over` laid over those of `base`.

    A rule of steps that is not the base's, and measures its rate in other units, has a
    rate of its own unless `over` gives one.
    """
    for section, key in SHARED:
        if key in over.get(section, {}):
            raise ConfigError(
                f"setting {name!r}: {section}.{key} is one for all settings;"
                " give it outside of them"
            )
    tables = {section: dict(table) for section, table in base.items()}
    for section, table in over.items():
        tables.setdefault(section, {}).update(table)
    others = {  # what all share is for those that read it
        section: {k: v for k, v in table.items() if k not in over.get(section, {})}
        for section, table in base.items()
    }
    try:
        tables = without_unread(tables, others)
        if not {"value", "per_batch"} & set(over.get("rate", {})):
            tables = with_own_rate(tables, base)
        config = RunConfig.parse(tables)
        check_read(config)
    except ConfigError as error:
        raise ConfigError(f"setting {name!r}: {error}") from error
    return Setting(name, config)


def check_shared(base: Tables, configs: Sequence[RunConfig]) -> None:
    """Refuse what is given for all of them and read by none."""
    for name in NEEDS:
        section, key = name.split(".")
        value = base.get(section, {}).get(key)
        if value is None or value == value_of(name, USUAL) or not configs:
            continue
        if all(value_of(name, one) == value_of(name, USUAL) for one in configs):
            raise ConfigError(
                f"[{section}] {key} = {value!r} is given for all and read by none of"
                " them; leave it out, or add a method or a setting that reads it"
            )


def on_ranks(entry: Entry, ranks: int) -> Entry:
    """With the grid that it has there, where none was given."""
    if isinstance(entry, Refusal):
        return entry
    return replace(entry, config=settle_grid(entry.config, ranks))


def parse_setting(text: str) -> tuple[str, dict[str, Any]]:
    """(name, key -> value) of "NAME: key=value key=value".

    >>> parse_setting("ca-sgd: products=gram schedule.steps=8")
    ('ca-sgd', {'products': 'gram', 'schedule.steps': 8})
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    if not colon or not name or "=" in name:
        raise ConfigError(
            f"--setting {text!r}: write it as 'NAME: key=value key=value',"
            " for example 'ca-sgd: products=gram steps=8'"
        )
    table = {}
    for word in rest.split():
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise ConfigError(
                f"setting {name!r}: {word!r} is no key=value; write for example steps=8"
            )
        table[key] = toml_value(value)
    return name, table


def expanded(
    name: str, table: Mapping[str, Any], short: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """`table` as sections: "products.kind", products = {kind = ...}, or a short name.

    `short` maps names to section.key; grid = "2x1" says replicas and members.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        section, dot, own = short.get(key, key).partition(".")
        if isinstance(value, Mapping):
            sections.setdefault(key, {}).update(value)
        elif dot:
            sections.setdefault(section, {})[own] = value
        elif key == "grid":
            sections["grid"] = _grid(name, str(value))
        else:
            raise ConfigError(
                f"setting {name!r}: unknown key {key!r}; write section.key, grid,"
                f" or one of {', '.join(sorted(short))}"
            )
    return sections


def _grid(name: str, text: str) -> dict[str, int]:
    try:
        replicas, members = parse_grid(text)
    except ConfigError as error:
        raise ConfigError(f"setting {name!r}: {error}") from error
    return {"replicas": replicas, "members": members}


def folder_name(name: str) -> str:
    """`name` as a folder."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def check_names(settings: Sequence[Entry]) -> None:
    """At least one setting, each under a name and a folder of its own."""
    if not settings:
        raise ConfigError(
            "nothing to compare: add --setting 'NAME: key=value', [compare.NAME] tables"
            " in the file, or --methods all"
        )
    places = [folder_name(setting.name) for setting in settings]
    for setting, place in zip(settings, places, strict=True):
        if not place:
            raise ConfigError(
                f"setting {setting.name!r}: a name needs a letter or a digit"
            )
        if places.count(place) > 1:
            raise ConfigError(
                f"two settings are called {setting.name!r}; give each a name of its own"
            )


def check_equal_batch(settings: Sequence[Setting]) -> None:
    """Refuse settings whose steps do not see as many rows: they solve other tasks."""
    if is_equal_batch(settings):
        return
    said = [
        f"{s.name} {s.global_batch} (batch {s.config.schedule.batch}"
        f" x {s.config.grid.replicas} replicas)"
        for s in settings
    ]
    common = equal_batch(settings)
    remedy = [
        f"batch={common // s.config.grid.replicas} for {s.name}" for s in settings
    ]
    raise ConfigError(
        f"settings differ in their global batch: {', '.join(said)};"
        f" {', '.join(remedy)} makes it {common} for all, or add --allow-unequal"
    )


def is_equal_batch(settings: Sequence[Setting]) -> bool:
    """True where every step sees as many rows."""
    return len({setting.global_batch for setting in settings}) == 1


def equal_batch(settings: Sequence[Setting]) -> int:
    """The first's global batch, or the next one that all replicas can share."""
    share = lcm(*(setting.config.grid.replicas for setting in settings))
    return -(-settings[0].global_batch // share) * share
