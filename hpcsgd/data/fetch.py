"""A file of the catalogue from its site: resumed where it broke off, then checked."""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hpcsgd.data.catalog import NONE, UNKNOWN, Card
from hpcsgd.errors import ConfigError, DataError

PIECE = 2**20
TIMEOUT = 30.0  # seconds of silence after which a site is given up


def fetch(card: Card, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """The card's file in `folder`; `progress` hears (bytes there, bytes in all or 0).

    What a broken transfer left is kept beside it as `.part` and gone on from.
    """
    if card.url == NONE:
        raise ConfigError(f"{card.name} is not fetched; make it with: {card.convert}")
    if not folder.is_dir():
        raise ConfigError(f"--out {folder} is no folder; make it, or name another")
    target = folder / card.file
    if not target.exists():
        part = folder / f".{card.file}.part"
        try:
            _download(card.url, part, progress)
        except OSError as error:  # what urllib raises is one too
            raise _elsewhere(card, target, error) from error
        _check(card, part)
        os.replace(part, target)
    else:
        _check(card, target)
    return target


def sha256(path: Path) -> str:
    """Of a file of any size."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(url: str, part: Path, progress: Callable[[int, int], None]) -> None:
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url)
    if there:
        request.add_header("Range", f"bytes={there}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if there and error.code == 416:  # nothing is left to send
            return
        raise
    with answer:
        if answer.status != 206:  # the site sends all of it again
            there = 0
        length = int(answer.headers.get("Content-Length") or 0)
        whole = there + length if length else 0
        with open(part, "ab" if there else "wb") as file:
            _copy(answer, file, there, whole, progress)
            if whole and file.tell() < whole:
                raise ConnectionError(f"{file.tell()} of {whole} bytes came")


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


def _check(card: Card, path: Path) -> None:
    """Refuse a file that is not the one of the card."""
    if card.sha256 == UNKNOWN:
        return
    found = sha256(path)
    if found != card.sha256:
        raise DataError(
            f"{path} has SHA-256 {found} and the catalogue says {card.sha256};"
            " remove it and fetch it again"
        )


def _elsewhere(card: Card, target: Path, error: OSError) -> DataError:
    """One sentence that helps where there is no internet."""
    reason = getattr(error, "reason", None) or error.strerror or error
    checksum = (
        "its checksum is not known"
        if card.sha256 == UNKNOWN
        else f"its SHA-256 is {card.sha256}"
    )
    return DataError(
        f"{card.url} cannot be fetched ({reason}); fetch it where there is internet and"
        f" put it at {target}, {checksum}"
    )
