"""What the arguments of `fit` mean as a configuration."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError

Tables = dict[str, dict[str, Any]]


def laid_over(
    tables: Mapping[str, Mapping[str, Any]], more: Mapping[str, Any] | RunConfig | None
) -> Tables:
    """`tables` with every key of `more` instead of theirs."""
    if isinstance(more, RunConfig):
        more = more.tables()
    if more is not None and not isinstance(more, Mapping):
        raise ConfigError(
            f"config is of type {type(more).__name__}; write it as"
            " {'section': {'key': value}}, or give a RunConfig"
        )
    merged = {name: dict(table) for name, table in tables.items()}
    for name, table in (more or {}).items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"config has {name} = {table!r} outside a section; write it as"
                " {'section': {'key': value}}"
            )
        merged.setdefault(name, {}).update(table)
    return merged
