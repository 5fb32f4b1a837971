"""What a configuration file has chosen, of all that it lists."""

from collections.abc import Mapping
from typing import Any

from hpcsgd.methods import METHODS

Tables = Mapping[str, Mapping[str, Any]]


def chosen(tables: Tables) -> Tables:
    """`tables` without defaults that would be in the way of a method.

    `hpcsgd new` lists every setting. In a file that lists an empty method a default is
    no choice, so that --method can still make it; in one that names a method, those
    that this method fixes are none.
    """
    from hpcsgd.config import RunConfig

    agreement = tables.get("agreement", {})
    name = agreement.get("method") if isinstance(agreement, Mapping) else None
    if name is None or (name and name not in METHODS):
        return tables
    usual = RunConfig().tables()

    def is_default(section: str, key: str, value: Any) -> bool:
        is_open = not name or f"{section}.{key}" in METHODS[name].fixed
        return is_open and usual.get(section, {}).get(key, tables) == value

    return {
        section: {k: v for k, v in table.items() if not is_default(section, k, v)}
        if isinstance(table, Mapping)
        else table
        for section, table in tables.items()
    }
