"""What is known of a job in its folder: what was submitted, and what became of it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError

LOG, SCRIPT, STATE = "jobs.jsonl", "job.sbatch", "state"
SCHEMA = 1


def add_record(folder: Path, event: str, **said: Any) -> dict[str, Any]:
    """Append one line to the jobs of a folder, whole and flushed to disk."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    record = {"schema": SCHEMA, "event": event, "at": at, **said}
    line = json.dumps(record, ensure_ascii=False) + "\n"
    with open(folder / LOG, "a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return record


def records(folder: Path) -> list[dict[str, Any]]:
    """Every line, oldest first."""
    if not (folder / LOG).is_file():
        raise ConfigError(
            f"{folder} is not the folder of a job: it has no {LOG}; name what --out of"
            " hpcsgd jobs submit was"
        )
    return list(lines(folder / LOG))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that may still be written, or be missing."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found


def submitted(folder: Path) -> list[dict[str, Any]]:
    """What was submitted from here, oldest first."""
    return [r for r in records(folder) if r.get("event") == "submitted"]


def notes(folder: Path, job: str) -> list[dict[str, Any]]:
    """What the script of a job, or of an element as 12_3, wrote of itself."""
    return list(lines(folder / STATE / f"{job}.jsonl"))
