"""The catalogue of public data sets, and how they are fetched."""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from hpcsgd import files
from hpcsgd.errors import ConfigError, DataError, did_you_mean
from hpcsgd.files import parse_toml

# The catalogue: data sets that studies use, where they are, how to convert them.

UNKNOWN = "unknown"
NONE = "none"
TASKS = ("binary", "counts", "real", "classes", "positive")


# The keys of an entry, in the order in which a card shows them.
KEYS = (
    *("title", "rows", "test_rows", "columns", "task", "density", "form", "source"),
    *("url", "licence", "bytes", "sha256", "convert", "citation"),
)


@dataclass(frozen=True)
class DataShape:
    """The size and the layout of a data set.

    Attributes
    ----------
    rows : int
        Number of rows.
    test_rows : int
        Number of rows of a separate test set; 0 if there is none.
    columns : int
        Number of columns.
    density : float
        Share of the values that are not 0.
    form : str
        The form of rows and labels in words, such as "dense; labels 0 and 1".
    """

    rows: int
    test_rows: int
    columns: int
    density: float
    form: str


@dataclass(frozen=True)
class DataFile:
    """The file of a data set at its address.

    Attributes
    ----------
    url : str
        Address of the file; "none" for data that hpcsgd generates.
    bytes : int or str
        Size of the file, or "unknown".
    sha256 : str
        SHA-256 of the file in hexadecimal digits, or "unknown".
    """

    url: str
    bytes: int | str
    sha256: str

    @property
    def name(self) -> str:
        """Return the name of the file, the last part of its address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Card:
    """The facts about a data set; "unknown" where no value is stated or checked.

    Attributes
    ----------
    name : str
        Name of the data set in the catalogue.
    title : str
        Name of the data set, as its source writes it.
    shape : DataShape
        Size and layout of the data set.
    task : str
        Kind of the labels, one of `TASKS`.
    source : str
        Who published the data, and where.
    file : DataFile
        The file and its address.
    licence : str
        Licence of the data.
    convert : str
        Command that converts the file, or that generates the data.
    citation : str
        Publication to cite.
    """

    name: str
    title: str
    shape: DataShape
    task: str
    source: str
    file: DataFile
    licence: str
    convert: str
    citation: str

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON, those of `shape` and `file` beside the others."""
        facts = asdict(self)
        facts |= facts.pop("shape")
        facts |= facts.pop("file")
        return {key: facts[key] for key in ("name", *KEYS)}


def load_catalogue(path: Path | None = None) -> dict[str, Card]:
    """Return the checked cards of the catalogue at `path`, by name."""
    path = path or files.asset_path("data/catalog.toml")
    try:
        tables = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"the catalogue {path} cannot be read ({error}); restore that file or"
            " install hpcsgd again"
        ) from error
    return {name: _card(name, table) for name, table in tables.items()}


def get_card(name: str) -> Card:
    """Return the card called `name`, in upper or lower case; else raise ConfigError."""
    cards = load_catalogue()
    if name.lower() not in cards:
        hint = did_you_mean(name, cards)
        raise ConfigError(
            f"no data set is called {name!r}{hint}; known: {', '.join(cards)}"
        )
    return cards[name.lower()]


def _card(name: str, table: dict[str, Any]) -> Card:
    if set(table) != set(KEYS):
        odd = sorted(set(KEYS) ^ set(table))
        raise DataError(
            f"the catalogue entry [{name}] lacks keys or has unknown ones: {odd};"
            " correct that entry"
        )
    _check_entry(name, table)
    facts = dict(table)
    shape = DataShape(**{f.name: facts.pop(f.name) for f in fields(DataShape)})
    file = DataFile(**{f.name: facts.pop(f.name) for f in fields(DataFile)})
    return Card(name=name, shape=shape, file=file, **facts)


