"""Settings that all rows of a comparison share, and each row those that it reads.

`--set codec.share=0.05` is about the rows that have a share: for the others it would be
a setting that does nothing, or that is refused. What no row reads stays where it is,
and is said or refused as in a run.
"""

from collections.abc import Sequence
from dataclasses import replace

from hpcsgd.assembly.unread import all_given, unread
from hpcsgd.config import RunConfig
from hpcsgd.study.settings import Entry, Setting


def each_its_own(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, without what others read and they do not."""
    settings = [one for one in entries if isinstance(one, Setting)]
    read = {name for one in settings for name in _read(one.config)}
    return [_with_own(one, read) for one in entries]


def _read(config: RunConfig) -> set[str]:
    return set(all_given(config)) - set(unread(config))


def _with_own(entry: Entry, read: set[str]) -> Entry:
    if not isinstance(entry, Setting):
        return entry
    idle = read & set(unread(entry.config))
    return replace(entry, config=_without(entry.config, idle)) if idle else entry


def _without(config: RunConfig, names: set[str]) -> RunConfig:
    tables = config.tables()
    for name in names:
        section, key = name.split(".")
        del tables[section][key]
    return RunConfig.parse(tables)
