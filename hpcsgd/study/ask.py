"""From what a user wrote, in a file, in flags or in Python, to a plan."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.comm.grid import parse_grid
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.study.checks import check
from hpcsgd.study.methods import Grid
from hpcsgd.study.plan import Plan
from hpcsgd.study.points import Steps
from hpcsgd.study.rows import rows_in

# Nothing of a study is resumed in the middle of a run: checkpoints would cost alone.
NO_CHECKPOINTS = {"every": 0, "seconds": 0.0}


def make_plan(
    kind: str, asked: Mapping[str, Any], base: Mapping[str, Mapping[str, Any]]
) -> Plan:
    """The plan of `asked`, the keys of [study], over `base`, the tables of `train`.

    What is not asked for is what `base` or `train` has: one batch, one number of steps.
    """
    unknown = sorted(set(asked) - set(KEYS))
    if unknown:
        raise ConfigError(f"[study] unknown: {unknown}; known: {sorted(KEYS)}")
    named = asked.get("kind", kind)
    if named != kind:
        raise ConfigError(f"[study] kind = {named!r}: use hpcsgd study {named}")
    config, tables = RunConfig.parse(base), _shared(base)
    path = tables.get("data", {}).get("path", "")
    if not path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path in the file")
    tables["data"]["path"] = str(Path(path).absolute())
    given = {k: KEYS[k](k, v) for k, v in asked.items() if v is not None}
    given.pop("kind", None)
    plan = Plan(
        kind=kind,
        base=tables,
        rows=rows_in(path),
        **{**_of_base(config), "ranks": (), **_renamed(given)},
    )
    check(plan)
    return plan


def _of_base(config: RunConfig) -> dict[str, Any]:
    """What is one value in `train` and a list here."""
    return {
        "steps": (config.schedule.steps or "auto",),
        "batch": (config.schedule.batch * config.grid.replicas,),
        "precision": (config.precision.recipe,),
        "seeds": (config.sampling.seed,),
    }


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    if "emulate_members" in given:
        given["emulated"] = given.pop("emulate_members")
    return given


def _shared(base: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`base` without what every point has for itself."""
    tables = {section: dict(table) for section, table in base.items()}
    for section, key in OWN:
        tables.get(section, {}).pop(key, None)
    tables.pop("grid", None)
    tables.setdefault("checkpoint", dict(NO_CHECKPOINTS))
    return {section: table for section, table in tables.items() if table}


OWN = (
    ("schedule", "steps"),
    ("schedule", "batch"),
    ("precision", "recipe"),
    ("sampling", "seed"),
    ("run", "out"),
    ("run", "resume"),
    ("run", "emulate_members"),
)


def _words(key: str, value: Any) -> list[Any]:
    """The items of "1,2,4", of a list, or of one value."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, Sequence):
        return list(value)
    return [value]


def numbers(key: str, value: Any) -> tuple[int, ...]:
    """Whole numbers."""
    return tuple(_number(key, item) for item in _words(key, value))


def _number(key: str, item: Any) -> int:
    if isinstance(item, str) and item.isdigit():
        return int(item)
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    flag = key.replace("_", "-")
    raise ConfigError(f"--{flag}: {item!r} is no whole number; write for example 1,2,4")


def steps(key: str, value: Any) -> tuple[Steps, ...]:
    """Whole numbers, or auto."""
    found = _words(key, value)
    return tuple(s if s == "auto" else _number(key, s) for s in found)


def names(key: str, value: Any) -> tuple[str, ...]:
    """Plain words."""
    return tuple(str(item) for item in _words(key, value))


def grids(key: str, value: Any) -> tuple[Grid, ...]:
    """RxC each, or pairs."""
    return tuple(
        parse_grid(item) if isinstance(item, str) else (int(item[0]), int(item[1]))
        for item in _words(key, value)
    )


def _one(key: str, value: Any) -> int:
    return _number(key, value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"[study] {key} = {value!r} must be true or false")
    return value


def _word(key: str, value: Any) -> str:
    return str(value)


# the keys of [study] -> how each is understood
KEYS: dict[str, Callable[[str, Any], Any]] = {
    "kind": _word,
    "ranks": numbers,
    "methods": names,
    "steps": steps,
    "batch": numbers,
    "grids": grids,
    "precision": names,
    "repeats": _one,
    "seeds": numbers,
    "emulate_members": numbers,
    "batch_grows": _flag,
    "on": _word,
}
