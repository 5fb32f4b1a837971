"""What is known of a job in its folder: what was submitted, and what became of it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.files import open_entry, own_folder, read_entry_text
from hpcsgd.json_text import parse_json

LOG, SCRIPT, STATE = "jobs.jsonl", "job.sbatch", "state"
SCHEMA = 1


def add_record(folder: Path, event: str, **said: Any) -> dict[str, Any]:
    """Append one line to the jobs of a folder, whole and flushed to disk."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    record = {"schema": SCHEMA, "event": event, "at": at, **said}
    line = json.dumps(record, ensure_ascii=False) + "\n"
    try:
        number = open_entry(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(number, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        job = f", and job {said['job']} is not noted there" if "job" in said else ""
        raise ConfigError(
            f"{folder / LOG} cannot be written ({error.strerror}){job}; make room, or"
            " remove that entry"
        ) from error
    return record


def records(folder: Path) -> list[dict[str, Any]]:
    """Every line, oldest first."""
    try:
        text = read_entry_text(folder / LOG, "replace")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{folder} is not the folder of a job: it has no {LOG}; name what --out of"
            " hpcsgd jobs submit was"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{folder / LOG} cannot be read ({error.strerror}); bring the file back, or"
            " submit into another folder"
        ) from error
    return list(_objects(text))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that may still be written, or be missing."""
    with suppress(OSError):
        yield from _objects(read_entry_text(path, "replace"))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The lines that are whole, and objects."""
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            found = parse_json(line)
            if isinstance(found, dict):
                yield found


def submitted(folder: Path) -> list[dict[str, Any]]:
    """What was submitted from here, oldest first."""
    return [r for r in records(folder) if r.get("event") == "submitted"]


def notes(folder: Path, job: str) -> list[dict[str, Any]]:
    """What the script of a job, or of an element as 12_3, wrote of itself."""
    with suppress(OSError):
        return list(lines(own_folder(folder, STATE) / f"{job}.jsonl"))
    return []
