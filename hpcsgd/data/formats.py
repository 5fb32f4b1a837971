"""Which format a file to convert has, and which options that format knows."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcsgd.data.source import SOURCES, Source, open_source
from hpcsgd.data.streams import open_file
from hpcsgd.errors import ConfigError

ENDINGS = {
    ".npy": "npy",
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".csv": "csv",
    ".tsv": "csv",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
}
PACKED = (".gz", ".bz2", ".xz")
SAMPLE = 65536
PAIRS = re.compile(rb"\s*[-+.\w]+(\s+(qid:)?\d+:[-+.\w]+)+\s*(#.*)?")
TABLE = re.compile(rb"[^,;\t]*([,;\t][^,;\t]*)+")


def guess_format(path: Path) -> str:
    """By the ending, or by the first lines of a text without one."""
    ending = path.suffix.lower()
    if ending in PACKED:
        ending = path.with_suffix("").suffix.lower()
        return ENDINGS.get(ending, "libsvm")
    if ending in ENDINGS:
        return ENDINGS[ending]
    with open_file(path, "a file of rows") as file:
        sample = file.read(SAMPLE)
    for line in sample.splitlines():
        if PAIRS.fullmatch(line):
            return "libsvm"
        if TABLE.fullmatch(line):
            return "csv"
    raise ConfigError(
        f"{path}: its format cannot be told from its name or its first lines; add"
        f" --format with one of {', '.join(SOURCES)}"
    )


def open_any(path: Path, kind: str, options: dict[str, Any]) -> Source:
    """The source, opened with those options that were given."""
    kind = guess_format(path) if kind == "auto" else kind
    given = {name: value for name, value in options.items() if value is not None}
    known = options_of(kind)
    for name in given:
        if name not in known:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} is not for {kind} files; known there:"
                f" {', '.join('--' + n.replace('_', '-') for n in known) or 'none'}"
            )
    return open_source(path, kind, **given)


def options_of(kind: str) -> list[str]:
    """What the constructor of a format's source takes beside the path."""
    module, attribute = SOURCES[kind].split(":")
    parameters = inspect.signature(getattr(import_module(module), attribute)).parameters
    return [name for name in parameters if name != "path"]