def _check_entry(name: str, table: dict[str, Any]) -> None:
    """Raise DataError if a key of the entry has an impossible value."""
    sound = {
        "rows": _is_count(table["rows"], 1),
        "test_rows": _is_count(table["test_rows"], 0),
        "columns": _is_count(table["columns"], 1),
        "task": table["task"] in TASKS,
        "density": isinstance(table["density"], float) and 0 < table["density"] <= 1,
        "bytes": table["bytes"] == UNKNOWN or _is_count(table["bytes"], 1),
        "sha256": table["sha256"] == UNKNOWN or _is_digest(table["sha256"]),
        "url": table["url"] == NONE or table["url"].startswith(("https://", "http://")),
        "convert": table["convert"].startswith("hpcsgd data "),
    }
    for key, holds in sound.items():
        if not holds:
            raise DataError(
                f"the catalogue entry [{name}] has {key} = {table[key]!r}, which is not"
                " a valid value; correct that entry"
            )


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_digest(value: str) -> bool:
    return len(value) == 64 and set(value) <= set("0123456789abcdef")


# Downloads of the files of the catalogue: resumed after a failure, then checked.

PIECE = 2**20
TIMEOUT = 30.0  # seconds of silence after which a site is given up


def fetch(card: Card, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """Download the card's file to `folder`, unless it exists; return its checked path.

    `progress` is called with (bytes received, bytes in all or 0 if unknown). An
    interrupted transfer leaves a hidden `.part` file, from which the next call resumes.
    """
    if card.file.url == NONE:
        raise ConfigError(
            f"{card.name} cannot be fetched, because hpcsgd generates this data set;"
            f" generate it with: {card.convert}"
        )
    if not folder.is_dir():
        raise ConfigError(f"--out {folder} is no folder; make it, or name another")
    target = folder / card.file.name
    if not target.exists():
        part = folder / f".{card.file.name}.part"
        try:
            _download(card.file.url, part, progress)
        except OSError as error:  # what urllib raises is one too
            raise _elsewhere(card, target, error) from error
        _check_sum(card, part)
        os.replace(part, target)
    else:
        _check_sum(card, target)
    return target


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(url: str, part: Path, progress: Callable[[int, int], None]) -> None:
    offset = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url)
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if offset and error.code == 416:  # nothing is left to send
            return
        raise
    with answer:
        if answer.status != 206:  # the site sends all of it again
            offset = 0
        length = int(answer.headers.get("Content-Length") or 0)
        whole = offset + length if length else 0
        with open(part, "ab" if offset else "wb") as file:
            _copy(answer, file, offset, whole, progress)
            if whole and file.tell() < whole:
                raise ConnectionError(
                    f"the transfer ended after {file.tell()} of {whole} bytes"
                )


def _copy(
    answer: Any,
    file: IO[bytes],
    there: int,
    whole: int,
    progress: Callable[[int, int], None],
) -> None:
    while piece := answer.read(PIECE):
        file.write(piece)
        there += len(piece)
        progress(there, whole)


def _check_sum(card: Card, path: Path) -> None:
    """Raise DataError if the SHA-256 of the file is not that of the card."""
    if card.file.sha256 == UNKNOWN:
        return
    digest = sha256(path)
    if digest != card.file.sha256:
        raise DataError(
            f"{path} has SHA-256 {digest} and the catalogue says {card.file.sha256};"
            " remove it and fetch it again"
        )


def _elsewhere(card: Card, target: Path, error: OSError) -> DataError:
    """Return the error of a failed download, with address, reason and remedy."""
    reason = getattr(error, "reason", None) or error.strerror or error
    checksum = (
        "its checksum is not known"
        if card.file.sha256 == UNKNOWN
        else f"its SHA-256 is {card.file.sha256}"
    )
    return DataError(
        f"{card.file.url} cannot be fetched ({reason}); check the network and the room"
        f" in the folder, or download it elsewhere and copy it to {target} ({checksum})"
    )
