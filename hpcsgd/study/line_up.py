"""Methods by name, as settings to compare: the same ranks, rows and global batch."""

from collections.abc import Sequence
from math import lcm
from typing import Any

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.study.checks import check_steps
from hpcsgd.study.methods import OWN, ROWS, Grid, Method, Tables, unknown
from hpcsgd.study.settings import Entry, Refusal, Setting

Names = str | Sequence[str]
ALL = "all"
LINE_UP: dict[str, Method] = {
    **{name: OWN[name] for name in ("sgd", "casgd", "hybrid")},
    **ROWS,
}
# What a method decides, section.key -> the flag.
DECIDED = {
    "grid.replicas": "--grid",
    "grid.members": "--grid",
    "agreement.method": "--method",
    "agreement.kind": "--agreement",
    "agreement.codec": "--codec",
    "agreement.accumulate": "it",
}


def parse_methods(names: Names) -> list[str]:
    """The names in the order of the table, each once; "all" is every one.

    >>> parse_methods("ddp,sgd")
    ['sgd', 'ddp']
    """
    if isinstance(names, str):
        names = [word.strip() for word in names.split(",") if word.strip()]
    known = (ALL, *LINE_UP)
    for name in names:
        if name not in known:
            raise unknown(name, known)
        if list(names).count(name) > 1:
            raise ConfigError(f"--methods has {name} twice; give each name once")
    if not names:
        raise ConfigError("--methods names nothing; write --methods all, or a,b,c")
    return [name for name in LINE_UP if ALL in names or name in names]


def line_up(names: Names, base: Tables, ranks: int) -> list[Entry]:
    """A setting for each method on so many ranks, or why there is none.

    `base` is what all share, as for `train`, but its batch is that of all replicas.
    """
    chosen = parse_methods(names)
    _check_base(base)
    batch = RunConfig.parse(base).schedule.batch
    grids = {name: LINE_UP[name].grids(ranks)[:1] for name in chosen}
    _check_batch(batch, [grid for found in grids.values() for grid in found])
    return [
        _setting(name, base, grid[0], batch) if grid else Refusal(name, _no_grid(ranks))
        for name, grid in grids.items()
    ]


def _check_base(base: Tables) -> None:
    """Refuse what methods decide, and what learns nothing."""
    for setting, flag in DECIDED.items():
        section, key = setting.split(".")
        if key in base.get(section, {}):
            raise ConfigError(
                f"--methods decides {setting} for each method; leave {flag} out, or"
                " write such a row as --setting 'NAME: key=value'"
            )
    if base.get("run", {}).get("emulate_members"):
        raise ConfigError(
            "--methods compares losses and --emulate-members learns nothing; leave it"
            " out, or use hpcsgd study"
        )


def _check_batch(batch: int, grids: Sequence[Grid]) -> None:
    """All methods see as many rows in a step, so replicas must share them evenly."""
    share = lcm(*(replicas for replicas, _ in grids))
    if batch % share:
        raise ConfigError(
            f"{share} replicas cannot share a global batch of {batch} evenly, which"
            f" --batch is with --methods; use --batch {-(-batch // share) * share}, or"
            " other ranks"
        )


def _no_grid(ranks: int) -> str:
    of = f"of {ranks} rank{'' if ranks == 1 else 's'}"
    return (
        f"{of} there is no grid of several replicas with several members each; use 4,"
        " 6, 8 or another number that is not prime"
    )


def _setting(name: str, base: Tables, grid: Grid, batch: int) -> Entry:
    """Of one method; what its own settings do not allow is its refusal."""
    method, (replicas, members) = LINE_UP[name], grid
    try:
        own: dict[str, dict[str, Any]] = {
            **method.shares(batch, replicas, base),
            "grid": {"replicas": replicas, "members": members},
        }
        tables = method.tables(_without_steps(base) if method.sums_each else base, own)
        config = RunConfig.parse(tables)
        check_steps(name, method, grid, config)
    except ConfigError as error:
        return Refusal(name, str(error))
    return Setting(name, config, is_method=True)


def _without_steps(base: Tables) -> Tables:
    """`base` for a method that has one step in an exchange, whatever is asked."""
    tables = {section: dict(table) for section, table in base.items()}
    tables.get("schedule", {}).pop("steps", None)
    return tables
