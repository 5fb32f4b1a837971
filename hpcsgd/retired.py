"""Settings, and values of settings, that earlier versions had.

A file that a run wrote with one of them is read without it; a configuration that a
person writes is refused, because what it asks for does not happen.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

log = logging.getLogger("hpcsgd")
# (section, key) -> what takes its place.
RETIRED = {
    ("precision", "recheck"): "--precision auto chooses before the run; the gap monitor"
    " (--gap-every) and --fall-back watch it",
    ("run", "comm"): "ranks communicate through MPI (mpiexec, srun --mpi=pmi2 or pmix,"
    " or --ranks N)",
}


def without_retired(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file that a run wrote, without those that are retired.

    One log line names them.
    """
    retired = [
        (section, key)
        for section, key in RETIRED
        if isinstance(tables.get(section), Mapping)
        and key in tables[section]
        and _is_retired(section, key, tables[section][key])
    ]
    if not retired:
        return dict(tables)
    _log_once(", ".join(f"{section}.{key}" for section, key in retired))
    kept = dict(tables)
    for section, key in retired:
        kept[section] = {k: v for k, v in kept[section].items() if k != key}
    return kept


def why_retired(section: str, key: str, value: Any = None) -> str | None:
    """Return the sentence for a setting that is retired, None for any other."""
    if not _is_retired(section, key, value):
        return None
    name = f"{key} = {value!r}" if (section, key) == ("run", "comm") else key
    instead = RETIRED[section, key]
    return f"[{section}] {name} is no setting any more: {instead}; leave it out"


def _is_retired(section: str, key: str, value: Any) -> bool:
    """Whether a setting is retired, of which some are with certain values alone."""
    if (section, key) == ("run", "comm"):
        return isinstance(value, str) and (value == "tcp" or value.startswith("file:"))
    return (section, key) in RETIRED


@cache
def _log_once(names: str) -> None:
    log.info("settings of an earlier version are ignored: %s", names)
