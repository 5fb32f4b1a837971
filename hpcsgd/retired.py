"""Settings that earlier versions had.

A file that a run wrote with one of them is read without it; a configuration that a
person writes is refused, because what it asks for does not happen.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

log = logging.getLogger("hpcsgd")
# Section -> key -> what takes its place.
RETIRED = {
    "precision": {
        "recheck": "--precision auto chooses before the run; the gap monitor"
        " (--gap-every) and --fall-back watch it"
    },
}


def without_retired(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file that a run wrote, without those that are retired.

    One log line names them.
    """
    found = {
        name: sorted(set(keys) & set(tables[name]))
        for name, keys in RETIRED.items()
        if isinstance(tables.get(name), Mapping)
    }
    names = [f"{name}.{key}" for name, keys in found.items() for key in keys]
    if not names:
        return dict(tables)
    _log_once(", ".join(names))
    return {
        name: {k: v for k, v in table.items() if k not in found[name]}
        if name in found
        else table
        for name, table in tables.items()
    }


def why_retired(section: str, key: str) -> str | None:
    """Return the sentence for a setting that is retired, None for any other."""
    instead = RETIRED.get(section, {}).get(key)
    if instead is None:
        return None
    return f"[{section}] {key} is no setting any more: {instead}; leave it out"


@cache
def _log_once(names: str) -> None:
    log.info("settings of an earlier version are ignored: %s", names)
